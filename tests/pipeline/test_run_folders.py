"""The folders in which jobs work: each run has one of its own, and nothing else in a work folder is ever touched."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.execution.cli import FINE, WRONG_USE, main
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.execution.run_directory import NAME, run_folder
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.jobs.recut import Recut
from bookstand.pipeline.tables.sources import STORE, DataSource
from tests.delivery.bucket_kit import MEMORY
from tests.kit import Program, eventually
from tests.pipeline import kit
from tests.pipeline.dying import SlowExport
from tests.soak.dying_units import is_alive

HERE = LocalRunner()
SMALL = CutSettings(least=50, step_millis=100_000)


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder, with its content and time."""
    return {
        str(path.relative_to(folder)): (
            os.lstat(path).st_mtime_ns if path.is_file() else None,
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


_NAMES = st.sampled_from(["photos", "a", "store", "lock", "marker", "attempts", "_bookstand", f"recut-{'0' * 32}"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(lambda names: "/".join(names))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(_PATHS, st.sampled_from(["file", "folder", "link"]), max_size=6),
    st.lists(st.sampled_from(["run", "killed"]), min_size=1, max_size=4),
)
def test_other_files_in_a_work_folder_stay(files: dict[str, str], runs: list[str]) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        work = Path(folder)
        for path, kind in files.items():
            place = work / path
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                if kind == "file":
                    place.write_text(path)
                elif kind == "folder":
                    place.mkdir()
                else:
                    place.symlink_to(work)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
        before = tree(work)
        for kind in [*runs, "run"]:
            with run_folder(work, "run") as run:
                assert run is not None
                assert [one.name for one in run.parent.iterdir() if one.is_dir()] == [run.name]
                (run / "attempt").mkdir()
                if kind == "killed":
                    shutil.copytree(run, run.with_name(f"killed-{uuid.uuid4().hex}"))
        assert tree(work) == before


_HELD = """
import sys
from pathlib import Path
from bookstand.pipeline.execution.run_directory import run_folder

with run_folder(Path(sys.argv[1]), sys.argv[2]) as folder:
    (folder / "attempt").mkdir()
    print(folder, flush=True)
    sys.stdin.readline()
"""


_COME_AND_GO = """
import sys
from pathlib import Path
from bookstand.pipeline.execution.run_directory import run_folder

lost = 0
print("ready", flush=True)
sys.stdin.readline()
for _ in range(300):
    with run_folder(Path(sys.argv[1]), "run") as folder:
        try:
            (folder / "attempt").mkdir()
        except FileNotFoundError:
            lost += 1
print(lost, flush=True)
"""


def test_runs_that_begin_at_the_same_time_keep_their_folders(tmp_path: Path) -> None:
    """Also while the last run removes the folder that all of them share."""
    work = tmp_path / "work"
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(_COME_AND_GO, work)) for _ in range(3)]
        for program in programs:
            program.wait_for_lines(1)
        for program in programs:
            program.tell("go")
        assert [(program.finish(), program.lines[1:]) for program in programs] == [(0, ["0"])] * 3
    assert list(work.iterdir()) == []


def test_the_next_run_removes_what_a_killed_one_left_and_no_other(tmp_path: Path) -> None:
    with Program(_HELD, tmp_path, "killed") as killed, Program(_HELD, tmp_path, "alive") as alive:
        left, there = (Path(one.wait_for_lines(1)[0]) for one in (killed, alive))
        killed.kill()
        own = left.parent / "notes"
        own.mkdir()
        alike = left.parent / f"run-{uuid.uuid4().hex}"
        (alike / "mine").mkdir(parents=True)
        with run_folder(tmp_path, "run"):
            assert not left.exists()
            assert (there / "attempt").is_dir()
        alive.tell("end")
        assert alive.finish() == 0
    # Not made by a run, although one is called like it.
    assert sorted(left.parent.iterdir()) == sorted([own, alike, left.parent / "marker"])
    assert (alike / "mine").is_dir()


@pytest.mark.parametrize("job", ["rebuild-delayed", "recut --least 10"])
def test_jobs_leave_the_stores_beside_which_they_work(
    tmp_path: Path, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    (data / "photos").mkdir(parents=True)
    (data / "photos" / "one.jpg").write_text("dear")
    for name in ("a", "b"):
        kit.fill(data / "stores" / name, topics=1)
        assert execute(RebuildDelayed((str(data / "stores" / name),), SMALL), HERE).ok
    kept = {one for one in tree(data) if "stores" not in one}
    assert main([*job.split(), str(data / "stores" / "*"), "--work", str(data)]) == FINE, capsys.readouterr()
    assert {one for one in tree(data) if "stores" not in one} == kept
    for name in ("a", "b"):
        with bookstand.open(data / "stores" / name) as store:
            assert store.verify().ok


@pytest.mark.parametrize("kind", ["folder", "file", "link", "marker"])
def test_a_runs_folder_that_no_job_made_is_rejected(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = kit.fill(tmp_path / "store", topics=1)
    (tmp_path / "elsewhere").mkdir()
    foreign = tmp_path / "work" / NAME
    foreign.parent.mkdir()
    if kind == "file":
        foreign.write_text("mine")
    elif kind == "link":
        foreign.symlink_to(tmp_path / "elsewhere")
    else:
        foreign.mkdir()
        (foreign / ("marker" if kind == "marker" else "photo.jpg")).write_text("mine")
    before = tree(tmp_path / "work")
    content = kit.content(store)
    assert main(["rebuild-delayed", str(store), "--least", "9", "--work", str(tmp_path / "work")]) == WRONG_USE
    told = capsys.readouterr().err
    assert str(foreign) in told
    assert "was not made by a job" in told
    assert tree(tmp_path / "work") == before
    assert kit.content(store) == content
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_output_whose_own_folder_no_job_made_is_rejected(tmp_path: Path, dry_run: bool) -> None:
    store = kit.fill(tmp_path / "store", topics=1)
    (tmp_path / "out" / "_bookstand" / "attempts" / "photos").mkdir(parents=True)
    (tmp_path / "out" / "_bookstand" / "lock").write_text("mine")
    before = tree(tmp_path / "out")
    with pytest.raises(IncorrectParameterError, match="was not made by a job"):
        execute(Export((DataSource(STORE, (str(store),)),), str(tmp_path / "out")), HERE, dry_run=dry_run)
    assert tree(tmp_path / "out") == before


def test_without_a_work_folder_nothing_is_left_in_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.fill(tmp_path / "store", topics=1)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert execute(RebuildDelayed((str(store),), SMALL), HERE).ok
    assert execute(Recut((str(store),), CutSettings(least=1000), True), LocalRunner(2)).ok
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_in_a_shared_one_is_rejected(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    with run_folder(shared, "run") as run:
        assert run is not None
        assert run.parent.stat().st_mode & 0o077 == 0
        saved = tmp_path / "saved"
        shutil.copytree(run.parent, saved)
    for owner, mode in ((12345, 0o700), (0, 0o777)):
        shutil.rmtree(shared / NAME, ignore_errors=True)
        shutil.copytree(saved, shared / NAME)
        os.chown(shared / NAME, owner, owner)
        (shared / NAME).chmod(mode)
        with pytest.raises(IncorrectParameterError, match="another user"), run_folder(shared, "run"):
            pass


_KILLED_REMOVING = """
import os
import sys
from pathlib import Path
from bookstand.pipeline.execution.run_directory import run_folder
from tests.pipeline.dying import dying_at

with run_folder(Path(sys.argv[1]), "run") as folder:
    for name in "abc":
        (folder / f"attempt-{name}").mkdir()
        (folder / f"attempt-{name}" / "file").write_text("x")
    os.unlink = dying_at(int(sys.argv[2]), os.unlink, before=False)
    print(folder, flush=True)
"""


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_removal_that_was_killed_is_finished_by_the_next_run(tmp_path: Path, number: int) -> None:
    with Program(_KILLED_REMOVING, tmp_path, number) as killed:
        left = Path(killed.wait_for_lines(1)[0])
        assert killed.finish() == -signal.SIGKILL
    assert left.exists()
    with run_folder(tmp_path, "run"):
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def test_what_an_attempt_writes_while_its_run_ends_is_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt of a task, for example, which a cluster has not ended yet."""
    with run_folder(tmp_path, "run") as run:
        assert run is not None
        (run / "attempt").mkdir()
        late = run / "attempt" / "late"
        rmdir = os.rmdir

        def interfering(path: object, **more: Any) -> None:
            if str(path).endswith("attempt"):
                late.write_text("x")
            rmdir(path, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "rmdir", interfering)
    monkeypatch.undo()
    assert late.exists()
    with run_folder(tmp_path, "run"):
        assert not late.exists()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    """The interruption comes where a result is counted, not where the run waits for one."""
    store = kit.fill(tmp_path / "store", topics=2)
    marks = tmp_path / "marks"
    marks.mkdir()
    given: dict[str, Any] = {"tables": ("messages",), "marks": str(marks)}
    places = (DataSource(STORE, (str(store),)),)
    units = SlowExport(places, str(tmp_path / "out"), **given).plan().units
    job = SlowExport(places, str(tmp_path / "out"), **given, slow=units[0].name)
    processes: list[int] = []

    def interrupt(done: int, total: int) -> None:
        eventually(lambda: sum(bool(mark.read_text()) for mark in marks.glob("*.*")) == 2, "both units at work")
        processes.extend(int(mark.read_text()) for mark in marks.glob("*.*"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        execute(job, LocalRunner(2), progress=interrupt)
    assert len(processes) == 2
    assert not any(map(is_alive, processes))
    # An interactive program holds the last error, with all that the run used.
    del raised
    assert list((tmp_path / "out" / "_bookstand" / "attempts").iterdir()) == []
