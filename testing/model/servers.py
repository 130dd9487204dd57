"""What clients share: the bookies and the metadata service, and their faults."""

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
    """An entry as a bookie has it."""

    lac: int
    cumulative_length: int
    data: bytes
    size: int  # with header and digest


@dataclass
class Bookie:
    """What the storage side has of one ledger. It outlives the ledger's metadata until the id is used again."""

    generation: int = 0
    entries: dict[int, Stored] = field(default_factory=dict)
    fenced: bool = False
    explicit_lac: int = -1
    known_lac: int = -1  # the highest LAC in the header of any add, or told explicitly

    @property
    def heard_of(self) -> bool:
        return bool(self.entries) or self.fenced or self.explicit_lac >= 0

    def newest(self) -> Stored | None:
        """The entry with the highest id: what a bookie gives when asked for the last one."""
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
        """A ledger has an end if and only if it is closed, so who reopens one must say that the end goes."""
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
        """First entry and size of each; one machine never replaces a bookie."""
        return ((0, self.ensemble_size),)


class Watcher(Protocol):
    """Who may want to hear of new metadata: an open ledger that is read."""

    id: int
    watching: bool

    def adopt(self, metadata: Metadata) -> None: ...


class OpenWriter(Protocol):
    """An open ledger that is written to."""

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
        # Faults, all functions so that a test can put anything in their place. The codes are BookKeeper's; OK is none.
        self.hold: Callable[[int, int], str | None] = lambda ledger, entry: None  # "add", "ack" or None
        self.add_fault: Callable[[int, int], int] = lambda ledger, entry: OK
        self.read_fault: Callable[[int, int], int] = lambda ledger, entry: OK
        self.read_lac_fault: Callable[[int], int] = lambda ledger: OK
        self.fence_fault: Callable[[int], int] = lambda ledger: OK
        self.held: list[Callable[[], None]] = []

    def release(self) -> None:
        """Let everything held go on, in the order it came."""
        self.hold = lambda ledger, entry: None
        held, self.held = self.held, []
        for go_on in held:
            go_on()

    def tell_explicit_lacs(self) -> None:
        """What the background of a client with an explicit LAC interval does, once it had time."""
        for writer in self.writers:
            writer.tell_explicit_lac()

    # -- metadata

    def get(self, ledger_id: int | None) -> Metadata:
        if ledger_id is None or ledger_id not in self.metadata:
            raise error(NO_SUCH_LEDGER)
        return self.metadata[ledger_id]

    def put(self, metadata: Metadata, expected_version: int | None) -> Metadata:
        """Compare and set. Readers that watch the ledger see the new value."""
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
        """The newest entry, None if there is none. "Not there" is an answer like any other; other failures count."""
        bookie = self.ledgers[ledger_id]
        if not bookie.entries:
            return None
        try:
            return self.read_entry(ledger_id, max(bookie.entries))
        except errors.LedgerError as failure:
            if failure.code in (NO_SUCH_ENTRY, NO_SUCH_LEDGER_ON_BOOKIE):
                return None
            raise
