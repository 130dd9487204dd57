"""Where a ledger ends: what its metadata says, or what the copies of its entries allow.

A closed ledger ends where its metadata says. Any other one ends where recovery would close it. Recovery reads on from
the last entry that is known to be acknowledged and stops at the first one that too many bookies report missing; which
of them it asks first decides how far it comes. With all disks at hand it ends

* not before the run from entry 0 in which every entry has as many copies as an acknowledgment takes, and
* not behind the gapless run.

The gapless run is kept, for it holds every entry that can have been acknowledged. What that leaves open is said in
:attr:`Extent.doubts`. Nothing here reads a file: all works on columns, a block of entries at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bookstand.storage.format.ledger_metadata import CLOSED, NO_ENTRY, OPEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.format.ledger_metadata import LedgerMetadata

    Column = np.ndarray[Any, np.dtype[Any]]

UNKNOWN = "UNKNOWN"
"""The state of a ledger without metadata."""
DELETED = "DELETED"
"""The state of a store's ledger that was deleted, and whose entries are not collected yet."""


NO_DISK_OF = "there is no disk of"
"""How the doubt begins that other disks may know more."""


class Ranges(Sequence[tuple[int, int]]):
    """Ranges of ids, (first, last) both included, ascending and not touching; as small as two numbers each."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[int, int]] | Column = ()) -> None:
        array = pairs if isinstance(pairs, np.ndarray) else np.array(list(pairs), np.int64)
        array = array.reshape(-1, 2)
        # Those that touch become one.
        opens = np.ones(len(array), bool)
        opens[1:] = array[1:, 0] != array[:-1, 1] + 1
        closes = np.roll(opens, -1)
        self._pairs = np.column_stack((array[opens, 0], array[closes, 1]))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Ranges(self._pairs[at])
        first, last = self._pairs[at].tolist()
        return first, last

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for start in range(0, len(self._pairs), 4096):
            yield from map(tuple, self._pairs[start : start + 4096].tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ranges):
            return np.array_equal(self._pairs, other._pairs)
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def ids(self) -> int:
        """How many ids there are in all of them."""
        return int((self._pairs[:, 1] - self._pairs[:, 0] + 1).sum())

    def upto(self, last: int) -> Ranges:
        """What there is of them up to and with ``last``."""
        pairs = self._pairs[: np.searchsorted(self._pairs[:, 0], last, "right")].copy()
        np.minimum(pairs[:, 1], last, out=pairs[:, 1])
        return Ranges(pairs)

    def behind(self, entry_id: int) -> int | None:
        """The first of the ids that is larger than ``entry_id``; None if all of them are before it."""
        at = int(np.searchsorted(self._pairs[:, 1], entry_id, "right"))
        return None if at == len(self._pairs) else max(entry_id + 1, int(self._pairs[at, 0]))

    def __str__(self) -> str:
        shown = [str(first) if first == last else f"{first}–{last}" for first, last in self[:8]]
        return ", ".join(shown) + (f" and {len(self) - 8} more ranges" if len(self) > 8 else "")

    def __repr__(self) -> str:
        return f"Ranges({list(self[:8])}{'…' if len(self) > 8 else ''})"


class EntryRows(NamedTuple):
    """Some entries of a ledger, a row each, by ascending id: what the disks hold of them."""

    entry_ids: Column
    copies: Column
    """On how many bookies."""
    lacs: Column
    """The largest last-add-confirmed in any copy."""
    lengths: Column
    """The cumulative length in the best copy."""


class CopyInventory(NamedTuple):
    """All that the copies say about a ledger, whatever its metadata says."""

    highest: int
    """The largest entry id, −1 without entries."""
    gaps: Ranges
    """What is missing below that."""
    too_few: Ranges
    """Entries with fewer copies than an acknowledgment takes."""
    lac: int
    longest: int
    """The largest cumulative length: not in the last entry, if a ledger was written out of order."""


class LedgerEnd(NamedTuple):
    """Where a ledger ends, and what tells it."""

    last_entry: int
    """The end of the ledger; −1 for an empty one."""
    length: int
    """The bytes of all payloads up to there: by the metadata, else the cumulative length in the last entry."""
    state: str
    """As in the metadata: ``CLOSED``, ``OPEN`` or ``IN_RECOVERY``; ``UNKNOWN`` without metadata."""
    lac: int
    """What a client sees as last confirmed that opens the ledger without recovery."""
    enough: int
    """The last entry of the run from 0 in which every entry has as many copies as an acknowledgment takes."""
    gapless: int
    """The last entry of the run from 0 in which no entry is missing."""
    highest: int
    """The largest entry id on the disks; it may lie behind the end."""
    too_few: Ranges
    """Entries up to the end that are there with fewer copies than an acknowledgment takes."""
    missing: Ranges
    """Entries up to the end that are on none of the disks."""
    doubts: tuple[str, ...] = ()
    """What the disks do not decide, or say otherwise than the metadata; a line each."""


def survey(blocks: Iterable[EntryRows], ack_quorum: int) -> CopyInventory:
    """``blocks`` come by ascending entry id, and no entry is in two of them."""
    highest = lac = NO_ENTRY
    longest = 0
    gaps: list[Column] = []
    too_few: list[Column] = []
    for ids, copies, lacs, lengths in blocks:
        if not len(ids):
            continue
        before = np.concatenate(([highest], ids[:-1]))
        at = np.flatnonzero(ids != before + 1)
        gaps.append(np.column_stack((before[at] + 1, ids[at] - 1)))
        scarce = ids[copies < ack_quorum]
        if len(scarce):
            opens = np.flatnonzero(np.concatenate(([True], scarce[1:] != scarce[:-1] + 1)))
            closes = np.concatenate((opens[1:] - 1, [len(scarce) - 1]))
            too_few.append(np.column_stack((scarce[opens], scarce[closes])))
        highest = int(ids[-1])
        # No entry is confirmed when it is sent: a header that says so cannot be trusted.
        lac = max(lac, int(np.minimum(lacs, ids - 1).max()))
        longest = max(longest, int(lengths.max()))
    return CopyInventory(highest, _joined(gaps), _joined(too_few), lac, longest)


def _joined(pairs: list[Column]) -> Ranges:
    return Ranges(np.concatenate(pairs) if pairs else ())


def ack_quorum_of(metadata: LedgerMetadata | None) -> int:
    """How many copies an acknowledgment takes: at least one, and one where there is nothing to know it by."""
    return 1 if metadata is None else max(1, metadata.ack_quorum_size)


def entries_are(ranges: Ranges, one: str = "is", several: str = "are") -> str:
    """``entry 3 is``, ``entries 3–5 are``."""
    return f"entry {ranges} {one}" if ranges.ids == 1 else f"entries {ranges} {several}"


def extent(
    found: CopyInventory,
    metadata: LedgerMetadata | None,
    length_at: Callable[[int], int | None],
    *,
    explicit_lac: int = NO_ENTRY,
    absent: Sequence[str] = (),
) -> LedgerEnd:
    """``length_at``: the cumulative length in an entry, None if it is not there. ``explicit_lac``: the LAC that the
    writer told the bookies apart from entries. ``absent``: bookies of the ledger's ensembles whose disks are not here;
    what they hold is not known."""
    gapless = _end_of_run(found.gaps, found.highest, NO_ENTRY)
    scarce = found.too_few.behind(NO_ENTRY)
    enough = gapless if scarce is None else min(gapless, scarce - 1)
    lac = max(found.lac, explicit_lac)
    doubts: list[str] = []
    if metadata is not None and metadata.state == CLOSED:
        last, length, state = metadata.last_entry_id, metadata.length, CLOSED
        lac = last
        doubts += _against(last, length, length_at, found)
    else:
        state = UNKNOWN if metadata is None else metadata.state
        # Whatever was acknowledged is in the ledger, though its last copy may be lost.
        acknowledged = lac if metadata is None else max(lac, metadata.ensembles[-1][0] - 1)
        last = max(gapless, _end_of_run(found.gaps, found.highest, acknowledged))
        at_last = length_at(last) if last >= 0 else 0
        length = _length_before(found, last, length_at) if at_last is None else at_last
        if metadata is None:
            doubts.append(
                "there is no metadata: whether and where the ledger was closed, how many copies an acknowledgment "
                f"took, and whether the ledger was deleted is not known; it is kept up to entry {last}"
            )
        surely = max(enough, min(acknowledged, last))
        if surely < last:
            doubts.append(
                f"the ledger is {state}, and some entries behind {surely} have too few copies to be acknowledged: "
                f"recovery may close it anywhere from entry {surely} to {last}; all up to {last} is kept"
            )
        if at_last is None:
            doubts.append(f"entry {last} was acknowledged and is on none of the disks: length {length} is too small")
        if found.highest > last:
            doubts.append(f"there are entries behind a gap at {last + 1}, up to {found.highest}: lost to clients")
    missing = _with_tail(found, last)
    if absent:
        doubts.append(
            f"{NO_DISK_OF} {', '.join(absent)}: what is missing may be there"
            + ("" if state == CLOSED else ", and the end may lie further on")
        )
    few = found.too_few.upto(last)
    return LedgerEnd(last, length, state, lac, enough, gapless, found.highest, few, missing, tuple(doubts))


def _end_of_run(gaps: Ranges, highest: int, entry_id: int) -> int:
    """The last of the entries that follow ``entry_id`` without a gap."""
    if entry_id >= highest:
        return entry_id
    gap = gaps.behind(entry_id)
    return highest if gap is None else gap - 1


def _with_tail(found: CopyInventory, last: int) -> Ranges:
    """The gaps up to ``last``, which may be behind all that is there."""
    if last <= found.highest:
        return found.gaps.upto(last)
    return Ranges([*found.gaps, (found.highest + 1, last)])


def _length_before(found: CopyInventory, last: int, length_at: Callable[[int], int | None]) -> int:
    """The cumulative length in the last entry that is there before ``last``, which is not."""
    if last > found.highest:
        before = found.highest
    else:
        before = next((first - 1 for first, end in reversed(found.gaps.upto(last)) if end >= last), NO_ENTRY)
    return (length_at(before) or 0) if before >= 0 else 0


def _against(last: int, length: int, length_at: Callable[[int], int | None], found: CopyInventory) -> Iterator[str]:
    """What the disks say otherwise than the metadata of a closed ledger."""
    stored = length_at(last) if last >= 0 else 0
    if stored is None:
        yield f"its last entry {last} is on none of the disks" + (
            "" if found.highest < 0 else f"; the highest there is {found.highest}"
        )
    elif length not in (stored, found.longest):
        yield f"its metadata says length {length}, its last entry {last} says {stored}"


__all__ = [
    "DELETED",
    "OPEN",
    "UNKNOWN",
    "LedgerEnd",
    "EntryRows",
    "Ranges",
    "CopyInventory",
    "ack_quorum_of",
    "extent",
    "survey",
]
