"""What is compared of a recorded topic and its cursors, and when two states are the same.

After every operation: whether it succeeded, and the kind of the error if not; the positions that it gave (added, read,
replayed, the n-th, the next available), what ``is_acked`` answered, how many of several acknowledgments failed, which
cursors are stored; the topic's ledgers with the numbers of their entries; and of every open cursor its mark-delete
position, read position, backlog, entries still to read, whether there are more, the entries acknowledged beyond the
mark-delete position, the batches acknowledged in part, and both kinds of properties.

Not compared: numbers and sizes of cursor ledgers, what stands in them (it shows after the next restart), cached
counts, in which words an error is told.

A mark-delete position is compared by the entry that comes next, and so are a read position and the next available one:
the last entry of one ledger and the place before the first of the next are the same to every consumer, and which of
the two the original shows depends on when it trimmed (surprise 25). Ranges are compared as the entries that they hold,
so that one from one ledger into another is the same as two (19). Sets of a batch at or below the mark-delete position
say nothing and do not count, nor do such ranges (2). When consumed ledgers are deleted is told by the recording.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.replay.cursor_driver import Answer, CursorView, Place, place_of

KINDS = (
    ("MarkDeletingMarkedPosition", "marked already"),
    ("Invalid mark deleted position", "no such position"),
    ("Switch new cursor ledger failed", "not written"),
    ("BadVersion", "taken over"),
    ("IllegalReferenceCount", "unreadable record"),
    ("IllegalArgumentException: Invalid unknonwn tag", "unreadable entry"),
    ("IndexOutOfBounds", "unreadable entry"),
    ("required fields are missing", "unreadable entry"),
)
NAMED = ("set_cursor_properties", "put_cursor_property")
NUMBERS = ("backlog", "entries", "has_more", "properties", "cursor_properties")
RESULTS = ("ok", "error", "failed", "stored", "cursors", "acked")
PLACES = ("positions", "position", "already_acked", "next")


class Series:
    """A topic's ledgers by number, for telling which entry comes next."""

    def __init__(self, ledgers: tuple[Place, ...]) -> None:
        self.ledgers = ledgers
        self.counts = dict(ledgers)
        self.filled = [(number, entries) for number, entries in ledgers if entries]

    def at_or_behind(self, place: Place) -> Place | None:
        """The first entry there or behind; None at the end."""
        number, entry = place
        for ledger, entries in self.filled:
            if ledger > number:
                return ledger, 0
            if ledger == number and entry < entries:
                return ledger, max(0, entry)
        return None

    def behind(self, place: Place) -> Place | None:
        return self.at_or_behind((place[0], place[1] + 1))


class Recorded(NamedTuple):
    """The recording's answer in full: what has not changed is carried on."""

    result: dict[str, Any]
    ledgers: tuple[Place, ...] | None
    cursors: dict[str, CursorView]


class Reader:
    """Puts the lines of a scenario together."""

    def __init__(self) -> None:
        self.ledgers: tuple[Place, ...] | None = None
        self.raw: dict[str, dict[str, Any]] = {}

    def read(self, op: dict[str, Any]) -> Recorded:
        what, result = op["op"], op["result"]
        if what in ("close", "crash") or (what == "open" and not result["ok"]):
            self.ledgers, self.raw = None, {}
        if what in ("close_cursor", "delete_cursor") and result["ok"]:
            self.raw.pop(op["cursor"], None)
        if "ml" in op:
            self.ledgers = _ledgers(op["ml"])
        self.raw.update(op.get("after", {}))
        if what == "observe" and op["cursor"] in self.raw:
            self.raw[op["cursor"]] = result
        series = Series(self.ledgers or ())
        return Recorded(_result(op), self.ledgers, {name: _view(raw, series) for name, raw in self.raw.items()})


def _ledgers(topic: dict[str, Any]) -> tuple[Place, ...]:
    """The last ledger counts 0 in the recording as long as it is open."""
    found = [(int(name.removeprefix("L")), entries) for name, entries, _ in topic["ledgers"]]
    if found:
        rest = topic["entries"] - sum(entries for _, entries in found)
        found[-1] = found[-1][0], found[-1][1] + rest
    return tuple(found)


def _result(op: dict[str, Any]) -> dict[str, Any]:
    given = op["result"]
    result: dict[str, Any] = {"ok": given["ok"]}
    if not given["ok"]:
        text = f"{given['error']}: {given.get('message', '')}"
        known = next((kind for part, kind in KINDS if part in text), given["error"])
        result["error"] = "reserved name" if op["op"] in NAMED else known
        return result
    if op["op"] == "add":
        result["positions"] = [
            (place_of(f"{name}:0")[0], entry)
            for name, first, last in given["positions"]
            for entry in range(first, last + 1)
        ]
    for name in ("positions", "already_acked", "next"):
        if name in given and name not in result:
            result[name] = [place_of(one) for one in given[name]]
    if "position" in given:
        result["position"] = None if given["position"] is None else place_of(given["position"])
    for name in ("failed", "acked"):
        if name in given:
            result[name] = given[name]
    if op["op"] == "list_cursors":
        result["stored"] = sorted(given["stored"])
    if op["op"] == "open":
        result["cursors"] = sorted(given["cursors"])
    if op["op"] == "replay":
        result["already_acked"].sort()
        result["positions"].sort()
    return result


def _view(raw: dict[str, Any], series: Series) -> CursorView:
    return CursorView(
        place_of(raw["mark_delete"]),
        place_of(raw["read"]),
        raw["backlog_precise"],
        raw["entries"],
        raw["has_more"],
        frozenset(place for lower, upper in raw["ranges"] for place in _entries(lower, upper, series)),
        {place_of(at): tuple(left) for at, left in (raw["batch"] or {}).items()},
        raw["properties"],
        raw["cursor_properties"],
    )


def _entries(lower: str, upper: str, series: Series) -> list[Place]:
    """What a range stands for; of the ledgers before its upper end, the entries that they have."""
    (first, below), (last, highest) = place_of(lower), place_of(upper)
    if first == last:
        return [(last, entry) for entry in range(below + 1, highest + 1)]
    found = [(last, entry) for entry in range(highest + 1)]
    for number, entries in series.ledgers:
        if first <= number < last:
            found += [(number, entry) for entry in range(below + 1 if number == first else 0, entries)]
    return found


# -- comparing -------------------------------------------------------------------------------------------------------


def differences(one: Recorded | Answer, other: Answer) -> dict[str, tuple[Any, Any]]:
    """What differs, by name: (recorded, got)."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*one.result, *other.result}):
        recorded, got = one.result.get(name), other.result.get(name)
        if name == "next" and recorded and got and one.ledgers and other.ledgers:
            recorded, got = _entries_at(recorded, one.ledgers), _entries_at(got, other.ledgers)
        if recorded != got:
            found[name] = recorded, got
    if one.ledgers != other.ledgers:
        found["ledgers"] = one.ledgers, other.ledgers
    if one.cursors.keys() != other.cursors.keys():
        found["open"] = sorted(one.cursors), sorted(other.cursors)
    if one.ledgers is None or other.ledgers is None:
        return found
    left, right = Series(one.ledgers), Series(other.ledgers)
    for cursor in sorted(one.cursors.keys() & other.cursors.keys()):
        recorded, got = shown(one.cursors[cursor], left), shown(other.cursors[cursor], right)
        for name, value in recorded.items():
            if value != got[name]:
                found[f"{cursor}.{name}"] = value, got[name]
    return found


def _entries_at(places: list[Place], ledgers: tuple[Place, ...]) -> list[Place | None]:
    series = Series(ledgers)
    return [series.at_or_behind(one) for one in places]


def shown(view: CursorView, series: Series) -> dict[str, Any]:
    """A cursor's state as it is compared."""
    behind = series.behind(view.mark_delete)
    floor = behind if behind is not None else (view.mark_delete[0], view.mark_delete[1] + 1)
    return {
        "next": behind,
        "read": series.at_or_behind(view.read),
        **{name: getattr(view, name) for name in NUMBERS},
        "acked": sorted(place for place in view.acked if place >= floor),
        "batches": {place: left for place, left in sorted(view.batches.items()) if place >= floor},
    }
