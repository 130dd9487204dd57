"""Evaluation of the demo: the table of results, and the problems found."""

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
    """Before the cut, after the cut, total."""
    good: bool | None = None
    """None if the row has no expected value."""


@dataclass
class StoreCounts:
    """Contents of the store at the end."""

    dead_letters: list[int]
    backlog: int
    report: Report


def inspect(path: str, messages: int) -> StoreCounts:
    """Reopen the store, and count its contents."""
    with bookstand.open(path, create=False) as store:
        topic = store.topic(workload.TOPIC, topic_config(messages))
        backlog = topic.subscription(workload.SUBSCRIPTION, subscription_config()).backlog
        dead_letters: list[int] = []
        reader = store.topic(dead_letter_topic_of(workload.TOPIC, workload.SUBSCRIPTION)).subscription("inspection")
        while received := reader.receive(workload.RECEIVE_BATCH_SIZE, timeout=0):
            dead_letters += [workload.number_of(message.payload) for message in received]
        return StoreCounts(dead_letters, backlog, store.verify())


def problems(accounting: Accounting, store: StoreCounts) -> list[str]:
    """Describe the problems; the list is empty if there are none."""
    total = accounting.total()
    dead_letters = set(store.dead_letters)
    poison = workload.poison_numbers(accounting.messages)
    counts = [
        (accounting.messages - accounting.published, "were not published"),
        (accounting.lost(dead_letters), "are lost"),
        (total.early, "were delivered early"),
        (total.unexpected, "were redelivered unexpectedly"),
        (len(dead_letters ^ poison), "are missing from the dead-letter topic, or should not be in it"),
        (store.backlog, "remain in the backlog"),
        (len(store.report.problems), "problems were found by verify"),
    ]
    return [f"{count:,} {what}" for count, what in counts if count]


def rows(accounting: Accounting, processes: Sequence[ChildProcess], store: StoreCounts) -> list[Row]:
    total = accounting.total()
    counts = [*accounting.runs, total]

    def each(name: str, field: str, expected: int | None = None) -> Row:
        values = [getattr(count, field) for count in counts]
        return Row(name, [f"{value:,}" for value in values], None if expected is None else values[-1] == expected)

    def one(name: str, value: int, expected: int) -> Row:
        return Row(name, ["", "", f"{value:,}"], value == expected)

    def seconds(name: str, times: list[float]) -> Row:
        return Row(name, [f"{value:.1f} s" for value in (*times, sum(times))])

    before, after = processes
    return [
        each("published", "published", accounting.messages),
        each("delivered", "delivered"),
        each("  redelivered", "redelivered"),
        Row("acknowledged", ["", "", f"{accounting.acknowledged:,}"]),
        Row("  durable before the cut", [f"{accounting.runs[0].durable:,}", "", ""]),
        one("dead-lettered", len(set(store.dead_letters)), len(workload.poison_numbers(accounting.messages))),
        one("lost", accounting.lost(store.dead_letters), 0),
        each("early", "early", 0),
        each("unexpectedly redelivered", "unexpected", 0),
        Row("first delivery after", [f"{process.until_first_delivery or 0:.2f} s" for process in processes] + [""]),
        Row(
            "peak private memory",
            [f"{size >> 20} MiB" for size in (before.peak_memory, after.peak_memory)]
            + [f"{max(before.peak_memory, after.peak_memory) >> 20} MiB"],
        ),
        seconds("time", [process.seconds for process in processes]),
        seconds("CPU time", [process.cpu_seconds for process in processes]),
    ]
