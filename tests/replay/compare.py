"""Whether an answer is the recorded one.

Compared are, per operation: the result (a value, or the error's code), the numbers of every open handle afterwards
(last add confirmed, last add pushed, length, closed), and which pending operations completed and how.

Of values: entries with id, payload, length and cumulative length; ids; LACs; lists of ledgers in their order; metadata
with state, quorums, length, last entry, password, digest type, format version, whether a creation time is set, custom
metadata, first entry and size of each ensemble, and version; of stored entries whether they exist, their LAC,
cumulative length and size; of a handle the numbers, its id, fragments, bookies and custom metadata.

Not compared: on which bookies an entry lies, whether replicas are equal, whether a writer's copy of the metadata has
a creation time, ``writable``, the names of exception classes (their codes are), and in which line a
pending operation other than an add completes.

A Java exception without a code is equal to itself, and to what a Python caller gets for the same mistake: what the
metadata class refuses is -14, an offset beyond the payload an IndexError, a ledger iterator has no ``remove`` and is
used up after one pass. Operations recorded through the callback interface are equal where that interface has another
code for the same refusal: a batch read that starts beyond the LAC is -14 there and -1 here.
"""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]

BEYOND_LAC_CALLBACK, BEYOND_LAC = -14, -1

JAVA: dict[str, tuple[Result, ...]] = {
    "java.lang.IllegalArgumentException": ({"error": -14},),
    "java.lang.IndexOutOfBoundsException": ({"error": None, "exception": "IndexError"},),
    "java.lang.ArrayIndexOutOfBoundsException": ({"error": None, "exception": "IndexError"},),
    "java.lang.UnsupportedOperationException": ({"error": None, "exception": "unsupported"},),
    "java.lang.IllegalStateException": ({"error": None, "exception": "used up"},),
}
JAVA_OPS = {
    "java.lang.IllegalArgumentException": ("metadata_write",),
    "java.lang.IndexOutOfBoundsException": ("write", "append"),
    "java.lang.ArrayIndexOutOfBoundsException": ("write", "append"),
    "java.lang.UnsupportedOperationException": ("list_remove",),
    "java.lang.IllegalStateException": ("list_all_twice",),
}
HANDLE_FIELDS = (
    "last_add_confirmed",
    "last_add_pushed",
    "length",
    "closed",
    "fragments",
    "bookies",
    "id",
    "custom_metadata",
)
STORED_FIELDS = ("entry", "present", "lac", "cumulative_length", "stored_size")
EACH = {"op": "each"}  # of several answers in one
NUMBERS = ("last add confirmed", "last add pushed", "length", "closed")


def same_result(op: dict[str, Any], expected: Result, got: Result) -> bool:
    if "any_of" in expected:
        return any(same_result(op, one, got) for one in expected["any_of"])
    if "ok" in expected:
        return "ok" in got and same_value(op, expected["ok"], got["ok"])
    code = expected["error"]
    if code is None:
        java = expected["exception"]
        if got.get("exception") == java:
            return True
        return op["op"] in JAVA_OPS.get(java, ()) and got in JAVA[java]
    if "error" not in got or got["error"] is None:
        return False
    if got["error"] == code or got["error"] in expected.get("or", ()):
        return True
    return (
        op["op"] == "batch_read"
        and op.get("api") == "callback"
        and op["start"] >= 0
        and (code, got["error"]) == (BEYOND_LAC_CALLBACK, BEYOND_LAC)
    )


def same_value(op: dict[str, Any], expected: Any, got: Any) -> bool:
    name = op["op"]
    if name == "append_many":
        return len(expected) == len(got) and all(same_result(EACH, e, g) for e, g in zip(expected, got, strict=True))
    if name == "stored":
        return [_stored_fields(entry) for entry in expected] == [_stored_fields(entry) for entry in got]
    if name == "handle_lac":
        # A null is a number that was not the same in every recording.
        return all(expected[field] is None or expected[field] == got[field] for field in HANDLE_FIELDS)
    return bool(expected == got)


def _stored_fields(entry: dict[str, Any]) -> dict[str, Any]:
    present = entry["present"] if "present" in entry else bool(entry["on"])
    if not present:
        return {"entry": entry["entry"], "present": False}
    return {**{field: entry.get(field) for field in STORED_FIELDS}, "present": True}


def state_differences(expected: dict[str, list[Any]], got: dict[str, list[Any]]) -> dict[str, list[int]]:
    """Handle -> the places where its numbers differ; all places if it is missing or too many."""
    differences: dict[str, list[int]] = {}
    for name in expected.keys() | got.keys():
        if name not in got:
            if any(number is not None for number in expected[name]):
                differences[name] = list(range(len(NUMBERS)))
        elif name not in expected:
            differences[name] = list(range(len(NUMBERS)))
        else:
            places = [
                place
                for place, (e, g) in enumerate(zip(expected[name], got[name], strict=True))
                if e is not None and e != g
            ]
            if places:
                differences[name] = places
    return differences


def same_completed(op: dict[str, Any], got: list[tuple[str, Result]]) -> bool:
    choices = _choices(op)
    answers = dict(got)
    if not any(answers.keys() == dict(choice).keys() for choice in choices):
        return False
    for name, answer in answers.items():
        recorded = [dict(choice)[name] for choice in choices if name in dict(choice)]
        if op["op"] == "await" and op["pending"] == name:
            recorded.append(op["result"])
        # A completion has the form of the operation that it completes; all forms compare alike.
        if not any(same_result(EACH, one, answer) for one in recorded):
            return False
    return True


def expected_completions(op: dict[str, Any]) -> set[str]:
    """The pendings that the recording has completing here. Of several recordings, the first is followed throughout."""
    return {name for name, _ in _choices(op)[0]}


def _choices(op: dict[str, Any]) -> list[list[Any]]:
    if "completed_any_of" in op:
        return list(op["completed_any_of"])
    return [op.get("completed", [])]
