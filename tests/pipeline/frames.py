"""Frames over stores that Spark computes, each beside the same computation over lists of rows in plain Python.

A program has some base frames, each of its own ``load``, and derives others from them by filters, unions, joins with
themselves, subqueries and caches. Any frame may be used again at any time, whatever was derived from it meanwhile. The
seed determines the program.

``python -m tests.pipeline.frames connect|classic FOLDER STEPS SEED...`` runs programs in a process of its own. It
prints the Spark version, the number of frames that were compared, and the differences.
"""

from __future__ import annotations

import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bookstand
from tests.kit import ROOT, own_environment

Row = tuple[int, int, int]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COLUMNS = ("ledger_id", "entry_id", "size")
_SIGNS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# A frame that has grown beyond this is not joined or united any more.
_LARGE = 400


def make_stores(folder: Path) -> list[Path]:
    """Two stores with the ledgers 0 to 3, of which every entry has another size."""
    paths = []
    for number in range(2):
        path = folder / f"store-{number}"
        paths.append(path)
        if not path.exists():
            with bookstand.open(path, durability="none") as store:
                for ledger in range(4):
                    with store.create_ledger() as writer:
                        writer.append_many([b"x" * size_of(number, ledger, entry) for entry in range(8)])
    return paths


def size_of(store: int, ledger: int, entry: int) -> int:
    return 1 + entry + 8 * ledger + 32 * store


def rows_of(store: int) -> list[Row]:
    return [(ledger, entry, size_of(store, ledger, entry)) for ledger in range(4) for entry in range(8)]


class Condition(NamedTuple):
    """Comparisons of columns with numbers, all of which hold."""

    parts: tuple[tuple[int, str, int], ...]

    @classmethod
    def drawn(cls, rng: random.Random) -> Condition:
        parts = []
        for _ in range(rng.choice((1, 1, 2))):
            column = rng.randrange(3)
            parts.append((column, rng.choice(list(_SIGNS)), rng.randrange((4, 8, 66)[column])))
        return cls(tuple(parts))

    def __str__(self) -> str:
        return " AND ".join(f"{COLUMNS[column]} {sign} {number}" for column, sign, number in self.parts)

    def holds(self, row: Row) -> bool:
        return all(_SIGNS[sign](row[column], number) for column, sign, number in self.parts)


class Frame(NamedTuple):
    """A frame of Spark, the rows that it must have, and how it was made."""

    frame: Any
    rows: list[Row]
    text: str


class Program:
    """``frames`` are those that may be used again."""

    def __init__(self, spark: Any, paths: Sequence[Path], rng: random.Random) -> None:
        self._spark = spark
        self._paths = paths
        self._rng = rng
        self._views = 0
        self.frames = [self.load() for _ in range(2)]

    def load(self) -> Frame:
        number = self._rng.randrange(len(self._paths))
        reader = self._spark.read.format("bookstand").options(columns=",".join(COLUMNS))
        text, rows = f"store {number}", rows_of(number)
        if self._rng.random() < 0.5:
            condition = Condition.drawn(self._rng)
            reader = reader.option("where", str(condition))
            text, rows = f"{text} read where {condition}", list(filter(condition.holds, rows))
        return Frame(reader.load(str(self._paths[number])), rows, text)

    def step(self) -> Frame:
        """Make a frame, which others may be made of from now on."""
        one, other = self._rng.choice(self.frames), self._rng.choice(self.frames)
        ways = [self.load, lambda: self.filtered(one), lambda: self.filtered(one), lambda: self.cached(one)]
        if len(one.rows) + len(other.rows) < _LARGE:
            ways += [
                lambda: self.united(one, other),
                lambda: self.united(self.filtered(one), self.filtered(one)),
                lambda: self.joined(one, self.filtered(one)),
                lambda: self.joined(one, other),
                lambda: self.among(one, other),
                lambda: self.above_average(one, other),
                lambda: self.without(one, other),
            ]
        found = self._rng.choice(ways)()
        self.frames.append(found)
        return found

    # -- ways to make a frame ----------------------------------------------------------------------------------------

    def filtered(self, one: Frame) -> Frame:
        condition = Condition.drawn(self._rng)
        text = f"({one.text}) where {condition}"
        return Frame(one.frame.where(str(condition)), list(filter(condition.holds, one.rows)), text)

    def cached(self, one: Frame) -> Frame:
        return Frame(one.frame.cache(), one.rows, f"({one.text}) cached")

    def united(self, one: Frame, other: Frame) -> Frame:
        return Frame(one.frame.union(other.frame), one.rows + other.rows, f"({one.text}) union ({other.text})")

    def joined(self, one: Frame, other: Frame) -> Frame:
        """On ledger and entry, with the size of the first."""
        frame = one.frame.alias("one").join(other.frame.alias("other"), list(COLUMNS[:2]))
        rows = [row for row in one.rows for another in other.rows if row[:2] == another[:2]]
        return Frame(
            frame.selectExpr("ledger_id", "entry_id", "one.size AS size"), rows, f"({one.text}) join ({other.text})"
        )

    def among(self, one: Frame, other: Frame) -> Frame:
        condition = Condition.drawn(self._rng)
        entries = {row[1] for row in other.rows if condition.holds(row)}
        first, second = self._views_of(one, other)
        inner = f"SELECT entry_id FROM {second} WHERE {condition}"
        frame = self._spark.sql(f"SELECT * FROM {first} WHERE entry_id IN ({inner})")
        rows = [row for row in one.rows if row[1] in entries]
        return Frame(frame, rows, f"({one.text}) with entries of ({other.text}) where {condition}")

    def above_average(self, one: Frame, other: Frame) -> Frame:
        condition = Condition.drawn(self._rng)
        sizes = [row[2] for row in other.rows if condition.holds(row)]
        first, second = self._views_of(one, other)
        inner = f"SELECT avg(size) FROM {second} WHERE {condition}"
        frame = self._spark.sql(f"SELECT * FROM {first} WHERE size > ({inner})")
        rows = [row for row in one.rows if sizes and row[2] * len(sizes) > sum(sizes)]
        return Frame(frame, rows, f"({one.text}) above the average of ({other.text}) where {condition}")

    def without(self, one: Frame, other: Frame) -> Frame:
        frame = one.frame.distinct().join(other.frame, list(COLUMNS), "left_anti")
        rows = list(set(one.rows) - set(other.rows))
        return Frame(frame, rows, f"({one.text}) without ({other.text})")

    def _views_of(self, *frames: Frame) -> list[str]:
        names = []
        for one in frames:
            self._views += 1
            names.append(f"frame_{self._views}")
            one.frame.createOrReplaceTempView(names[-1])
        return names


def differences(frames: Iterable[Frame]) -> list[str]:
    """Compute each, and say where the rows are not those of plain Python."""
    found = []
    for one in frames:
        rows = sorted(map(tuple, one.frame.collect()))
        if rows != sorted(one.rows):
            found.append(f"{one.text}: {len(rows)} rows, not {len(one.rows)}: {rows[:5]}")
    return found


def run(spark: Any, folder: Path, seed: int, steps: int = 6) -> tuple[int, list[str]]:
    """Run the program of a seed: the number of frames that were computed, and the differences.

    Some frames are computed as soon as they have been made, and all of them once more at the end. Seeds that are odd
    let Spark push filters to sources that accept them.
    """
    rng = random.Random(seed)
    spark.conf.set(PUSHDOWN, str(seed % 2 == 1).lower())
    spark.catalog.clearCache()
    program = Program(spark, make_stores(folder), rng)
    computed, problems = 0, []
    for _ in range(steps):
        made = program.step()
        if rng.random() < 0.5:
            computed += 1
            problems += differences([made])
    again = rng.sample(program.frames, len(program.frames))
    if rng.random() < 0.5:
        spark.catalog.clearCache()
    return computed + len(again), [f"seed {seed}: {one}" for one in [*problems, *differences(again)]]


def main(mode: str, folder: str, steps: str, *seeds: str) -> None:
    import pyspark

    spark = _connected() if mode == "connect" else _classic(Path(folder))
    frames, problems = 0, []
    for seed in seeds:
        count, found = run(spark, Path(folder), int(seed), int(steps))
        frames += count
        problems += found
    print(json.dumps({"version": pyspark.__version__, "frames": frames, "problems": problems}))
    spark.stop()


def _classic(folder: Path) -> Any:
    from bookstand.pipeline.spark.session import QUICK, session

    spark = session("frames", "local[2]", QUICK, folder / "spark")
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _connected() -> Any:
    """A session of a Spark Connect server, which is started on this machine."""
    from pyspark.sql import SparkSession

    from bookstand.pipeline.spark.session import REQUIRED, register

    builder = SparkSession.builder.remote("local[2]")
    for name, value in REQUIRED.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def command(
    mode: str, folder: Path, seeds: Iterable[int], *, steps: int = 6, spark_path: str = ""
) -> tuple[list[str], dict[str, str]]:
    """The command that runs programs, and its environment; ``spark_path`` has another Spark than the installed one."""
    environment = {
        **own_environment(),
        "PYTHONPATH": os.pathsep.join(filter(None, (spark_path, str(ROOT)))),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_HOME", None)
    arguments = [mode, str(folder), str(steps), *map(str, seeds)]
    return [sys.executable, "-m", "tests.pipeline.frames", *arguments], environment


if __name__ == "__main__":
    main(*sys.argv[1:])
