"""Changes of the store: operations that are checked and applied as one.

Every operation has an ``apply(staging)`` that reads and writes through a :class:`Staging`. A staging is one change's
view inside a write transaction: what it stages is seen by the operations after it, and reaches the transaction only
when all of them have passed. An operation that raises refuses its whole change, and only that.

Operations on entries are in :mod:`bookstand.storage.entry_changes`, on ledgers in
:mod:`bookstand.storage.ledger_changes`, on nodes in :mod:`bookstand.storage.node_changes`.
"""

from __future__ import annotations

from bookstand.errors import MetadataVersionError, StoreDamagedError
from bookstand.storage import copies, keys, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from bookstand.storage.batch import Encoded
    from bookstand.storage.copies import LedgerCopy
    from bookstand.storage.state import LedgerState

    class Operation(Protocol):
        """One step of a change."""

        def apply(self, staging: Staging) -> Any:
            """Check, stage, and return the operation's result; or raise, and nothing of the change happens."""

    class View(Protocol):
        """The write transaction as stagings see it."""

        def get(self, database: bytes, key: bytes) -> bytes | None: ...
        def state(self, ledger_id: int) -> LedgerState | None: ...
        def entry_keys(self, ledger_id: int, limit: int) -> list[bytes]: ...
        def copy_keys(self, ledger_id: int, limit: int) -> list[bytes]: ...


ANY_VERSION = None
MUST_NOT_EXIST = -1


class Change:
    """Operations that happen together or not at all."""

    __slots__ = ("operations",)

    def __init__(self, *operations: Operation) -> None:
        self.operations = operations


class TakesSpace:
    """Operations that a full store refuses. Deleting, collecting, fencing and closing stay possible: they are the way
    out."""

    __slots__ = ()


class Staging:
    """What one change has written so far, over the view of the transaction."""

    __slots__ = ("_view", "entries", "marks", "removed_entries", "single_entries", "states", "writes")

    def __init__(self, view: View) -> None:
        self._view = view
        self.writes: dict[tuple[bytes, bytes], bytes | None] = {}
        self.states: dict[int, LedgerState | None] = {}
        self.entries: list[Encoded] = []
        # Those that come one by one, by their keys.
        self.single_entries: dict[bytes, bytes] = {}
        # Of bookies' copies; None: the mark is taken away.
        self.marks: dict[bytes, bytes | None] = {}
        self.removed_entries: list[bytes] = []

    def get(self, database: bytes, key: bytes) -> bytes | None:
        if (database, key) in self.writes:
            return self.writes[database, key]
        return self._view.get(database, key)

    def put(self, database: bytes, key: bytes, value: bytes | None) -> None:
        self.writes[database, key] = value

    def state(self, ledger_id: int) -> LedgerState | None:
        """The ledger's state, ready to be changed."""
        if ledger_id not in self.states:
            current = self._view.state(ledger_id)
            self.states[ledger_id] = None if current is None else current.copy()
        return self.states[ledger_id]

    def merge(self, inner: Staging) -> None:
        """Take over what a staging over this one has staged: a step of a change that may fail by itself."""
        self.writes.update(inner.writes)
        self.states.update(inner.states)
        self.entries += inner.entries
        self.single_entries.update(inner.single_entries)
        self.marks.update(inner.marks)
        self.removed_entries += inner.removed_entries

    def sums_changed(self) -> list[int]:
        """What has been staged changes the sums of seals by so much (they are XORs)."""
        changed = dict.fromkeys(keys.META_SUMS, 0)
        for (database, key), value in self.writes.items():
            if database in changed:
                changed[database] ^= record.seal_of(self._view.get(database, key)) ^ record.seal_of(value)
        return list(changed.values())

    def versioned(self, database: bytes, key: bytes) -> tuple[bytes, int] | None:
        sealed = self.get(database, key)
        return None if sealed is None else record.unseal_versioned(database, key, sealed)

    def entry(self, key: bytes) -> bytes | None:
        stored = self._view.get(keys.ENTRIES, key) or self.single_entries.get(key)
        if stored is not None:
            return stored
        pairs = (pair for encoded in self.entries for pair in encoded.pairs())
        return next((staged for staged_key, staged in pairs if staged_key == key), None)

    def has_entry(self, key: bytes) -> bool:
        return self.entry(key) is not None

    def entry_keys(self, ledger_id: int, limit: int) -> list[bytes]:
        return self._view.entry_keys(ledger_id, limit)

    def copy_keys(self, ledger_id: int, limit: int) -> list[bytes]:
        return self._view.copy_keys(ledger_id, limit)

    def mark(self, key: bytes) -> bytes | None:
        """What tells a bookie's copy of an entry apart from the store's."""
        return self.marks[key] if key in self.marks else self._view.get(keys.COPIES, key)

    def copy(self, ledger_id: int, bookie: int) -> LedgerCopy | None:
        """What a bookie knows of a ledger, ready to be changed and put back."""
        key = keys.COPY_LEDGER.pack(ledger_id, bookie)
        sealed = self.get(keys.COPIES, key)
        return None if sealed is None else copies.unpack(keys.copy_name(key), record.unseal(keys.COPIES, key, sealed))

    def put_copy(self, ledger_id: int, bookie: int, copy: LedgerCopy) -> None:
        key = keys.COPY_LEDGER.pack(ledger_id, bookie)
        self.put(keys.COPIES, key, record.seal(key, copy.pack()))

    def next_number(self, name: bytes) -> int:
        sealed = self.get(keys.META, name)
        if sealed is None:
            raise StoreDamagedError(f"{record.describe(keys.META, name)} is missing")
        counter = record.unseal(keys.META, name, sealed)
        number = int.from_bytes(counter, "big")
        if len(counter) != keys.COUNTER_BYTES or number > keys.MAX_LEDGER_ID + 1:
            raise StoreDamagedError(
                f"{record.describe(keys.META, name)} is damaged: {counter.hex()} is no number of its"
            )
        self.put(keys.META, name, record.seal(name, (number + 1).to_bytes(keys.COUNTER_BYTES, "big")))
        return number


def version_conflict(what: str, found: int, expected: int) -> MetadataVersionError:
    if found == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} does not exist, but version {expected} was expected")
    if expected == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} exists already, with version {found}")
    return MetadataVersionError(f"{what} has version {found}, not {expected}")
