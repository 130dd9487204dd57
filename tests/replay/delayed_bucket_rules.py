"""The differences to the recordings of Pulsar's tracker on buckets that are argued.

Some surprises are switches of the plain model, tests/model/delayed_buckets.py. The others are of what the original does
to its snapshots while nothing here is ever half done: the recording has to show, in its calls up to the operation, that
it met the surprise. The reasons are in docs/differences.md, under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.model.delayed import CLEAR_LEAVES_TIMER, STAYS_TRACKED
from tests.model.delayed_buckets import NO_ALARM_AT_FIRST, TRIMS_WHEN_CROWDED
from tests.replay.delayed_lockstep import Line, Rule

ADDS = ("add", "add_many")
TAKES = ("get_scheduled", "has_available")
STORED = ("properties", "snapshots")


def _failed_now(call: str, ops: Sequence[Line]) -> bool:
    return any(one["call"] == call and _has_failed(one) for one in ops[-1].get("io", ()))


def _failed(call: str, ops: Sequence[Line]) -> bool:
    return any(one["call"] == call and _has_failed(one) for op in ops for one in op.get("io", ()))


def _has_failed(call: Line) -> bool:
    return str(call.get("result", "")).startswith(("fail", "throw"))


def _passed_tail(ops: Sequence[Line]) -> bool:
    """The cursor has moved while there were buckets."""
    return any(op["op"] == "mark_delete" for op in ops)


def _load_failed(ops: Sequence[Line]) -> bool:
    return _failed("segments", ops)


def _trim_failed(ops: Sequence[Line]) -> bool:
    return _failed_now("delete", ops) and any(op["op"] == "mark_delete" for op in ops)


def _delete_failed(ops: Sequence[Line]) -> bool:
    return _failed_now("delete", ops)


def _remove_failed(ops: Sequence[Line]) -> bool:
    return _failed("delete", ops) or _failed("remove_property", ops)


def _create_failed(ops: Sequence[Line]) -> bool:
    return _failed("create", ops) or _failed("put_property", ops)


def _held(ops: Sequence[Line]) -> bool:
    return any(one.get("held") for op in ops for one in op.get("io", ()))


def _merged(ops: Sequence[Line]) -> bool:
    """A new snapshot in the place of two or more."""
    for op in ops:
        calls = [one["call"] for one in op.get("io", ())]
        if "create" in calls and calls.count("delete") >= 2:
            return True
    return False


def _crowded(ops: Sequence[Line]) -> bool:
    return bool(ops[-1]["crowded"])


def _recovery_failed(ops: Sequence[Line]) -> bool:
    return str(ops[-1].get("throws", "")).startswith("RecoverDelayedDeliveryTrackerException")


def _large_id(ops: Sequence[Line]) -> bool:
    return bool(ops[-1].get("entry", 0) >> 32) and ops[-1].get("throws") == "IllegalArgumentException"


def _create_threw(ops: Sequence[Line]) -> bool:
    return "throws" in ops[-1] and _failed_now("create", ops)


BUCKET_RULES: tuple[Rule, ...] = (
    Rule(STAYS_TRACKED, "10", ADDS),
    Rule(CLEAR_LEAVES_TIMER, "12", ("clear", "fire")),
    Rule(TRIMS_WHEN_CROWDED, "5", (*ADDS, *STORED)),
    Rule(NO_ALARM_AT_FIRST, "timers", ("fire",)),
    Rule("ids-of-32-bits-alone", "11", (*ADDS, "contains"), _large_id),
    Rule("create-that-throws", "11", ADDS, _create_threw),
    Rule("calls-in-flight", "6", (*ADDS, *TAKES, *STORED, "reopen", "clear", "contains_many", "fire"), _held),
    Rule("load-fails-all", "5", (*TAKES, "fire"), _load_failed),
    Rule("trim-fails-silently", "5", (*ADDS, *TAKES, *STORED, "clear"), _trim_failed),
    Rule("clear-forgets-what-stays", "5", ("clear",), _delete_failed),
    Rule("removal-is-two-calls", "1", (*STORED, "reopen"), _remove_failed),
    Rule("create-is-two-calls", "7", (*ADDS, *TAKES, *STORED, "reopen"), _create_failed),
    Rule("recovery-fails-all", "1", ("reopen",), _recovery_failed),
    Rule("merge-of-its-own", "2", (*ADDS, *TAKES, *STORED, "reopen", "contains_many", "fire"), _merged),
    Rule("merge-never", "3, 4", (*STORED, *TAKES, "reopen"), _crowded),
    Rule("passed-tail", "9", (*TAKES, *STORED, "reopen", "fire"), _passed_tail),
)
