"""State of a ledger on the bookie, and its updates by operations. Plain values, no I/O."""

from __future__ import annotations

from operator import eq

from bookstand.errors import NoSuchLedgerError, StoreDamagedError, UnauthorizedAccessError
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format.digest import DIGEST_NAMES, MASTER_KEY_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Keyed(Protocol):
        """State with a master key."""

        master_key: bytes | None


STATE = Layout(
    "the state of a ledger",
    ("flags", "Q", "bit 0: fenced; 1: has a master key; 2: entries out of order; octet 1: digest; 2 and 3: home"),
    ("incarnation", "Q", "unique number of each creation"),
    ("count", "Q", "number of stored entries"),
    ("last entry", "q", "the highest id; -1: none"),
    ("unbroken", "q", "last entry before the first gap; -1: none"),
    ("LAC", "q", "the highest that an entry carries; -1: none"),
    ("explicit LAC", "q", "-1: none"),
    ("largest", "Q", "bytes of the largest stored entry"),
    ("deleted at", "Q", "milliseconds since 1970; 0: not deleted"),
    ("master key", f"{MASTER_KEY_BYTES}s", "a SHA-1 of the ledger's password"),
)
_LAYOUT = STATE.struct
STATE_BYTES = _LAYOUT.size
_FENCED = 1
_KEYED = 2
_OUT_OF_ORDER = 4
# 0: unknown.
_DIGEST_SHIFT = 8
_HOME_SHIFT = 16
# Home of a ledger created by a server's client, until a bookie receives an entry of it.
NO_HOME_YET = 0xFFFF
MAX_BOOKIES = NO_HOME_YET - 1
_DIGESTS = ("", *DIGEST_NAMES)


class LedgerState:
    """State of a ledger: ``count`` entries up to ``last_entry``; ``lac`` is the highest LAC that any of them carries.

    All entries up to ``unbroken`` were stored, so a missing one is damage; the first gap begins after it.
    ``incarnation`` distinguishes ledgers that have had the same id. ``largest`` is the size of the largest stored
    entry, by which a scan plans its slices. ``in_order`` is true while entries are only appended with consecutive ids;
    their cumulative lengths then rise. ``home`` is the number, from 1, of the bookie of a server that was the first to
    receive an entry of the ledger; 0 for the store's own ledgers.
    """

    __slots__ = (
        "count",
        "deleted_at",
        "digest",
        "explicit_lac",
        "fenced",
        "home",
        "in_order",
        "incarnation",
        "lac",
        "largest",
        "last_entry",
        "master_key",
        "unbroken",
    )

    def __init__(self, incarnation: int, master_key: bytes | None, digest: str = "", home: int = 0) -> None:
        self.incarnation = incarnation
        self.master_key = master_key
        self.digest = digest
        self.fenced = False
        self.in_order = True
        self.count = 0
        self.last_entry = -1
        self.unbroken = -1
        self.lac = -1
        self.explicit_lac = -1
        self.largest = 0
        self.deleted_at = 0
        self.home = home

    def copy(self) -> LedgerState:
        other = LedgerState.__new__(LedgerState)
        for name in LedgerState.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def heard_of(self) -> bool:
        """True if a bookie would know the ledger, because it received an entry, a fence or an explicit LAC."""
        return self.last_entry >= 0 or self.fenced or self.explicit_lac >= 0

    @property
    def known_lac(self) -> int:
        """Highest LAC carried by an entry or set explicitly."""
        return max(self.lac, self.explicit_lac)

    def must_exist(self, entry_id: int) -> bool:
        """Return True if the entry is confirmed or no earlier entry was missing: its absence is then damage."""
        return 0 <= entry_id <= max(self.unbroken, self.known_lac)

    def pack(self) -> bytes:
        key = self.master_key
        return _LAYOUT.pack(
            (_FENCED if self.fenced else 0)
            | (_KEYED if key is not None else 0)
            | (0 if self.in_order else _OUT_OF_ORDER)
            | _DIGESTS.index(self.digest) << _DIGEST_SHIFT
            | self.home << _HOME_SHIFT,
            self.incarnation,
            self.count,
            self.last_entry,
            self.unbroken,
            self.lac,
            self.explicit_lac,
            self.largest,
            self.deleted_at,
            key if key is not None else bytes(MASTER_KEY_BYTES),
        )


def unpack(ledger_id: int, body: bytes) -> LedgerState:
    if len(body) != _LAYOUT.size:
        raise StoreDamagedError(f"state of ledger {ledger_id} is damaged: {len(body)} bytes, not {_LAYOUT.size}")
    state = LedgerState.__new__(LedgerState)
    (
        flags,
        state.incarnation,
        state.count,
        state.last_entry,
        state.unbroken,
        state.lac,
        state.explicit_lac,
        state.largest,
        state.deleted_at,
        key,
    ) = _LAYOUT.unpack(body)
    state.fenced = bool(flags & _FENCED)
    state.in_order = not flags & _OUT_OF_ORDER
    digest = flags >> _DIGEST_SHIFT & 0xFF
    state.home = flags >> _HOME_SHIFT
    if digest >= len(_DIGESTS) or state.home > NO_HOME_YET:
        raise StoreDamagedError(f"state of ledger {ledger_id} is damaged: its flags are {flags:#x}")
    state.digest = _DIGESTS[digest]
    state.master_key = key if flags & _KEYED else None
    return state


def authorize(state: Keyed, ledger_id: int, master_key: bytes) -> None:
    """Adopt the first master key that a ledger receives; refuse any other."""
    if state.master_key is None:
        state.master_key = master_key
    elif state.master_key != master_key:
        raise UnauthorizedAccessError(f"ledger {ledger_id}: the master key is not the one it was created with")


def expect_incarnation(incarnation: int | None, state: LedgerState | None, ledger_id: int) -> None:
    """Refuse an operation on the ledger created with this incarnation if another ledger has its id now."""
    if incarnation is not None and (state is None or state.incarnation != incarnation):
        raise NoSuchLedgerError(f"ledger {ledger_id} was deleted; its id is unused or belongs to another ledger now")


def record_scattered(state: LedgerState, entry_ids: Sequence[int], largest: int) -> None:
    """Record new entries in ascending order of id, possibly with gaps; the ledger's entries arrive in any order."""
    first, last, count = entry_ids[0], entry_ids[-1], len(entry_ids)
    if first == state.unbroken + 1:
        # Consecutive ids need no comparison one by one.
        without_gap = count if last - first + 1 == count else sum(map(eq, entry_ids, range(first, first + count)))
        state.unbroken += without_gap
    state.count += count
    state.last_entry = max(state.last_entry, last)
    state.largest = max(state.largest, largest)
    state.in_order = False


def record_added(state: LedgerState, first_entry: int, count: int, largest: int, lac: int) -> None:
    """Record ``count`` new entries from ``first_entry`` on, sent with ``lac``; ``largest`` is a stored size."""
    if lac > state.lac:
        state.lac = lac
    if not count:
        return
    last = first_entry + count - 1
    if first_entry != state.last_entry + 1:
        state.in_order = False
    if first_entry == state.unbroken + 1:
        state.unbroken = last
    state.count += count
    if last > state.last_entry:
        state.last_entry = last
    if largest > state.largest:
        state.largest = largest
