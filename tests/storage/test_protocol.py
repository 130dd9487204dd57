"""The model of the commit protocol: every state that it can reach keeps all promises, and no rule of it is idle."""

from __future__ import annotations

import random

import pytest

from tests.storage.protocol import histories
from tests.storage.protocol.__main__ import main
from tests.storage.protocol.enumeration import enumerate_states, find_violation
from tests.storage.protocol.model import Bounds, Rules, Step, World, power_cuts, successors
from tests.storage.protocol.traces import Mark, NotAWayError, follow, read_marks


@pytest.mark.slow
def test_no_state_breaks_a_promise():
    """A small enumeration; `python -m tests.soak --kind protocol` is the one without bounds."""
    found = enumerate_states(bounds=Bounds(commits=2, faults=1, kills=1, cuts=1))
    assert (found.violation, found.is_complete) == (None, True)
    assert found.states > 9_000


VIOLATIONS = {
    "first_sync": "damaged tree",
    "header_sync": "without a commit that was acknowledged",
    "marks": "without a commit that was acknowledged",
    "reopen_locked": "without a commit that was acknowledged",
    "settle_rewrites": "without a commit that was acknowledged",
    "settle_syncs": "reported as failed",
    "settle_lowers": "reported as failed",
    "next_repairs": "damaged tree",
    "next_rewrites": "the store is refused",
    "copy_sync": "the store is refused",
    "name_sync": "without a commit that was acknowledged",
    "open_sync": "without a commit that was acknowledged",
    "compact_alone": "damaged tree",
    "takeover": "damaged tree",
    "page_reuse": "damaged tree",
}


@pytest.mark.long
@pytest.mark.parametrize("rule", Rules._fields)
def test_a_protocol_without_the_rule_breaks_a_promise(rule):
    found = enumerate_states(Rules()._replace(**{rule: False}), limit=20_000)
    assert found.violation is not None
    assert VIOLATIONS[rule] in found.violation


def test_the_way_to_a_violation_is_the_shortest():
    *way, violation = find_violation(Rules(first_sync=False))
    assert "damaged tree" in violation
    assert way[-1] == "cut the power"
    assert "process 0: write the header page" in way
    assert "process 0: sync the data file" not in way


def test_states_that_differ_in_names_only_have_one_key():
    """Renaming processes, files and versions, and shifting numbers by a cycle, changes no key."""
    chance, every = random.Random(1), []
    worlds = [World(Rules(), Bounds())]
    for _ in range(30):
        # From level to level a sample, in which steps that go on with a commit are as frequent as those that end it.
        steps: dict[str, Step] = {}
        for world in chance.sample(worlds, min(len(worlds), 12)):
            for step in (*successors(world), *power_cuts(world)):
                steps[f"{step.label} {chance.random() < 0.5}"] = step
        worlds = [step.world for step in steps.values()]
        every += worlds
    keys = set()
    for world in every:
        keys.add(world.key())
        assert renamed(world).key() == world.key()
    assert len(keys) > 100


def renamed(world):
    def version(number):
        return number and number + 5

    def header(one):
        return one._replace(number=one.number + 12, version=version(one.version))

    new = world.copy()
    new.files = {
        number + 3: [
            item._replace(
                seen=header(item.seen) if index < 2 else version(item.seen) if index < 5 else item.seen,
                stored=header(item.stored) if index < 2 else version(item.stored) if index < 5 else item.stored,
            )
            for index, item in enumerate(items)
        ]
        for number, items in world.files.items()
    }
    new.name_seen, new.name_stored = world.name_seen + 3, world.name_stored + 3
    new.versions = {name + 5: one._replace(chain=one.chain << 5) for name, one in world.versions.items()}
    new.processes = [
        one._replace(
            file=one.file if one.file < 0 else one.file + 3,
            version=version(one.version),
            number=one.number + 12 if one.number else 0,
            replaced=one.replaced + 12 if one.number else 0,
        )
        for one in reversed(world.processes)
    ]
    swapped = {0: 1, 1: 0}
    new.folder, new.writer = swapped.get(world.folder, world.folder), swapped.get(world.writer, world.writer)
    if any(one.file >= 0 for one in world.processes):
        new.newest = world.newest + 12
    return new


def test_the_command_prints_bounds_and_counts(capsys):
    assert main(["--commits", "1", "--faults", "0", "--kills", "0", "--cuts", "1"]) == 0
    printed = capsys.readouterr().out
    assert "bounds: 2 processes, 3 data pages, <= 1 commits, <= 0 faults of the device, <= 0 kills" in printed
    assert "no violation, all states enumerated" in printed
    assert main(["--without", "first_sync"]) == 1
    assert "process 0: write the header page" in capsys.readouterr().out


# -- what real processes do --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_histories_are_ways_through_the_model(shim_library):
    """A few of them; `python -m tests.soak --kind protocol_traces` runs as many as there is time for."""
    count, problems, figures = histories.run(shim_library, 7, 20)
    assert not problems, "\n".join(problems)
    assert count > 15
    assert figures["faults"] > 10
    assert figures["kills"] > 5


JOURNAL = """
1 STARTED 0 0 started
1 flock 0 2 /s
1 fcntl64 0 1 /s/lock.mdb
1 open 0 0 /s/data.mdb
1 fcntl64 0 0 /s/lock.mdb
1 fsync 0 0 /s
1 flock 0 8 /s
1 pwrite64 0 4128 /s/data.mdb
1 writev 0 20480 /s/data.mdb
1 writev 0 49152 /s/data.mdb
1 fdatasync 0 0 /s/data.mdb
1 dsync 0 32 /s/data.mdb
1 RESULT 0 0 done
1 writev 0 20480 /s/data.mdb
1 fdatasync 0 0 /s/data.mdb
1 dsync -2 4128 /s/data.mdb
1 pwrite 0 4128 /s/data.mdb
1 flock 0 2 /s
1 fcntl64 0 1 /s/lock.mdb
1 fcntl64 0 0 /s/lock.mdb
1 flock 0 8 /s
1 pwrite64 0 32 /s/data.mdb
1 pwrite64 0 4128 /s/data.mdb
1 fdatasync 0 0 /s/data.mdb
1 RESULT 0 0 failed
1 RESULT 0 0 closed
"""


def test_marks_are_read_from_a_journal():
    marks = read_marks(JOURNAL.strip(), "/s")
    what = "lock exclusive shared names unlock rewrite data sync flush done"
    what += " data sync flush! rewrite lock exclusive shared unlock rewrite rewrite sync failed closed"
    assert marks == [Mark(0, one) for one in what.split()]
    assert follow(marks, Rules())


def test_a_history_without_one_of_its_marks_is_no_way():
    """A process that left out a lock, a write, a sync or a report would be noticed."""
    marks = read_marks(JOURNAL.strip(), "/s")
    for number in range(len(marks) - 1):
        with pytest.raises(NotAWayError):
            follow(marks[:number] + marks[number + 1 :], Rules())


def test_a_failed_commit_that_is_reported_as_done_is_no_way():
    marks = read_marks(JOURNAL.strip(), "/s")
    reported = [Mark(0, "done") if mark.what == "failed" else mark for mark in marks]
    with pytest.raises(NotAWayError):
        follow(reported, Rules())
