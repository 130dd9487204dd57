"""The table of rows: what each figure is called, what it is held against, and its goal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A bound that a row's value is judged by."""

    sign: str
    bound: float

    def met(self, value: float) -> bool:
        return value >= self.bound if self.sign == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


def at_least(bound: float) -> Goal:
    return Goal(">=", bound)


def at_most(bound: float) -> Goal:
    return Goal("<=", bound)


@dataclass(frozen=True)
class Row:
    """One figure: `measured_in` is the unit of the absolute figures beside the value, `module` measures it."""

    row: str
    name: str
    unit: str
    against: str
    goal: Goal | None
    measured_in: str
    module: str


_MANY = "append_many, 128 B, 2 000 a commit"
_HANDLES = "append_async, a handle each, window 2 000"
_THREADS = "64 threads appending one by one to one writer"
_RAW = "raw LMDB put loop"
_SQLITE = "SQLite executemany (WAL, FULL, packed rowid)"
_ROCKSDB = "RocksDB (rocksdict), synced WriteBatch"
_CURSOR = "raw LMDB cursor, every key and value"
_IMPORT = "python -c 'import lmdb'"


def _append(row: str, what: str, against: str, goal: Goal | None = None) -> Row:
    return Row(row, what, "x", against, goal, "CPU us/entry", "appends")


def _memory(row: str, what: str) -> Row:
    return Row(row, f"private memory of {what}", "MiB above start", "-", at_most(64), "RssAnon MiB", "recovery")


ROWS: tuple[Row, ...] = (
    _append("P1", f"{_MANY}: speed", _RAW, at_least(0.8)),
    _append("P1s", f"{_MANY}: speed", _SQLITE, at_least(3)),
    _append("P1r", f"{_MANY}: speed", _ROCKSDB, at_least(1)),
    _append("P1h", f"{_HANDLES}: speed", _RAW, at_least(0.4)),
    _append("P1hs", f"{_HANDLES}: speed", _SQLITE, at_least(1.5)),
    _append("P1-multi", f"{_MANY}: speed", "LMDB putmulti"),
    _append("P1-rows", f"{_MANY}: speed", "SQLite, INSERT of 250 rows"),
    _append("P1-level", f"{_MANY}: speed", "LevelDB (plyvel), synced batch"),
    _append("P1-disk", f"{_MANY}: speed", _RAW),
    _append("P1s-disk", f"{_MANY}: speed", _SQLITE),
    _append("P1r-disk", f"{_MANY}: speed", _ROCKSDB),
    _append("P1h-disk", f"{_HANDLES}: speed", _RAW),
    _append("P1hs-disk", f"{_HANDLES}: speed", _SQLITE),
    Row("P2", "one durable append: wall time", "x", "bare LMDB commit", at_most(1.10), "wall us", "latency"),
    Row("P3", f"{_THREADS}: rate", "x", "one thread", at_least(7), "wall us/append", "threads"),
    Row("P3l", f"{_THREADS}: rate", "x", "LevelDB (plyvel), 64 threads", at_least(0.7), "wall us/append", "threads"),
    Row("P4", "scan, digests checked, payloads: speed", "x", _CURSOR, at_least(0.3), "CPU us/entry", "scans"),
    Row("P4o", "scan, digests checked, Entry objects: speed", "x", _CURSOR, at_least(0.2), "CPU us/entry", "scans"),
    Row("P22", "process with a new store and one append: CPU time", "x", _IMPORT, at_most(3), "CPU ms", "startup"),
    Row("P22m", "private memory after the first append", "MiB", _IMPORT, at_most(20), "RssAnon MiB", "startup"),
    Row("P23", "recovery open, 10 M entries: CPU time", "x", "100 k entries", at_most(2), "CPU ms", "recovery"),
    _memory("PMscan", "a scan of 10 M entries"),
    _memory("PMscan-large", "a scan of 256 entries of 2 MiB"),
    _memory("PMrecover", "a recovery open of 10 M entries"),
    _memory("PMrecover-tail", "a recovery open that reads 100 MiB behind the last-add-confirmed"),
)

BY_NAME = {row.row: row for row in ROWS}


def select(names: list[str]) -> list[Row]:
    """The rows asked for; one brings its companions (`P1` also `P1-disk`), no name brings all. KeyError: no such."""
    if not names:
        return list(ROWS)
    for name in names:
        if name not in BY_NAME:
            raise KeyError(name)
    return [row for row in ROWS if any(row.row == name or row.row.startswith(name + "-") for name in names)]
