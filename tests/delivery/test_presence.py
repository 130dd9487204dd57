"""One bit for each position, and what that takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookstand.delivery.presence import Presence
from tests.kit import ROOT

ids = st.one_of(st.integers(0, 5), st.sampled_from([(1 << 32) - 1, 1 << 32, (1 << 33) + 5, (1 << 63) - 1]))
positions = st.lists(st.tuples(ids, ids), max_size=12)


def columns(some: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(some, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "one", "less", "bitmap", "ledgers"]), positions)))
def test_it_is_a_set(steps: list[tuple[str, list[tuple[int, int]]]]) -> None:
    presence = Presence()
    model: set[tuple[int, int]] = set()
    for what, some in steps:
        if what == "add":
            presence.add_many(*columns(some))
            model |= set(some)
        elif what == "discard":
            presence.discard_many(*columns(some))
            model -= set(some)
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
        asked = [*some, *model]
        assert presence.contains_many(*columns(asked)).tolist() == [one in model for one in asked]
        assert all(presence.contains(*one) is (one in model) for one in asked)


MEASURE = """
import gc, sys
import numpy as np
from bookstand.delivery.presence import Presence

def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

presence = Presence()
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


def test_what_it_says_it_takes_is_what_it_takes() -> None:
    for arguments in (("60000", "1", "1"), ("2000", "3000", "7")):
        command = [sys.executable, "-c", MEASURE, *arguments]
        told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        taken, said = map(int, told.split())
        assert abs(taken - said) < 0.25 * taken + (1 << 19), (arguments, taken, said)
