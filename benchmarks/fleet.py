"""A synthetic fleet of stores, and the result of ``stats`` for it: the page docs/fleet.md with its pictures.

``python -m benchmarks.fleet`` creates the fleet, runs ``stats``, and writes page and pictures; ``--stores`` and
``--messages`` make it smaller. All numbers except the durations are reproducible.

Each store has some topics. Most subscriptions have a small backlog, some lag, a few have holes. Delayed messages have
delays of minutes to a week, and most of them are in buckets.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from benchmarks.measure import ROOT

PAGE = ROOT / "docs" / "fleet.md"
STORES, MESSAGES, IN_BUCKETS = 100, 4_000, 200_000
NOW = 1_700_000_000_000
HOUR = 3_600_000
TOPICS = 4
_TOPIC = "persistent://shop/{}/{}"
_NAMESPACES = ("orders", "reminders", "retries", "billing")
# Scales of delays (minutes, hours, days), and their shares.
_DELAYS = ((HOUR / 6, 0.3), (6 * HOUR, 0.4), (72 * HOUR, 0.3))


def make(path: Path, number: int, messages: int, in_buckets: int) -> None:
    """Create a store: topics with messages and one subscription each, and buckets with about ``in_buckets`` more
    delayed messages."""
    import bookstand
    from bookstand.cursor.cursor import Cursor

    random = np.random.default_rng(number)
    with bookstand.open(path, durability="none") as store:
        for topic in range(TOPICS):
            name = _TOPIC.format(_NAMESPACES[topic], f"{number:03}")
            ml = store.managed_ledger(name, max_entries_per_ledger=1_000)
            times = _times(random, messages) if topic else [None] * messages
            positions = ml.append_many([b"x" * int(size) for size in random.integers(50, 400, messages)], times)
            with Cursor.open(ml, "worker") as cursor:
                _acknowledge(cursor, positions, random, lags=(number + topic) % 10 == 0)
            if topic == 1:
                # The numbers differ widely between stores.
                _fill_buckets(store, name, random, int(in_buckets * random.lognormal(-0.3, 0.8)))


def _times(random: np.random.Generator, count: int) -> list[int | None]:
    scales, shares = zip(*_DELAYS, strict=True)
    waits = random.exponential(random.choice(scales, count, p=shares))
    delayed = random.random(count) < 0.5
    return [NOW + int(wait) if one else None for wait, one in zip(waits.tolist(), delayed.tolist(), strict=True)]


def _acknowledge(cursor: Any, positions: Sequence[Any], random: np.random.Generator, *, lags: bool) -> None:
    """Acknowledge up to a random position, and a random share of the later entries."""
    done = int(len(positions) * (random.uniform(0.05, 0.3) if lags else random.uniform(0.9, 0.99)))
    cursor.mark_delete(positions[done]).result()
    rest = positions[done + 2 :]
    share = random.uniform(0.2, 0.8) if lags else random.uniform(0, 0.3)
    cursor.ack([one for one, taken in zip(rest, random.random(len(rest)) < share, strict=True) if taken]).result()


def _fill_buckets(store: Any, topic: str, random: np.random.Generator, count: int) -> None:
    """Create buckets of old ledgers, whose messages no longer exist."""
    from bookstand.delivery.tracker.bucket.key import BucketKey
    from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
    from bookstand.pipeline.jobs.bucket_cutting import CutSettings
    from bookstand.pipeline.jobs.bucket_staging import ENTRY_LIMIT, BucketChange, StagedBucket

    buckets = []
    # Most delays are days: the default segments of five minutes would have a dozen messages each.
    cut = CutSettings(step_millis=HOUR)
    sizes = random.multinomial(count, random.dirichlet(np.ones(max(1, count // 60_000))))
    for place, size in enumerate(sizes.tolist()):
        if not size:
            continue
        scales, shares = zip(*_DELAYS, strict=True)
        times = NOW + random.exponential(random.choice(scales, size, p=shares)).astype(np.int64)
        ledger_id = 1_000_000 + place
        rows = Indexes.of(times, np.full(size, ledger_id), np.arange(size))
        sealed = cut.seal(rows, ENTRY_LIMIT)
        buckets.append(StagedBucket("worker", BucketKey(ledger_id, ledger_id), sealed.entries))
    change = BucketChange(store, topic, {"worker": _version(store, topic)}, buckets)
    with store.transaction() as transaction:
        change(transaction)
    change.finish()


def _version(store: Any, topic: str) -> int:
    from bookstand.managed_ledger.topic_name import cursor_node_of

    version: int = store.nodes.get(cursor_node_of(topic, "worker"))[1]
    return version


def _make_one(arguments: tuple[str, int, int, int]) -> None:
    path, *rest = arguments
    make(Path(path), *rest)


def count(folder: Path, stores: int, messages: int, in_buckets: int, processes: int) -> dict[str, Any]:
    """Create the fleet, and run ``stats`` on it; the result includes the durations."""
    from bookstand.pipeline.execution.local_runner import LocalRunner
    from bookstand.pipeline.execution.protocol import execute
    from bookstand.pipeline.jobs.stats import Stats, added_up
    from bookstand.pipeline.tables.sources import stores as stores_at

    began = time.monotonic()
    arguments = [(str(folder / f"store-{one:03}"), one, messages, in_buckets) for one in range(stores)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(_make_one, arguments))
    made = time.monotonic()
    summary = execute(Stats(tuple(stores_at(str(folder / "store-*")))), LocalRunner(processes))
    if not summary.ok:
        raise RuntimeError(str(summary))
    counted = time.monotonic()
    return {
        "fleet": added_up(summary.results),
        "counts": summary.counts,
        "stores": {Path(one.unit).name: one.counts for one in summary.results},
        "backlogs": {Path(one.unit).name: one.facts["backlog"] for one in summary.results},
        "seconds": {"made": made - began, "counted": counted - made},
    }


# -- the page ----------------------------------------------------------------------------------------------------------


def write_page(found: Mapping[str, Any], page: Path) -> None:
    for name, draw in (("due", _draw_due), ("subscriptions", _draw_subscriptions), ("stores", _draw_stores)):
        _drawn(page.with_name(f"fleet-{name}.svg"), draw, found)
    page.write_text(_text(found))


def _drawn(file: Path, draw: Any, found: Mapping[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    # Make the picture reproducible, and store text as text.
    mpl.rcParams.update({"svg.hashsalt": "bookstand", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    draw(found, *axes)
    for one in axes:
        one.grid(True, axis="y", alpha=0.3)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _due_by_hour(found: Mapping[str, Any]) -> Any:
    due = {int(hour) - NOW // HOUR: number for hour, number in found["fleet"]["due"].items()}
    return np.array([due.get(hour, 0) for hour in range(24 * 7)])


def _draw_due(found: Mapping[str, Any], hours: Any, rest: Any) -> None:
    due = _due_by_hour(found)
    hours.bar(range(48), due[:48], width=1.0, color="C0")
    hours.set(xlabel="hours from now", ylabel="messages due", title="The next two days")
    remaining = due.sum() - np.cumsum(due)
    rest.plot(np.arange(len(due)) / 24, remaining, color="C1")
    rest.fill_between(np.arange(len(due)) / 24, remaining, alpha=0.2, color="C1")
    rest.set(xlabel="days from now", ylabel="delayed messages", title="Remaining messages")


def _draw_subscriptions(found: Mapping[str, Any], backlogs: Any, holes: Any) -> None:
    named = [(_short(name), number) for name, number in found["fleet"]["backlogs"].items()]
    backlogs.barh([name for name, _ in named][::-1], [number for _, number in named][::-1], color="C3")
    backlogs.set(xlabel="unacknowledged entries", title="The largest backlogs")
    backlogs.tick_params(axis="y", labelsize=7)
    sizes = sorted((int(size), number) for size, number in found["fleet"]["hole_sizes"].items())
    holes.bar([_power(size) for size, _ in sizes], [number for _, number in sizes], color="C2")
    holes.set(xlabel="acknowledged ranges of a cursor", ylabel="cursors", title="Holes")
    holes.tick_params(axis="x", labelsize=7)


def _draw_stores(found: Mapping[str, Any], sizes: Any, buckets: Any) -> None:
    ordered = sorted((one["bytes"] / (1 << 20) for one in found["stores"].values()), reverse=True)
    sizes.bar(range(len(ordered)), ordered, width=1.0, color="C4")
    sizes.set(xlabel="stores, largest first", ylabel="MiB in ledgers", title="Stores by size")
    rows = sorted((int(size), number) for size, number in found["fleet"]["bucket_sizes"].items())
    buckets.bar([_power(size) for size, _ in rows], [number for _, number in rows], color="C5")
    buckets.set(xlabel="messages in a bucket", ylabel="buckets", title="Buckets by size")
    buckets.tick_params(axis="x", labelsize=7, rotation=45)


def _power(size: int) -> str:
    return "0" if not size else f"{size:,}+"


def _short(name: str) -> str:
    place, topic, cursor = name.split(" ")
    return f"{Path(place).name} {topic.removeprefix('persistent://shop/')} {cursor}"


def _text(found: Mapping[str, Any]) -> str:
    counts, fleet, seconds = found["counts"], found["fleet"], found["seconds"]
    due = _due_by_hour(found)
    delayed = fleet["kept"]
    worst = [(_short(name), number) for name, number in list(fleet["backlogs"].items())[:5]]
    lines = [f"| {name} | {number:,} |" for name, number in worst]
    kinds = [
        f"| {kind} | {number:,} | {fleet['entries'].get(kind, 0):,} | {fleet['bytes'].get(kind, 0) / (1 << 20):,.1f} |"
        for kind, number in sorted(fleet["ledgers"].items())
    ]
    about = (
        "`stats` reads any number of stores and bookies' disks without changing them, and adds up its counts. This "
        f"page shows its result for a synthetic fleet: {len(found['stores'])} stores with {counts['topics']:,} topics "
        f"and {counts['delayed']:,} delayed messages. `python -m benchmarks.fleet` recreates the fleet, the pictures "
        "and this page. To count your own stores:"
    )
    took = (
        f"Counting took {seconds['counted']:.0f} seconds in two processes, "
        f"{counts['delayed'] / seconds['counted']:,.0f} delayed messages per second; creating the fleet took "
        f"{seconds['made']:.0f} seconds."
    )
    waiting = (
        f"{due[:1].sum():,} messages become due within the hour, {due[:24].sum():,} within the day. "
        f"{delayed['in buckets']:,} are in buckets: a broker that restarts does not read them from their topics. "
        f"{delayed.get('in the topic alone', 0):,} are only in their topics, and are read again after each restart; "
        "`rebuild-delayed` would seal them."
    )
    lagging = (
        f"All subscriptions together have {fleet['backlog']:,} unacknowledged entries. The left picture shows the "
        "largest backlogs. Cursors with hundreds of ranges in the right picture belong to consumers that acknowledge "
        "out of order while an earlier message stays unacknowledged."
    )
    return f"""# A look at a fleet

{fill(about, 120)}

```sh
bookstand spark stats '/data/stores/*' --processes 2 --summary fleet.json
bookstand spark stats '/data/stores/*' --master 'local[*]'       # the same on Spark
```

{fill(took, 120)}

## Due times

![Delayed messages by due hour](fleet-due.svg)

{fill(waiting, 120)}

## Lagging subscriptions

![Subscriptions by backlog and by holes](fleet-subscriptions.svg)

{fill(lagging, 120)}

| subscription | backlog |
|---|---:|
{chr(10).join(lines)}

## Disk space

![Stores by size and buckets by size](fleet-stores.svg)

| ledgers of | ledgers | entries | MiB |
|---|---:|---:|---:|
{chr(10).join(kinds)}

Many small buckets mean many small ledgers: `recut --least` merges them.

## Machine-readable output

`--json` or `--summary FILE` write the same numbers as JSON: `facts` is the sum over the fleet, `results` has the
numbers of each store. `due` maps hours since 1970 to messages; `hole_sizes` and `bucket_sizes` map powers of two to the
number of items from that size up to the next; `backlogs` and `holes` contain the ten largest.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--stores", type=int, default=STORES)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages of each topic")
    parser.add_argument(
        "--in-buckets", type=int, default=IN_BUCKETS, help="additional messages in the buckets of each store"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", type=Path, default=PAGE, help="output file (docs/)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BOOKSTAND_FLEET")) as folder:
        sizes = options.stores, options.messages, options.in_buckets
        found = count(Path(folder), *sizes, options.processes)
    if options.json is not None:
        options.json.write_text(json.dumps(found))
    write_page(found, options.page)
    print(f"written: {options.page}")


if __name__ == "__main__":
    main()
