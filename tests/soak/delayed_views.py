"""Delayed messages of one store in every view of them: the subscription, the command line, the report and Spark.

A case is a store in one mode, in which several things happen to delayed messages; a plain dictionary has what must be
left. After each of them the subscription is compared with it; at the end all other views, and the subscription when it
has been opened again. The seed determines the mode and what happens.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bookstand.delivery.topic_config import TopicConfig
from bookstand.disk.topics.delayed import delayed
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.sources import DataSource, open_source, stores
from bookstand.pipeline.tables.tables import plan, rows
from bookstand.storage.format.position import Position
from bookstand.tools.report.collect import collect
from bookstand.tools.view.store import StoreView
from tests.delivery.subscription_kit import MEMORY, MODES, START, SUBSCRIPTION, TOPIC, Desk, topic_config
from tests.soak.kinds import Done, Kind
from tests.tools.kit import run

Delayed = dict[Position, int]
"""Due times of delayed messages, in milliseconds from the beginning."""

COUNT = 20
MODES_HERE = {**dict.fromkeys(MODES), "mutable bucket": None}


def config_for(mode: str) -> TopicConfig:
    if mode == "mutable bucket":
        return topic_config("buckets", delayed_delivery_min_index_count_per_bucket=1000)
    return topic_config(mode)


# -- what happens to the messages ------------------------------------------------------------------------------------


class Case:
    """``waiting``: when each message is due that is delayed, in milliseconds from the beginning."""

    def __init__(self, path: Path, mode: str) -> None:
        self.desk = Desk(path, config_for(mode))
        times = [100 + 37 * number % COUNT for number in range(COUNT)]
        positions = self.desk.topic.publish_many([b"."] * COUNT, deliver_at=[START + time for time in times])
        self.waiting: Delayed = dict(zip(positions, times, strict=True))
        self.rescheduled: set[Position] = set()
        assert self.desk.drain() == []

    def reschedule(self, position: Position, time: int) -> None:
        assert self.desk.sub.reschedule(position, deliver_at=START + time)
        self.waiting[position] = time
        self.rescheduled.add(position)

    def receive(self) -> list[Position]:
        """What is due; of that, what was rescheduled is acknowledged, for else its own time counts after a restart."""
        found = [message.position for message in self.desk.drain()]
        assert {one for one, time in self.waiting.items() if time <= self.desk.now} <= set(found)
        self.desk.sub.ack_many([one for one in found if one in self.rescheduled]).result()
        for position in found:
            self.waiting.pop(position, None)
        return found


def cancelled(case: Case) -> None:
    for position in sorted(case.waiting)[3:12:4]:
        case.desk.sub.cancel(position).result()
        del case.waiting[position]


def cancelled_ledger(case: Case) -> None:
    for position in sorted(case.waiting)[:7]:
        case.desk.sub.cancel(position).result()
        del case.waiting[position]


def rescheduled_earlier(case: Case) -> None:
    for position in sorted(case.waiting)[10:16:2]:
        case.reschedule(position, case.desk.now + 60)


def rescheduled_later(case: Case) -> None:
    for position in sorted(case.waiting)[:6:2]:
        case.reschedule(position, case.desk.now + 5000)


def rescheduled_twice(case: Case) -> None:
    for first, second in ((5000, 70), (70, 6000), (6000, 800)):
        for position in sorted(case.waiting)[2:6]:
            case.reschedule(position, case.desk.now + first)
            case.reschedule(position, case.desk.now + second)


def rescheduled_and_cancelled(case: Case) -> None:
    rescheduled_later(case)
    for position in sorted(case.waiting)[2:6]:
        case.desk.sub.cancel(position).result()
        del case.waiting[position]


def acknowledged(case: Case) -> None:
    """Without being delivered."""
    found = sorted(case.waiting)[4:9]
    for position in found[:1]:
        case.desk.sub.ack(position).result()
    case.desk.sub.ack_many(found[1:]).result()
    for position in found:
        del case.waiting[position]


def acknowledged_cumulatively(case: Case) -> None:
    for last in sorted(case.waiting)[4:5]:
        case.desk.sub.ack_cumulative(last).result()
        for position in [one for one in case.waiting if one <= last]:
            del case.waiting[position]


def delivered(case: Case) -> None:
    """Some, of which one is acknowledged; others are in flight."""
    case.desk.pass_time(max(5, 105 - case.desk.now))
    for position in case.receive()[2:3]:
        case.desk.sub.ack(position).result()


def restarted(case: Case) -> None:
    case.desk.sub.cursor.flush()
    case.desk.restart()
    case.receive()
    for position in sorted(case.waiting)[-1:]:
        case.reschedule(position, case.desk.now + 7000)


def crashed(case: Case) -> None:
    case.desk.sub.cursor.flush()
    case.desk.crash()
    case.receive()


def not_read(case: Case) -> None:
    """Published, and rescheduled, before the subscription has read so far."""
    now = case.desk.now
    more = [case.desk.topic.publish(b"more", deliver_at=START + now + 900 + number) for number in range(4)]
    case.waiting |= {position: now + 900 + number for number, position in enumerate(more)}
    case.reschedule(more[2], now + 950)


HAPPENINGS: list[Callable[[Case], None]] = [
    cancelled,
    cancelled_ledger,
    rescheduled_earlier,
    rescheduled_later,
    rescheduled_twice,
    rescheduled_and_cancelled,
    acknowledged,
    acknowledged_cumulatively,
    delivered,
    restarted,
    crashed,
    not_read,
]


# -- the views -------------------------------------------------------------------------------------------------------


def by_subscription(case: Case) -> Delayed:
    """As ``peek_delayed`` and ``stats`` have them, once what is due has gone out."""
    case.receive()
    desk = case.desk
    found = {position: time - START for time, position in desk.sub.peek_delayed()}
    assert desk.sub.stats.delayed == len(found)
    return found


def by_index(place: DataSource, now: int) -> dict[str, Delayed]:
    with open_source(place) as disks:
        return {
            index.cursor.name: {
                Position(row.ledger_id, row.entry_id): row.timestamp - START
                for part in index.rows()
                for row in part.indexes
            }
            for index in delayed(topic_of(disks, TOPIC), now)
        }


def by_spark(place: DataSource, now: int, **more: Any) -> dict[str, Delayed]:
    asked = query("delayed_index", now_ms=now, unsealed=True, **more)
    found: dict[str, Delayed] = {}
    for part in plan(place, asked):
        for batch in rows(part, asked):
            for row in batch.to_pylist():
                assert row["error"] is None
                at = Position(row["ledger_id"], row["entry_id"])
                of = found.setdefault(row["cursor"], {})
                assert at not in of
                of[at] = row["deliver_at_ms"] - START
    return found


def millis(moment: str) -> int:
    return round(datetime.fromisoformat(moment).astimezone(UTC).timestamp() * 1000) - START


def check_command_line(path: Path, now: int, wanted: Delayed) -> None:
    shown = json.loads(run("delayed", path, "--at", str(now), "--json").out)
    (row,) = (one for one in shown["subscriptions"] if one["subscription"] == SUBSCRIPTION)
    assert row["messages"] == row["in_buckets"] + row["in_topic"] == len(wanted)
    if wanted:
        assert millis(row["next_due"]) == min(wanted.values())
        assert millis(row["last_due"]) == max(wanted.values())
    else:
        assert row["next_due"] is row["last_due"] is None


def check_report(path: Path, now: int, wanted: Delayed) -> None:
    view = StoreView(path)
    try:
        report = collect(view, now, verify=False)
    finally:
        view.close()
    (one,) = (one.waiting for one in report.delayed if one.waiting.subscription == SUBSCRIPTION)
    assert one.messages == len(wanted)
    assert (one.next_due, one.last_due) == (
        (START + min(wanted.values()), START + max(wanted.values())) if wanted else (None, None)
    )
    # What the index that subscriptions share holds is not delayed once more.
    assert report.waiting == len(wanted)
    assert report.leftover == []


def check(path: Path, mode: str, happenings: Iterable[Callable[[Case], None]]) -> None:
    case = Case(path, mode)
    with case.desk as desk:
        for happens in happenings:
            happens(case)
            assert by_subscription(case) == case.waiting
        now, wanted = START + desk.now, dict(case.waiting)
        desk.topic.close()
        desk.store.close()
        for store in desk.given_up:
            store.close()

        (place,) = stores(path)
        assert by_index(place, now)[SUBSCRIPTION] == wanted
        assert by_spark(place, now).get(SUBSCRIPTION, {}) == wanted
        check_command_line(path, now, wanted)
        check_report(path, now, wanted)

        desk._again(None, None)
        assert by_subscription(case) == wanted


def one_round(seed: int) -> Done:
    rng = random.Random(seed)
    mode = rng.choice(list(MODES_HERE))
    happenings = rng.choices(HAPPENINGS, k=rng.randrange(1, 7))
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        try:
            check(Path(folder) / "store", mode, happenings)
        except AssertionError as error:
            names = ", ".join(one.__name__ for one in happenings)
            return Done(1, [f"seed {seed}: {mode}: {names}: {error}"])
    return Done(1, [])


KIND = Kind(one_round)
