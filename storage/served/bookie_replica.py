"""Replicas of ledgers at the bookies of a server, layered over one store. Plain values, no I/O.

The first replica of an entry that any bookie receives becomes the store's own entry, in ``entries``, which the store's
readers and tools see. An acknowledged entry can thus not be missing from the store, however few bookies received it.
Where a bookie's replica differs, ``copies`` has an *override*:

=====  =================================================================================================
value  the bookie's replica of the entry
=====  =================================================================================================
``=``  equals the store's entry
``+``  is the bytes that follow: they differ from the store's, or the store accepts no such id
``-``  does not exist, although the store has the entry
=====  =================================================================================================

Without an override, a bookie has an entry if the store has it and the bookie is the ledger's *home*: the first bookie
that received an entry of it. A ledger stored on one bookie thus needs no overrides. A ledger that a writer of the store
created has no home: all bookies have all of it.

In addition ``copies`` has the state of each ledger that a bookie knows.
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
# Prefix of a value that suffices to recognize an override, including the ids of a replica's own bytes.
OVERRIDE_BYTES = 1 + ENTRY_KEY.size

COPY = Layout(
    "the state of a ledger at a bookie of a server",
    ("flags", "Q", "bit 0: fenced; 1: has a master key; 2: has overrides although it is the home"),
    ("count", "Q", "number of entries"),
    ("last entry", "q", "the highest id"),
    ("LAC", "q", "the highest one received"),
    ("master key", f"{MASTER_KEY_BYTES}s", "a SHA-1 of the ledger's password"),
    ("explicit LAC", "the rest", "the body as received"),
)
_LAYOUT = COPY.struct
_FENCED = 1
_KEYED = 2
# The home has overrides for entries of the store that it does not have.
_HAS_OVERRIDES = 4
_NO_ENTRY = -(1 << 63)


class ReplicaState:
    """State of a ledger at one bookie: ``count`` entries up to ``last_entry`` (None if there are none), the highest LAC
    received, and the body of the explicit LAC."""

    __slots__ = ("count", "explicit_lac", "fenced", "has_overrides", "lac", "last_entry", "master_key")

    def __init__(self) -> None:
        self.master_key: bytes | None = None
        self.fenced = False
        self.has_overrides = False
        self.count = 0
        self.last_entry: int | None = None
        self.lac = -1
        self.explicit_lac = b""

    def pack(self) -> bytes:
        key = self.master_key
        fixed = _LAYOUT.pack(
            (_FENCED if self.fenced else 0)
            | (_KEYED if key is not None else 0)
            | (_HAS_OVERRIDES if self.has_overrides else 0),
            self.count,
            _NO_ENTRY if self.last_entry is None else self.last_entry,
            self.lac,
            key if key is not None else bytes(MASTER_KEY_BYTES),
        )
        return fixed + self.explicit_lac

    def record_added(self, count: int, last_entry: int) -> None:
        self.count += count
        if self.last_entry is None or last_entry > self.last_entry:
            self.last_entry = last_entry


def unpack(name: str, body: bytes) -> ReplicaState:
    if len(body) < _LAYOUT.size:
        raise StoreDamagedError(f"{name} is damaged: {len(body)} bytes are too few")
    replica = ReplicaState()
    flags, replica.count, last_entry, replica.lac, key = _LAYOUT.unpack_from(body)
    replica.fenced, replica.has_overrides = bool(flags & _FENCED), bool(flags & _HAS_OVERRIDES)
    replica.master_key = key if flags & _KEYED else None
    replica.last_entry = None if last_entry == _NO_ENTRY else last_entry
    replica.explicit_lac = body[_LAYOUT.size :]
    return replica


def ids_of(key: bytes) -> bytes:
    """Ids in the key of an override, as the key of the store's entry. No entry has negative ids."""
    return key[: LEDGER_KEY.size] + key[COPY_LEDGER.size :]


def position_of(key: bytes) -> tuple[int, int | None]:
    """Ledger and entry id of a key of ``copies``; the entry id is None for the state of a ledger."""
    if len(key) == COPY_LEDGER.size:
        return COPY_LEDGER.unpack(key)[0], None
    ledger_id, _, entry_id = COPY_ENTRY.unpack(key)
    return ledger_id, entry_id


def may_be_override(key: bytes, begin: bytes) -> bool:
    """Return True if a value with this prefix may be the override under the key."""
    own = begin[:1] == OWN and begin[1:] == ids_of(key)
    return (own or begin in (SAME, ABSENT)) and 0 < COPY_ENTRY.unpack(key)[1] <= MAX_BOOKIES


def may_be_replica_state(key: bytes, body: bytes) -> bool:
    """Return True if the body of a sealed record may be the state of a ledger at a bookie."""
    return len(body) >= _LAYOUT.size and 0 < COPY_LEDGER.unpack(key)[1] <= MAX_BOOKIES


def mirrors_store(ledger: LedgerState | None, bookie: int) -> bool:
    """Return True if the bookie has every entry that the store has, except the overridden ones."""
    return ledger is not None and ledger.home in (0, bookie)


def effective_state(ledger: LedgerState | None, replica: ReplicaState | None) -> ReplicaState | None:
    """State of a ledger as the bookie sees it, including ledgers that the store's own writers created. None if the
    bookie does not know the ledger."""
    if ledger is None or ledger.home or not ledger.heard_of:
        return replica
    seen = ReplicaState()
    if replica is not None:
        seen.explicit_lac = replica.explicit_lac
        seen.lac = replica.lac
    seen.fenced = ledger.fenced or (replica is not None and replica.fenced)
    seen.lac = max(seen.lac, ledger.known_lac)
    if ledger.last_entry >= 0:
        seen.record_added(ledger.count, ledger.last_entry)
    return seen


def resolve_entry(override: bytes | None, stored: bytes | None, home: bool, name: str) -> bytes | None:
    """Replica of an entry at a bookie, from its override and the store's entry."""
    if override is None:
        return stored if home else None
    if override == ABSENT:
        return None
    if override[:1] == OWN:
        return override[1:]
    if override != SAME:
        raise StoreDamagedError(f"{name} is damaged: {override[:20].hex()} is not a valid override")
    if stored is None:
        raise StoreDamagedError(f"{name} is missing: the bookie received it, but the store does not have it")
    return stored
