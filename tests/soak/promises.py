"""What has to be in a store after what was told of it, however that ended.

Of every step it is told what it will change, before it does it, and how it was answered. A store is a mapping from
keys to values: ``ledger 3`` is there, ``entry 3:0`` holds these bytes, ``node /n`` this value in that version,
``closed 3`` its last entry. What was answered with success has happened, whole; what was refused has not; what was not
answered, or with an unknown outcome, is one of the two. :func:`judge` compares that with what is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha1
from typing import Any

import bookstand
from bookstand import errors

Told = list[dict[str, Any]]

NEW_LEDGER = "ledger ?"
ALL_OR_NOTHING = "all or nothing"
IN_PART = "in part"
"""Entries that are sent together: what was not confirmed may have been stored all the same, as far as it reaches
without a gap."""
NEEDED = "needed"
"""Nothing is wrong with the device any more, so this has to succeed."""


def observe(store: bookstand.Store) -> dict[str, Any]:
    """What is there; recovers every ledger."""
    found: dict[str, Any] = {}
    for ledger_id in store.list_ledgers():
        found[f"ledger {ledger_id}"] = True
        metadata = store.ledger_metadata(ledger_id)
        if metadata.state == "CLOSED":
            found[f"closed {ledger_id}"] = metadata.last_entry_id
        for entry in store.open_ledger(ledger_id):
            found[f"entry {ledger_id}:{entry.entry_id}"] = shown(entry.data)
    paths = ["/"]
    while paths:
        path = paths.pop()
        for name in store.nodes.children(path):
            child = f"{path.rstrip('/')}/{name}"
            paths.append(child)
            with suppress(errors.NoSuchNodeError):
                value, version = store.nodes.get(child)
                found[f"node {child}"] = [shown(value), version]
    return found


def backups(told_by_each: list[Told]) -> list[str]:
    """The folders of those that were confirmed."""
    confirmed = [one for told in told_by_each for one in told if one["answer"] == "ok"]
    return [key.removeprefix("backup ") for one in confirmed for key in one["effects"] if key.startswith("backup ")]


def judge(told_by_each: list[Told], found: dict[str, Any]) -> list[str]:
    """What is wrong with what was found, after lives one after the other that told this."""
    expected = Expected(found)
    problems = [problem for told in told_by_each for problem in _follow(told, expected)]
    return problems + expected.differences()


def _follow(told: Told, expected: Expected) -> Iterator[str]:
    unanswered = None
    for one in told:
        if one["answer"] is None:
            unanswered = one
            continue
        if one["step"] != "part":
            unanswered = None
        expected.apply(one)
        if one["answer"].startswith("leaked") or (one["kind"] == NEEDED and one["answer"] != "ok"):
            yield f"{one['step']}: {one['answer']}"
    if unanswered is not None:
        expected.apply(unanswered | {"answer": "unknown"})


class Expected:
    """What must be in a store, and what may be, as far as what is found decides outcomes that are not known."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found
        self._must: dict[str, Any] = {}
        self._may: dict[str, list[Any]] = {}
        self._new_ledgers = 0

    def apply(self, one: dict[str, Any]) -> None:
        effects = one["effects"]
        if one["answer"] != "ok" and one["kind"] == IN_PART:
            for key, value in effects.items():
                # One that failed may be followed by another attempt.
                self._may.setdefault(key, []).append(value)
        elif one["answer"] == "ok" or (one["answer"] == "unknown" and self._is_there(effects)):
            for key, value in effects.items():
                self._set(key, value)

    def _is_there(self, effects: dict[str, Any]) -> bool:
        """Whether anything shows that it happened: then all of it must have."""
        if NEW_LEDGER in effects:
            self._new_ledgers += 1
            return False
        return any(self._found.get(key) == value != self._must.get(key) for key, value in effects.items())

    def _set(self, key: str, value: Any) -> None:
        if value is not None:
            self._must[key] = value
            return
        self._must.pop(key, None)
        kind, _, ledger = key.partition(" ")
        if kind == "ledger":
            gone = (f"entry {ledger}:", f"closed {ledger}")
            self._must = {other: value for other, value in self._must.items() if not other.startswith(gone)}

    def differences(self) -> list[str]:
        problems = [
            f"{key} should be {_short(value)}, but is {_short(self._found.get(key))}"
            for key, value in self._must.items()
            if self._found.get(key) != value and not key.startswith("backup ")
        ]
        new_ledgers = []
        for key, value in self._found.items():
            # A ledger is also closed by whoever fails to write to it.
            if key not in self._must and value not in self._may.get(key, []) and not key.startswith("closed "):
                if key.startswith("ledger "):
                    new_ledgers.append(key)
                else:
                    problems.append(f"{key} should not be there, but is {_short(value)}")
        if len(new_ledgers) > self._new_ledgers:
            problems.append(f"{new_ledgers} should not be there")
        return problems


def shown(data: bytes) -> str:
    """Large ones by their digest."""
    return data.hex() if len(data) <= 20 else f"{len(data)} bytes {sha1(data).hexdigest()}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:50]}… ({len(text)} characters)"
