"""The table of rows: name, baseline and goal of each figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """Bound for the value of a row."""

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
    """One figure. `measured_in` is the unit of the absolute figures, and `module` measures the row."""

    row: str
    name: str
    unit: str
    against: str
    goal: Goal | None
    measured_in: str
    module: str


_MANY = "append_many, 128 B, 2 000 per commit"
_HANDLES = "append_async, one handle each, window 2 000"
_THREADS = "64 threads appending single entries to one writer"
_RAW = "raw LMDB put loop"
_SQLITE = "SQLite executemany (WAL, FULL, packed rowid)"
_ROCKSDB = "RocksDB (rocksdict), synced WriteBatch"
_CURSOR = "raw LMDB cursor, every key and value"
_IMPORT = "python -c 'import lmdb'"
_SETS = "a plain set per ledger with a lock"
_SORTED = "SortedDict of ranges per ledger with a lock"
_DECODER = "decoding the same acks from Pulsar's {} in memory"
_SQLITE_QUEUE = "hand-written SQLite queue (WAL, FULL, leases)"
_REDIS_QUEUE = "Redis (appendfsync always, in-flight set by script), redis-py"
_TIMES = "the published structure in Java, one add per message"


def _append(row: str, what: str, against: str, goal: Goal | None = None) -> Row:
    return Row(row, what, "x", against, goal, "CPU us/entry", "appends")


def _index(row: str, what: str, goal: Goal) -> Row:
    return Row(row, f"time index, {what}", "x", _TIMES, goal, "CPU ns/entry", "time_index")


def _open(row: str, form: str, goal: Goal | None = None) -> Row:
    what = "opening a cursor of 10 M acks over 1 000 ledgers, cache 3 MiB: speed"
    return Row(row, what, "x", _DECODER.format(form), goal, "CPU ms", "cursor_opening")


def _ack(row: str, how: str, against: str, goal: Goal | None = None) -> Row:
    return Row(
        row, f"acks in random order over 100 ledgers, {how}: speed", "x", against, goal, "CPU us/ack", "cursor_acking"
    )


def _seal(row: str, what: str, against: str, goal: Goal) -> Row:
    return Row(row, f"sealing 50 000 delayed messages, {what}", "x", against, goal, "CPU ms", "delayed_sealing")


def _waiting(row: str, what: str, goal: Goal | None = None) -> Row:
    what = f"1 M delayed messages in buckets, {what}: speed"
    return Row(row, what, "x", "Pulsar 4.2.4, lowest recorded figure", goal, "CPU ns/message", "delayed_adding")


def _queue(row: str, against: str, goal: Goal | None = None) -> Row:
    what = "durable queue of 1 KiB messages in batches of 100, publish, receive and ack: speed"
    return Row(row, what, "x", against, goal, "CPU us/message", "queues")


def _rebuild(row: str, against: str, goal: Goal) -> Row:
    what = "10 M delayed messages of 50 topics into 200 buckets, by the job on Spark: CPU of all processes"
    return Row(row, what, "x", against, goal, "CPU ms", "rebuilding")


def _log(row: str, what: str, goal: Goal | None = None) -> Row:
    what = f"every entry of a bookie's log of 1 GiB, {what}, digests checked: speed"
    return Row(row, what, "x", "google-crc32c, two calls per entry", goal, "CPU us/entry", "disk_reading")


def _wire(row: str, version: str, goal: Goal) -> Row:
    what = f"durable adds over the bookie protocol, {version}, 128 B, 2 000 outstanding: speed"
    return Row(row, what, "x", "a BookKeeper 4.18.0 bookie with its own client", goal, "CPU us/add", "bookie_adds")


def _start(row: str, where: str, against: str, goal: Goal | None = None) -> Row:
    what = f"server start {where} to first durable add: speed"
    return Row(row, what, "x", against, goal, "wall ms", "bookie_startup")


def _ledgers(row: str, what: str) -> Row:
    what = f"{what} of a topic of 10 000 ledgers: CPU time"
    return Row(row, what, "x", "10 ledgers", at_most(150), "CPU us", "topic_rollover")


def _nacked(row: str, what: str, goal: Goal) -> Row:
    what = f"private memory of messages nacked one by one, 10 000 per second, with redelivery counts, {what}"
    return Row(row, what, "bytes each", "-", goal, "RssAnon bytes/message", "nacks")


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
    Row("P2", "one durable append: wall time", "x", "bare LMDB commit", at_most(1.20), "wall us", "latency"),
    Row("P3", f"{_THREADS}: rate", "x", "one thread", at_least(6), "wall us/append", "threads"),
    Row("P3l", f"{_THREADS}: rate", "x", "LevelDB (plyvel), 64 threads", at_least(0.6), "wall us/append", "threads"),
    Row("P4", "scan, digests checked, payloads: speed", "x", _CURSOR, at_least(0.3), "CPU us/entry", "scans"),
    Row("P4o", "scan, digests checked, Entry objects: speed", "x", _CURSOR, at_least(0.2), "CPU us/entry", "scans"),
    _index("P5", "ordered (8,10), add_many of 10 000: speed", at_least(10)),
    _index("P5h", "ordered (8,10), handle(entry) one by one: speed", at_least(1)),
    _index("P5a", "ordered (8,10), add(...) one by one: speed", at_least(0.25)),
    _index("P6", "random delay of 0 to 1 h, add_many of 10 000: speed", at_least(10)),
    Row(
        "P6m",
        "time index, 10 M messages with random delay: baseline memory over ours",
        "x",
        _TIMES,
        at_least(6),
        "private MiB",
        "time_index",
    ),
    _index("P6d", "ordered (8,10), drained into columns: speed", at_least(0.4)),
    Row(
        "P7",
        "time index, memory of 10 M messages, worst of four rows",
        "x",
        "the published table: 25, 20.48, 11 and 2.25 MB",
        at_most(0.2),
        "private MiB",
        "time_index",
    ),
    _seal("P8", "bitmaps and commit included: speed", "protobuf (upb) only encoding the messages", at_least(2)),
    _seal("P8p", "segments only: speed", "protobuf (upb) encoding them", at_least(5)),
    _seal("P8j", "bitmaps and commit included: speed", "Pulsar 4.2.4, as recorded", at_least(5)),
    Row(
        "P9",
        "flush with 1 dirty ledger of 100 to 100 000 with acks: growth of bytes or CPU, whichever is worse",
        "x",
        "cheapest of these sizes",
        at_most(2),
        "CPU us or bytes/flush",
        "cursor_flushes",
    ),
    Row(
        "P9b",
        "flush with 1 dirty ledger of 10 000 with 100 holes each: bytes of a full snapshot over ours",
        "x",
        "Pulsar's ranges",
        at_least(1_000),
        "bytes/flush",
        "cursor_flushes",
    ),
    _open("P10", "ranges", at_least(100)),
    _open("P10-words", "long arrays"),
    Row(
        "P10m",
        "private memory of opening a cursor of 10 M acks over 1 000 ledgers",
        "x",
        "its cache limit",
        at_most(1.1),
        "RssAnon MiB",
        "cursor_opening",
    ),
    Row(
        "P11",
        "restart with 100 buckets of 50 000 delayed messages: speed",
        "x",
        "reading the delivery times from the topic's messages",
        at_least(50),
        "CPU ms",
        "delayed_recovery",
    ),
    Row(
        "P11m",
        "private memory of 100 buckets of 50 000 delayed messages, recovered",
        "bytes each",
        "-",
        at_most(2.5),
        "RssAnon bytes/message",
        "delayed_recovery",
    ),
    _rebuild("P12", "one process with numpy, without Spark", at_most(2.5)),
    _rebuild("P12s", "rows shuffled to their buckets on Spark", at_most(0.5)),
    Row(
        "P13",
        "delayed_index of 5 M rows through Spark: rate",
        "x",
        "Spark reading the same rows from Parquet",
        at_least(0.4),
        "wall us/row",
        "spark_reading",
    ),
    Row(
        "P13f",
        "delayed_index through Spark, filtered by time and ledger: speed",
        "x",
        "reading all rows",
        at_least(3),
        "wall ms",
        "spark_reading",
    ),
    Row(
        "P13m",
        "entries of a recorded disk multiplied to 1 GiB, through Spark: speed",
        "x",
        "the same reader without Spark, in one process",
        at_least(0.5),
        "CPU us/entry",
        "spark_reading",
    ),
    _queue("P14", _SQLITE_QUEUE, at_least(1.4)),
    _queue("P14-tmpfs", _SQLITE_QUEUE),
    _queue("P14r", _REDIS_QUEUE, at_least(3)),
    _queue("P14r-tmpfs", _REDIS_QUEUE),
    _queue("P14r-fast", "Redis at its fastest: leases by score, hiredis"),
    _queue("P14q", "best of persist-queue, litequeue, huey and beanstalkd, made durable", at_least(15)),
    Row(
        "P15",
        "private memory of 100 M delayed messages in buckets",
        "bytes each",
        "-",
        at_most(4),
        "RssAnon bytes/message",
        "delayed_growth",
    ),
    Row(
        "P15g",
        "100 M delayed messages in buckets: worst growth of CPU per add, per poll, and per bucket of a restart",
        "x",
        "1 M messages",
        at_most(1.5),
        "CPU ns",
        "delayed_growth",
    ),
    Row(
        "P17",
        "restart with a backlog of 1 M messages, 10 % acknowledged out of order, to the first delivery: plain or "
        "delayed messages, whichever is worse",
        "x",
        "reading the topic's entries once",
        at_most(0.1),
        "CPU ms",
        "queues_restart",
    ),
    Row(
        "P16",
        "200 seals of delayed messages, at most 10 buckets: write amplification",
        "times",
        "merging the two smallest neighbors, as in PIP-195",
        at_most(3.5),
        "bytes stored/sealed",
        "delayed_merging",
    ),
    _ack("P18", "one by one", _SETS, at_least(0.6)),
    _ack("P18b", "in batches of 1 000 per ledger", _SORTED, at_least(10)),
    _ack("P18b-mixed", "in batches of 1 000 across ledgers", _SORTED),
    Row(
        "P18m",
        "private memory of 1 M random acks over 100 ledgers",
        "x",
        _SETS,
        at_most(0.1),
        "RssAnon MiB",
        "cursor_acking",
    ),
    Row(
        "P19",
        "time index, 100 M messages: worst growth of CPU per add, bytes, and CPU per drained",
        "x",
        "1 M messages",
        at_most(1.5),
        "CPU ns or bytes/entry",
        "time_index",
    ),
    _waiting("P20", "added in batches of 1 000, sealing included", at_least(3)),
    _waiting("P20d", "drained in batches of 1 000 into columns, loading and deleting included", at_least(20)),
    _waiting("P20d-positions", "drained in batches of 1 000 into lists, loading and deleting included"),
    Row(
        "P21",
        "private memory of an index of delayed messages shared by 1, 10 and 100 subscriptions: largest",
        "x",
        "smallest",
        at_most(1.1),
        "private MiB",
        "delayed_sharing",
    ),
    Row("P22", "process with a new store and one append: CPU time", "x", _IMPORT, at_most(3), "CPU ms", "startup"),
    Row("P22m", "private memory after the first append", "MiB", _IMPORT, at_most(20), "RssAnon MiB", "startup"),
    Row("P23", "recovery open, 10 M entries: CPU time", "x", "100 k entries", at_most(2), "CPU ms", "recovery"),
    _log("P24", "1 KiB each", at_least(0.4)),
    _log("P24-mixed", "200 bytes to 20 KiB"),
    _wire("P25", "version 2", at_least(1.5)),
    _wire("P25v3", "version 3", at_least(0.8)),
    _start(
        "P25s", "without existing data", "ZooKeeper, initnewcluster and a bookie, one after the other", at_least(10)
    ),
    _start("P25s-again", "with existing data", "a bookie and ZooKeeper in one process"),
    _nacked("P26", "in order, for one hour", at_most(0.5)),
    _nacked("P26r", "for a random time between one hour and two", at_most(6)),
    _ledgers("P29", "rollover"),
    _ledgers("P29o", "opening"),
    Row(
        "P27",
        "nth, skip and backlog on 20 MB of acknowledgments with a cache of 3 MiB: CPU, worst of the three",
        "x",
        "the same with all pages in memory",
        at_most(3),
        "CPU us/call",
        "cursor_cache",
    ),
    Row(
        "P28",
        "acknowledging a message in each of 10 000 ledgers that are not in memory, in one call: CPU each",
        "x",
        "1 000 ledgers",
        at_most(1.5),
        "CPU us/ledger",
        "cursor_cache",
    ),
    Row(
        "PMimport",
        "private memory of importing a bookie's disk of 1 GiB",
        "MiB above start",
        "-",
        at_most(128),
        "RssAnon MiB",
        "disk_import",
    ),
    Row(
        "PRopen",
        "report on 10 000 ledgers and 5 M holes: load time in headless Chromium",
        "s",
        "-",
        at_most(2),
        "wall s",
        "report_opening",
    ),
    _memory("PMscan", "a scan of 10 M entries"),
    _memory("PMscan-large", "a scan of 256 entries of 2 MiB"),
    _memory("PMrecover", "a recovery open of 10 M entries"),
    _memory("PMrecover-tail", "a recovery open that reads 100 MiB after the last-add-confirmed"),
)

BY_NAME = {row.row: row for row in ROWS}


def select(names: list[str]) -> list[Row]:
    """Return the named rows with their companions (`P1` includes `P1-disk`); all rows without a name. Raises
    KeyError."""
    if not names:
        return list(ROWS)
    for name in names:
        if name not in BY_NAME:
            raise KeyError(name)
    return [row for row in ROWS if any(row.row == name or row.row.startswith(name + "-") for name in names)]
