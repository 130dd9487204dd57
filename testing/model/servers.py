"""Shared state of all clients: the bookies and the metadata service, with their faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bookstand import errors
from bookstand.testing.model.values import (
    CLOSED,
    INCORRECT_PARAMETER,
    METADATA_VERSION,
    NO_SUCH_ENTRY,
    NO_SUCH_LEDGER,
    NO_SUCH_LEDGER_ON_BOOKIE,
    OK,
    OPEN,
    error,
)


@dataclass(frozen=True)
class Stored:
    """Stored entry."""

    lac: int
    cumulative_length: int
    data: bytes
    size: int  # including header and digest


@dataclass
class Bookie:
    """Storage of one ledger. It remains after the ledger's metadata is deleted, until the id is reused."""

    generation: int = 0
    entries: dict[int, Stored] = field(default_factory=dict)
    fenced: bool = False
    explicit_lac: int = -1
    known_lac: int = -1  # highest LAC received, in the header of an add or explicitly

    @property
    def heard_of(self) -> bool:
        return bool(self.entries) or self.fenced or self.explicit_lac >= 0

    def newest(self) -> Stored | None:
        """Return the entry with the highest id, which bookies return as the last one."""
        return self.entries[max(self.entries)] if self.entries else None


@dataclass(frozen=True)
class Metadata:
    ledger_id: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: str | None
    password: bytes | None
    custom_metadata: dict[str, bytes]
    format_version: int
    state: str = OPEN
    last_entry_id: int = -1
    length: int = 0
    version: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state == CLOSED

    def replace(self, **changes: Any) -> Metadata:
        """Return changed metadata. Only closed ledgers have an end, so reopening one must reset it explicitly."""
        reopens = self.is_closed and changes.get("state", CLOSED) != CLOSED
        if reopens and not {"last_entry_id", "length"} <= set(changes):
            raise error(INCORRECT_PARAMETER)
        return replace(self, **changes)

    @property
    def has_password(self) -> bool:
        return self.password is not None

    @property
    def has_ctime(self) -> bool:
        return self.format_version >= 2

    @property
    def ensembles(self) -> tuple[tuple[int, int], ...]:
        """First entry and size of each ensemble; there is only one, because the one machine never fails."""
        return ((0, self.ensemble_size),)


class Watcher(Protocol):
    """Open reader that is notified of new metadata."""

    id: int
    watching: bool

    def adopt(self, metadata: Metadata) -> None: ...


class OpenWriter(Protocol):
    """Open writer."""

    def tell_explicit_lac(self) -> None: ...

    def client_closed(self) -> None: ...


class Servers:
    """The metadata service, and one machine for all bookies."""

    def __init__(self, bookies: int = 3) -> None:
        self.bookies = bookies
        self.metadata: dict[int, Metadata] = {}
        self.ledgers: dict[int, Bookie] = {}
        self.readers: list[Watcher] = []
        self.writers: list[OpenWriter] = []
        self.next_id = 0
        # Faults, as functions that tests can replace. They return BookKeeper's codes; OK means no fault.
        self.hold: Callable[[int, int], str | None] = lambda ledger, entry: None  # "add", "ack" or None
        self.add_fault: Callable[[int, int], int] = lambda ledger, entry: OK
        self.read_fault: Callable[[int, int], int] = lambda ledger, entry: OK
        self.read_lac_fault: Callable[[int], int] = lambda ledger: OK
        self.fence_fault: Callable[[int], int] = lambda ledger: OK
        self.held: list[Callable[[], None]] = []

    def release(self) -> None:
        """Resume all held operations in order."""
        self.hold = lambda ledger, entry: None
        held, self.held = self.held, []
        for go_on in held:
            go_on()

    def tell_explicit_lacs(self) -> None:
        """Send the explicit LACs of all writers, as clients with an explicit LAC interval do in the background."""
        for writer in self.writers:
            writer.tell_explicit_lac()

    # -- metadata

    def get(self, ledger_id: int | None) -> Metadata:
        if ledger_id is None or ledger_id not in self.metadata:
            raise error(NO_SUCH_LEDGER)
        return self.metadata[ledger_id]

    def put(self, metadata: Metadata, expected_version: int | None) -> Metadata:
        """Compare and set. Watching readers are notified of the new value."""
        current = self.get(metadata.ledger_id)
        if expected_version is not None and expected_version != current.version:
            raise error(METADATA_VERSION)
        written = replace(metadata, version=current.version + 1)
        self.metadata[metadata.ledger_id] = written
        for reader in self.readers:
            if reader.id == metadata.ledger_id and reader.watching:
                reader.adopt(written)
        return written

    # -- bookies

    def read_entry(self, ledger_id: int, entry_id: int) -> Stored:
        bookie = self.ledgers[ledger_id]
        if not bookie.heard_of:
            raise error(NO_SUCH_LEDGER_ON_BOOKIE)
        if entry_id not in bookie.entries:
            raise error(NO_SUCH_ENTRY)
        fault = self.read_fault(ledger_id, entry_id)
        if fault != OK:
            raise error(fault)
        return bookie.entries[entry_id]

    def read_newest(self, ledger_id: int) -> Stored | None:
        """Return the newest entry; None if there is none, which is not an error here. Other failures are raised."""
        bookie = self.ledgers[ledger_id]
        if not bookie.entries:
            return None
        try:
            return self.read_entry(ledger_id, max(bookie.entries))
        except errors.LedgerError as failure:
            if failure.code in (NO_SUCH_ENTRY, NO_SUCH_LEDGER_ON_BOOKIE):
                return None
            raise
