"""One bit for each position, and what that takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookstand.delivery.message import position_set as presence_module
from bookstand.delivery.message.position_set import PositionSet
from tests.kit import ROOT

edges = [(1 << 16) - 1, 1 << 16, (1 << 32) - 1, 1 << 32, (1 << 33) + 5, (1 << 63) - 1]
ids = st.one_of(st.integers(0, 5), st.sampled_from(edges))
positions = st.lists(st.tuples(ids, ids), max_size=12)
calls = st.sampled_from(["add", "discard", "take", "known", "new", "one", "less", "bitmap", "ledgers"])


def columns(some: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(some, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@given(st.lists(st.tuples(calls, positions)))
def test_it_is_a_set(steps: list[tuple[str, list[tuple[int, int]]]]) -> None:
    presence = PositionSet()
    model: set[tuple[int, int]] = set()
    for what, some in steps:
        if what == "add":
            presence.add_many(*columns(some))
            model |= set(some)
        elif what == "discard":
            presence.discard_many(*columns(some))
            model -= set(some)
        elif what == "take":
            there = presence.take_many(*columns(some))
            expected = [one in model and one not in some[:row] for row, one in enumerate(some)]
            assert (there is None) is all(expected)
            assert there is None or there.tolist() == expected
            model -= set(some)
        elif what == "known":
            known = [one for one in dict.fromkeys(some) if one in model]
            presence.take_known(*columns(known))
            # Nobody has to ask before the next step.
            model -= set(known)
            assert len(presence) == len(model)
            continue
        elif what == "new":
            fresh = list(dict.fromkeys(some))
            assert presence.add_new(*columns(fresh)) is model.isdisjoint(fresh)
            if model.isdisjoint(fresh):
                model |= set(fresh)
        elif what == "bitmap" and some:
            entries = [entry for _, entry in some]
            presence.add_bitmap(some[0][0], BitMap64(entries))
            model |= {(some[0][0], entry) for entry in entries}
        elif what == "ledgers" and some:
            first, last = sorted((some[0][0], some[-1][0]))
            presence.discard_ledgers(first, last)
            model = {one for one in model if not first <= one[0] <= last}
        else:
            for one in some:
                if what == "one":
                    assert presence.add(*one) is (one not in model)
                    model.add(one)
                else:
                    assert presence.discard(*one) is (one in model)
                    model.discard(one)
        assert len(presence) == len(model)
        assert presence.count_ledgers(0, 3) == sum(ledger <= 3 for ledger, _ in model)
        asked = [*some, *model]
        assert presence.contains_many(*columns(asked)).tolist() == [one in model for one in asked]
        assert all(presence.contains(*one) is (one in model) for one in asked)


def test_pages_come_and_go_beyond_one_bitmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bitmaps of sixteen pages, and pages that are looked for soon."""
    monkeypatch.setattr(presence_module, "_BITMAP_BITS", 20)
    monkeypatch.setattr(presence_module, "_IN_BITMAP", (1 << 20) - 1)
    monkeypatch.setattr(presence_module, "_MIN_PRUNE_PAGES", 8)
    chance = np.random.default_rng(1)
    presence = PositionSet()
    model: set[tuple[int, int]] = set()
    for number in range(150):
        ledgers, entries = chance.integers(0, 60, 40) + number, chance.integers(0, 3, 40) << 15
        some = list(zip(ledgers.tolist(), entries.tolist(), strict=True))
        presence.add_many(ledgers, entries)
        model |= set(some)
        gone = sorted(model)[: max(0, len(model) - 100)]
        there = presence.take_many(*columns(gone))
        assert there is None
        model -= set(gone)
        assert len(presence) == len(model)
        asked = [*some, *model]
        assert presence.contains_many(*columns(asked)).tolist() == [one in model for one in asked]
    # No more than were in use at a time.
    assert len(presence._numbers) <= 512


MEASURE = """
import gc, sys
import numpy as np
from bookstand.delivery.message.position_set import PositionSet

def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

presence = PositionSet()
presence.add(0, 0)
gc.collect()
before = private()
ledgers, entries, step = map(int, sys.argv[1:])
ids = np.arange(entries) * step
for ledger in range(ledgers):
    presence.add_many(np.full(entries, ledger), ids)
gc.collect()
print(private() - before, presence.memory_bytes)
"""


@pytest.mark.slow
def test_what_it_says_it_takes_is_what_it_takes() -> None:
    for arguments in (("60000", "1", "1"), ("2000", "3000", "7")):
        command = [sys.executable, "-c", MEASURE, *arguments]
        told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        taken, said = map(int, told.split())
        assert abs(taken - said) < 0.25 * taken + (1 << 19), (arguments, taken, said)
