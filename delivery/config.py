"""Settings of delayed delivery, with Pulsar's names in snake case and its defaults."""

from __future__ import annotations

from dataclasses import dataclass

from bookstand.cursor.config import WhileOpen
from bookstand.errors import IncorrectParameterError

TRACKERS = ("in_memory", "bucket")
LEAST_WRITES, TWO_SMALLEST = "least-writes", "two-smallest"
MERGE_POLICIES = (LEAST_WRITES, TWO_SMALLEST)

_LARGEST = (1 << 63) - 1
_INTEGER_MINIMUMS: dict[str, int | None] = {
    "delayed_delivery_tick_time_millis": 1,
    "delayed_delivery_fixed_delay_detection_lookahead": None,
    "delayed_delivery_min_index_count_per_bucket": None,
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": None,
    "delayed_delivery_max_num_buckets": None,
}
"""Minimum of each integer setting; None means any 64-bit integer."""


@dataclass(frozen=True, kw_only=True)
class DelayedDeliveryConfig:
    """Settings of the tracker of delayed messages."""

    delayed_delivery_tracker: str = "in_memory"
    """Tracker of delayed messages: ``"in_memory"``, or ``"bucket"`` for snapshots on disk."""

    delayed_delivery_tick_time_millis: int = 1000
    """Precision of delivery times, in milliseconds, 1 or more. A subscription may have its own."""

    is_delayed_delivery_deliver_at_time_strict: bool = False
    """Deliver up to one tick late, but never early. If False, up to one tick early."""

    delayed_delivery_fixed_delay_detection_lookahead: int = 50_000
    """Number of messages with the same delay at which the in-memory tracker pauses reading; 0 or less: never."""

    delayed_delivery_min_index_count_per_bucket: int = 50_000
    """Minimum size of a sealed bucket, 1 or more messages. The first message of a newer ledger seals a bucket."""

    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: float = 300
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = 5_000
    """Limits of a segment of a snapshot, in seconds and in messages. A segment is loaded as a whole and has at least
    one message. -1 means no limit on the messages."""

    delayed_delivery_max_num_buckets: int = -1
    """Maximum number of sealed buckets after each seal; more are avoided by merging adjacent ones. 0 or less means no
    limit. A lower limit takes effect with the next seal."""

    delayed_delivery_merge_policy: str = LEAST_WRITES
    """``"two-smallest"`` merges the two adjacent buckets with the fewest messages, as in PIP-195. ``"least-writes"``
    merges buckets so that each message is rewritten as rarely as possible."""

    delayed_delivery_shared_index_enabled: bool = False
    """Share one index of delayed messages among all subscriptions of a topic."""

    def __post_init__(self) -> None:
        _check_choice("delayed_delivery_tracker", self.delayed_delivery_tracker, TRACKERS)
        _check_choice("delayed_delivery_merge_policy", self.delayed_delivery_merge_policy, MERGE_POLICIES)
        for name, least in _INTEGER_MINIMUMS.items():
            _check_integer(name, getattr(self, name), least)
        step = self.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds
        if isinstance(step, bool) or not isinstance(step, int | float) or not abs(step) < 1 << 40:
            raise IncorrectParameterError(
                "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds must be a number of seconds below "
                f"2^40, not {step!r}"
            )

    @property
    def least_in_bucket(self) -> int:
        """Minimum number of messages in a sealed bucket."""
        return max(1, self.delayed_delivery_min_index_count_per_bucket)

    @property
    def most_in_segment(self) -> int:
        """Maximum number of messages in a segment, or -1 for no limit."""
        most = self.delayed_delivery_max_indexes_per_bucket_snapshot_segment
        return most if most == -1 else max(1, most)

    @property
    def time_step_millis(self) -> int:
        return round(self.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds * 1000)


DELAYED_WHILE_OPEN = WhileOpen(
    changeable=frozenset(
        {
            "delayed_delivery_fixed_delay_detection_lookahead",
            "delayed_delivery_max_indexes_per_bucket_snapshot_segment",
            "delayed_delivery_max_num_buckets",
            "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds",
            "delayed_delivery_merge_policy",
            "delayed_delivery_min_index_count_per_bucket",
            "delayed_delivery_tick_time_millis",
        }
    ),
    fixed=frozenset(
        {
            "delayed_delivery_shared_index_enabled",
            "delayed_delivery_tracker",
            "is_delayed_delivery_deliver_at_time_strict",
        }
    ),
    remedy="close the topic first",
)
"""The settings of :class:`DelayedDeliveryConfig`."""


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise IncorrectParameterError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def _check_integer(name: str, value: object, least: int | None) -> None:
    if type(value) is not int or not -_LARGEST - 1 <= value <= _LARGEST:
        raise IncorrectParameterError(f"{name} must be a 64-bit integer, not {value!r}")
    if least is not None and value < least:
        raise IncorrectParameterError(f"{name} must be an integer of {least} or more, not {value!r}")
