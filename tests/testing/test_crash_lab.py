"""The lab finds what is broken, makes it small, and repeats it; and says nothing where nothing is broken."""

from __future__ import annotations

import os
import signal
import traceback

import lmdb
import pytest

import bookstand
from bookstand.errors import IncorrectParameterError
from bookstand.storage.hooks import Hooks
from bookstand.testing.crash import recording as kinds
from bookstand.testing.crash import replay, syscall_recorder
from bookstand.testing.crash.lab import CrashFoundError, CrashLab, RecordedCrashError, RecordedCrashWarning, every_crash
from bookstand.testing.crash.recording import Operation, Recording
from bookstand.testing.crash.replay import VARIABLE
from tests.soak.crash_promises import check as keeps_promises
from tests.soak.crash_work import Mixture

IN_PLACE = ["simulated", "kill"]


@pytest.fixture(autouse=True)
def nothing_to_repeat(monkeypatch, tmp_path):
    """And what is found on purpose is not kept."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(replay, "private_folder", lambda: str(tmp_path))


@pytest.fixture
def observing():
    reason = syscall_recorder.missing()
    if reason is not None:
        pytest.skip(reason)


def entries(path, acknowledge):
    """Acknowledges each entry once it is confirmed."""
    with bookstand.open(path) as store:
        writer = store.create_ledger()
        for number in range(5):
            entry_id = writer.append(b"entry %d" % number)
            acknowledge([writer.id, entry_id])


def more_entries(path, acknowledge):
    """What :func:`hasty` should do, and twice as much of it."""
    with bookstand.open(path) as store:
        writer = store.create_ledger()
        for number in range(10):
            acknowledge([writer.id, writer.append(b"entry %d" % number)])


def hasty(path, acknowledge):
    """Acknowledges entries that are under way."""
    with bookstand.open(path) as store:
        writer = store.create_ledger()
        for number in range(5):
            acknowledge([writer.id, number])
            writer.append(b"entry %d" % number)


def check(store, acknowledged):
    for ledger_id, entry_id in acknowledged:
        found = store.open_ledger(ledger_id, recovery=False).read_unconfirmed(entry_id, entry_id)
        assert found[0].data == b"entry %d" % entry_id


def no_check(store, acknowledged):
    pass


# -- what is well ----------------------------------------------------------------------------------------------------


def test_every_power_cut():
    explored = every_crash(entries, check)
    assert explored.states > 200
    assert explored.recording.recorder == "pages"
    assert f"{explored.states} crashes" in str(explored)


def test_every_power_cut_below_the_process(observing):
    explored = every_crash(entries, check, recorder="observed")
    assert explored.states > 200
    assert explored.recording.recorder == "observed"


@pytest.mark.long
@pytest.mark.parametrize("mode", IN_PLACE)
def test_crashes_at_points(mode):
    explored = every_crash(entries, check, mode=mode)
    # Three points a commit, for a creation and five entries, at least.
    assert explored.states >= 18


@pytest.mark.long
def test_kills_before_each_file_operation(observing):
    explored = every_crash(entries, check, mode="kill", recorder="observed")
    assert explored.states > 40
    assert every_crash(entries, check, 5, mode="kill", recorder="observed").states == 5


@pytest.mark.parametrize("mode", ["images", *IN_PLACE])
def test_limits(mode):
    assert every_crash(entries, check, limit=7, mode=mode).states == 7


def test_no_folder_stays(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with CrashLab(place) as lab:
        recording = lab.record(entries)
        assert lab.explore(recording, check, 20).states == 20
        inside = lab.folder
        assert os.listdir(inside) == []
    assert os.listdir(place) == []


def test_a_state_can_be_written_to_a_folder(tmp_path):
    with CrashLab() as lab:
        recording = lab.record(entries)
        *_, last = lab.states(recording)
        path = lab.write(recording, last.case, tmp_path / "state")
    with bookstand.open(path, create=False) as store:
        check(store, recording.acknowledged[: last.acknowledged])
        assert store.verify().ok


# -- what is broken --------------------------------------------------------------------------------------------------


def found_by(explore):
    with pytest.raises(CrashFoundError) as caught:
        explore()
    return caught.value


@pytest.mark.parametrize("mode", ["images", *IN_PLACE])
def test_an_early_acknowledgment_is_found(mode):
    found = found_by(lambda: every_crash(hasty, check, mode=mode))
    assert isinstance(found, AssertionError)
    assert found.acknowledged
    assert found.replay.startswith(f'{VARIABLE}="v1:')
    assert found.replay in str(found)


@pytest.mark.long
def test_an_early_acknowledgment_is_found_by_kills_before_file_operations(observing, monkeypatch):
    def explore():
        return every_crash(hasty, check, mode="kill", recorder="observed")

    found = found_by(explore)
    assert found.acknowledged
    monkeypatch.setenv(VARIABLE, found.replay.partition("=")[2].strip('"'))
    again = found_by(explore)
    assert (again.replay, again.tried) == (found.replay, 1)


def test_what_is_found_is_made_small():
    found = found_by(lambda: every_crash(hasty, check))
    # The first acknowledgment is wrong already, and nothing has to be lost or torn for that.
    assert found.acknowledged == [[0, 0]]
    assert "drop" not in found.replay
    assert "tear" not in found.replay


@pytest.mark.parametrize("mode", ["images", *IN_PLACE])
def test_what_was_found_is_repeated_alone(monkeypatch, mode):
    first = found_by(lambda: every_crash(hasty, check, mode=mode))
    name, _, value = first.replay.partition("=")
    monkeypatch.setenv(name, value.strip('"'))
    again = found_by(lambda: every_crash(hasty, check, mode=mode))
    assert again.replay == first.replay
    assert again.acknowledged == first.acknowledged
    assert again.tried == 1
    other = "kill" if mode == "images" else "images"
    with pytest.raises(IncorrectParameterError, match="another mode"):
        every_crash(hasty, check, mode=other)


def test_a_crash_of_another_workload_is_not_repeated(monkeypatch):
    monkeypatch.setenv(VARIABLE, "v1:recorder=pages;shape=00000000;cut=5")
    with pytest.raises(IncorrectParameterError, match=f"another workload.*is gone.*run the test without {VARIABLE}"):
        every_crash(entries, check)


def test_what_was_recorded_is_kept_for_workloads_that_never_do_the_same(monkeypatch):
    lengths = iter(range(1, 100))

    def changing(path, acknowledge):
        with bookstand.open(path) as store:
            writer = store.create_ledger()
            acknowledge([writer.id, 0])
            writer.append(b"entry 0")
            writer.append_many([b"x" * 5000] * next(lengths))

    first = found_by(lambda: every_crash(changing, check))
    monkeypatch.setenv(VARIABLE, first.replay.partition("=")[2].strip('"'))
    again = found_by(lambda: every_crash(changing, check))
    assert isinstance(again, RecordedCrashError)
    assert again.replay == first.replay
    assert str(again).endswith(str(again.found))


def test_a_cured_program_is_told_that_it_was_not_tried(monkeypatch, tmp_path):
    """The recording is of the program before the cure, and fails as it did."""
    first = found_by(lambda: every_crash(hasty, check))
    monkeypatch.setenv(VARIABLE, first.replay.partition("=")[2].strip('"'))
    with CrashLab() as lab:
        counts = [len(lab.record(workload).operations) for workload in (hasty, more_entries)]
    again = found_by(lambda: every_crash(more_entries, check))
    assert isinstance(again, RecordedCrashError)
    top, _, rest = str(again).partition("\n\n")
    assert f"{counts[0]} file operations then, {counts[1]} now" in top
    assert f"the recorded crash, from {tmp_path}" in top
    assert f"run the test without {VARIABLE}" in top
    assert first.problem.splitlines()[-1] in rest
    with pytest.warns(RecordedCrashWarning, match=f"nothing is wrong with the recorded crash[^$]*without {VARIABLE}"):
        every_crash(more_entries, no_check)
    monkeypatch.delenv(VARIABLE)
    assert every_crash(more_entries, check).states > 200


@pytest.mark.parametrize("text", ["nonsense", "v1:", "v2:shape=1;cut=1", "v1:shape=12345678"])
def test_what_describes_no_crash(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(IncorrectParameterError, match=VARIABLE):
        every_crash(entries, check)


def test_a_store_that_ends_the_process_is_a_finding():
    def deadly(store, acknowledged):
        if len(acknowledged) == 3:
            os.kill(os.getpid(), signal.SIGBUS)

    found = found_by(lambda: every_crash(entries, deadly))
    assert "SIGBUS" in found.problem
    assert "in deadly" in found.problem, "where it was is told"
    assert len(found.acknowledged) == 3


@pytest.mark.parametrize("mode", ["images", *IN_PLACE])
def test_what_is_told_has_no_frames_of_the_kit(mode):
    kit = os.path.dirname(replay.__file__)
    found = found_by(lambda: every_crash(hasty, check, mode=mode))
    assert "in check" in found.problem
    assert kit not in found.problem
    frames = [frame for frame, _ in traceback.walk_tb(found.__traceback__)]
    kits = [frame for frame in frames if frame.f_code.co_filename.startswith(kit)]
    assert len(kits) >= 2
    assert all(frame.f_locals["__tracebackhide__"] for frame in kits), "pytest leaves them out"


def test_damage_is_found_without_a_check():
    with CrashLab() as lab:
        recording = without_syncs(lab.record(entries))
        assert found_by(lambda: lab.explore(recording, no_check)).tried < 3000


def without_header_sync(path, acknowledge):
    """LMDB is told not to sync its header."""
    with_environment(entries, path, acknowledge, metasync=False)


def without_any_sync(path, acknowledge):
    with_environment(entries, path, acknowledge, sync=False)


def with_environment(workload, path, acknowledge, **options):
    """The workload over an LMDB that is opened another way than the store asks for."""
    real = lmdb.open
    lmdb.open = lambda *arguments, **given: real(*arguments, **{**given, **options})
    try:
        workload(path, acknowledge)
    finally:
        lmdb.open = real


@pytest.mark.parametrize("workload", [without_header_sync, without_any_sync])
def test_a_store_that_does_not_sync_is_found_below_the_process(workload, observing):
    assert found_by(lambda: every_crash(workload, check, recorder="observed")).tried < 3000


def changed(recording, operations):
    return Recording(recording.store, recording.recorder, operations, recording.acknowledged)


def without_syncs(recording, every=1):
    """Every so many of the data file's syncs is missing."""
    count = 0
    kept = []
    for one in recording.operations:
        if one.kind == kinds.SYNC and one.path.endswith("data.mdb"):
            count += 1
            if count % every == 0:
                continue
        kept.append(one)
    return changed(recording, kept)


def header_not_synchronous(recording):
    return changed(recording, [one._replace(synchronous=False) for one in recording.operations])


def header_before_data(recording):
    operations = list(recording.operations)
    for number, one in enumerate(operations):
        if one.synchronous:
            begin = number
            while operations[begin - 1].kind in (kinds.WRITE, kinds.SYNC) and not operations[begin - 1].synchronous:
                begin -= 1
            operations.insert(begin, operations.pop(number))
    return changed(recording, operations)


def acknowledged_early(recording):
    """Each as soon as the commit before it is over: while its own pages are on their way."""
    kept = [one for one in recording.operations if one.kind != kinds.ACKNOWLEDGE]
    headers = [number for number, one in enumerate(kept) if one.synchronous]
    for number in reversed(headers[-len(recording.acknowledged) :]):
        kept.insert(number, Operation(kinds.ACKNOWLEDGE))
    return changed(recording, kept)


def every_tenth_sync_missing(recording):
    return without_syncs(recording, every=10)


def header_of_another_commit(recording):
    """The pages of a commit are written over by those of the next one before its header is durable."""
    operations = [one for one in recording.operations if not (one.kind == kinds.SYNC and one.path.endswith("data.mdb"))]
    return header_not_synchronous(changed(recording, operations))


@pytest.mark.long
@pytest.mark.parametrize(
    "break_it",
    [
        without_syncs,
        every_tenth_sync_missing,
        header_not_synchronous,
        header_before_data,
        header_of_another_commit,
        acknowledged_early,
    ],
)
@pytest.mark.parametrize("recorder", ["pages", "observed"])
def test_a_broken_order_is_found(break_it, recorder, request):
    if recorder == "observed":
        request.getfixturevalue("observing")
    with CrashLab(seed=1) as lab:
        recording = lab.record(Mixture(100, steps=8, only="append", witness=False), recorder)
        assert lab.explore(recording, keeps_promises, 200).states == 200
        found = found_by(lambda: lab.explore(break_it(recording), keeps_promises))
    assert found.tried < 3000
    assert found.replay in str(found)


def test_a_names_folder_that_is_not_synced_is_found():
    with CrashLab() as lab:
        recording = lab.record(entries)
        kept = [one for one in recording.operations if one.kind != kinds.SYNC_FOLDER]
        found = found_by(lambda: lab.explore(changed(recording, kept), check))
    assert "never on the disk: " in str(found)


# -- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"mode": "else"}, {"recorder": "else"}, {"limit": 0}, {"seed": "seed"}, {"processes": 0}],
    ids=lambda options: next(iter(options)),
)
def test_wrong_arguments(options):
    with pytest.raises(IncorrectParameterError):
        every_crash(entries, check, **options)


def test_a_wrong_recorder_in_place():
    with pytest.raises(IncorrectParameterError):
        every_crash(entries, check, mode="kill", recorder="else")


def test_a_wrong_workload_or_folder(tmp_path):
    with pytest.raises(IncorrectParameterError):
        every_crash("workload", check)
    with pytest.raises(IncorrectParameterError):
        CrashLab(tmp_path / "missing")


def test_hooks_of_the_workloads_own_are_for_images():
    def hooked(path, acknowledge):
        with bookstand.open(path, hooks=Hooks()) as store:
            store.create_ledger()

    assert every_crash(hooked, no_check, 10).states == 10
    with pytest.raises(IncorrectParameterError, match="hooks of its own"):
        every_crash(hooked, no_check, mode="simulated")
