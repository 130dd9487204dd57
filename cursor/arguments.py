"""Checks of what users of a cursor pass in, each with an error that says what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from bookstand.errors import IncorrectParameterError
from bookstand.storage.position import Position

INTERNAL_PREFIX = "#pulsar.internal."
"""Cursor properties whose names begin with it are not the user's."""


def as_count(count: object) -> int:
    if type(count) is int and count >= 1:
        return count
    raise IncorrectParameterError(f"count is a number from 1 up, not {count!r}")


def as_position(position: object) -> Position:
    if _is_position(position):
        return position if type(position) is Position else Position(*position)
    raise IncorrectParameterError(f"a position is a ledger id and an entry id, not {position!r}")


def as_positions(positions: object) -> list[Position]:
    """Of one position as well."""
    if _is_position(positions):
        return [Position(*positions)]
    if not isinstance(positions, Iterable):
        raise IncorrectParameterError(f"positions are a Position or an iterable of them, not {positions!r}")
    return [as_position(one) for one in positions]


def _is_position(position: object) -> TypeGuard[tuple[int, int]]:
    return isinstance(position, tuple) and len(position) == 2 and type(position[0]) is int and type(position[1]) is int


def as_properties(properties: Mapping[str, int] | None) -> dict[str, int]:
    """Those of a mark-delete."""
    checked = dict(properties or {})
    for name, value in checked.items():
        if not isinstance(name, str) or type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise IncorrectParameterError(f"a property is a name with a 64-bit number, not {name!r}: {value!r}")
    return checked


def as_cursor_properties(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those of the subscription, without any of which the name is reserved."""
    for name, value in properties.items():
        check_cursor_property(name, value)
        if name.startswith(INTERNAL_PREFIX):
            raise IncorrectParameterError(f"property {name!r}: names that begin with {INTERNAL_PREFIX} are reserved")
    return tuple(properties.items())


def check_cursor_property(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise IncorrectParameterError(f"a cursor property is a name with a string, not {name!r}: {value!r}")
