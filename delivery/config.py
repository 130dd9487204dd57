"""How delayed messages are kept: Pulsar's settings, in snake case, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass

from bookstand.errors import IncorrectParameterError

TRACKERS = ("in_memory", "bucket")
LEAST_WRITES, TWO_SMALLEST = "least-writes", "two-smallest"
MERGE_POLICIES = (LEAST_WRITES, TWO_SMALLEST)

_LARGEST = (1 << 63) - 1
_WHOLE_NUMBERS: dict[str, int | None] = {
    "delayed_delivery_tick_time_millis": 1,
    "delayed_delivery_fixed_delay_detection_lookahead": None,
    "delayed_delivery_min_index_count_per_bucket": None,
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": None,
    "delayed_delivery_max_num_buckets": None,
}
"""Settings, and the least they may be; None: whatever a Java long may be."""


@dataclass(frozen=True, kw_only=True)
class DelayedDeliveryConfig:
    delayed_delivery_tracker: str = "in_memory"
    """Where delayed messages are remembered: ``"in_memory"``, or in ``"bucket"`` snapshots on the disk."""

    delayed_delivery_tick_time_millis: int = 1000
    """How exact deliveries are, from 1 up. A subscription may have its own."""

    is_delayed_delivery_deliver_at_time_strict: bool = False
    """Never early, and up to a tick late; else up to a tick early."""

    delayed_delivery_fixed_delay_detection_lookahead: int = 50_000
    """In memory: once so many messages wait, all of the same delay, reading on makes no sense. 0 or less: never
    so."""

    delayed_delivery_min_index_count_per_bucket: int = 50_000
    """A bucket is sealed when it has so many, and one at least, at the first message of a newer ledger."""

    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: float = 300
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = 5_000
    """A segment of a snapshot, which is loaded at once, ends after so many seconds or messages, and has one message at
    least. -1: any number of messages."""

    delayed_delivery_max_num_buckets: int = -1
    """Of more buckets, adjacent ones are merged. 0 or less: any number."""

    delayed_delivery_merge_policy: str = LEAST_WRITES
    """``"two-smallest"``: the two adjacent buckets that have the fewest messages, as Pulsar; ``"least-writes"``: those
    by which a message is written again the fewest times."""

    delayed_delivery_shared_index_enabled: bool = False
    """One index for all subscriptions of a topic."""

    def __post_init__(self) -> None:
        _check_choice("delayed_delivery_tracker", self.delayed_delivery_tracker, TRACKERS)
        _check_choice("delayed_delivery_merge_policy", self.delayed_delivery_merge_policy, MERGE_POLICIES)
        for name, least in _WHOLE_NUMBERS.items():
            _check_whole(name, getattr(self, name), least)
        step = self.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds
        if isinstance(step, bool) or not isinstance(step, int | float) or not abs(step) < 1 << 40:
            raise IncorrectParameterError(
                "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds is a number of seconds, "
                f"not {step!r}"
            )

    @property
    def least_in_bucket(self) -> int:
        """What a bucket has when it is sealed."""
        return max(1, self.delayed_delivery_min_index_count_per_bucket)

    @property
    def most_in_segment(self) -> int:
        """Or -1."""
        most = self.delayed_delivery_max_indexes_per_bucket_snapshot_segment
        return most if most == -1 else max(1, most)

    @property
    def time_step_millis(self) -> int:
        return round(self.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds * 1000)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise IncorrectParameterError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}")


def _check_whole(name: str, value: object, least: int | None) -> None:
    if type(value) is not int or not -_LARGEST - 1 <= value <= _LARGEST:
        raise IncorrectParameterError(f"{name} is a whole number of 64 bits, not {value!r}")
    if least is not None and value < least:
        raise IncorrectParameterError(f"{name} is a number from {least} up, not {value!r}")
