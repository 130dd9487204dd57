"""Collection of the facts of a report from a store or disks: one topic, ledger and cursor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from time import time

import numpy as np

from bookstand import __version__
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.state.ledger_acks import LedgerAcks as Page
from bookstand.disk.damage import Damage
from bookstand.disk.path_kind import STORE
from bookstand.disk.topics.cursors import DiskCursor
from bookstand.errors import StoreDamagedError
from bookstand.tools.report.histogram import CoverageBins, TimeHistogram
from bookstand.tools.report.model import CacheCounts, Delayed, LedgerAcks, Pages, Report, Subscription, Topic
from bookstand.tools.view import details
from bookstand.tools.view.base import View
from bookstand.tools.view.delayed_summary import waiting

STRIP_BINS = 8192
"""Number of bins in a map of acknowledgments. Shorter topics have one bin for each entry."""
STRIPS = 48
"""Maximum number of subscriptions with a map."""
TIME_BINS = 160
NODES = 2000
"""Maximum number of metadata nodes in a report."""

Caches = Mapping[tuple[str, str], CacheCounts]


def collect(view: View, at: int | None = None, verify: bool = True, caches: Caches | None = None) -> Report:
    """Collect a report. ``at`` separates due from delayed messages; ``caches`` are counters of running processes."""
    report = Report(view.kind, view.title, str(view.path), view.default_now if at is None else at, __version__)
    report.verified, report.names_topics = verify, view.names_topics
    verdict = view.verify() if verify else None
    report.about = details.about(view)
    for ledger_id in view.ledger_ids():
        report.ledgers.add(view.describe(ledger_id))
    all_times, maps = TimeHistogram(TIME_BINS), _Maps()
    for name in view.topics():
        _collect_topic(view, name, report, all_times, maps, caches or {})
    report.times = all_times.result()
    report.node_count = view.node_count
    if report.node_count:
        report.nodes = list(islice(view.nodes(), NODES))
    if view.names_topics:
        report.leftover = view.leftover_buckets()
    report.notes = view.notes if verdict is None else list(dict.fromkeys([*verdict.notes, *view.notes]))
    report.read = {} if verdict is None else verdict.counts
    # Includes the findings of verify and damage that only collecting met.
    report.damage = view.damage
    return report


def of_unreadable(path: Path, error: StoreDamagedError, at: int | None) -> Report:
    """Return the report on a store that is too damaged to open."""
    now = int(time() * 1000) if at is None else at
    report = Report(STORE, f"store {path}", str(path), now, __version__, opened=False)
    report.damage = [Damage(str(path), -1, str(error))]
    return report


def _collect_topic(
    view: View, name: str, report: Report, all_times: TimeHistogram, maps: _Maps, caches: Caches
) -> None:
    topic = view.topic(name)
    cursors = 0
    for cursor in view.cursors(name):
        cursors += 1
        report.subscriptions.append(subscription(cursor, caches.get((name, cursor.name))))
        maps.offer(report.subscriptions[-1])
    found = [(info, topic.ledger(info.ledger_id)) for info in topic.info.ledgers]
    size = sum(info.size if ledger is None else ledger.extent.length for info, ledger in found)
    report.topics.append(Topic(name, len(found), sum(topic.entry_counts.values()), size, cursors))
    if not view.names_topics:
        return
    for index in view.delayed(name, report.at):
        times = TimeHistogram(TIME_BINS)

        def see(seen: np.ndarray, times: TimeHistogram = times) -> None:
            times.add(seen)
            all_times.add(seen)

        report.delayed.append(Delayed(waiting(view, index, see), times.result()))


def subscription(cursor: DiskCursor, asked: CacheCounts | None = None) -> Subscription:
    counts = cursor.topic.entry_counts
    total = sum(counts.values())
    line = CoverageBins(total, STRIP_BINS)
    ledgers: dict[int, LedgerAcks] = {}
    starts: dict[int, int] = {}
    start = 0
    following = cursor.next
    for ledger_id, count in counts.items():
        # Entries up to the mark-delete position form one run, which is not a hole.
        before = count if ledger_id < following.ledger_id else 0
        if ledger_id == following.ledger_id:
            before = min(following.entry_id, count)
        if before:
            line.add(np.array([start]), np.array([start + before]), count=False)
        ledgers[ledger_id] = LedgerAcks(ledger_id, count, before, 0)
        starts[ledger_id] = start
        start += count
    holes = acked = 0
    for ledger_id, firsts, lasts in cursor.holes():
        holes += len(firsts)
        acked += int((lasts - firsts + 1).sum())
        of_topic = ledgers.get(ledger_id)
        if of_topic is None:
            continue
        # The ledger may have lost acknowledged entries at its end.
        there = (firsts < of_topic.entries) & (lasts >= of_topic.acked)
        firsts = np.maximum(firsts[there], of_topic.acked)
        ends = np.minimum(lasts[there] + 1, of_topic.entries)
        line.add(starts[ledger_id] + firsts, starts[ledger_id] + ends)
        more = int((ends - firsts).sum())
        ledgers[ledger_id] = of_topic._replace(acked=of_topic.acked + more, holes=len(firsts))
    state = cursor.state
    return Subscription(
        cursor.topic.name,
        cursor.name,
        f"{state.mark_delete.ledger_id}:{state.mark_delete.entry_id}",
        cursor.backlog,
        total,
        holes,
        acked,
        len(state.batches),
        str(cursor.source),
        _pages(cursor),
        asked,
        line.result() if total else None,
        list(ledgers.values()),
    )


def _pages(cursor: DiskCursor) -> Pages:
    partial: dict[int, dict[int, int]] = {}
    for position, unacked in cursor.state.batches.items():
        partial.setdefault(position.ledger_id, {})[position.entry_id] = unacked
    acked = cursor.state.acked
    ids = sorted(acked.keys() | partial.keys(), reverse=True)
    limit = CursorConfig().max_individual_ack_cache_bytes
    taken = fit = 0
    for ledger_id in ids:
        taken += Page(ledger_id, acked.get(ledger_id), partial.get(ledger_id)).memory
        # Pages are loaded from the last one backwards, and at least one is always in the cache.
        fit += taken <= limit or ledger_id == ids[0]
    return Pages(len(ids), taken, fit, limit)


class _Maps:
    """Limits how many maps are in memory; subscriptions with the most holes keep theirs."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, int, int, Subscription]] = []
        self._number = 0

    def offer(self, one: Subscription) -> None:
        # Among equals, the earliest subscriptions are preferred.
        self._number -= 1
        heappush(self._kept, (one.holes, one.backlog, self._number, one))
        if len(self._kept) > STRIPS:
            *_, left_out = heappop(self._kept)
            left_out.strip, left_out.ledgers = None, []
