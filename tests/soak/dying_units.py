"""Jobs with units that end their processes, hang or exhaust memory: every other unit is done, and the counts are right.

A case is a unit of an export: the entries of one store. Some of the units die, each in a way of its own, the first time
or every time; the files of some stores are damaged. Afterwards the summary is compared with the files that the job has
written and with what each attempt has noted of itself. The seed determines which units die, and how.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

import bookstand
from bookstand.errors import BookstandError
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import Runner, execute
from bookstand.pipeline.execution.summary import Summary
from bookstand.pipeline.execution.unit import Result, Unit
from bookstand.pipeline.execution.worker import Limits
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.tables.sources import STORE, DataSource
from tests.delivery.subscription_kit import MEMORY
from tests.soak.kinds import Done, Kind, KindUnavailableError

LIMITS = Limits(seconds=6, memory=256 << 20)
"""Enough for a good unit on a machine that does much else."""

# -- ways to die -------------------------------------------------------------------------------------------------------


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def aborted() -> None:
    """As LMDB does where it finds its file inconsistent."""
    faulthandler.disable()
    os.abort()


def segmentation_fault() -> None:
    faulthandler.disable()
    ctypes.string_at(0)


def exits() -> NoReturn:
    sys.exit(3)


def out_of_memory() -> None:
    held = []
    while True:
        held.append(bytearray(16 << 20))


def hangs() -> None:
    while True:
        time.sleep(60)


def loops() -> None:
    while True:
        pass


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def out_of_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kills_what_runs_it() -> None:
    """The process of Spark that its process is a child of, as a cluster ends a whole executor."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def raises() -> None:
    raise ValueError("not a failure of the process")


class Way(NamedTuple):
    """``attempts``: of a unit that dies each time; ``says`` what is reported of it."""

    die: Callable[[], None]
    says: str
    attempts: int = 2


WAYS: dict[str, Way] = {
    way.die.__name__: way
    for way in (
        Way(killed, "killed by SIGKILL"),
        Way(aborted, "killed by SIGABRT"),
        Way(segmentation_fault, "killed by SIGSEGV"),
        Way(exits, "exit status 3"),
        Way(out_of_memory, "MemoryError"),
        Way(hangs, "did not end within"),
        Way(loops, "did not end within"),
        Way(stopped, "did not end within"),
        Way(out_of_disk, "No space left"),
        Way(raises, "not a failure of the process", 1),
    )
}
SLOW = ("hangs", "loops", "stopped")
SPARK_ONLY = {"kills_what_runs_it": Way(kills_what_runs_it, "its task was lost")}


@dataclass(frozen=True)
class DyingExport(Export):
    """Units die after they have written their files, before they could report it."""

    dying: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """By unit: the way, and whether the first attempt only dies."""
    notes: str = ""
    """A folder, in which each attempt notes its beginning, its end and its process."""
    linger: float = 0.0
    """Seconds that second attempts take longer, so that others would be seen beside them."""

    def do(self, unit: Unit, folder: Path) -> Result:
        note = Path(self.notes) / f"{unit.fingerprint}.{time.monotonic_ns()}.{os.getpid()}"
        first = not list(Path(self.notes).glob(f"{unit.fingerprint}.*"))
        note.touch()
        result = super().do(unit, folder)
        way, only_once = self.dying.get(unit.name, ("", False))
        if way and (first or not only_once):
            {**WAYS, **SPARK_ONLY}[way].die()
        if not first:
            time.sleep(self.linger)
        note.write_text(str(time.monotonic_ns()))
        return result


# -- stores ------------------------------------------------------------------------------------------------------------


def entries_of(number: int) -> int:
    return 3 + number % 4


def make_stores(folder: Path, count: int) -> list[Path]:
    """Stores of four kinds, each kind with another number of entries."""
    for number in range(4):
        with bookstand.open(folder / f"template-{number}", durability="none") as store, store.create_ledger() as writer:
            writer.append_many([b"x" * 100] * entries_of(number))
    paths = []
    for number in range(count):
        path = folder / f"store-{number:03}"
        path.mkdir()
        shutil.copy(folder / f"template-{number % 4}" / "data.mdb", path / "data.mdb")
        paths.append(path)
    return paths


def damage(path: Path, rng: random.Random) -> None:
    """What the file is cut to, or where it is overwritten, may kill the process that reads it."""
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    if rng.random() < 0.3:
        file.write_bytes(data[: rng.randrange(len(data))])
        return
    for page in range(2, len(data) // 4096):
        data[page * 4096 + 8 : page * 4096 + 16] = rng.choice((b"\xff" * 8, bytes(8), rng.randbytes(8)))
    file.write_bytes(data)


# -- a case ------------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """``dying``: by store, the way and whether the first attempt only dies; ``damaged``: stores."""

    paths: list[Path]
    dying: dict[Path, tuple[str, bool]]
    damaged: list[Path]


def make_plan(folder: Path, rng: random.Random, count: int, ways: Sequence[str], damaged: int) -> Plan:
    paths = make_stores(folder, count)
    chosen = rng.sample(paths, len(ways) + damaged)
    dying = {
        path: (way, way in WAYS and WAYS[way].attempts > 1 and rng.random() < 0.3)
        for path, way in zip(chosen[: len(ways)], ways, strict=True)
    }
    for path in chosen[len(ways) :]:
        damage(path, rng)
    return Plan(paths, dying, chosen[len(ways) :])


def run(folder: Path, plan: Plan, runner: Runner, linger: float = 0.0) -> list[str]:
    """Run the job, and say what is wrong with what it did."""
    notes, output = folder / "notes", folder / "output"
    notes.mkdir()
    places = tuple(DataSource(STORE, (str(path),)) for path in plan.paths)
    dying = {f"{path} entries": how for path, how in plan.dying.items()}
    job = DyingExport(places, str(output), ("entries",), dying=dying, notes=str(notes), linger=linger)
    try:
        summary = execute(job, runner)
    except Exception as error:
        return [f"the job failed: {type(error).__name__}: {str(error)[:500]}"]
    return [*check_units(plan, summary), *check_files(summary, output), *check_attempts(plan, job, notes)]


def check_units(plan: Plan, summary: Summary) -> Iterator[str]:
    """Every unit has one result, and only those fail that died each time; they are named with the reason."""
    told = Counter(result.unit for result in summary.results)
    for path in plan.paths:
        if (count := told.pop(f"{path} entries", 0)) != 1:
            yield f"{path.name} has {count} results"
    if told:
        yield f"there are results of {sorted(told)}"
    failed = {result.unit.removesuffix(" entries"): result.failure or "" for result in summary.failed}
    for path in plan.paths:
        why = failed.get(str(path))
        way, only_once = plan.dying.get(path, ("", True))
        if path in plan.damaged:
            continue
        if only_once and why is not None:
            yield f"{path.name} {f'({way}, once)' if way else ''} failed: {why}"
        elif not only_once and {**WAYS, **SPARK_ONLY}[way].says not in (why or ""):
            yield f"{path.name} ({way}) is reported as {why!r}"
    document = summary.as_dict()
    if document["done"] != len(plan.paths) - len(failed) or document["units"] != len(plan.paths):
        yield f"{document['done']} of {document['units']} units are done by the summary"


def check_files(summary: Summary, output: Path) -> Iterator[str]:
    """The counts are those of the files, and there are files of the units that were done and of no others."""
    import pyarrow.parquet as pq

    done = [result for result in summary.results if result.failure is None]
    rows = {file: pq.read_table(file) for file in (output / "entries").glob("*.parquet")}
    if len(rows) != len(done):
        yield f"there are {len(rows)} files of {len(done)} units that were done"
    by_place = {table.column("place")[0].as_py(): table for table in rows.values() if len(table)}
    for result in done:
        table = by_place.get(result.unit.removesuffix(" entries"))
        count = 0 if table is None else len(table)
        if result.counts != {"entries": count}:
            yield f"{result.unit} has {count} rows and not {result.counts}"
        if not result.problems and count != entries_of(int(result.unit.removesuffix(" entries")[-3:]) % 4):
            yield f"{result.unit} has {count} rows"
    if summary.counts.get("entries", 0) != sum(map(len, rows.values())):
        yield f"the summary counts {summary.counts}, the files have {sum(map(len, rows.values()))} rows"
    if left := [str(one) for one in (output / "_bookstand" / "attempts").glob("**/*.parquet")]:
        yield f"attempts are left: {left}"


def check_attempts(plan: Plan, job: DyingExport, notes: Path) -> Iterator[str]:
    """A unit that dies costs no other one an attempt, is tried once more, alone, and leaves no process."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for note in notes.iterdir():
        unit, begun, process = note.name.split(".")
        ended = note.read_text()
        spans.setdefault(unit, []).append((int(begun), int(ended) if ended else int(begun)))
        if is_alive(int(process)) and not ended:
            yield f"process {process} is left"
    alone = []
    divides = any(way in SPARK_ONLY for way, _ in plan.dying.values())
    for unit in job.plan().units if not divides else ():
        path = Path(unit.of["place"][1][0])
        if path in plan.damaged:
            continue
        way = plan.dying.get(path, ("", False))[0]
        attempts = sorted(spans.get(unit.fingerprint, []))
        wanted = WAYS[way].attempts if way else 1
        if len(attempts) > 1 and attempts[1][0] - attempts[0][0] >= 0.9e9 * (LIMITS.seconds or 0):
            # On a busy machine any unit may exceed the limit.
            continue
        if len(attempts) != wanted:
            yield f"{path.name} ({way or 'good'}) was tried {len(attempts)} times and not {wanted}"
        alone += [(path, *attempt) for attempt in attempts[1:]]
    for path, begun, ended in alone:
        for other, some in spans.items():
            if any(first < ended and begun < last for first, last in some if (first, last) != (begun, ended)):
                yield f"{path.name} was not alone, but with {other}"


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended may wait for its parent."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# -- rounds ------------------------------------------------------------------------------------------------------------


@contextmanager
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bookstand-dying-", dir=MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_round(seed: int) -> Done:
    """100 units on this machine, of which 10 die and some more are damaged."""
    rng = random.Random(seed)
    with place() as folder:
        plan = make_plan(folder, rng, 100, list(WAYS), damaged=4)
        problems = run(folder, plan, LocalRunner(rng.randrange(1, 4), LIMITS))
    return Done(len(plan.paths), problems)


def one_spark_round(seed: int) -> Done:
    """The same on Spark, where some units also kill the worker that runs them."""
    try:
        from bookstand.pipeline.spark.runner import SparkRunner
        from bookstand.pipeline.spark.session import QUICK, session

        spark = session("dying units", "local[2,3]", QUICK)
    except (BookstandError, ImportError) as error:
        raise KindUnavailableError(str(error)) from error
    rng = random.Random(seed)
    with place() as folder:
        ways = [*WAYS, *SPARK_ONLY] if seed % 2 else list(WAYS)
        plan = make_plan(folder, rng, 100, ways, damaged=4)
        problems = run(folder, plan, SparkRunner(spark, LIMITS))
    return Done(len(plan.paths), problems)


KIND = Kind(one_round)
SPARK = Kind(one_spark_round)
