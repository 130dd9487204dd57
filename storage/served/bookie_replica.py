"""What the bookies of a server keep: each its own copy of what it was sent, over one store. Plain values, no I/O.

The first copy of an entry that any bookie is sent is the store's own entry, in ``entries``: it is what the store's
readers and tools see. So nothing that a client was told is stored can be missing from the store, however few of the
bookies it was sent to. What a bookie was sent besides is told apart in ``copies``:

=====  =================================================================================================
value  the bookie's copy of the entry
=====  =================================================================================================
``=``  is the store's entry
``+``  the bytes that follow: it was sent others than the store has, or the store takes no such id
``-``  is not there, although the store has the entry
=====  =================================================================================================

Where there is no mark, a bookie has the entry if the store has it and the bookie is the ledger's *home*, which is the
first one that was sent an entry of it. So a ledger that lies on one bookie needs no marks. A ledger that was not made
by a server's client, but by a writer of the store, has no home: all bookies have all of it.

Beside the marks each bookie has a record of every ledger that it has heard of.
"""

from __future__ import annotations

from bookstand.errors import StoreDamagedError
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format.digest import MASTER_KEY_BYTES
from bookstand.storage.format.ledger_state import MAX_BOOKIES
from bookstand.storage.format.schema import COPY_ENTRY, COPY_LEDGER, ENTRY_KEY, LEDGER_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.format.ledger_state import LedgerState

SAME, OWN, ABSENT = b"=", b"+", b"-"
# As much of a mark as tells whether it may be one: of a copy of its own the ids as well.
MARK_BYTES = 1 + ENTRY_KEY.size

COPY = Layout(
    "what a bookie of a server remembers of a ledger",
    ("flags", "Q", "bit 0: fenced; 1: it has a master key; 2: it has marks although it is the home"),
    ("count", "Q", "its entries"),
    ("last entry", "q", "the highest id"),
    ("LAC", "q", "the highest that it heard of"),
    ("master key", f"{MASTER_KEY_BYTES}s", "a SHA-1, made of the ledger's password"),
    ("explicit LAC", "the rest", "the body as it was sent"),
)
_LAYOUT = COPY.struct
_FENCED = 1
_KEYED = 2
# The home has marks that say which of the store's entries are not its.
_MARKED = 4
_NO_ENTRY = -(1 << 63)


class ReplicaState:
    """What one bookie remembers of a ledger: ``count`` entries, the highest id being ``last_entry`` (None: it has
    none), the highest LAC that it heard of, and the body of the explicit LAC as it was sent."""

    __slots__ = ("count", "explicit_lac", "fenced", "lac", "last_entry", "marked", "master_key")

    def __init__(self) -> None:
        self.master_key: bytes | None = None
        self.fenced = False
        self.marked = False
        self.count = 0
        self.last_entry: int | None = None
        self.lac = -1
        self.explicit_lac = b""

    def pack(self) -> bytes:
        key = self.master_key
        fixed = _LAYOUT.pack(
            (_FENCED if self.fenced else 0) | (_KEYED if key is not None else 0) | (_MARKED if self.marked else 0),
            self.count,
            _NO_ENTRY if self.last_entry is None else self.last_entry,
            self.lac,
            key if key is not None else bytes(MASTER_KEY_BYTES),
        )
        return fixed + self.explicit_lac

    def added(self, count: int, last_entry: int) -> None:
        self.count += count
        if self.last_entry is None or last_entry > self.last_entry:
            self.last_entry = last_entry


def unpack(name: str, body: bytes) -> ReplicaState:
    if len(body) < _LAYOUT.size:
        raise StoreDamagedError(f"{name} is damaged: {len(body)} bytes are too few")
    copy = ReplicaState()
    flags, copy.count, last_entry, copy.lac, key = _LAYOUT.unpack_from(body)
    copy.fenced, copy.marked = bool(flags & _FENCED), bool(flags & _MARKED)
    copy.master_key = key if flags & _KEYED else None
    copy.last_entry = None if last_entry == _NO_ENTRY else last_entry
    copy.explicit_lac = body[_LAYOUT.size :]
    return copy


def ids_of(key: bytes) -> bytes:
    """The ids in the key of a mark, as they stand at the front of an entry. Negative ones are in no entry's key."""
    return key[: LEDGER_KEY.size] + key[COPY_LEDGER.size :]


def position_of(key: bytes) -> tuple[int, int | None]:
    """Ledger and entry id of a key of ``copies``; the latter is None where it is of the ledger as a whole."""
    if len(key) == COPY_LEDGER.size:
        return COPY_LEDGER.unpack(key)[0], None
    ledger_id, _, entry_id = COPY_ENTRY.unpack(key)
    return ledger_id, entry_id


def may_be_mark(key: bytes, begin: bytes) -> bool:
    """Whether a value that begins so may be the mark under the key."""
    own = begin[:1] == OWN and begin[1:] == ids_of(key)
    return (own or begin in (SAME, ABSENT)) and 0 < COPY_ENTRY.unpack(key)[1] <= MAX_BOOKIES


def may_be_copy(key: bytes, body: bytes) -> bool:
    """Whether the body of a sealed record may be what a bookie remembers of a ledger."""
    return len(body) >= _LAYOUT.size and 0 < COPY_LEDGER.unpack(key)[1] <= MAX_BOOKIES


def mirrors_store(ledger: LedgerState | None, bookie: int) -> bool:
    """Whether the bookie has whatever the store has of the ledger, unless a mark says otherwise."""
    return ledger is not None and ledger.home in (0, bookie)


def effective_state(ledger: LedgerState | None, copy: ReplicaState | None) -> ReplicaState | None:
    """A bookie's record, with what it knows of a ledger that the store itself wrote; None: it never heard of it."""
    if ledger is None or ledger.home or not ledger.heard_of:
        return copy
    seen = ReplicaState()
    if copy is not None:
        seen.explicit_lac = copy.explicit_lac
        seen.lac = copy.lac
    seen.fenced = ledger.fenced or (copy is not None and copy.fenced)
    seen.lac = max(seen.lac, ledger.known_lac)
    if ledger.last_entry >= 0:
        seen.added(ledger.count, ledger.last_entry)
    return seen


def resolve_entry(mark: bytes | None, stored: bytes | None, home: bool, name: str) -> bytes | None:
    """A bookie's copy of an entry, given its mark and the store's entry."""
    if mark is None:
        return stored if home else None
    if mark == ABSENT:
        return None
    if mark[:1] == OWN:
        return mark[1:]
    if mark != SAME:
        raise StoreDamagedError(f"{name} is damaged: {mark[:20].hex()} is no mark")
    if stored is None:
        raise StoreDamagedError(f"{name} is missing: the bookie was sent it, but the store does not have it")
    return stored
