"""What came of it: the rows of the table, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import bookstand
from bookstand.delivery.subscription.dead_letters import dead_letter_topic_of
from bookstand.demo import workload
from bookstand.demo.worker import subscription_config, topic_config

if TYPE_CHECKING:
    from bookstand.demo.accounting import Accounting
    from bookstand.demo.process import ChildProcess
    from bookstand.storage.verify import Report


class Row(NamedTuple):
    name: str
    cells: Sequence[str]
    """Before the cut, after it, in all."""
    good: bool | None = None
    """None: neither good nor bad."""


@dataclass
class StoreCounts:
    """What is in the store when all is done."""

    dead_letters: list[int]
    backlog: int
    report: Report


def inspect(path: str, messages: int) -> StoreCounts:
    """Open the store once more, and look."""
    with bookstand.open(path, create=False) as store:
        topic = store.topic(workload.TOPIC, topic_config(messages))
        backlog = topic.subscription(workload.SUBSCRIPTION, subscription_config()).backlog
        dead_letters: list[int] = []
        reader = store.topic(dead_letter_topic_of(workload.TOPIC, workload.SUBSCRIPTION)).subscription("inspection")
        while received := reader.receive(workload.RECEIVED_AT_ONCE, timeout=0):
            dead_letters += [workload.number_of(message.payload) for message in received]
        return StoreCounts(dead_letters, backlog, store.verify())


def problems(books: Accounting, found: StoreCounts) -> list[str]:
    """Each in a few words; none is as it should be."""
    total = books.total()
    buried = set(found.dead_letters)
    wrong = [
        (books.messages - books.published, "were not published"),
        (books.lost(buried), "are lost"),
        (total.early, "came early"),
        (total.uncalled, "came again without a reason"),
        (len(buried ^ workload.poison(books.messages)), "are in the dead-letter topic wrongly, or not in it"),
        (found.backlog, "are left over"),
        (len(found.report.problems), "problems were found by verify"),
    ]
    return [f"{count:,} {what}" for count, what in wrong if count]


def rows(books: Accounting, lives: Sequence[ChildProcess], found: StoreCounts) -> list[Row]:
    total = books.total()
    counts = [*books.lives, total]

    def each(name: str, field: str, wanted: int | None = None) -> Row:
        values = [getattr(count, field) for count in counts]
        return Row(name, [f"{value:,}" for value in values], None if wanted is None else values[-1] == wanted)

    def one(name: str, value: int, wanted: int) -> Row:
        return Row(name, ["", "", f"{value:,}"], value == wanted)

    def seconds(name: str, of_lives: list[float]) -> Row:
        return Row(name, [f"{value:.1f} s" for value in (*of_lives, sum(of_lives))])

    before, after = lives
    return [
        each("published", "published", books.messages),
        each("delivered", "delivered"),
        each("  of these again", "redelivered"),
        Row("acknowledged", ["", "", f"{books.acknowledged:,}"]),
        Row("  durably before the cut", [f"{books.lives[0].durable:,}", "", ""]),
        one("dead-lettered", len(set(found.dead_letters)), len(workload.poison(books.messages))),
        one("lost", books.lost(found.dead_letters), 0),
        each("early", "early", 0),
        each("again without a reason", "uncalled", 0),
        Row("first delivery after", [f"{life.until_first_delivery or 0:.2f} s" for life in lives] + [""]),
        Row(
            "private memory, peak",
            [f"{size >> 20} MiB" for size in (before.peak_memory, after.peak_memory)]
            + [f"{max(before.peak_memory, after.peak_memory) >> 20} MiB"],
        ),
        seconds("time", [life.seconds for life in lives]),
        seconds("processor time", [life.cpu_seconds for life in lives]),
    ]
