"""Operations of served bookies on their replicas; see :mod:`bookstand.storage.served.bookie_replica`."""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import compress, islice, repeat
from operator import itemgetter, lt

from bookstand.errors import IncorrectParameterError, LedgerFencedError
from bookstand.storage.commit.entry_operations import extend_contiguous, next_incarnation
from bookstand.storage.commit.operations import ConsumesSpace
from bookstand.storage.format import ledger_state, schema
from bookstand.storage.format.entry_batch import EncodedEntries
from bookstand.storage.format.ledger_state import NO_HOME_YET, LedgerState
from bookstand.storage.served import bookie_replica
from bookstand.storage.served.bookie_replica import ABSENT, OWN, SAME, ReplicaState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bookstand.storage.commit.operations import WriteSet

# Bytes up to and including the LAC: the part of an entry that a bookie reads, hence the minimum size it accepts.
LEAST_ENTRY_BYTES = 24
_LAC = struct.Struct(">q")
_LAC_AT = LEAST_ENTRY_BYTES - _LAC.size
MAX_LAC_BODY_BYTES = 256
_KEY_OF = itemgetter(slice(schema.ENTRY_KEY.size))


class AddToReplica(ConsumesSpace):
    """Add entries of one ledger that one bookie received under one master key, in any order; the result is None.

    As on a bookie, existing entries remain unchanged, and the add is confirmed. ``recovery`` adds bypass the fence.
    ``lac`` is the highest LAC that any of the entries carries, at least -1.
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
    def estimated_bytes(self) -> int:
        return sum(map(len, self.stored)) + 200 * len(self.stored)

    def apply(self, staging: WriteSet) -> None:
        replica, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        if not self.recovery and (replica.fenced or (ledger is not None and ledger.fenced)):
            raise LedgerFencedError(f"entry {self.ledger_id}:{self.entry_ids[0]} refused: the ledger is fenced")
        replica.lac = max(replica.lac, self.lac)
        ids, stored = _ascending(self.entry_ids, self.stored)
        # The store accepts no negative ids.
        negative = len(ids) if ledger is None else bisect_left(ids, 0)
        if negative:
            self._add_unstorable(staging, replica, ids[:negative], stored[:negative])
        if ledger is not None:
            if negative < len(ids):
                sent = _SentEntries(ids[negative:], list(map(_KEY_OF, stored[negative:])), stored[negative:])
                self._add(staging, replica, ledger, sent)
            ledger.lac = max(ledger.lac, _plausible_lac(self.lac, ledger))
        staging.put_replica(self.ledger_id, self.bookie, replica)

    def _add_unstorable(
        self, staging: WriteSet, replica: ReplicaState, ids: Sequence[int], stored: Sequence[bytes]
    ) -> None:
        keys = self._override_keys(self.bookie, ids)
        existing = staging.existing_overrides(keys)
        new = [key not in existing for key in keys]
        if any(new):
            own = [OWN + entry for entry in compress(stored, new)]
            staging.overrides.update(zip(compress(keys, new), own, strict=True))
            replica.record_added(len(own), max(compress(ids, new)))

    def _add(self, staging: WriteSet, replica: ReplicaState, ledger: LedgerState, sent: _SentEntries) -> None:
        if ledger.home == NO_HOME_YET:
            # The first bookie that receives an entry of a ledger is its home.
            ledger.home = self.bookie
        home = bookie_replica.mirrors_store(ledger, self.bookie)
        absent: set[bytes] = set()
        if replica.has_overrides if home else replica.last_entry is not None and sent.ids[0] <= replica.last_entry:
            keys = self._override_keys(self.bookie, sent.ids)
            overrides = staging.existing_overrides(keys)
            absent = {bookie_replica.ids_of(key) for key, override in overrides.items() if override == ABSENT}
            # Skip the entries that the bookie has already.
            sent = sent.only([overrides.get(key, ABSENT) == ABSENT for key in keys])
        existing = staging.existing_entries(sent.keys) if sent.ids and sent.ids[0] <= ledger.last_entry else {}
        if len(existing) < len(sent.ids):
            new = sent.only([key not in existing for key in sent.keys]) if existing else sent
            self._store(staging, replica, ledger, new)
            if not home:
                self._override_all(staging, self.bookie, new.ids, SAME)
                self._override_all(staging, ledger.home, new.ids, ABSENT)
                _flag_overrides(staging, self.ledger_id, ledger.home)
        if existing:
            # The home has every entry of the store except the overridden ones.
            known = sent.only([key in existing and (not home or key in absent) for key in sent.keys])
            stored = list(map(existing.__getitem__, known.keys))
            self._override_differing(staging, replica, known, stored, None if home else SAME)

    def _store(self, staging: WriteSet, replica: ReplicaState, ledger: LedgerState, new: _SentEntries) -> None:
        """Write entries that the store does not have as the store's own."""
        fills_gap = new.ids[0] <= ledger.last_entry
        largest = max(map(len, new.stored))
        ledger_state.record_scattered(ledger, new.ids, largest)
        pairs = list(zip(new.keys, new.stored, strict=True))
        staging.entries.append(EncodedEntries(pairs.__iter__, new.keys[0], len(pairs), largest))
        if fills_gap:
            extend_contiguous(staging, ledger, self.ledger_id)
        replica.record_added(len(pairs), new.ids[-1])

    def _override_differing(
        self,
        staging: WriteSet,
        replica: ReplicaState,
        known: _SentEntries,
        stored: Sequence[bytes],
        same: bytes | None,
    ) -> None:
        """Override entries that the store has from another bookie: with ``same`` if equal, else with the bytes sent."""
        if not known.ids:
            return
        if stored == known.stored:
            self._override_all(staging, self.bookie, known.ids, same)
        else:
            keys = self._override_keys(self.bookie, known.ids)
            overrides = [same if one == other else OWN + one for one, other in zip(known.stored, stored, strict=True)]
            staging.overrides.update(zip(keys, overrides, strict=True))
        replica.record_added(len(known.ids), known.ids[-1])

    def _override_all(self, staging: WriteSet, bookie: int, ids: Sequence[int], override: bytes | None) -> None:
        staging.overrides.update(zip(self._override_keys(bookie, ids), repeat(override)))

    def _override_keys(self, bookie: int, ids: Sequence[int]) -> list[bytes]:
        return list(map(schema.COPY_ENTRY.pack, repeat(self.ledger_id), repeat(bookie), ids))


class _SentEntries:
    __slots__ = ("ids", "keys", "stored")

    def __init__(self, ids: Sequence[int], keys: Sequence[bytes], stored: Sequence[bytes]) -> None:
        self.ids = ids
        self.keys = keys
        self.stored = stored

    def only(self, chosen: Sequence[bool]) -> _SentEntries:
        if all(chosen):
            return self
        return _SentEntries(
            list(compress(self.ids, chosen)), list(compress(self.keys, chosen)), list(compress(self.stored, chosen))
        )


def _ascending(ids: Sequence[int], stored: Sequence[bytes]) -> tuple[Sequence[int], list[bytes]]:
    """Sort entries by id; of duplicates the first one counts."""
    if isinstance(ids, range) or all(map(lt, ids, islice(ids, 1, None))):
        return ids, list(stored)
    first = dict(zip(reversed(ids), reversed(stored), strict=True))
    return sorted(first), [first[entry_id] for entry_id in sorted(first)]


class FenceReplica:
    """Make one bookie refuse a ledger's writers permanently, even if it has not seen the ledger."""

    __slots__ = ("bookie", "ledger_id", "master_key")

    def __init__(self, bookie: int, ledger_id: int, master_key: bytes) -> None:
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.master_key = master_key

    def apply(self, staging: WriteSet) -> None:
        replica, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        replica.fenced = True
        if ledger is not None and not ledger.home:
            # A writer of the store may be appending to it.
            ledger.fenced = True
        staging.put_replica(self.ledger_id, self.bookie, replica)


class SetReplicaLac:
    """Record a LAC that no entry carries yet, and the body in which a bookie received it."""

    __slots__ = ("body", "bookie", "lac", "ledger_id", "master_key")

    def __init__(self, bookie: int, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        if len(body) > MAX_LAC_BODY_BYTES:
            raise IncorrectParameterError(
                f"ledger {ledger_id}: a LAC's body must not exceed {MAX_LAC_BODY_BYTES} bytes, not {len(body)}"
            )
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.lac = lac
        self.body = body

    def apply(self, staging: WriteSet) -> None:
        replica, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        replica.lac = max(replica.lac, self.lac)
        replica.explicit_lac = self.body
        if ledger is not None:
            ledger.explicit_lac = max(ledger.explicit_lac, _plausible_lac(self.lac, ledger))
        staging.put_replica(self.ledger_id, self.bookie, replica)


def highest_lac(stored: Iterable[bytes]) -> int:
    lac = -1
    for entry in stored:
        (carried,) = _LAC.unpack_from(entry, _LAC_AT)
        lac = max(lac, carried)
    return lac


def _plausible_lac(lac: int, ledger: LedgerState) -> int:
    """Limit a client's LAC to the stored entries: a missing entry below the LAC would count as damage."""
    return min(lac, ledger.unbroken)


def _known(
    staging: WriteSet, bookie: int, ledger_id: int, master_key: bytes
) -> tuple[ReplicaState, LedgerState | None]:
    """State of a ledger at the bookie and in the store, created if missing. The store accepts no negative ids."""
    replica = staging.replica(ledger_id, bookie) or ReplicaState()
    ledger_state.authorize(replica, ledger_id, master_key)
    if ledger_id < 0:
        return replica, None
    ledger = staging.state(ledger_id)
    if ledger is None:
        ledger = staging.states[ledger_id] = LedgerState(next_incarnation(staging), None, home=NO_HOME_YET)
    ledger_state.authorize(ledger, ledger_id, master_key)
    return replica, ledger


def _flag_overrides(staging: WriteSet, ledger_id: int, home: int) -> None:
    """Make reads at the home bookie look for overrides."""
    replica = staging.replica(ledger_id, home)
    if replica is not None and not replica.has_overrides:
        replica.has_overrides = True
        staging.put_replica(ledger_id, home, replica)
