"""A rule: its filters, its schedule, and its notation on one line.

An example of the notation, which replays use::

    fail+after@append(4:17)@bookie2#3*2%0.5=-6
    │    │     │      │     │       │ │ │    └ value: error code or name, seconds, bit, mode
    │    │     │      │     │       │ │ └───── probability
    │    │     │      │     │       │ └─────── maximum number of times; inf: unlimited
    │    │     │      │     │       └───────── first matching occurrence, counted from 1
    │    │     │      │     └───────────────── bookie of a server; if omitted, any bookie, also without a server
    │    │     │      └─────────────────────── ledger and entry, only a ledger (4), an entry of any ledger (:17), or
    │    │     │                               a path
    │    │     └────────────────────────────── operation or point
    │    └──────────────────────────────────── after the operation instead of before
    └───────────────────────────────────────── kind
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from bookstand import errors
from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.storage.format.ledger_state import MAX_BOOKIES
from bookstand.testing.faults.failpoints import Operation, check_operation, check_point

TIMES: dict[str, int | None] = {
    "fail": 1,
    "delay": None,
    "stall": 1,
    "conflict": 1,
    "full": 1,
    "flip": None,
    "crash": 1,
    "empty": 1,
}
"""Kinds of rules and their default maximum number of times; None means unlimited."""


class Subject(NamedTuple):
    """Subject of an operation; fields that do not apply are None. ``bookie`` is only set in a served store."""

    ledger: int | None = None
    entry: int | None = None
    path: str | None = None
    bookie: int | None = None


@dataclass(eq=False)
class Rule:
    """Rule with counters of operations that matched (``seen``) and were affected (``fired``). Unless it is
    ``expected``, it may remain unfired."""

    kind: str
    operation: str
    ledger: int | None = None
    entry: int | None = None
    path: str | None = None
    nth: int | None = None
    times: int | None = 1
    probability: float | None = None
    after: bool = False
    value: str = ""
    bookie: int | None = None
    seed: tuple[int, str, int] = (0, "", 0)
    seen: int = 0
    fired: int = 0
    expected: bool = True
    action: Any = field(default=None, repr=False)
    _occurrences: Counter[Subject] = field(default_factory=Counter, repr=False)

    def matches(self, subject: Subject) -> bool:
        return (
            (self.ledger is None or self.ledger == subject.ledger)
            and (self.entry is None or self.entry == subject.entry)
            and (self.path is None or self.path == subject.path)
            and (self.bookie is None or self.bookie == subject.bookie)
        )

    def due(self, subject: Subject) -> bool:
        """Count a matching operation, and return True if the rule fires for it."""
        self.seen += 1
        if self.probability is not None or self.kind == "delay":
            self._occurrences[subject] += 1
        if self.times is not None and self.fired >= self.times:
            return False
        if self.seen < (self.nth or 1):
            return False
        if self.probability is None:
            return True
        return self.random("due", subject).random() < self.probability

    def random(self, purpose: str, subject: Subject) -> Random:
        """Random generator that depends on the seed, the rule and the subject, but not on thread scheduling."""
        # The bookie is left out if there is none, so that replays from before it was introduced remain valid.
        about = tuple(subject) if subject.bookie is not None else tuple(subject[:3])
        return Random(repr((*self.seed, purpose, about, self._occurrences[subject])))

    def __str__(self) -> str:
        parts = [self.kind, "+after" if self.after else "", f"@{self.operation}"]
        if self.path is not None:
            parts.append(f"({quote(self.path, safe='/')})")
        elif self.ledger is not None or self.entry is not None:
            ledger = "" if self.ledger is None else self.ledger
            parts.append(f"({ledger})" if self.entry is None else f"({ledger}:{self.entry})")
        if self.bookie is not None:
            parts.append(f"@bookie{self.bookie}")
        if self.nth is not None:
            parts.append(f"#{self.nth}")
        if self.times != TIMES[self.kind]:
            parts.append(f"*{'inf' if self.times is None else self.times}")
        if self.probability is not None:
            parts.append(f"%{self.probability!r}")
        if self.value:
            parts.append(f"={self.value}")
        return "".join(parts)


_RULE = re.compile(
    r"(?P<kind>[a-z]+)(?P<after>\+after)?@(?P<operation>[a-z_.]+)"
    r"(?:\((?:(?P<path>/[^()]*)|(?P<ledger>\d+)?(?::(?P<entry>\d+))?)\))?"
    r"(?:@bookie(?P<bookie>\d+))?"
    r"(?:#(?P<nth>\d+))?(?:\*(?P<times>\d+|inf))?(?:%(?P<probability>[0-9.e-]+))?(?:=(?P<value>.+))?"
)


def parse_rule(text: str) -> Rule:
    """Parse the notation of a rule; the caller validates the values."""
    found = _RULE.fullmatch(text.strip())
    if found is None or found["kind"] not in TIMES:
        raise IncorrectParameterError(f"{text!r} is no rule, which is written like fail@append(4:17)#3=-6")
    kind, times = found["kind"], found["times"]
    try:
        return Rule(
            kind,
            found["operation"],
            _number(found["ledger"]),
            _number(found["entry"]),
            None if found["path"] is None else unquote(found["path"]),
            _number(found["nth"]),
            TIMES[kind] if times is None else None if times == "inf" else int(times),
            None if found["probability"] is None else float(found["probability"]),
            found["after"] is not None,
            found["value"] or "",
            _number(found["bookie"]),
        )
    except ValueError as error:
        # Invalid probability, or a number with thousands of digits.
        raise IncorrectParameterError(f"{text[:200]!r} is no rule: {error}") from None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def check_rule(rule: Rule) -> None:
    """Validate a rule except its value: names, ranges, and filters that the operation supports."""
    for name, number, least in (
        ("ledger", rule.ledger, 0),
        ("entry", rule.entry, 0),
        ("nth", rule.nth, 1),
        ("times", rule.times, 1),
    ):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise IncorrectParameterError(f"{name} is a number from {least} up or None, not {number!r}")
    chance = rule.probability
    if chance is not None and (isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 < chance <= 1):
        raise IncorrectParameterError(f"a probability is above 0 and at most 1, not {chance!r}")
    if rule.path is not None and (not isinstance(rule.path, str) or not rule.path.startswith("/")):
        raise IncorrectParameterError(f"a path begins with '/', not {rule.path!r}")
    bookie = rule.bookie
    if bookie is not None and (
        isinstance(bookie, bool) or not isinstance(bookie, int) or not 0 < bookie <= MAX_BOOKIES
    ):
        raise IncorrectParameterError(f"bookie is a number from 1 to {MAX_BOOKIES} or None, not {bookie!r}")
    operation = check_point(rule.operation) if rule.kind == "crash" else check_operation(rule.operation)
    _check_subject(rule, operation)
    if rule.kind != "crash" and rule.after and not operation.has_after:
        raise IncorrectParameterError(f"{rule.operation!r} changes nothing: there is only before it, no after")


def _check_subject(rule: Rule, operation: Operation) -> None:
    if rule.ledger is not None and operation.subject not in ("ledger", "entry"):
        raise IncorrectParameterError(f"{rule.operation!r} is not about a ledger")
    if rule.entry is not None and operation.subject != "entry":
        raise IncorrectParameterError(f"{rule.operation!r} is not about an entry")
    if rule.path is not None and operation.subject != "path":
        raise IncorrectParameterError(f"{rule.operation!r} is not about a node")
    if rule.bookie is not None and not operation.at_bookies:
        raise IncorrectParameterError(f"{rule.operation!r} is nothing that happens at one bookie")


# -- values ------------------------------------------------------------------------------------------------------------


def name_of_error(code: object, error: object) -> str:
    """Format the error of a rule: its code, or its name if the code is ambiguous."""
    if error is None:
        if isinstance(code, bool) or not isinstance(code, int):
            raise IncorrectParameterError(f"a code is one of BookKeeper's numbers, not {code!r}")
        error_of(str(code))
        return str(code)
    kind = error if isinstance(error, type) else type(error)
    if not issubclass(kind, BookstandError):
        raise IncorrectParameterError(f"a rule fails with one of bookstand's errors, not with {error!r}")
    return kind.__name__


def error_of(value: str) -> type[BookstandError]:
    """Return the class of an error in the notation of rules."""
    if re.fullmatch(r"-\d{1,9}", value):
        kind: Any = errors.by_code(int(value))
        if kind.code == int(value):
            return kind  # type: ignore[no-any-return]
    else:
        kind = getattr(errors, value, None)
        if isinstance(kind, type) and issubclass(kind, BookstandError):
            return kind
    raise IncorrectParameterError(f"{value!r} is neither a code of BookKeeper's nor an error of bookstand's")


def seconds_of(value: str) -> tuple[float, float]:
    """Parse the bounds of a delay, in seconds."""
    least, _, most = value.partition("~")
    try:
        low, high = float(least), float(most or least)
    except ValueError:
        low = high = -1.0
    if not 0 <= low <= high < float("inf"):
        raise IncorrectParameterError(f"a delay is some seconds from 0 up, or from so many to so many, not {value!r}")
    return low, high


def as_seconds(seconds: Any) -> str:
    """Format a number of seconds, or a range of them, for a rule."""
    bounds = seconds if isinstance(seconds, tuple) else (seconds,)
    numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
    value = "~".join(map(repr, bounds)) if numbers and len(bounds) in (1, 2) else repr(seconds)
    seconds_of(value)
    return value
