"""The part of a client that open ledgers use."""

from __future__ import annotations

from bookstand.testing.model.servers import OpenWriter, Servers
from bookstand.testing.model.values import CLIENT_CLOSED, DEFAULT_FRAME_BYTES, error


class Session:
    """Settings of a client, and whether it is closed. Intervals are in seconds."""

    def __init__(
        self,
        cluster: Servers,
        wire: str = "v3",
        digest_autodetect: bool = True,
        metadata_format: int = 3,
        max_entry_bytes: int = DEFAULT_FRAME_BYTES,
        explicit_lac_interval: float | None = None,
        add_quorum_timeout: float | None = None,
    ) -> None:
        self.cluster = cluster
        self.wire = wire
        self.digest_autodetect = digest_autodetect
        self.metadata_format = metadata_format
        self.max_entry_bytes = max_entry_bytes
        self.explicit_lac_interval = explicit_lac_interval
        self.add_quorum_timeout = add_quorum_timeout
        self.closed = False
        self.writers: list[OpenWriter] = []

    @property
    def v3(self) -> bool:
        return self.wire == "v3"

    def check_open(self) -> None:
        if self.closed:
            raise error(CLIENT_CLOSED)

    def close(self) -> None:
        """Fail pending adds with -19. Ledgers are not closed."""
        self.closed = True
        for writer in self.writers:
            writer.client_closed()
