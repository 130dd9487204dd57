"""End of a ledger, from its metadata or from the copies of its entries.

A closed ledger ends at the last entry in its metadata. Any other ledger ends where recovery would close it. Recovery
reads forward from the last entry known to be acknowledged and stops at the first entry that too many bookies report
missing; the order of their answers determines how far it gets. With all disks available, it ends

* at or after the end of the run from entry 0 in which every entry has enough copies for an acknowledgment, and
* at or before the end of the gapless run.

The gapless run is used, because it includes every entry that may have been acknowledged. The remaining uncertainty is
in :attr:`LedgerEnd.doubts`. This module reads no files; it processes columns, one block of entries at a time.
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
"""State of a ledger without metadata."""
DELETED = "DELETED"
"""State of a store's ledger that was deleted and whose entries have not been garbage-collected."""


NO_DISK_OF = "there is no disk of"
"""Prefix of the doubt that missing disks may have more data."""


class Ranges(Sequence[tuple[int, int]]):
    """Inclusive ranges (first, last) of ids, ascending and not adjacent; each takes two int64."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[int, int]] | Column = ()) -> None:
        array = pairs if isinstance(pairs, np.ndarray) else np.array(list(pairs), np.int64)
        array = array.reshape(-1, 2)
        # Merge adjacent ranges.
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
        """Number of ids in all ranges."""
        return int((self._pairs[:, 1] - self._pairs[:, 0] + 1).sum())

    def upto(self, last: int) -> Ranges:
        """Return the parts of the ranges up to and including ``last``."""
        pairs = self._pairs[: np.searchsorted(self._pairs[:, 0], last, "right")].copy()
        np.minimum(pairs[:, 1], last, out=pairs[:, 1])
        return Ranges(pairs)

    def behind(self, entry_id: int) -> int | None:
        """Return the smallest id greater than ``entry_id``, or None."""
        at = int(np.searchsorted(self._pairs[:, 1], entry_id, "right"))
        return None if at == len(self._pairs) else max(entry_id + 1, int(self._pairs[at, 0]))

    def __str__(self) -> str:
        shown = [str(first) if first == last else f"{first}–{last}" for first, last in self[:8]]
        return ", ".join(shown) + (f" and {len(self) - 8} more ranges" if len(self) > 8 else "")

    def __repr__(self) -> str:
        return f"Ranges({list(self[:8])}{'…' if len(self) > 8 else ''})"


class EntryRows(NamedTuple):
    """Entries of a ledger as found on the disks, a row each, by ascending id."""

    entry_ids: Column
    copies: Column
    """Number of bookies with a copy."""
    lacs: Column
    """Largest last-add-confirmed in any copy."""
    lengths: Column
    """Cumulative length in the best copy."""


class CopyInventory(NamedTuple):
    """Summary of the copies of a ledger, independent of its metadata."""

    highest: int
    """Largest entry id; −1 without entries."""
    gaps: Ranges
    """Missing entries up to ``highest``."""
    too_few: Ranges
    """Entries with fewer copies than an acknowledgment requires."""
    lac: int
    longest: int
    """Largest cumulative length; not that of the last entry if the ledger was written out of order."""


class LedgerEnd(NamedTuple):
    """End of a ledger and the evidence for it."""

    last_entry: int
    """Last entry of the ledger; −1 if it is empty."""
    length: int
    """Total payload bytes up to the end: from the metadata, or the cumulative length in the last entry."""
    state: str
    """``CLOSED``, ``OPEN`` or ``IN_RECOVERY`` as in the metadata; ``UNKNOWN`` without metadata."""
    lac: int
    """Last-add-confirmed for a client that opens the ledger without recovery."""
    enough: int
    """Last entry of the run from 0 in which every entry has enough copies for an acknowledgment."""
    gapless: int
    """Last entry of the run from 0 in which no entry is missing."""
    highest: int
    """Largest entry id on the disks, which may be after the end."""
    too_few: Ranges
    """Existing entries up to the end with fewer copies than an acknowledgment requires."""
    missing: Ranges
    """Entries up to the end that are on none of the disks."""
    doubts: tuple[str, ...] = ()
    """Questions that the disks leave open, and contradictions to the metadata; a line each."""


def survey(blocks: Iterable[EntryRows], ack_quorum: int) -> CopyInventory:
    """Summarize copies. ``blocks`` are sorted by entry id, and each entry is in only one of them."""
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
        # An entry is sent before it is confirmed, so a LAC that is not less than the entry id is invalid.
        lac = max(lac, int(np.minimum(lacs, ids - 1).max()))
        longest = max(longest, int(lengths.max()))
    return CopyInventory(highest, _joined(gaps), _joined(too_few), lac, longest)


def _joined(pairs: list[Column]) -> Ranges:
    return Ranges(np.concatenate(pairs) if pairs else ())


def ack_quorum_of(metadata: LedgerMetadata | None) -> int:
    """Return the number of copies that an acknowledgment requires; 1 without metadata."""
    return 1 if metadata is None else max(1, metadata.ack_quorum_size)


def entries_are(ranges: Ranges, one: str = "is", several: str = "are") -> str:
    """Format ranges and a verb: ``entry 3 is``, ``entries 3–5 are``."""
    return f"entry {ranges} {one}" if ranges.ids == 1 else f"entries {ranges} {several}"


def extent(
    found: CopyInventory,
    metadata: LedgerMetadata | None,
    length_at: Callable[[int], int | None],
    *,
    explicit_lac: int = NO_ENTRY,
    absent: Sequence[str] = (),
) -> LedgerEnd:
    """Determine the end of a ledger. ``length_at`` returns the cumulative length in an entry, or None if it is missing.
    ``explicit_lac`` is the LAC that the writer sent apart from entries. ``absent`` lists bookies of the ledger's
    ensembles whose disks are unavailable."""
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
        # Every acknowledged entry belongs to the ledger, even if its last copy is lost.
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
    """Return the last entry that follows ``entry_id`` without a gap."""
    if entry_id >= highest:
        return entry_id
    gap = gaps.behind(entry_id)
    return highest if gap is None else gap - 1


def _with_tail(found: CopyInventory, last: int) -> Ranges:
    """Return the gaps up to ``last``, which may be greater than the highest entry."""
    if last <= found.highest:
        return found.gaps.upto(last)
    return Ranges([*found.gaps, (found.highest + 1, last)])


def _length_before(found: CopyInventory, last: int, length_at: Callable[[int], int | None]) -> int:
    """Return the cumulative length in the last existing entry before ``last``, which is missing."""
    if last > found.highest:
        before = found.highest
    else:
        before = next((first - 1 for first, end in reversed(found.gaps.upto(last)) if end >= last), NO_ENTRY)
    return (length_at(before) or 0) if before >= 0 else 0


def _against(last: int, length: int, length_at: Callable[[int], int | None], found: CopyInventory) -> Iterator[str]:
    """Describe contradictions between the disks and the metadata of a closed ledger."""
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
