"""Operations on the store, and how a change made of several is checked and applied as one.

Every operation has an ``apply(staging)`` that reads and writes through a :class:`Staging`. A staging is one change's
view inside a write transaction: what it stages is seen by the operations after it, and reaches the transaction only
when all of them have passed. An operation that raises refuses its whole change, and only that.
"""

from __future__ import annotations

from bookstand.errors import (
    LedgerExistsError,
    LedgerFencedError,
    LedgerIdOverflowError,
    MetadataVersionError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StoreDamagedError,
    WriteError,
)
from bookstand.storage import copies, keys, record, state
from bookstand.storage.batch import Encoded, encode_entries
from bookstand.storage.entry import encode
from bookstand.storage.state import LedgerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from bookstand.storage.batch import Sizes
    from bookstand.storage.copies import LedgerCopy
    from bookstand.storage.digest import Digest

    class Operation(Protocol):
        """One step of a change."""

        def apply(self, staging: Staging) -> Any:
            """Check, stage, and return the operation's result; or raise, and nothing of the change happens."""

    class View(Protocol):
        """The write transaction as stagings see it."""

        def get(self, database: bytes, key: bytes) -> bytes | None: ...
        def get_many(self, database: bytes, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes]]: ...
        def state(self, ledger_id: int) -> LedgerState | None: ...
        def entry_keys(self, ledger_id: int, limit: int | None) -> list[bytes]: ...
        def copy_keys(self, ledger_id: int, limit: int | None) -> list[bytes]: ...


ANY_VERSION = None
MUST_NOT_EXIST = -1


class Staging:
    """What one change has written so far, over the view of the transaction."""

    __slots__ = ("_view", "entries", "is_news", "marks", "removed_entries", "states", "writes")

    def __init__(self, view: View) -> None:
        self._view = view
        self.writes: dict[tuple[bytes, bytes], bytes | None] = {}
        self.states: dict[int, LedgerState | None] = {}
        self.entries: list[Encoded] = []
        # Of bookies' copies; None: the mark is taken away.
        self.marks: dict[bytes, bytes | None] = {}
        self.removed_entries: list[bytes] = []
        # Whether a server of the store is to be told of it; of what it writes itself it is not.
        self.is_news = True

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
        self.marks.update(inner.marks)
        self.removed_entries += inner.removed_entries

    def versioned(self, database: bytes, key: bytes) -> tuple[bytes, int] | None:
        sealed = self.get(database, key)
        return None if sealed is None else record.unseal_versioned(database, key, sealed)

    def entries_among(self, wanted: Sequence[bytes]) -> dict[bytes, bytes]:
        """By their keys those entries that are there; in the order of the keys, unless some were staged here."""
        found = dict(self._view.get_many(keys.ENTRIES, wanted))
        if self.entries:
            staged = dict(pair for encoded in self.entries for pair in encoded.pairs())
            found.update({key: staged[key] for key in wanted if key in staged})
        return found

    def marks_among(self, wanted: Sequence[bytes]) -> dict[bytes, bytes]:
        """By their keys the marks that tell a bookie's copies of entries apart from the store's."""
        found: dict[bytes, bytes | None] = dict(self._view.get_many(keys.COPIES, wanted))
        if self.marks:
            found.update({key: self.marks[key] for key in wanted if key in self.marks})
        return {key: mark for key, mark in found.items() if mark is not None}

    def get_many(self, database: bytes, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """For a staging over this one."""
        found = self.entries_among(wanted) if database == keys.ENTRIES else self.marks_among(wanted)
        return list(found.items())

    def entry_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._view.entry_keys(ledger_id, limit)

    def copy_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._view.copy_keys(ledger_id, limit)

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


class AddEntries:
    """Consecutive entries of one ledger that carry the same last-add-confirmed.

    They are those of the writer that created the ledger with this ``incarnation``: refused where the ledger is gone or
    was created anew. ``in_order`` says that the first of them must follow the last one stored, so that a failed add can
    never leave a hole behind it. ``payloads`` may grow until :meth:`encode`, which makes ``keys`` and ``stored``.
    """

    __slots__ = (
        "digest",
        "encoded",
        "first_entry",
        "in_order",
        "incarnation",
        "last_add_confirmed",
        "ledger_id",
        "length_before",
        "master_key",
        "payloads",
        "sizes",
    )

    def __init__(
        self,
        ledger_id: int,
        incarnation: int,
        master_key: bytes,
        digest: Digest,
        first_entry: int,
        last_add_confirmed: int,
        length_before: int,
        payloads: list[bytes],
        in_order: bool,
    ) -> None:
        self.ledger_id = ledger_id
        self.incarnation = incarnation
        self.master_key = master_key
        self.digest = digest
        self.first_entry = first_entry
        self.last_add_confirmed = last_add_confirmed
        self.length_before = length_before
        self.payloads = payloads
        self.in_order = in_order
        # Of the payloads, where they are known beforehand.
        self.sizes: Sizes | None = None
        self.encoded: Encoded | None = None

    @property
    def last_entry(self) -> int:
        return self.first_entry + len(self.payloads) - 1

    def encode(self) -> Encoded:
        """Make keys, headers and digests; called first before the transaction begins, so that it is short."""
        encoded = self.encoded
        if encoded is None:
            encoded = self.encoded = encode_entries(
                self.digest,
                self.ledger_id,
                self.first_entry,
                self.last_add_confirmed,
                self.length_before,
                self.payloads,
                self.sizes,
            )
        return encoded

    def encode_one(self) -> tuple[bytes, bytes]:
        """Key and stored bytes of a lone entry."""
        payload = self.payloads[0]
        length = self.length_before + len(payload)
        first = self.first_entry
        stored = encode(self.digest, self.ledger_id, first, self.last_add_confirmed, length, payload)
        return keys.ENTRY_KEY.pack(self.ledger_id, first), stored

    def admit(self, ledger: LedgerState | None) -> LedgerState:
        """The ledger's state, if it takes the entries."""
        if ledger is None or ledger.incarnation != self.incarnation:
            raise LedgerFencedError(f"ledger {self.ledger_id} was deleted and its entries collected; it takes no more")
        if ledger.master_key != self.master_key:
            state.authorize(ledger, self.ledger_id, self.master_key)
        if ledger.fenced:
            raise LedgerFencedError(f"entry {self.ledger_id}:{self.first_entry} refused: the ledger is fenced")
        if self.in_order and self.first_entry != ledger.last_entry + 1:
            raise WriteError(
                f"entry {self.ledger_id}:{self.first_entry} refused: the last one stored is {ledger.last_entry}"
            )
        return ledger

    def count_in(self, ledger: LedgerState) -> None:
        """The state with all of the entries, none of which is there yet."""
        encoded = self.encode()
        state.added(ledger, self.first_entry, encoded.count, encoded.largest, self.last_add_confirmed)
        if not self.in_order:
            # Where ids are chosen, lengths need not rise with them.
            ledger.in_order = False

    def apply(self, staging: Staging) -> range:
        ledger = self.admit(staging.state(self.ledger_id))
        if self.first_entry > ledger.last_entry:
            self.count_in(ledger)
            staging.entries.append(self.encode())
        else:
            # As on a bookie, what is there already stays, and the add is confirmed.
            encoded = self.encode()
            pairs = list(encoded.pairs())
            there = staging.entries_among([key for key, _ in pairs])
            fresh = [pair for pair in pairs if pair[0] not in there]
            state.added(ledger, self.first_entry, len(fresh), encoded.largest, self.last_add_confirmed)
            if fresh:
                staging.entries.append(Encoded(fresh.__iter__, fresh[0][0], len(fresh), encoded.largest))
                close_gap(staging, ledger, self.ledger_id)
        return range(self.first_entry, self.last_entry + 1)

    @property
    def room(self) -> int:
        """About how many bytes of the map it takes."""
        return sum(map(len, self.payloads)) + 200 * len(self.payloads)


def close_gap(staging: Staging, ledger: LedgerState, ledger_id: int) -> None:
    """Where the gap that began behind ``unbroken`` is filled, what was stored beyond it counts as well."""
    # How far that is nobody knows: twice as far is looked each time.
    looked = 1
    while ledger.unbroken < ledger.last_entry:
        first = ledger.unbroken + 1
        wanted = [
            keys.ENTRY_KEY.pack(ledger_id, entry_id)
            for entry_id in range(first, min(first + looked, ledger.last_entry + 1))
        ]
        there = staging.entries_among(wanted)
        if len(there) < len(wanted):
            missing = next(number for number, key in enumerate(wanted) if key not in there)
            ledger.unbroken = first + missing - 1
            return
        ledger.unbroken = first + len(wanted) - 1
        looked *= 2


class ReserveLedger:
    """Take a ledger id and an incarnation for a ledger that is created later; result: both."""

    __slots__ = ()

    def apply(self, staging: Staging) -> tuple[int, int]:
        return _next_free(staging), next_incarnation(staging)


class CreateLedger:
    """A new ledger; result: (ledger id, incarnation). Both may have been reserved; else they are the next free ones.

    ``home``: NO_HOME_YET for one that a server's client makes. Its bookies may have been sent entries already, or a
    fence: these stay, as they do on a bookie, which never hears of metadata.
    """

    __slots__ = ("digest", "home", "incarnation", "ledger_id", "master_key", "metadata")

    def __init__(
        self,
        ledger_id: int | None,
        master_key: bytes | None,
        digest: str,
        metadata: bytes,
        incarnation: int | None = None,
        home: int = 0,
    ) -> None:
        self.home = home
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.digest = digest
        self.metadata = metadata
        self.incarnation = incarnation

    def apply(self, staging: Staging) -> tuple[int, int]:
        ledger_id = _next_free(staging) if self.ledger_id is None else self.ledger_id
        key = keys.LEDGER_KEY.pack(ledger_id)
        if staging.get(keys.LEDGERS, key) is not None:
            raise LedgerExistsError(f"ledger {ledger_id} exists")
        leftover = staging.state(ledger_id)
        if leftover is not None and leftover.home and self.home and not leftover.deleted_at:
            leftover.digest = self.digest
            staging.put(keys.LEDGERS, key, record.seal_versioned(key, 0, self.metadata))
            return ledger_id, leftover.incarnation
        if leftover is not None and leftover.count:
            raise LeftoverEntriesError(f"ledger {ledger_id} was deleted, but its entries are not collected yet")
        incarnation = next_incarnation(staging) if self.incarnation is None else self.incarnation
        if leftover is not None and leftover.deleted_at:
            staging.put(keys.META, keys.deletion(leftover.deleted_at, ledger_id), None)
        staging.states[ledger_id] = LedgerState(incarnation, self.master_key, self.digest, self.home)
        staging.put(keys.LEDGERS, key, record.seal_versioned(key, 0, self.metadata))
        return ledger_id, incarnation


class LeftoverEntriesError(LedgerExistsError):
    """The id is that of a deleted ledger whose entries are still there: collect them, then create again."""


class UpdateLedger:
    """Replace a ledger's metadata if it has the expected version; result: the new version.

    With an ``incarnation`` it must also still be the ledger that was created with it.
    """

    __slots__ = ("expected_version", "incarnation", "ledger_id", "metadata")

    def __init__(
        self, ledger_id: int, metadata: bytes, expected_version: int | None, incarnation: int | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.expected_version = expected_version
        self.incarnation = incarnation

    def apply(self, staging: Staging) -> int:
        key = keys.LEDGER_KEY.pack(self.ledger_id)
        if self.incarnation is not None:
            ledger = staging.state(self.ledger_id)
            if ledger is None or ledger.incarnation != self.incarnation:
                raise NoSuchLedgerError(f"ledger {self.ledger_id} was deleted; what has its id now is another one")
        version = _expect_ledger(staging, key, self.ledger_id, self.expected_version) + 1
        staging.put(keys.LEDGERS, key, record.seal_versioned(key, version, self.metadata))
        return version


class DeleteLedger:
    """Remove a ledger's metadata. Its entries stay until they are collected, as on a bookie."""

    __slots__ = ("expected_version", "ledger_id", "now")

    def __init__(self, ledger_id: int, now: int, expected_version: int | None = ANY_VERSION) -> None:
        self.ledger_id = ledger_id
        self.now = now
        self.expected_version = expected_version

    def apply(self, staging: Staging) -> None:
        key = keys.LEDGER_KEY.pack(self.ledger_id)
        _expect_ledger(staging, key, self.ledger_id, self.expected_version)
        staging.put(keys.LEDGERS, key, None)
        ledger = staging.state(self.ledger_id)
        if ledger is not None:
            ledger.deleted_at = max(1, self.now)
            due = keys.deletion(ledger.deleted_at, self.ledger_id)
            staging.put(keys.META, due, record.seal(due, b""))


class CollectEntries:
    """Remove up to ``limit`` entries of a ledger that has no metadata any more, and bookies' copies with them; result:
    how many are left to do. Without a limit all go at once, which another change of the same commit needs: what is
    staged is not seen when keys are looked up."""

    __slots__ = ("ledger_id", "limit")

    def __init__(self, ledger_id: int, limit: int | None = 10_000) -> None:
        self.ledger_id = ledger_id
        self.limit = limit

    def apply(self, staging: Staging) -> int:
        if staging.get(keys.LEDGERS, keys.LEDGER_KEY.pack(self.ledger_id)) is not None:
            return 0
        ledger = staging.state(self.ledger_id)
        if ledger is None:
            return 0
        marks = staging.copy_keys(self.ledger_id, self.limit)
        staging.writes.update(((keys.COPIES, key), None) for key in marks if len(key) == keys.COPY_LEDGER.size)
        staging.marks.update((key, None) for key in marks if len(key) != keys.COPY_LEDGER.size)
        if len(marks) == self.limit:
            return max(1, ledger.count)
        doomed = staging.entry_keys(self.ledger_id, self.limit)
        staging.removed_entries += doomed
        ledger.count = max(0, ledger.count - len(doomed))
        if self.limit is None or len(doomed) < self.limit:
            staging.states[self.ledger_id] = None
            if ledger.deleted_at:
                staging.put(keys.META, keys.deletion(ledger.deleted_at, self.ledger_id), None)
            return 0
        return max(1, ledger.count)


class Fence:
    """Stop a ledger's writers for good; result: True the first time, False afterwards."""

    __slots__ = ("ledger_id", "master_key")

    def __init__(self, ledger_id: int, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key

    def apply(self, staging: Staging) -> bool:
        ledger = _expect_state(staging, self.ledger_id, self.master_key)
        first = not ledger.fenced
        ledger.fenced = True
        return first


class SetExplicitLac:
    """Record a last-add-confirmed that no entry carries yet."""

    __slots__ = ("incarnation", "last_add_confirmed", "ledger_id", "master_key")

    def __init__(self, ledger_id: int, incarnation: int, master_key: bytes, last_add_confirmed: int) -> None:
        self.ledger_id = ledger_id
        self.incarnation = incarnation
        self.master_key = master_key
        self.last_add_confirmed = last_add_confirmed

    def apply(self, staging: Staging) -> None:
        ledger = staging.state(self.ledger_id)
        if ledger is None or ledger.incarnation != self.incarnation:
            raise LedgerFencedError(f"ledger {self.ledger_id} was deleted and its entries collected")
        state.authorize(ledger, self.ledger_id, self.master_key)
        ledger.explicit_lac = max(ledger.explicit_lac, self.last_add_confirmed)


class PutNode:
    """Write a node; result: its new version. ``expected_version``: None any, -1 it must not exist yet."""

    __slots__ = ("expected_version", "path", "value")

    def __init__(self, path: str, value: bytes, expected_version: int | None) -> None:
        self.path = path
        self.value = value
        self.expected_version = expected_version

    def apply(self, staging: Staging) -> int:
        key = self.path.encode()
        found = staging.versioned(keys.NODES, key)
        version = MUST_NOT_EXIST if found is None else found[1]
        if self.expected_version is not ANY_VERSION and self.expected_version != version:
            raise _version_conflict(f"node {self.path!r}", version, self.expected_version)
        staging.put(keys.NODES, key, record.seal_versioned(key, version + 1, self.value))
        return version + 1


class NodeMovedError(MetadataVersionError):
    """A node that was to stay as it is has another version, or is gone."""


class RequireNode:
    """Refuse everything that goes with it where a node has another version: whoever wrote that has taken over."""

    __slots__ = ("path", "version")

    def __init__(self, path: str, version: int) -> None:
        self.path = path
        self.version = version

    def apply(self, staging: Staging) -> None:
        found = staging.versioned(keys.NODES, self.path.encode())
        if found is None or found[1] != self.version:
            version = MUST_NOT_EXIST if found is None else found[1]
            raise NodeMovedError(str(_version_conflict(f"node {self.path!r}", version, self.version)))


class DeleteNode:
    """Remove a node if it has the expected version."""

    __slots__ = ("expected_version", "path")

    def __init__(self, path: str, expected_version: int | None) -> None:
        self.path = path
        self.expected_version = expected_version

    def apply(self, staging: Staging) -> None:
        key = self.path.encode()
        found = staging.versioned(keys.NODES, key)
        if found is None:
            raise NoSuchNodeError(f"there is no node {self.path!r}")
        if self.expected_version is not ANY_VERSION and self.expected_version != found[1]:
            raise _version_conflict(f"node {self.path!r}", found[1], self.expected_version)
        staging.put(keys.NODES, key, None)


def _next_free(staging: Staging) -> int:
    while True:
        ledger_id = staging.next_number(keys.META_NEXT_LEDGER)
        if ledger_id > keys.MAX_LEDGER_ID:
            raise LedgerIdOverflowError("the store has no ledger ids left")
        key = keys.LEDGER_KEY.pack(ledger_id)
        if staging.get(keys.LEDGERS, key) is None and staging.state(ledger_id) is None:
            return ledger_id


def next_incarnation(staging: Staging) -> int:
    # From 1 on.
    return staging.next_number(keys.META_NEXT_INCARNATION) + 1


def _expect_ledger(staging: Staging, key: bytes, ledger_id: int, expected_version: int | None) -> int:
    found = staging.versioned(keys.LEDGERS, key)
    if found is None:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
    if expected_version is not ANY_VERSION and expected_version != found[1]:
        raise _version_conflict(f"metadata of ledger {ledger_id}", found[1], expected_version)
    return found[1]


def _expect_state(staging: Staging, ledger_id: int, master_key: bytes) -> LedgerState:
    """A bookie that is asked to fence a ledger it never saw makes it first; so do we."""
    ledger = staging.state(ledger_id)
    if ledger is None:
        ledger = LedgerState(next_incarnation(staging), None)
        staging.states[ledger_id] = ledger
    state.authorize(ledger, ledger_id, master_key)
    return ledger


def _version_conflict(what: str, found: int, expected: int) -> MetadataVersionError:
    if found == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} does not exist, but version {expected} was expected")
    if expected == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} exists already, with version {found}")
    return MetadataVersionError(f"{what} has version {found}, not {expected}")


class TakesSpace:
    """Operations of other rooms that a full store is to refuse."""

    __slots__ = ()


# What a full store refuses. Deleting, collecting, fencing and closing stay possible, for they are the way out.
TAKES_SPACE = (AddEntries, CreateLedger, PutNode, TakesSpace)


class Change:
    """Operations that happen together or not at all."""

    __slots__ = ("operations",)

    def __init__(self, *operations: Operation) -> None:
        self.operations = operations
