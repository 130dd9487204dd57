"""Choice of the tracker of a subscription: in memory, on its own buckets, or a view of the topic's shared index.

A topic may change from one kind to another whenever it is opened. No message is lost: delayed messages are in the topic
after the mark-delete position and are added to the new tracker again. Snapshots that no tracker uses any more are
deleted. Every kind of tracker applies the times of rescheduled messages.
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
    """Open the tracker of a subscription.

    ``index`` is the topic's index if its subscriptions share one. ``config`` contains the subscription's own tick.
    """
    registry = CursorBucketRegistry(cursor)
    if index is None and config.delayed_delivery_tracker == "bucket":
        try:
            return BucketDelayedTracker(
                wake, registry, config, rebuild=topic_rebuilder(cursor.topic), clock=clock, timer=timer
            )
        except TRANSIENT_ERRORS as error:
            # No message is lost: all are in the topic. The snapshots remain for the next tracker.
            logger().warning(
                "topic %s, cursor %s: tracking delayed messages in memory: %s", cursor.topic.name, cursor.name, error
            )
            return ReschedulableTracker(
                _in_memory(wake, config, None, clock, timer), _in_memory(wake, config, None, clock, timer), registry
            )
    remove_snapshots(cursor)
    rescheduled = _in_memory(wake, config, relative_precision, clock, timer)
    if index is None:
        return ReschedulableTracker(_in_memory(wake, config, relative_precision, clock, timer), rescheduled, registry)
    view = index.view(
        cursor.name,
        wake,
        mark_delete=lambda: cursor.mark_delete_position,
        read_position=lambda: cursor.read_position,
        is_acked=cursor.is_acked,
        acked_entries=cursor.acked_entries,
        tick=config.delayed_delivery_tick_time_millis,
    )
    return ReschedulableTracker(view, rescheduled, registry)


def check_relative_precision(config: DelayedDeliveryConfig, relative_precision: float | None) -> None:
    """Reject a relative precision for trackers that do not support it."""
    if relative_precision is None:
        return
    if config.delayed_delivery_shared_index_enabled:
        requirement = "delayed_delivery_shared_index_enabled=False: a shared index has exact times"
    elif config.delayed_delivery_tracker != "in_memory":
        requirement = "delayed_delivery_tracker='in_memory': buckets have exact times"
    elif config.is_delayed_delivery_deliver_at_time_strict:
        requirement = "is_delayed_delivery_deliver_at_time_strict=False: strict delivery is never early"
    else:
        return
    raise IncorrectParameterError(
        f"delayed_delivery_relative_precision must be None, not {relative_precision}, or the topic needs {requirement}"
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
    """Delete the snapshots of a cursor, in one commit; no tracker may have them open."""
    registry = CursorBucketRegistry(cursor)
    store = BucketStore(registry, BucketSnapshotStorage(registry.client))
    # With the largest cutoff every snapshot of this cursor has expired.
    to_delete = store.recover(LARGEST).to_delete
    if to_delete:
        store.delete(to_delete, delete_orphans=True)
