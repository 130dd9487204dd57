"""Range sets, a set of operations as one sample. Compared are, after each operation, the ranges, their number, the
first, the last, both ends of the whole and the text but for its spaces; and of the questions the answer: whether an
entry is in, the range around it (a closed one is the open one that begins an entry lower), how many entries lie between
two positions, and of the words of bits each ledger's, without zero words at the end. Of the words a limit leaves
ledgers out in the order of a hash map, so not compared is which, but that the limit was passed.

The ranges of the original's tree may reach from one ledger into the next, ours never: this is argued where such a range
is added, and what follows in the set is compared with a plain model, a set of positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bookstand.cursor.state.bitmap_runs import words
from bookstand.cursor.state.ranges import AckRange, RangeSet
from bookstand.storage.format.position import Position
from tests.replay.outcome import Outcome

RULE = "tree-across-ledgers"
BOUND = re.compile(r"([(\[]?)(-?\d+):(-?\d+)([)\]]?)")

Line = dict[str, Any]
Ends = tuple[tuple[int, int], tuple[int, int]]


def compare(name: str, lines: list[Line]) -> Iterator[Outcome]:
    for header, operations in _sets(lines):
        yield _compare_set(f"{name}:{header['kind']}-{header['set']}", header["kind"], operations)


def _compare_set(name: str, kind: str, operations: list[Line]) -> Outcome:
    ours, plain = RangeSet(), PlainRanges()
    argued = ""
    for number, line in enumerate(operations):
        answer = apply(ours, line)
        expected = plain.apply(line)
        if kind == "tree" and not argued and _crosses(line):
            argued = f"{RULE}: operation {number}: {line['lower']}..{line['upper']}"
        if argued:
            found = "" if (answer, shown(ours)) == (expected, plain.shown()) else "not as the plain model"
        else:
            found = "; ".join(_differences(ours, answer, line))
        if found:
            return Outcome(name, "different", f"{argued or 'not argued'}: operation {number}: {line['op']}: {found}")
    return Outcome(name, "argued" if argued else "equal", argued)


def _crosses(line: Line) -> bool:
    return line["op"] == "add_open_closed" and _position(line["lower"])[0] != _position(line["upper"])[0]


def apply(ranges: RangeSet, line: Line) -> Any:
    """The answer, in a form of ours; None of what only changes."""
    op = line["op"]
    if op == "add_open_closed":
        ranges.add_open_closed(_position(line["lower"]), _position(line["upper"]))
    elif op == "remove_at_most":
        ranges.remove_at_most(_position(line["position"]))
    elif op == "contains":
        return ranges.contains(_position(line["position"]))
    elif op == "range_containing":
        found = ranges.range_containing(_position(line["position"]))
        return None if found is None else _ends(found)
    elif op == "cardinality":
        return ranges.cardinality(_position(line["lower"]), _position(line["upper"]))
    elif op == "to_ranges":
        return {ledger: [f"{word:016x}" for word in words(bits).tolist()] for ledger, bits in ranges.bitmaps.items()}
    else:
        raise ValueError(op)
    return None


def shown(ranges: RangeSet) -> list[Ends]:
    return [_ends(one) for one in ranges]


def _differences(ours: RangeSet, answer: Any, line: Line) -> Iterator[str]:
    if not line["ok"]:
        yield "the original threw"
    everything = ours.to_ranges()
    said = {
        "ranges": [_ends(one) for one in everything],
        "size": len(ours),
        "first": None if ours.first is None else _ends(ours.first),
        "last": None if ours.last is None else _ends(ours.last),
        "span": None if not everything else (tuple(everything[0].lower), tuple(everything[-1].upper)),
        "string": str(ours).replace(" ", ""),
    }
    for key, mine in said.items():
        recorded = line[key]
        if key == "ranges":
            recorded = [_recorded(one) for one in recorded]
        elif key in ("first", "last", "span"):
            recorded = None if recorded is None else _recorded(recorded)
        elif key == "string":
            recorded = recorded.replace(" ", "")
        if mine != recorded:
            yield f"{key}: {str(mine)[:200]}, recorded {str(recorded)[:200]}"
    if "result" in line:
        yield from _answer_differences(ours, answer, line)


def _answer_differences(ours: RangeSet, answer: Any, line: Line) -> Iterator[str]:
    recorded = line["result"]
    if line["op"] == "range_containing":
        recorded = None if recorded is None else _recorded(recorded)
    elif line["op"] == "to_ranges":
        recorded = {int(ledger): _without_zeros(bits) for ledger, bits in recorded.items()}
        there = sum(len(ours.bitmaps[ledger]) for ledger in recorded if ledger in ours.bitmaps)
        if len(recorded) < len(answer) and there > line["max"]:
            answer = {ledger: bits for ledger, bits in answer.items() if ledger in recorded}
    if answer != recorded:
        yield f"result: {str(answer)[:200]}, recorded {str(recorded)[:200]}"


def _without_zeros(bits: list[str]) -> list[str]:
    kept = list(bits)
    while kept and not int(kept[-1], 16):
        kept.pop()
    return kept


def _recorded(bounds: list[str]) -> Ends:
    """Two bounds as written, with the lower one open."""
    (opening, *lower, _), (_, *upper, closing) = (_match(bound) for bound in bounds)
    if closing != "]" or opening not in "([":
        raise ValueError(bounds)
    first = int(lower[1]) - 1 if opening == "[" else int(lower[1])
    return (int(lower[0]), first), (int(upper[0]), int(upper[1]))


def _match(bound: str) -> tuple[str, ...]:
    found = BOUND.fullmatch(bound)
    if found is None:
        raise ValueError(bound)
    return found.groups()


def _ends(one: AckRange) -> Ends:
    return (one.lower[0], one.lower[1]), (one.upper[0], one.upper[1])


def _position(text: str) -> Position:
    ledger, _, entry = text.partition(":")
    return Position(int(ledger), int(entry))


def _sets(lines: list[Line]) -> Iterator[tuple[Line, list[Line]]]:
    current: tuple[Line, list[Line]] | None = None
    for line in lines:
        if "set" in line:
            if current is not None:
                yield current
            current = (line, [])
        elif current is not None:
            current[1].append(line)
    if current is not None:
        yield current


class PlainRanges:
    """The same as a plain set of positions, entry by entry."""

    def __init__(self) -> None:
        self.entries: set[tuple[int, int]] = set()

    def apply(self, line: Line) -> Any:
        op = line["op"]
        if op == "add_open_closed":
            lower, upper = _position(line["lower"]), _position(line["upper"])
            if lower.ledger_id == upper.ledger_id:
                first = lower.entry_id + 1
            else:
                first = 0
                known = [entry for ledger, entry in self.entries if ledger == lower.ledger_id]
                self.entries |= {
                    (lower.ledger_id, one) for one in range(lower.entry_id + 1, max(known, default=-1) + 1)
                }
            self.entries |= {(upper.ledger_id, one) for one in range(first, upper.entry_id + 1)}
        elif op == "remove_at_most":
            self.entries = {one for one in self.entries if one > _position(line["position"])}
        elif op == "contains":
            return _position(line["position"]) in self.entries
        elif op == "range_containing":
            place = _position(line["position"])
            return next((ends for ends in self.shown() if ends[0] < place <= ends[1]), None)
        elif op == "cardinality":
            return sum(_position(line["lower"]) <= one <= _position(line["upper"]) for one in self.entries)
        elif op == "to_ranges":
            return self._words()
        else:
            raise ValueError(op)
        return None

    def shown(self) -> list[Ends]:
        found: list[Ends] = []
        for ledger, entry in sorted(self.entries):
            if found and found[-1][1] == (ledger, entry - 1):
                found[-1] = (found[-1][0], (ledger, entry))
            else:
                found.append(((ledger, entry - 1), (ledger, entry)))
        return found

    def _words(self) -> dict[int, list[str]]:
        bits: dict[int, int] = {}
        for ledger, entry in self.entries:
            bits[ledger] = bits.get(ledger, 0) | 1 << entry
        return {
            ledger: [f"{number >> at & (1 << 64) - 1:016x}" for at in range(0, number.bit_length(), 64)]
            for ledger, number in bits.items()
        }
