"""Jobs that change what cursors have: which of them, with what numbers, and which they leave as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.migrate_cursors import MigrateCursors
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.jobs.recut import Recut
from tests.kit import Child, ChildRefusedError, change_entry
from tests.pipeline import kit

HERE = LocalRunner()
SMALL = CutSettings(least=50, step_millis=100_000)
T0, T1, T2 = (kit.TOPIC.format(number) for number in range(3))
BOTH = ("one", "two")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two cursors to a topic, which have buckets."""
    path = kit.fill(tmp_path / "store", topics=3, cursors=BOTH)
    assert execute(RebuildDelayed((str(path),), SMALL), HERE).ok
    with bookstand.open(path) as opened:
        for topic in (T0, T1, T2):
            opened.managed_ledger(topic).close()
    return path


def recut(path: Path, cut: CutSettings = SMALL, resize: bool = False, **options: Any) -> Any:
    running = {name: options.pop(name) for name in ("dry_run", "again") if name in options}
    return execute(Recut((str(path),), cut, resize, **options), HERE, **running)


def migrate(path: Path, form: str = "snapshot", *, dry_run: bool = False, **options: Any) -> Any:
    return execute(MigrateCursors((str(path),), form, **options), HERE, dry_run=dry_run)


def by_cursor(summary: Any) -> dict[tuple[str, str], Any]:
    """What is told of each."""
    return {
        (result.unit.split()[1], cursor): facts
        for result in summary.results
        for cursor, facts in result.facts["cursors"].items()
    }


def left(summary: Any) -> dict[tuple[str, str], Any]:
    return {
        (result.unit.split()[1], cursor): why
        for result in summary.results
        for cursor, why in result.facts["left"].items()
    }


# -- buckets -----------------------------------------------------------------------------------------------------------


def test_all_cursors_of_a_topic_keep_their_rows(store: Path) -> None:
    before = {(topic, cursor): kit.in_all_buckets(store, topic, cursor) for topic in (T0, T1) for cursor in BOTH}
    would = recut(store, CutSettings(least=1_000), True, dry_run=True)
    done = recut(store, CutSettings(least=1_000), True)
    assert done.ok
    assert by_cursor(done) == by_cursor(would)
    assert done.counts == would.counts
    for (topic, cursor), rows in before.items():
        assert sorted(kit.in_all_buckets(store, topic, cursor)) == sorted(rows)
        facts = by_cursor(done)[topic, cursor]
        entries = kit.entries_of_buckets(store, topic, cursor)
        assert facts["buckets_before"] > facts["buckets"] == len(entries) == 1
        assert facts["bytes"] == sum(len(entry) for some in entries.values() for entry in some)
        assert facts["segments"] == len(kit.segments(store, topic, cursor))
        assert facts["messages"] == len(rows)


def test_buckets_that_would_be_the_same_are_kept(store: Path) -> None:
    """Also where nothing says that they were cut before."""
    before = kit.content(store)
    same = recut(store, again=True)
    assert (same.ok, same.counts["buckets_before"]) == (True, same.counts["buckets"])
    assert same.counts["bytes_before"] == same.counts["bytes"]
    assert kit.content(store) == before
    # Of one topic one cursor's are others: the other one's stay.
    recut(store, CutSettings(least=1_000), True, topics=(T0,), cursors=("one",))
    ledgers = bucket_ledgers(store, T0)
    recut(store, CutSettings(least=1_000), True, topics=(T0,))
    after = bucket_ledgers(store, T0)
    assert after["one"] == ledgers["one"]
    assert after["two"].isdisjoint(ledgers["two"])


def bucket_ledgers(path: Path, topic: str) -> dict[str, set[int]]:
    with bookstand.open(path, read_only=True) as opened:
        found: dict[str, set[int]] = {name: set() for name in BOTH}
        for one in opened.bucket_snapshots():
            if one.topic == topic:
                found[one.cursor].add(one.ledger_id)
        return found


# -- which -------------------------------------------------------------------------------------------------------------


def test_topics_and_cursors_by_pattern(store: Path) -> None:
    assert by_cursor(migrate(store, dry_run=True)).keys() == {(t, c) for t in (T0, T1, T2) for c in BOTH}
    assert by_cursor(migrate(store, dry_run=True, topics=("*/orders/[01]",), cursors=("t*",))).keys() == {
        (T0, "two"),
        (T1, "two"),
    }
    assert by_cursor(recut(store, dry_run=True, topics=("1",), cursors=("one", "nobody"))).keys() == {(T1, "one")}
    for job in (migrate, recut):
        summary = job(store, dry_run=True, topics=("1", "*/nowhere"))
        assert summary.problems == ("topic */nowhere is in none of the stores",)
        assert {topic for topic, _ in by_cursor(summary)} == {T1}


# -- which not ---------------------------------------------------------------------------------------------------------

_HOLD = f"""
store = bookstand.open(path)
topic = store.topic({T1!r})
held = topic.cursor("one")
held.ack(topic.publish(b"new")).result()
"""


def test_what_another_process_has_open_is_left_to_it(store: Path) -> None:
    acked = {(topic, cursor): kit.acks(store, topic, cursor) for topic in (T0, T1, T2) for cursor in BOTH}
    buckets = kit.in_buckets(store, T1, "one")
    with Child(store) as other:
        other.run(_HOLD)
        would = migrate(store, dry_run=True)
        done = migrate(store)
        for summary in (would, done):
            assert left(summary).keys() == {(T1, "one"), (T1, "two")}
            assert all(why["held"] and "may be open in another process" in why["why"] for why in left(summary).values())
            assert not summary.ok
        assert by_cursor(done) == by_cursor(would)
        assert by_cursor(done).keys() == acked.keys() - {(T1, "one"), (T1, "two")}
        assert all(facts["after"] == "snapshot" for facts in by_cursor(done).values())
        cut = recut(store, CutSettings(least=1_000), True)
        assert left(cut).keys() == {(T1, "one"), (T1, "two")}
        assert by_cursor(cut).keys() == by_cursor(done).keys()
        # Whoever has it goes on as if nothing were.
        other.run("held.ack(topic.publish(b'newer')).result()")
        other.run("held.flush()")
        assert kit.in_buckets(store, T1, "one") == buckets
        taken = migrate(store, topics=(T1,), take_over=True)
        assert taken.ok
        assert by_cursor(taken).keys() == {(T1, "one"), (T1, "two")}
        with pytest.raises(ChildRefusedError, match=r"Fenced"):
            other.run("held.ack(topic.publish(b'newest')).result()")
        other.kill()
    for topic in (T0, T2):
        for cursor in BOTH:
            assert kit.acks(store, topic, cursor)[:-1] == acked[topic, cursor][:-1]
            assert kit.acks(store, topic, cursor)[-1] == "snapshot"
    assert kit.acks(store, T1, "one")[-1] in ("snapshot", "record")


def test_a_process_that_died_has_nothing_open(store: Path) -> None:
    with Child(store) as other:
        other.run(_HOLD)
        other.kill()
    done = migrate(store)
    assert done.ok
    assert len(by_cursor(done)) == 6


def test_a_damaged_cursor_costs_no_other(store: Path) -> None:
    from bookstand.managed_ledger.records import decode_cursor_info
    from bookstand.managed_ledger.topic_name import cursor_node_of

    with bookstand.open(store, read_only=True) as opened:
        ledger_id = decode_cursor_info(opened.nodes.get(cursor_node_of(T1, "two"))[0]).cursor_ledger_id
        state = opened.storage.state(ledger_id)
    assert state is not None
    change_entry(store, ledger_id, state.last_entry, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))
    would = migrate(store, dry_run=True)
    done = migrate(store)
    for summary in (would, done):
        (((topic, cursor), why),) = left(summary).items()
        assert (topic, cursor, why["damaged"], why["held"]) == (T1, "two", True, False)
        assert f"{ledger_id}:{state.last_entry}" in why["why"]
    assert len(by_cursor(done)) == 5
    assert by_cursor(done) == by_cursor(would)
