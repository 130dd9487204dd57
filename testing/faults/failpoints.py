"""Failpoints: the operations that rules name, and the points that crashes name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bookstand.errors import IncorrectParameterError
from bookstand.storage import hooks

POINTS: Mapping[str, str] = MappingProxyType(hooks.POINTS)


@dataclass(frozen=True)
class Operation:
    """Operation that a rule can match, and its points before and after; None if it has no such point. ``at_bookies``:
    in a served store, it happens at one of the bookies."""

    meaning: str
    before: str | None = None
    after: str | None = None
    has_after: bool = False
    subject: str = "store"
    conflicts: bool = False
    at_bookies: bool = False


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "create": Operation("create a ledger", "create.before", "create.after", True, "ledger"),
        "open": Operation("open a ledger", "open_ledger.before", "open_ledger.after", True, "ledger"),
        "append": Operation("add an entry, except in a transaction", has_after=True, subject="entry", at_bookies=True),
        "read": Operation(
            "read an entry from the store, also to determine the last-add-confirmed", subject="entry", at_bookies=True
        ),
        "read_lac": Operation("read a ledger's last-add-confirmed", subject="ledger", at_bookies=True),
        "fence": Operation("fence a ledger", None, "recovery.fenced", True, "ledger", at_bookies=True),
        "recover": Operation(
            "recover an unclosed ledger", "recovery.before", "recovery.after_close", True, "ledger", True
        ),
        "force": Operation(
            "force acknowledged entries to disk", "force.before", "force.after", True, "ledger", at_bookies=True
        ),
        "close": Operation(
            "close a ledger: record its last entry", "close.before_cas", "close.after_cas", True, "ledger", True
        ),
        "delete": Operation("delete a ledger", "delete.before", "delete.after", True, "ledger"),
        "metadata": Operation(
            "replace a ledger's metadata",
            "metadata.before",
            "metadata.after",
            True,
            "ledger",
            True,
        ),
        "nodes.put": Operation("write a node", "nodes.put.before", "nodes.put.after", True, "path", True),
        "nodes.delete": Operation("delete a node", "nodes.delete.before", "nodes.delete.after", True, "path", True),
        "commit": Operation("commit a batch of changes of any kind", "commit.before_write", "commit.after_sync", True),
    }
)

BY_POINT: Mapping[str, tuple[tuple[str, bool], ...]] = MappingProxyType(
    {
        point: tuple(
            (name, after)
            for name, operation in OPERATIONS.items()
            for after, at in ((False, operation.before), (True, operation.after))
            if at == point
        )
        for point in POINTS
    }
)
"""Operations before (False) or after (True) which a point is passed."""


_SOMETHING = Operation("an operation that only crash rules can name")


def check_operation(name: object) -> Operation:
    if not isinstance(name, str) or name not in OPERATIONS:
        raise IncorrectParameterError(f"there is no operation {name!r}; there are: {', '.join(OPERATIONS)}")
    return OPERATIONS[name]


def check_point(name: object) -> Operation:
    """Return the operation that passes the point, with the filters that it supports."""
    if not isinstance(name, str) or name not in POINTS:
        raise IncorrectParameterError(f"there is no point {name!r}; there are: {', '.join(POINTS)}")
    if name.startswith("append."):
        return OPERATIONS["append"]
    return next((OPERATIONS[operation] for operation, _ in BY_POINT[name]), _SOMETHING)
