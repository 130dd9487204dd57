"""The rows about topics of many ledgers, and the size that the documentation gives."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import bookstand
from benchmarks.topic_rollover import create_ledgers, plant
from bookstand.managed_ledger.topic_name import node_of

LIMITS = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text().partition("\n## Limits\n")[2]


def test_the_documented_size_of_a_record_is_what_is_written() -> None:
    with bookstand.temporary() as store:
        size = plant(store, "topic", range(10_000))
    (row,) = [line for line in LIMITS.splitlines() if line.startswith("| ledgers of a topic")]
    assert f"{round(size / 10_000)} bytes a ledger" in row
    assert f"{round(size / 1_000)} KB with 10,000" in row


def test_a_rollover_writes_the_whole_list() -> None:
    with bookstand.temporary() as store:
        ids = create_ledgers(store, 50)
        size = plant(store, "topic", ids)
        with closing(store.managed_ledger("topic", max_entries_per_ledger=1)) as topic:
            topic.append(b".")
            topic.append(b".")
            listed = [ledger.ledger_id for ledger in topic.ledgers]
            assert listed[:50] == ids
            assert len(listed) == 50 + 1 + 3
            assert len(store.nodes.get(node_of("topic"))[0]) > size
