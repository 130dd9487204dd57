"""The library is broken on purpose, in all the ways there are, and the other campaigns and tests notice each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import bookstand
from tests.kit import Program
from tests.soak import defects, seeded_defects

ENOUGH = 22
AREAS = {"storage", "ledger", "metadata", "files"}


def examined(numbers):
    """Half of them in each of two processes; in the order of the numbers."""
    numbers = list(numbers)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(seeded_defects.examine, [numbers[::2], numbers[1::2]])
    both = [iter(one), iter(other)]
    return [next(both[place % 2]) for place in range(len(numbers))]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_suites_pass_as_long_as_nothing_is_broken():
    controls = examined(number for number in seeded_defects.IN_TESTS if number in seeded_defects.CONTROLS)
    print(seeded_defects.table(controls))
    faults = [one.fault for one in controls if one.fault]
    assert not faults, "\n".join(faults)
    assert not [one for one in controls if one.last.cases == 0 and not one.unavailable]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_defect_is_caught(counts):
    all_of_them = examined(number for number in seeded_defects.IN_TESTS if number not in seeded_defects.CONTROLS)
    print(seeded_defects.table(all_of_them))
    caught = [one.defect for one in all_of_them if one.caught]
    missed = [one.defect for one in all_of_them if one.fault]
    counts.add("seeded_defects", len(caught), len(missed), missed)
    assert not missed, "\n".join(one.fault for one in all_of_them if one.fault)
    assert len(caught) >= ENOUGH
    assert {defects.DEFECTS[name].area for name in caught} == AREAS


def test_every_defect_is_assigned_to_suites():
    assert seeded_defects.ASSIGNED.keys() == defects.DEFECTS.keys()
    assert all(seeded_defects.ASSIGNED.values())
    used = set().union(*seeded_defects.ASSIGNED.values())
    assert used == seeded_defects.SUITES.keys()


@pytest.mark.parametrize("name", defects.DEFECTS)
def test_what_a_defect_replaces_is_put_back(name, tmp_path):
    patches = defects.Patches(lambda: None)
    defects.DEFECTS[name].how(patches)
    replaced = [(owner, attribute, before) for owner, attribute, before in patches._replaced]
    assert replaced
    assert all(getattr(owner, attribute) is not before for owner, attribute, before in replaced)
    patches.undo()
    assert all(getattr(owner, attribute) is before for owner, attribute, before in replaced)
    with bookstand.open(tmp_path / "store") as store:
        assert store.create_ledger().append(b"whole again") == 0


def test_a_defect_in_a_process_that_is_started(tmp_path):
    source = """
import sys, bookstand
with bookstand.open(sys.argv[1]) as store:
    store.create_ledger()
"""
    hits = defects.Hits(tmp_path / "hits")
    for number, name in enumerate([None, "folders are not synced"]):
        variables = {} if name is None else defects.environment_of(name, str(tmp_path / "hits"))
        with Program(source, tmp_path / f"store-{number}", **variables) as program:
            assert program.finish() == 0
        assert hits.any() == (name is not None)


def test_what_was_missed_is_told():
    result = seeded_defects.Result(60, None, True, 1.0)
    one = seeded_defects.Examined("a fence is not looked at", [("recorded traces", result)])
    assert not one.caught
    assert one.fault == (
        "a fence is not looked at (entries are added to a ledger that is fenced) was missed by recorded traces "
        "(60 scenarios)"
    )
    # A suite that fails without having met the defect failed for another reason.
    other = one._replace(results=[("recorded traces", result._replace(problem="odd", hit=False))])
    assert not other.caught
    assert "not even reached" in str(other.fault)


@pytest.mark.parametrize("name", ["no sync", "no sync of the header", "header before data"])
def test_a_defect_that_only_a_power_cut_shows_breaks_nothing_else(name, tmp_path):
    """A defect that fails by a mistake of its own would be caught by every campaign."""
    with defects.switched_on(name), bookstand.open(tmp_path / "store") as store:
        writer = store.create_ledger()
        assert [writer.append(b"a"), writer.append(b"b")] == [0, 1]
        assert store.verify().ok
