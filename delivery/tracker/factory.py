"""Which tracker a subscription has: in memory, on buckets of its own, or a share of the topic's index.

A topic may change from one to another whenever it is opened. What waits is in the topic behind the mark-delete
position, so that nothing is lost by it: the new tracker is told of it again. What must not stay behind are snapshots
that nobody looks at any more. The times that messages were given instead of their own are taken over by every tracker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.retry import TRANSIENT_ERRORS
from bookstand.delivery.timer import Timer
from bookstand.delivery.tracker.bucket.rebuild import topic_rebuilder
from bookstand.delivery.tracker.bucket.registry import CursorBucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.store import BucketStore
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from bookstand.delivery.tracker.protocol import LARGEST
from bookstand.delivery.tracker.reschedulable import ReschedulableTracker
from bookstand.delivery.tracker.shared_index import SharedDelayedIndex
from bookstand.errors import IncorrectParameterError
from bookstand.storage.logger import logger

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock

Tracker = BucketDelayedTracker | ReschedulableTracker


def open_tracker(
    cursor: Cursor,
    config: DelayedDeliveryConfig,
    relative_precision: float | None,
    index: SharedDelayedIndex | None,
    wake: Callable[[], object],
    clock: Clock,
    timer: Timer,
) -> Tracker:
    """``index`` is the topic's index if its subscriptions share one. ``config`` has the subscription's own tick."""
    home = CursorBucketRegistry(cursor)
    if index is None and config.delayed_delivery_tracker == "bucket":
        try:
            return BucketDelayedTracker(
                wake, home, config, rebuild=topic_rebuilder(cursor.topic), clock=clock, timer=timer
            )
        except TRANSIENT_ERRORS as error:
            # Nothing is lost by it: what waits is in the topic. The snapshots stay for the next time.
            logger().warning(
                "topic %s, cursor %s: delayed messages are kept in memory: %s", home.topic, home.cursor, error
            )
            return ReschedulableTracker(
                _in_memory(wake, config, None, clock, timer), _in_memory(wake, config, None, clock, timer), home
            )
    remove_snapshots(cursor)
    given = _in_memory(wake, config, relative_precision, clock, timer)
    if index is None:
        return ReschedulableTracker(_in_memory(wake, config, relative_precision, clock, timer), given, home)
    view = index.view(
        cursor.name,
        wake,
        mark_delete=lambda: cursor.mark_delete_position,
        read_position=lambda: cursor.read_position,
        is_acked=cursor.is_acked,
        acked_entries=cursor.acked_entries,
        tick=config.delayed_delivery_tick_time_millis,
    )
    return ReschedulableTracker(view, given, home)


def check_relative_precision(config: DelayedDeliveryConfig, relative_precision: float | None) -> None:
    """Reject a relative precision where it has no meaning."""
    if relative_precision is None:
        return
    if config.delayed_delivery_shared_index_enabled:
        where = "delayed_delivery_shared_index_enabled=False: an index that subscriptions share has exact times"
    elif config.delayed_delivery_tracker != "in_memory":
        where = "delayed_delivery_tracker='in_memory': buckets on the disk have exact times"
    elif config.is_delayed_delivery_deliver_at_time_strict:
        where = "is_delayed_delivery_deliver_at_time_strict=False: strict delivery is never early"
    else:
        return
    raise IncorrectParameterError(
        f"delayed_delivery_relative_precision must be None, not {relative_precision}, or the topic needs {where}"
    )


def _in_memory(
    wake: Callable[[], object],
    config: DelayedDeliveryConfig,
    relative_precision: float | None,
    clock: Clock,
    timer: Timer,
) -> InMemoryDelayedTracker:
    return InMemoryDelayedTracker(
        wake,
        tick_time_millis=config.delayed_delivery_tick_time_millis,
        strict=config.is_delayed_delivery_deliver_at_time_strict,
        relative_precision=relative_precision,
        fixed_delay_detection_lookahead=config.delayed_delivery_fixed_delay_detection_lookahead,
        clock=clock,
        timer=timer,
    )


def remove_snapshots(cursor: Cursor) -> None:
    """Delete the snapshots of a cursor that no tracker has open, in one commit."""
    home = CursorBucketRegistry(cursor)
    ledgers = BucketStore(home, BucketSnapshotStorage(home.client))
    # At the end of all times every snapshot is to be removed, and what is not this cursor's is let be.
    doomed = ledgers.recover(LARGEST).doomed
    if doomed:
        ledgers.delete(doomed, sweep=True)
