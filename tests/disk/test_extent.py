"""Where a ledger ends, on columns; against a plain count of the same."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.disk.bookies.ledger_end import EntryRows, LedgerEnd, Ranges, extent, survey
from bookstand.storage.format.ledger_metadata import LedgerMetadata

UNHURRIED = settings(deadline=None)

BOOKIES = ("b0", "b1", "b2")


class Copy(NamedTuple):
    copies: int
    lac: int
    length: int


def metadata(
    state: str = "OPEN",
    *,
    write: int = 2,
    ack: int = 2,
    last: int | None = None,
    length: int | None = None,
    first: int = 0,
) -> LedgerMetadata:
    ensembles = [(0, BOOKIES)] + ([(first, BOOKIES)] if first else [])
    return LedgerMetadata(
        1,
        ensemble_size=3,
        write_quorum_size=write,
        ack_quorum_size=ack,
        ensembles=ensembles,
        state=state,
        last_entry_id=last,
        length=length,
    )


def measured(
    entries: Mapping[int, Copy], about: LedgerMetadata | None, cuts: tuple[int, ...] = (), **more
) -> LedgerEnd:
    ids = sorted(entries)
    columns = np.array([(i, *entries[i]) for i in ids], np.int64).reshape(-1, 4)
    blocks = [EntryRows(*part.T) for part in np.split(columns, sorted(cuts))]
    quorum = 1 if about is None else max(1, about.ack_quorum_size)
    return extent(survey(blocks, quorum), about, lambda i: entries[i].length if i in entries else None, **more)


def written(copies: Mapping[int, int], lac: int) -> dict[int, Copy]:
    """Entries of ten bytes on so many bookies; ``lac`` is the largest that any of them says."""
    return {i: Copy(n, min(i - 1, lac), 10 * (i + 1)) for i, n in copies.items() if n}


# -- what recordings of three killed bookies showed -----------------------------------------------------------------


def test_two_copies_of_which_two_acknowledge() -> None:
    """Two of three bookies stopped early: of every three entries behind 604 two have one copy, and one has none."""
    copies = dict.fromkeys(range(605), 2)
    copies |= {i: 2 if i % 3 == 0 else 1 for i in range(605, 698)}
    copies |= {i: 0 if i % 3 == 2 else 1 for i in range(698, 794)}
    found = measured(written(copies, lac=600), metadata())
    assert found[:7] == (697, 6980, "OPEN", 600, 604, 697, 793)
    assert found.too_few[0] == (605, 605)
    assert found.too_few[1] == (607, 608)
    assert found.too_few[-1] == (697, 697)
    assert not found.missing
    assert len(found.doubts) == 2
    assert "604 to 697" in found.doubts[0]
    assert "698" in found.doubts[1]
    assert "793" in found.doubts[1]


def test_three_copies_of_which_three_acknowledge() -> None:
    copies = dict.fromkeys(range(506), 3) | dict.fromkeys(range(506, 619), 2)
    found = measured(written(copies, lac=500), metadata(write=3, ack=3))
    assert found[:7] == (618, 6190, "OPEN", 500, 505, 618, 618)
    assert found.too_few == [(506, 618)]


def test_one_bookie_ends_with_the_gapless_run() -> None:
    found = measured(written({0: 1, 1: 1, 3: 1}, lac=-1), metadata(write=1, ack=1))
    assert found[:7] == (1, 20, "OPEN", -1, 1, 1, 3)
    assert not found.missing
    assert len(found.doubts) == 1


# -- closed ledgers --------------------------------------------------------------------------------------------------


def test_a_closed_ledger_ends_where_its_metadata_says() -> None:
    found = measured(written(dict.fromkeys(range(8), 2), lac=6), metadata("CLOSED", last=4, length=50))
    assert found[:7] == (4, 50, "CLOSED", 4, 7, 7, 7)
    assert not found.doubts


def test_what_a_closed_ledger_has_lost_is_named() -> None:
    found = measured(written({0: 2, 1: 1, 4: 2, 5: 1, 6: 2}, lac=5), metadata("CLOSED", last=9, length=100))
    assert found.missing == [(2, 3), (7, 9)]
    assert found.too_few == [(1, 1), (5, 5)]
    assert found.doubts == ("its last entry 9 is on none of the disks; the highest there is 6",)


def test_metadata_and_last_entry_that_disagree_are_shown() -> None:
    entries = written({0: 2, 1: 2}, lac=0)
    assert measured(entries, metadata("CLOSED", last=1, length=25)).doubts == (
        "its metadata says length 25, its last entry 1 says 20",
    )
    # Written out of order, another entry than the last has the whole length.
    out_of_order = {0: Copy(2, -1, 20), 1: Copy(2, -1, 10)}
    assert not measured(out_of_order, metadata("CLOSED", last=1, length=20)).doubts


@pytest.mark.parametrize("about", [metadata(), metadata("CLOSED", last=-1, length=0), metadata("IN_RECOVERY"), None])
def test_an_empty_ledger(about: LedgerMetadata | None) -> None:
    found = measured({}, about)
    assert (found.last_entry, found.length, found.lac, found.enough, found.highest) == (-1, 0, -1, -1, -1)
    assert not found.missing
    assert not found.too_few


# -- open ledgers ----------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_in_the_ledger_though_it_is_lost() -> None:
    """Recovery reads on from the last confirmed entry: a gap before that does not end the ledger."""
    found = measured(written({0: 2, 1: 2, 5: 2, 6: 2, 8: 2}, lac=4), metadata())
    assert found[:7] == (6, 70, "OPEN", 4, 1, 1, 8)
    assert found.missing == [(2, 4)]


def test_the_last_confirmed_entry_itself_is_lost() -> None:
    found = measured(written({0: 2, 1: 2}, lac=0), metadata(), explicit_lac=3)
    assert (found.last_entry, found.length, found.lac) == (3, 20, 3)
    assert found.missing == [(2, 3)]
    assert "length 20 is too small" in found.doubts[0]


def test_entries_before_the_last_ensemble_are_acknowledged() -> None:
    found = measured(written({0: 2, 1: 1, 2: 1, 3: 1}, lac=-1), metadata(first=2))
    assert found.last_entry == 3
    assert "entry 1 to 3" in found.doubts[0]


def test_an_explicit_lac_counts() -> None:
    assert measured(written(dict.fromkeys(range(5), 1), lac=3), metadata(ack=1), explicit_lac=4).lac == 4


def test_a_header_that_confirms_its_own_entry_is_not_trusted() -> None:
    assert measured({0: Copy(1, 1 << 40, 10)}, metadata(ack=1)).last_entry == 0


def test_disks_that_are_not_here_are_named() -> None:
    assert "no disk of b2" in measured(written({0: 1}, lac=-1), metadata(), absent=["b2"]).doubts[-1]


def test_without_metadata_nothing_is_decided() -> None:
    found = measured(written({0: 1, 1: 2}, lac=0), None)
    assert (found.state, found.last_entry, found.length) == ("UNKNOWN", 1, 20)
    assert found.doubts
    assert "no metadata" in found.doubts[0]


# -- against a plain count -------------------------------------------------------------------------------------------

COPY = st.builds(Copy, st.integers(1, 3), st.integers(-1, 12), st.integers(0, 100))
METADATA = st.one_of(
    st.none(),
    st.builds(
        metadata,
        st.sampled_from(["OPEN", "IN_RECOVERY"]),
        write=st.just(3),
        ack=st.integers(0, 3),
        first=st.integers(0, 6),
    ),
    st.builds(metadata, st.just("CLOSED"), ack=st.integers(0, 2), last=st.integers(-1, 14), length=st.integers(0, 100)),
)


@UNHURRIED
@given(
    st.dictionaries(st.integers(0, 14), COPY, max_size=15),
    METADATA,
    st.integers(-1, 12),
    st.lists(st.integers(0, 15), max_size=3),
)
def test_it_is_as_counted(
    entries: dict[int, Copy], about: LedgerMetadata | None, explicit: int, cuts: list[int]
) -> None:
    found = measured(entries, about, tuple(cuts), explicit_lac=explicit)
    quorum = max(1, about.ack_quorum_size) if about else 1

    def run(holds, after: int = -1) -> int:
        while holds(after + 1):
            after += 1
        return after

    highest = max(entries, default=-1)
    lac = max([explicit, *(min(copy.lac, i - 1) for i, copy in entries.items())])
    gapless = run(lambda i: i in entries)
    assert (found.highest, found.gapless) == (highest, gapless)
    assert found.enough == run(lambda i: i in entries and entries[i].copies >= quorum)
    if about is not None and about.state == "CLOSED":
        assert found[:4] == (about.last_entry_id, about.length, "CLOSED", about.last_entry_id)
    else:
        acknowledged = max(lac, about.ensembles[-1][0] - 1) if about else lac
        end = max(gapless, run(lambda i: i in entries, acknowledged))
        before = max((i for i in entries if i <= end), default=None)
        assert found[:4] == (
            end,
            0 if before is None else entries[before].length,
            "UNKNOWN" if about is None else about.state,
            lac,
        )
        assert bool(found.doubts) == (
            about is None
            or end < highest
            or (end >= 0 and end not in entries)
            or max(found.enough, min(acknowledged, end)) < end
        )
    ids = {i for first, last in found.missing for i in range(first, last + 1)}
    assert ids == set(range(found.last_entry + 1)) - set(entries)
    few = {i for first, last in found.too_few for i in range(first, last + 1)}
    assert few == {i for i, copy in entries.items() if copy.copies < quorum and i <= found.last_entry}


@UNHURRIED
@given(st.sets(st.integers(0, 40)), st.integers(-1, 41))
def test_ranges(ids: set[int], at: int) -> None:
    ranges = Ranges([(i, i) for i in sorted(ids)])
    assert [i for first, last in ranges for i in range(first, last + 1)] == sorted(ids)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(ranges))
    assert ranges.ids == len(ids)
    assert ranges.behind(at) == min((i for i in ids if i > at), default=None)
    assert [i for first, last in ranges.upto(at) for i in range(first, last + 1)] == sorted(i for i in ids if i <= at)
    assert ranges == list(ranges)
    assert ranges == Ranges(list(ranges))
