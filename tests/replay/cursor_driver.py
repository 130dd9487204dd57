"""Does a recorded operation of a topic or a cursor on a stand, and answers in the recording's names.

Ledgers are numbers, in the order in which they came to be; a position is (number, entry). ``LBEFORE`` and ``LAFTER``
are ledgers that are not of the topic, ``EARLIEST`` and ``LATEST`` the ends of everything.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bookstand.storage.format.position import EARLIEST, LATEST, Position
from tests.replay.cursor_stands import MissingError, Planted, Stand, method, prefixed

Place = tuple[int, int]

BEFORE, AFTER, EARLIEST_NUMBER, LATEST_NUMBER = -1, 1_000_000, -2, 1 << 62
TAKEN_OVER = "taken over"
ENDS = {"EARLIEST": (EARLIEST_NUMBER, -1), "LATEST": (LATEST_NUMBER, LATEST_NUMBER)}


def place_of(name: str) -> Place:
    """A position as it is written in a recording."""
    if name in ENDS:
        return ENDS[name]
    ledger, _, entry = name.partition(":")
    number = {"LBEFORE": BEFORE, "LAFTER": AFTER}.get(ledger)
    return (int(ledger.removeprefix("L")) if number is None else number), int(entry)


class NotOpenError(Exception):
    """The cursor is closed, or gone."""


class CursorView(NamedTuple):
    mark_delete: Place
    read: Place
    backlog: int
    entries: int
    has_more: bool
    acked: frozenset[Place]
    batches: dict[Place, tuple[int, ...]]
    properties: dict[str, int]
    cursor_properties: dict[str, str]


class Answer(NamedTuple):
    """``ledgers`` are (number, entries) of an open topic, else None; ``cursors`` those that are open."""

    result: dict[str, Any]
    ledgers: tuple[Place, ...] | None
    cursors: dict[str, CursorView]


class Driver:
    def __init__(self, header: dict[str, Any], stand: Stand) -> None:
        self.stand = stand
        self.config: dict[str, Any] = dict(header["config"])
        self.ids: list[int] = []  # of the ledgers, by number
        self.numbers: dict[int, int] = {}
        self.added = 0

    def apply(self, op: dict[str, Any], first: int | None = None) -> Answer:
        """``first`` is the topic's first ledger as recorded: when the original's background deletes consumed ledgers is
        its own affair, but what a reset finds depends on it."""
        do: Callable[[dict[str, Any]], dict[str, Any] | None] | None = getattr(self, f"_{op['op']}", None)
        if do is None:
            raise MissingError(f"the replay knows no operation {op['op']}")
        try:
            result = {"ok": True, **(do(op) or {})}
        except NotOpenError:
            result = {"ok": False, "error": "not open"}
        except MissingError:
            raise
        except Exception as error:
            kind = self.stand.kind(error)
            if kind is None:
                raise
            result = {"ok": False, "error": kind}
            if kind == TAKEN_OVER and "cursor" in op:
                self.stand.give_up_cursor(op["cursor"])
        self._name_ledgers()
        if first is not None and first < len(self.ids) and self._is_open():
            self._trim_to(self.ids[first])
        return self._answer(result)

    def finish(self) -> Answer:
        """In the end, everything that is consumed goes."""
        if self._is_open():
            self.stand.trim_consumed()
        return self._answer({})

    def _trim_to(self, ledger_id: int) -> None:
        """Delete what is before the ledger, as far as every cursor has consumed it."""
        consumed = [self.stand.view(name).mark_delete for name in self.stand.cursors]
        ledgers = self.stand.ledgers()
        kept = [one for one, entries in ledgers if any(at < Position(one, entries - 1) for at in consumed)]
        if ledgers and ledgers[0][0] < ledger_id:
            self.stand.trim(Position(min([ledger_id, *kept]), 0))

    def _answer(self, result: dict[str, Any]) -> Answer:
        return Answer(result, self._ledgers(), {name: self._view(name) for name in sorted(self.stand.cursors)})

    # -- names ---------------------------------------------------------------------------------------------------------

    def _is_open(self) -> bool:
        return self.stand.topic is not None and getattr(self.stand.topic, "is_open", True)

    def _name_ledgers(self) -> None:
        if self._is_open():
            for ledger_id, _ in self.stand.ledgers():
                if ledger_id not in self.numbers:
                    self.numbers[ledger_id] = len(self.ids)
                    self.ids.append(ledger_id)

    def _ledgers(self) -> tuple[Place, ...] | None:
        if not self._is_open():
            return None
        return tuple((self.numbers[ledger_id], entries) for ledger_id, entries in self.stand.ledgers())

    def position(self, name: str) -> Position:
        if name == "EARLIEST":
            return EARLIEST
        if name == "LATEST":
            return LATEST
        number, entry = place_of(name)
        return Position(self.ids[0] + number if number in (BEFORE, AFTER) else self.ids[number], entry)

    def _positions(self, op: dict[str, Any]) -> list[Position]:
        return [self.position(name) for name in op["positions"]]

    def _place(self, position: Position) -> Place:
        ledger_id, entry = position
        if ledger_id in self.numbers:
            return self.numbers[ledger_id], entry
        if ledger_id < 0:
            return EARLIEST_NUMBER, entry
        return (LATEST_NUMBER, entry) if ledger_id == LATEST.ledger_id else (ledger_id - self.ids[0], entry)

    def _places(self, positions: Iterable[Position]) -> list[Place]:
        return [self._place(one) for one in positions]

    def _view(self, name: str) -> CursorView:
        view = self.stand.view(name)
        return CursorView(
            self._place(view.mark_delete),
            self._place(view.read),
            view.backlog,
            view.entries,
            view.has_more,
            frozenset(map(self._place, view.acked)),
            {self._place(at): tuple(left) for at, left in view.batches.items()},
            view.properties,
            view.cursor_properties,
        )

    def _cursor(self, op: dict[str, Any]) -> Any:
        cursor = self.stand.cursors.get(op["cursor"])
        if cursor is None:
            raise NotOpenError
        return cursor

    def _call(self, op: dict[str, Any], name: str, *arguments: Any, **named: Any) -> Any:
        return self.stand.settle(method(self._cursor(op), name)(*arguments, **named))

    # -- the topic -----------------------------------------------------------------------------------------------------

    def _open(self, op: dict[str, Any]) -> dict[str, Any]:
        self.config.update(op.get("config", {}))
        return {"cursors": self.stand.open(self.config)}

    def _close(self, op: dict[str, Any]) -> None:
        self.stand.close()

    def _crash(self, op: dict[str, Any]) -> None:
        self.stand.crash()

    def _add(self, op: dict[str, Any]) -> dict[str, Any]:
        payloads = prefixed(range(self.added, self.added + op["n"]), op.get("size", 0))
        self.added += op["n"]
        positions = self.stand.add(payloads)
        self._name_ledgers()
        return {"positions": self._places(positions)}

    def _roll(self, op: dict[str, Any]) -> None:
        self.stand.roll()

    def _trim(self, op: dict[str, Any]) -> None:
        """Done after every operation."""

    def _truncate(self, op: dict[str, Any]) -> None:
        for name in sorted(self.stand.cursors):
            self._call({"cursor": name}, "clear_backlog")

    def _clock(self, op: dict[str, Any]) -> None:
        self.stand.sleep(op["advance_ms"])

    def _dump(self, op: dict[str, Any]) -> None:
        """What is stored is seen when it is recovered."""

    _session = _periodic_rollover = _dump  # which cursor ledger is written to is not compared

    def _quorum(self, op: dict[str, Any]) -> None:
        self.stand.quorum(op["n"])

    # -- cursors by name -----------------------------------------------------------------------------------------------

    def _open_cursor(self, op: dict[str, Any]) -> None:
        names = ("initial", "properties", "cursor_properties")
        self.stand.open_cursor(op["cursor"], **{name: op[name] for name in names if op.get(name) is not None})

    def _close_cursor(self, op: dict[str, Any]) -> None:
        self.stand.close_cursor(op["cursor"])

    def _delete_cursor(self, op: dict[str, Any]) -> None:
        self.stand.delete_cursor(op["cursor"])

    def _list_cursors(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"stored": self.stand.stored_cursors()}

    def _observe(self, op: dict[str, Any]) -> None:
        """The state of every cursor is looked at after each operation anyway."""

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def _ack(self, op: dict[str, Any]) -> None:
        self._call(op, "ack", self._positions(op))

    def _ack_each(self, op: dict[str, Any]) -> dict[str, Any]:
        failed = 0
        for position in self._positions(op):
            try:
                self._call(op, "ack", [position])
            except (MissingError, NotOpenError):
                raise
            except Exception as error:
                if self.stand.kind(error) is None:
                    raise
                failed += 1
        return {"failed": failed}

    def _ack_batch(self, op: dict[str, Any]) -> None:
        position = self.position(op["position"])
        if "words" in op:
            self._call(op, "ack", [position])
        else:
            self._call(op, "ack_batch", position, op["acked"], op["batch_size"])

    def _mark_delete(self, op: dict[str, Any]) -> None:
        self._call(op, "mark_delete", self.position(op["position"]), op.get("properties"))

    def _mark_delete_batch(self, op: dict[str, Any]) -> None:
        position = self.position(op["position"])
        properties = op.get("properties")
        if "words" in op:
            self._call(op, "mark_delete", position, properties)
        else:
            self._call(op, "mark_delete_batch", position, op["acked"], op["batch_size"], properties)

    def _reset(self, op: dict[str, Any]) -> None:
        position = self.position(op["position"])
        self._call(op, "reset", position)
        if op.get("acked"):
            self._call(op, "ack_batch", position, op["acked"], op["batch_size"])
            self._call(op, "flush")

    def _clear_backlog(self, op: dict[str, Any]) -> None:
        self._call(op, "clear_backlog")

    def _skip(self, op: dict[str, Any]) -> None:
        self._call(op, "skip", op["n"], include_acked=op["acked_entries"] == "include")

    def _flush(self, op: dict[str, Any]) -> None:
        self._call(op, "flush")

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, op: dict[str, Any]) -> dict[str, Any]:
        found = self._call(op, "read", op["n"])
        return {"positions": self._places(getattr(one, "position", one) for one in found)}

    def _replay(self, op: dict[str, Any]) -> dict[str, Any]:
        positions = self._positions(op)
        found = [getattr(one, "position", one) for one in self._call(op, "replay", positions)]
        acked = sorted(self._place(one) for one in positions if self._call(op, "is_acked", one))
        return {"already_acked": acked, "positions": sorted(self._places(found))}

    def _rewind(self, op: dict[str, Any]) -> None:
        self._call(op, "rewind")

    def _seek(self, op: dict[str, Any]) -> None:
        self._call(op, "seek", self.position(op["position"]))

    def _nth(self, op: dict[str, Any]) -> dict[str, Any]:
        found = self._call(op, "nth", op["n"], include_acked=op["acked_entries"] == "include")
        return {"position": None if found is None else self._place(found)}

    def _is_acked(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"acked": [bool(self._call(op, "is_acked", one)) for one in self._positions(op)]}

    def _next_available(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"next": [self._place(self._call(op, "next_available", one)) for one in self._positions(op)]}

    # -- properties ----------------------------------------------------------------------------------------------------

    def _put_property(self, op: dict[str, Any]) -> None:
        self._call(op, "put_property", op["name"], op["value"])

    def _remove_property(self, op: dict[str, Any]) -> None:
        self._call(op, "remove_property", op["name"])

    def _set_cursor_properties(self, op: dict[str, Any]) -> None:
        self._call(op, "set_cursor_properties", op["cursor_properties"])

    def _put_cursor_property(self, op: dict[str, Any]) -> None:
        self._call(op, "put_cursor_property", op["name"], op["value"])

    def _remove_cursor_property(self, op: dict[str, Any]) -> None:
        self._call(op, "remove_cursor_property", op["name"])

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _break_cursor_ledger(self, op: dict[str, Any]) -> None:
        self.stand.break_cursor_ledger(op["cursor"])

    def _bump_cursor_info(self, op: dict[str, Any]) -> None:
        self.stand.bump_cursor_info(op["cursor"])

    def _add_range(self, op: dict[str, Any]) -> None:
        """Acknowledge the entries that the original has in its set then: of a range from one ledger into another, the
        tree of ranges has all, the sets of bits those of the last ledger."""
        lower, upper = self.position(op["from"]), self.position(op["to"])
        whole = not self.config.get("unackedRangesOpenCacheSetEnabled", True)
        entries = [
            Position(ledger_id, entry)
            for ledger_id, count in self.stand.ledgers()
            if whole and lower.ledger_id <= ledger_id < upper.ledger_id
            for entry in range(lower.entry_id + 1 if ledger_id == lower.ledger_id else 0, count)
        ]
        first = lower.entry_id + 1 if lower.ledger_id == upper.ledger_id else 0
        self._call(op, "ack", [*entries, *(Position(upper.ledger_id, one) for one in range(first, upper.entry_id + 1))])

    def _plant_cursor_ledger(self, op: dict[str, Any]) -> None:
        entries = [self._planted(one) for one in op["entries"]]
        self.stand.plant_ledger(op["cursor"], entries, op.get("delete_ledger", False))

    def _planted(self, entry: Any) -> Planted:
        if isinstance(entry, str):
            return Planted(base64.b64decode(entry))
        ranges = tuple((*self.position(lower), *self.position(upper)) for lower, upper in entry.get("ranges", ()))
        properties = tuple(entry.get("properties", {}).items())
        mark_delete = self.position(entry["mark_delete"])
        batches = tuple((*self.position(at), sum(1 << index for index in left)) for at, left in entry.get("batch", ()))
        longs = tuple(
            (self.position(f"{ledger}:0").ledger_id, tuple(int(word, 16) for word in words))
            for ledger, words in entry.get("long_arrays", ())
        )
        return Planted(None, mark_delete, ranges, batches, properties, entry.get("cut", 0), longs)

    def _plant_cursor_info(self, op: dict[str, Any]) -> None:
        self.stand.plant_record(op["cursor"], self._planted(op["info"]), op["info"].get("cursor_properties"))
