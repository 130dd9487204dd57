"""Operations of the bookies of a server on their copies, see :mod:`bookstand.storage.served.bookie_replica`."""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import compress, islice, repeat
from operator import itemgetter, lt

from bookstand.errors import IncorrectParameterError, LedgerFencedError
from bookstand.storage.commit.entry_operations import extend_contiguous, next_incarnation
from bookstand.storage.commit.operations import ConsumesSpace
from bookstand.storage.format import ledger_state
from bookstand.storage.format import schema as keys
from bookstand.storage.format.entry_batch import EncodedEntries
from bookstand.storage.format.ledger_state import NO_HOME_YET, LedgerState
from bookstand.storage.served import bookie_replica
from bookstand.storage.served.bookie_replica import ABSENT, OWN, SAME, ReplicaState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bookstand.storage.commit.operations import WriteSet

# Up to the LAC: what a bookie looks at of an entry, and so the least that it takes.
LEAST_ENTRY_BYTES = 24
_LAC = struct.Struct(">q")
_LAC_AT = LEAST_ENTRY_BYTES - _LAC.size
_LONGEST_BODY = 256
_KEY_OF = itemgetter(slice(keys.ENTRY_KEY.size))


class AddToReplica(ConsumesSpace):
    """Entries of one ledger that one bookie was sent under one master key, as they came; result: None.

    As on a bookie, what is there already stays, and the add is confirmed. ``recovery`` passes the fence. ``lac`` is the
    highest that any of them carries, and -1 at least.
    """

    __slots__ = ("bookie", "entry_ids", "lac", "ledger_id", "master_key", "recovery", "stored")

    def __init__(
        self,
        bookie: int,
        ledger_id: int,
        master_key: bytes,
        recovery: bool,
        entry_ids: Sequence[int],
        stored: Sequence[bytes],
        lac: int,
    ) -> None:
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.recovery = recovery
        self.entry_ids = entry_ids
        self.stored = stored
        self.lac = lac

    @property
    def room(self) -> int:
        """About how many bytes of the map it takes."""
        return sum(map(len, self.stored)) + 200 * len(self.stored)

    def apply(self, staging: WriteSet) -> None:
        copy, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        if not self.recovery and (copy.fenced or (ledger is not None and ledger.fenced)):
            raise LedgerFencedError(f"entry {self.ledger_id}:{self.entry_ids[0]} refused: the ledger is fenced")
        copy.lac = max(copy.lac, self.lac)
        ids, stored = _ascending(self.entry_ids, self.stored)
        # The store takes no negative ids.
        apart = len(ids) if ledger is None else bisect_left(ids, 0)
        if apart:
            self._keep_apart(staging, copy, ids[:apart], stored[:apart])
        if ledger is not None:
            if apart < len(ids):
                sent = _Sent(ids[apart:], list(map(_KEY_OF, stored[apart:])), stored[apart:])
                self._add(staging, copy, ledger, sent)
            ledger.lac = max(ledger.lac, _believed(self.lac, ledger))
        staging.put_copy(self.ledger_id, self.bookie, copy)

    def _keep_apart(self, staging: WriteSet, copy: ReplicaState, ids: Sequence[int], stored: Sequence[bytes]) -> None:
        marked = self._mark_keys(self.bookie, ids)
        there = staging.marks_among(marked)
        new = [key not in there for key in marked]
        if any(new):
            own = [OWN + entry for entry in compress(stored, new)]
            staging.marks.update(zip(compress(marked, new), own, strict=True))
            copy.added(len(own), max(compress(ids, new)))

    def _add(self, staging: WriteSet, copy: ReplicaState, ledger: LedgerState, sent: _Sent) -> None:
        if ledger.home == NO_HOME_YET:
            # The first bookie that is sent an entry of a ledger is its home.
            ledger.home = self.bookie
        home = bookie_replica.mirrors_store(ledger, self.bookie)
        absent: set[bytes] = set()
        if copy.marked if home else copy.last_entry is not None and sent.ids[0] <= copy.last_entry:
            marked = self._mark_keys(self.bookie, sent.ids)
            marks = staging.marks_among(marked)
            absent = {bookie_replica.ids_of(key) for key, mark in marks.items() if mark == ABSENT}
            # Of the others it has its copy already.
            sent = sent.only([marks.get(key, ABSENT) == ABSENT for key in marked])
        there = staging.entries_among(sent.keys) if sent.ids and sent.ids[0] <= ledger.last_entry else {}
        if len(there) < len(sent.ids):
            new = sent.only([key not in there for key in sent.keys]) if there else sent
            self._store(staging, copy, ledger, new)
            if not home:
                self._mark_all(staging, self.bookie, new.ids, SAME)
                self._mark_all(staging, ledger.home, new.ids, ABSENT)
                _mark_home(staging, self.ledger_id, ledger.home)
        if there:
            # What the store has the home has, but for what is marked.
            known = sent.only([key in there and (not home or key in absent) for key in sent.keys])
            self._compare(staging, copy, known, list(map(there.__getitem__, known.keys)), None if home else SAME)

    def _store(self, staging: WriteSet, copy: ReplicaState, ledger: LedgerState, new: _Sent) -> None:
        """They are the store's entries, for it has none of these."""
        between = new.ids[0] <= ledger.last_entry
        largest = max(map(len, new.stored))
        ledger_state.added_some(ledger, new.ids, largest)
        pairs = list(zip(new.keys, new.stored, strict=True))
        staging.entries.append(EncodedEntries(pairs.__iter__, new.keys[0], len(pairs), largest))
        if between:
            extend_contiguous(staging, ledger, self.ledger_id)
        copy.added(len(pairs), new.ids[-1])

    def _compare(
        self, staging: WriteSet, copy: ReplicaState, known: _Sent, there: Sequence[bytes], same: bytes | None
    ) -> None:
        """The store has them from another bookie: they are the same, which is what ``same`` marks, or others."""
        if not known.ids:
            return
        if there == known.stored:
            self._mark_all(staging, self.bookie, known.ids, same)
        else:
            marked = self._mark_keys(self.bookie, known.ids)
            told = [same if one == other else OWN + one for one, other in zip(known.stored, there, strict=True)]
            staging.marks.update(zip(marked, told, strict=True))
        copy.added(len(known.ids), known.ids[-1])

    def _mark_all(self, staging: WriteSet, bookie: int, ids: Sequence[int], mark: bytes | None) -> None:
        staging.marks.update(zip(self._mark_keys(bookie, ids), repeat(mark)))

    def _mark_keys(self, bookie: int, ids: Sequence[int]) -> list[bytes]:
        return list(map(keys.COPY_ENTRY.pack, repeat(self.ledger_id), repeat(bookie), ids))


class _Sent:
    """Entries by ascending ids, with their keys."""

    __slots__ = ("ids", "keys", "stored")

    def __init__(self, ids: Sequence[int], keys: Sequence[bytes], stored: Sequence[bytes]) -> None:
        self.ids = ids
        self.keys = keys
        self.stored = stored

    def only(self, chosen: Sequence[bool]) -> _Sent:
        if all(chosen):
            return self
        return _Sent(
            list(compress(self.ids, chosen)), list(compress(self.keys, chosen)), list(compress(self.stored, chosen))
        )


def _ascending(ids: Sequence[int], stored: Sequence[bytes]) -> tuple[Sequence[int], list[bytes]]:
    """Of what came more than once the first, by ascending ids."""
    if isinstance(ids, range) or all(map(lt, ids, islice(ids, 1, None))):
        return ids, list(stored)
    first = dict(zip(reversed(ids), reversed(stored), strict=True))
    return sorted(first), [first[entry_id] for entry_id in sorted(first)]


class FenceReplica:
    """Have one bookie refuse a ledger's writers for good. It need never have heard of the ledger."""

    __slots__ = ("bookie", "ledger_id", "master_key")

    def __init__(self, bookie: int, ledger_id: int, master_key: bytes) -> None:
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.master_key = master_key

    def apply(self, staging: WriteSet) -> None:
        copy, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        copy.fenced = True
        if ledger is not None and not ledger.home:
            # A writer of the store may be at it.
            ledger.fenced = True
        staging.put_copy(self.ledger_id, self.bookie, copy)


class SetReplicaLac:
    """Record a LAC that no entry carries yet, and the body by which a bookie was told."""

    __slots__ = ("body", "bookie", "lac", "ledger_id", "master_key")

    def __init__(self, bookie: int, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        if len(body) > _LONGEST_BODY:
            raise IncorrectParameterError(f"ledger {ledger_id}: a LAC's body has no {len(body)} bytes")
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.lac = lac
        self.body = body

    def apply(self, staging: WriteSet) -> None:
        copy, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        copy.lac = max(copy.lac, self.lac)
        copy.explicit_lac = self.body
        if ledger is not None:
            ledger.explicit_lac = max(ledger.explicit_lac, _believed(self.lac, ledger))
        staging.put_copy(self.ledger_id, self.bookie, copy)


def highest_lac(stored: Iterable[bytes]) -> int:
    """The highest LAC that any of the entries carries, -1 at least."""
    lac = -1
    for entry in stored:
        (carried,) = _LAC.unpack_from(entry, _LAC_AT)
        lac = max(lac, carried)
    return lac


def _believed(lac: int, ledger: LedgerState) -> int:
    """What a client says is confirmed, as far as it can be: the absence of what was confirmed would be damage."""
    return min(lac, ledger.unbroken)


def _known(
    staging: WriteSet, bookie: int, ledger_id: int, master_key: bytes
) -> tuple[ReplicaState, LedgerState | None]:
    """What the bookie and the store know of a ledger, both made if need be; the store takes no negative ids."""
    copy = staging.copy(ledger_id, bookie) or ReplicaState()
    ledger_state.authorize(copy, ledger_id, master_key)
    if ledger_id < 0:
        return copy, None
    ledger = staging.state(ledger_id)
    if ledger is None:
        ledger = staging.states[ledger_id] = LedgerState(next_incarnation(staging), None, home=NO_HOME_YET)
    ledger_state.authorize(ledger, ledger_id, master_key)
    return copy, ledger


def _mark_home(staging: WriteSet, ledger_id: int, home: int) -> None:
    """Its reads look for marks from now on."""
    copy = staging.copy(ledger_id, home)
    if copy is not None and not copy.marked:
        copy.marked = True
        staging.put_copy(ledger_id, home, copy)
