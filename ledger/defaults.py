"""Defaults for creating and opening ledgers."""

from __future__ import annotations


class LedgerDefaults:
    """Defaults of a store's ledgers, passed as ``bookstand.open(path, defaults=…)``.

    Args:
        ensemble: Number of bookies that a ledger's entries are striped over. It is recorded in the metadata only.
        write_quorum: Number of copies of each entry. It is recorded in the metadata only.
        ack_quorum: Number of copies required for an acknowledgment. It is recorded in the metadata only.
        digest: ``"crc32c"``, ``"crc32"``, ``"hmac"`` or ``"dummy"``, which protects nothing.
        password: Required to write to, read or recover a ledger. With None, each creation must pass a password.
        recovery: Open ledgers with recovery, which fences their writers.
    """

    __slots__ = ("ack_quorum", "digest", "ensemble", "password", "recovery", "write_quorum")

    def __init__(
        self,
        *,
        ensemble: int = 1,
        write_quorum: int = 1,
        ack_quorum: int = 1,
        digest: str = "crc32c",
        password: bytes | None = b"",
        recovery: bool = True,
    ) -> None:
        self.ensemble = ensemble
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.digest = digest
        self.password = password
        self.recovery = recovery


defaults = LedgerDefaults()

# The defaults of BookKeeper's client.
bookkeeper_defaults = LedgerDefaults(
    ensemble=3, write_quorum=2, ack_quorum=2, digest="crc32", password=None, recovery=False
)
