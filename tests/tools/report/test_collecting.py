"""What a report tells is what is there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from pyroaring import BitMap64

import bookstand
from benchmarks.cursor_topics import MEASURED, acknowledge, plant
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.store.recovery import RECORD, RecoveredFrom
from bookstand.disk.topics.cursors import DiskCursor
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.records import CursorInfo, ManagedLedgerInfo
from bookstand.storage.format.position import Position
from bookstand.tools.report import collect, metrics_scrape
from bookstand.tools.report.collect import STRIPS, subscription
from bookstand.tools.report.ledgers import UNKNOWN, Cell, Ledgers
from bookstand.tools.report.model import LedgerAcks
from bookstand.tools.view.base import LedgerFacts
from bookstand.tools.view.targets import open_view
from tests.tools.kit import LONG, ORDERS, START, run
from tests.tools.report.kit import report_on

DUMP = "metadata.jsonl.gz"


def test_a_store(here: Path) -> None:
    report = report_on(Path("my-store"))
    assert (report.kind, report.path, report.at) == ("store", "my-store", START + 600_000)
    assert (len(report.ledgers), report.ledgers.entries) == (8, 394)
    assert [(one.name, one.ledgers, one.entries, one.cursors) for one in report.topics] == [
        (LONG, 1, 1, 0),
        (ORDERS, 2, 171, 2),
    ]
    audit, billing = report.subscriptions
    assert (audit.name, audit.mark_delete, audit.backlog, audit.holes, audit.acked) == ("audit", "2:3", 163, 4, 4)
    assert audit.ledgers == [LedgerAcks(2, 100, 8, 4), LedgerAcks(3, 71, 0, 0)]
    assert (billing.name, billing.mark_delete, billing.holes) == ("billing", "2:49", 0)
    assert report.backlog == 163 + 121
    # A map of a short topic shows each entry.
    assert audit.strip is not None
    assert np.flatnonzero(audit.strip.covered).tolist() == [0, 1, 2, 3, 7, 9, 20, 30]
    assert np.flatnonzero(audit.strip.runs).tolist() == [7, 9, 20, 30]
    waits = {one.waiting.subscription: one for one in report.delayed}
    assert (waits["billing"].waiting.messages, waits["audit"].waiting.messages) == (112, 112)
    assert waits["billing"].times is not None
    assert waits["billing"].times.total == 112
    assert report.times is not None
    assert report.times.total == report.waiting == 224
    (bucket,) = waits["billing"].waiting.buckets
    assert (bucket.first_ledger, bucket.last_ledger, bucket.messages, len(bucket.segments)) == (2, 2, 50, 10)
    assert sum(segment.messages for segment in bucket.segments) == bucket.messages
    assert (report.damage, report.read["entries"]) == ([], 394)


def test_it_is_what_the_other_commands_say(here: Path) -> None:
    """Of a bookie's disk as well."""
    report = report_on(Path("bookie"), at=None, metadata=DUMP)
    place = ("bookie", "--metadata", DUMP, "--json")
    stats, cursors, delayed = (run(command, *place).json for command in ("stats", "cursors", "delayed"))
    assert (len(report.ledgers), report.ledgers.bytes) == (stats["total"]["ledgers"], stats["total"]["bytes"])
    assert {one.kind: one.entries for one in report.ledgers.kinds()} == {
        one["kind"]: one["entries"] for one in stats["kinds"]
    }
    of_ours = [
        (one.topic, one.name, one.mark_delete, one.backlog, one.holes, one.acked) for one in report.subscriptions
    ]
    names = ("topic", "cursor", "mark_delete", "backlog", "holes", "acked")
    assert of_ours == [tuple(one[name] for name in names) for one in cursors["cursors"]]
    assert report.waiting == sum(one["messages"] for one in delayed["subscriptions"])
    assert report.leftover == delayed["leftover_snapshots"]
    for one in report.subscriptions:
        assert one.strip is not None
        assert int(one.strip.covered.sum()) == sum(ledger.acked for ledger in one.ledgers) == one.entries - one.backlog


def test_without_metadata_nothing_is_said_of_what_waits(here: Path) -> None:
    report = report_on(Path("bookie"), at=None)
    assert not report.names_topics
    assert (report.delayed, report.times) == ([], None)
    assert report.topics


def test_an_empty_store(here: Path) -> None:
    report = report_on(Path("empty"))
    assert report.empty
    assert (report.backlog, report.waiting, report.damage) == (0, 0, [])


def test_nodes_are_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bookstand.open(tmp_path / "only-nodes") as store:
        for number in range(5):
            store.nodes.put(f"/accounts/{number}", b"%d" % number)
    report = report_on(tmp_path / "only-nodes")
    assert not report.empty
    assert (report.node_count, [node.value for node in report.nodes]) == (5, [b"0", b"1", b"2", b"3", b"4"])
    monkeypatch.setattr(collect, "NODES", 3)
    report = report_on(tmp_path / "only-nodes")
    assert (report.node_count, len(report.nodes)) == (5, 3)


def test_a_damaged_store(here: Path) -> None:
    found = run("verify", "damaged-store", "--json").json["damage"]
    report = report_on(Path("damaged-store"))
    assert {(one.ledger_id, one.entry_id) for one in report.damage} == {(2, 7), (3, 5), (3, -1)}
    assert [one.what for one in report.damage][: len(found)] == [one["what"] for one in found]
    assert report.ledgers.damaged == 2
    # What waits is told all the same, but for the one that cannot be read and the one that is lost.
    assert report.waiting == 222


def test_without_verifying_what_was_met_is_told(here: Path) -> None:
    report = report_on(Path("damaged-store"), verify=False)
    assert not report.verified
    assert report.read == {}
    assert (3, 5) in {(one.ledger_id, one.entry_id) for one in report.damage}


# -- maps --------------------------------------------------------------------------------------------------------------


class _Topic(DiskTopic):
    """One whose ledgers have so many entries."""

    def __init__(self, counts: dict[int, int]) -> None:
        super().__init__(None, "orders", ManagedLedgerInfo([]))  # type: ignore[arg-type]
        self.__dict__["entry_counts"] = counts


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
    st.dictionaries(st.integers(0, 6), st.sets(st.integers(0, 40), max_size=20), max_size=5),
    st.tuples(st.integers(0, 5), st.integers(-1, 40)),
    st.integers(1, 40),
)
def test_maps_against_a_plain_count(
    sizes: list[int], acked: dict[int, set[int]], mark_delete: tuple[int, int], bins: int
) -> None:
    counts = dict(enumerate(sizes))
    state = AckSnapshot(Position(*mark_delete), {ledger: BitMap64(ids) for ledger, ids in acked.items() if ids}, {}, {})
    cursor = DiskCursor(_Topic(counts), "audit", CursorInfo(-1), state, RecoveredFrom(RECORD, -1, -1, ()), -1, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "STRIP_BINS", bins)
        found = subscription(cursor)
    line = [(ledger, entry) for ledger, size in counts.items() for entry in range(size)]
    done = [place <= mark_delete or place[1] in acked.get(place[0], ()) for place in line]
    assert found.entries == len(line)
    assert found.backlog == done.count(False)
    behind = {(ledger, entry) for ledger, ids in acked.items() for entry in ids if (ledger, entry) > mark_delete}
    assert found.acked == len(behind)
    assert found.holes == sum((ledger, entry - 1) not in behind for ledger, entry in behind)
    assert [(one.ledger, one.acked) for one in found.ledgers] == [
        (ledger, sum(is_done for place, is_done in zip(line, done, strict=True) if place[0] == ledger))
        for ledger in counts
    ]
    if not line:
        assert found.strip is None
        return
    assert found.strip is not None
    edges = found.strip.edges.tolist()
    assert found.strip.covered.tolist() == [sum(done[low:high]) for low, high in pairwise(edges)]


def test_those_with_most_holes_keep_their_maps(store_path: Path) -> None:
    with bookstand.open(store_path) as store:
        topic = store.topic("orders")
        topic.publish_many([b"."] * 200)
        first = topic.ledger.ledgers[0].ledger_id
        for number in range(STRIPS + 10):
            cursor = topic.cursor(f"number {number:02}")
            cursor.ack_many(first, range(1, 2 * number + 1, 2))
            cursor.flush()
    report = report_on(store_path)
    assert len(report.subscriptions) == STRIPS + 10
    kept = {one.holes for one in report.subscriptions if one.strip is not None}
    assert kept == set(range(10, STRIPS + 10))


# -- ledgers -----------------------------------------------------------------------------------------------------------


def facts(
    ledger: int, size: int, created: int | None, damage: tuple[str, ...] = (), kind: str = "other"
) -> LedgerFacts:
    return LedgerFacts(ledger, kind, "", "", "CLOSED", 1, size, 0, 1, 1, 1, [], None, created, False, list(damage))


def ledgers(rows: list[LedgerFacts]) -> Ledgers:
    found = Ledgers()
    for one in rows:
        found.add(one)
    return found


@given(
    st.lists(
        st.tuples(st.one_of(st.integers(0, 9), st.integers(0, 1 << 62)), st.one_of(st.none(), st.integers(1, 1 << 44))),
        max_size=30,
    ),
    st.integers(1, 12),
)
def test_the_grid_of_ledgers(rows: list[tuple[int, int | None]], columns: int) -> None:
    grid = ledgers([facts(number, size, created) for number, (size, created) in enumerate(rows)]).grid(columns)
    assert grid.columns <= columns
    expected: dict[tuple[int, int], int] = {}
    for size, created in rows:
        column = UNKNOWN if created is None else (created - grid.first) // grid.step
        assert UNKNOWN <= column < max(grid.columns, 1)
        place = (column, size.bit_length())
        expected[place] = expected.get(place, 0) + 1
    assert grid.cells == [Cell(*place, count) for place, count in sorted(expected.items())]


def test_of_many_ledgers_the_damaged_and_the_largest_are_listed() -> None:
    rows = [facts(number, number * 10, 1) for number in range(100)]
    rows[3] = facts(3, 1, 1, ("bad",))
    chosen = list(ledgers(rows).largest(4))
    assert [one["ledger"] for one in chosen] == [3, 97, 98, 99]
    assert chosen[0]["damage"] == "bad"


# -- caches ------------------------------------------------------------------------------------------------------------


def test_pages_that_fit_are_those_that_an_open_cursor_has(store_path: Path) -> None:
    """Of a cache with room for two thirds of them."""
    with bookstand.open(store_path, durability="none") as store:
        topic = plant(store, "orders", 600, 60_000)
        acknowledge(topic, "audit", range(1, 60_000, 4), 600)
        with open_view(str(store_path)) as view:
            (found,) = view.cursors("orders")
            pages = collect.subscription(found).pages
        with Cursor.open(topic, "audit", MEASURED) as cursor:
            assert 0 < cursor.stats.cache_pages < 600
            assert (pages.number, pages.fit) == (600, cursor.stats.cache_pages)
    assert pages.bytes > pages.limit == MEASURED.max_individual_ack_cache_bytes


def test_hit_ratios_come_from_the_metrics_of_a_running_process(store_path: Path, tmp_path: Path) -> None:
    with bookstand.open(store_path) as store:
        topic = store.topic(ORDERS)
        topic.publish_many([b"."] * 10)
        with topic.cursor("audit") as cursor:
            first = topic.ledger.ledgers[0].ledger_id
            for entry in (1, 3, 5):
                cursor.ack(Position(first, entry)).result()
            registry = CollectorRegistry()
            registry.register(store.metrics())
            (tmp_path / "scrape.txt").write_bytes(generate_latest(registry))
            stats = cursor.stats
    assert stats.cache_hits
    caches = metrics_scrape.read(str(tmp_path / "scrape.txt"))
    with open_view(str(store_path)) as view:
        (one,) = collect.collect(view, None, True, caches).subscriptions
    assert one.asked is not None
    assert (one.asked.hits, one.asked.misses, one.asked.ratio) == (
        stats.cache_hits,
        stats.cache_misses,
        stats.hit_ratio,
    )


@pytest.mark.parametrize("text", ["", "up 1\n", "{{{ no metrics", 'bookstand_cursor_cache_hits_total{topic="a"} 1\n'])
def test_what_is_no_page_of_metrics(tmp_path: Path, text: str) -> None:
    (tmp_path / "scrape.txt").write_text(text)
    with pytest.raises(IncorrectParameterError, match=r"scrape\.txt"):
        metrics_scrape.read(str(tmp_path / "scrape.txt"))
