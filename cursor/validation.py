"""Checks of the arguments of a cursor's methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard, TypeVar

from bookstand.cursor.errors import ReservedPropertyError
from bookstand.cursor.format.record import RESERVED_NAMES
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position

INTERNAL_PREFIX = "#pulsar.internal."
"""Prefix of the names of internal properties."""

_RESERVED = " or ".join(map(repr, sorted(RESERVED_NAMES)))
_V = TypeVar("_V")


def as_count(count: object) -> int:
    if type(count) is int and count >= 1:
        return count
    raise IncorrectParameterError(f"count must be a positive integer, not {count!r}")


def as_position(position: object) -> Position:
    if _is_position(position):
        return position if type(position) is Position else Position(*position)
    raise IncorrectParameterError(f"a position must be a ledger id and an entry id, not {position!r}")


def as_positions(positions: object) -> list[Position]:
    if _is_position(positions):
        return [Position(*positions)]
    if not isinstance(positions, Iterable):
        raise IncorrectParameterError(f"positions must be a Position or an iterable of them, not {positions!r}")
    return [as_position(one) for one in positions]


def _is_position(position: object) -> TypeGuard[tuple[int, int]]:
    return isinstance(position, tuple) and len(position) == 2 and type(position[0]) is int and type(position[1]) is int


def as_properties(properties: Mapping[str, int] | None) -> dict[str, int]:
    """Return the properties of a mark-delete position after checking them; a later flush must not fail on them."""
    checked = _as_dict("properties", properties)
    for name, value in checked.items():
        _check_text("the name of a property", name)
        if name in RESERVED_NAMES or name.startswith(INTERNAL_PREFIX):
            raise ReservedPropertyError(
                f"property {name!r} is reserved: names must not be {_RESERVED} or begin with {INTERNAL_PREFIX!r}"
            )
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise IncorrectParameterError(f"property {name!r} must be an int64, not {value!r}")
    return checked


def as_cursor_properties(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return cursor properties after checking them; no name may be reserved."""
    checked = _as_dict("cursor properties", properties)
    for name, value in checked.items():
        check_cursor_property(name, value)
        if name.startswith(INTERNAL_PREFIX):
            raise ReservedPropertyError(
                f"cursor property {name!r} is reserved: names must not begin with {INTERNAL_PREFIX!r}"
            )
    return tuple(checked.items())


def check_cursor_property(name: object, value: object) -> None:
    _check_text("the name of a cursor property", name)
    _check_text(f"cursor property {name!r}", value)


def _as_dict(what: str, properties: Mapping[str, _V] | None) -> dict[str, _V]:
    if properties is not None and not isinstance(properties, Mapping):
        raise IncorrectParameterError(f"{what} must be a mapping, not {properties!r}")
    return dict(properties or {})


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise IncorrectParameterError(f"{what} must be a string, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise IncorrectParameterError(f"{what} must be valid Unicode, not {text!r}: {error.reason}") from None
