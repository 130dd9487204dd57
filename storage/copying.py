"""Operations of the bookies of a server on their copies, see :mod:`bookstand.storage.copies`."""

from __future__ import annotations

import struct
from itertools import repeat
from operator import itemgetter

from bookstand.errors import IncorrectParameterError, LedgerFencedError
from bookstand.storage import copies, keys, state
from bookstand.storage.batch import Encoded
from bookstand.storage.changes import TakesSpace
from bookstand.storage.copies import ABSENT, OWN, SAME, LedgerCopy
from bookstand.storage.entry_changes import close_gap, next_incarnation
from bookstand.storage.state import NO_HOME_YET, LedgerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bookstand.storage.changes import Staging

# Up to the LAC: what a bookie looks at of an entry, and so the least that it takes.
LEAST_ENTRY_BYTES = 24
_LAC = struct.Struct(">q")
_LAC_AT = LEAST_ENTRY_BYTES - _LAC.size
_LONGEST_BODY = 256
_KEY_OF = itemgetter(slice(keys.ENTRY_KEY.size))


class AddCopies(TakesSpace):
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

    def apply(self, staging: Staging) -> None:
        copy, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        if not self.recovery and (copy.fenced or (ledger is not None and ledger.fenced)):
            raise LedgerFencedError(f"entry {self.ledger_id}:{self.entry_ids[0]} refused: the ledger is fenced")
        copy.lac = max(copy.lac, self.lac)
        if ledger is not None and self._all_new(ledger):
            self._add_all(staging, copy, ledger)
        else:
            for entry_id, stored in zip(self.entry_ids, self.stored, strict=True):
                self._add_one(staging, copy, ledger, entry_id, stored)
        if ledger is not None:
            ledger.lac = max(ledger.lac, _believed(self.lac, ledger))
        staging.put_copy(self.ledger_id, self.bookie, copy)

    def _all_new(self, ledger: LedgerState) -> bool:
        """Whether the entries follow each other, behind all that the store has."""
        first, count = self.entry_ids[0], len(self.entry_ids)
        return first > ledger.last_entry and self.entry_ids == range(first, first + count)

    def _add_all(self, staging: Staging, copy: LedgerCopy, ledger: LedgerState) -> None:
        first, count = self.entry_ids[0], len(self.entry_ids)
        self._settle(ledger)
        largest = max(map(len, self.stored))
        state.added(ledger, first, count, largest, -1)
        ledger.in_order = False
        # Stored entries begin with their key.
        entry_keys = list(map(_KEY_OF, self.stored))
        pairs = list(zip(entry_keys, self.stored, strict=True))
        staging.entries.append(Encoded(pairs.__iter__, entry_keys[0], count, largest))
        copy.added(count, first + count - 1)
        if not copies.is_home(ledger, self.bookie):
            self._mark_all(staging, self.bookie, SAME)
            self._mark_all(staging, ledger.home, ABSENT)
            _mark_home(staging, self.ledger_id, ledger.home)

    def _mark_all(self, staging: Staging, bookie: int, mark: bytes) -> None:
        marked = map(keys.COPY_ENTRY.pack, repeat(self.ledger_id), repeat(bookie), self.entry_ids)
        staging.marks.update(zip(marked, repeat(mark)))

    def _settle(self, ledger: LedgerState) -> None:
        """The first bookie that is sent an entry of a ledger is its home."""
        if ledger.home == NO_HOME_YET:
            ledger.home = self.bookie

    def _add_one(
        self, staging: Staging, copy: LedgerCopy, ledger: LedgerState | None, entry_id: int, stored: bytes
    ) -> None:
        mark_key = keys.COPY_ENTRY.pack(self.ledger_id, self.bookie, entry_id)
        mark = staging.mark(mark_key)
        if mark is not None and mark != ABSENT:
            return
        if ledger is None or entry_id < 0:
            # The store takes no such id.
            staging.marks[mark_key] = OWN + stored
            copy.added(1, entry_id)
            return
        self._settle(ledger)
        home = copies.is_home(ledger, self.bookie)
        entry_key = keys.ENTRY_KEY.pack(self.ledger_id, entry_id)
        there = staging.entry(entry_key)
        if there is None:
            staging.single_entries[entry_key] = stored
            state.added(ledger, entry_id, 1, len(stored), -1)
            ledger.in_order = False
            close_gap(staging, ledger, self.ledger_id)
            if not home:
                staging.marks[mark_key] = SAME
                staging.marks[keys.COPY_ENTRY.pack(self.ledger_id, ledger.home, entry_id)] = ABSENT
                _mark_home(staging, self.ledger_id, ledger.home)
        elif home and mark is None:
            return
        elif there != stored:
            staging.marks[mark_key] = OWN + stored
        else:
            staging.marks[mark_key] = None if home else SAME
        copy.added(1, entry_id)


class FenceCopy:
    """Have one bookie refuse a ledger's writers for good. It need never have heard of the ledger."""

    __slots__ = ("bookie", "ledger_id", "master_key")

    def __init__(self, bookie: int, ledger_id: int, master_key: bytes) -> None:
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.master_key = master_key

    def apply(self, staging: Staging) -> None:
        copy, ledger = _known(staging, self.bookie, self.ledger_id, self.master_key)
        copy.fenced = True
        if ledger is not None and not ledger.home:
            # A writer of the store may be at it.
            ledger.fenced = True
        staging.put_copy(self.ledger_id, self.bookie, copy)


class TellCopyLac:
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

    def apply(self, staging: Staging) -> None:
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


def _known(staging: Staging, bookie: int, ledger_id: int, master_key: bytes) -> tuple[LedgerCopy, LedgerState | None]:
    """What the bookie and the store know of a ledger, both made if need be; the store takes no negative ids."""
    copy = staging.copy(ledger_id, bookie) or LedgerCopy()
    state.authorize(copy, ledger_id, master_key)
    if ledger_id < 0:
        return copy, None
    ledger = staging.state(ledger_id)
    if ledger is None:
        ledger = staging.states[ledger_id] = LedgerState(next_incarnation(staging), None, home=NO_HOME_YET)
    state.authorize(ledger, ledger_id, master_key)
    return copy, ledger


def _mark_home(staging: Staging, ledger_id: int, home: int) -> None:
    """Its reads look for marks from now on."""
    copy = staging.copy(ledger_id, home)
    if copy is not None and not copy.marked:
        copy.marked = True
        staging.put_copy(ledger_id, home, copy)
