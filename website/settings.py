"""Tables of settings, from the signatures and docstrings of classes and functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from website.markup import breakable_name, code, name_table, prose, table

if TYPE_CHECKING:
    import griffe

ROOT = Path(__file__).resolve().parent.parent
HEAD = ("setting", "", "default", "type")
WHILE_OPEN = {
    "bookstand.TopicConfig": "bookstand.delivery.topic_config.TOPIC_WHILE_OPEN",
    "bookstand.delivery.config.DelayedDeliveryConfig": "bookstand.delivery.config.DELAYED_WHILE_OPEN",
    "bookstand.SubscriptionConfig": "bookstand.delivery.topic_config.SUBSCRIPTION_WHILE_OPEN",
    "bookstand.CursorConfig": "bookstand.cursor.config.CURSOR_WHILE_OPEN",
}
"""Configuration classes, with the definitions of the settings that can be changed while the object is open."""


@cache
def package() -> griffe.Module:
    """Load the sources with griffe, without importing them."""
    import griffe

    return griffe.load("bookstand", search_paths=[ROOT], resolve_aliases=False)  # type: ignore[return-value]


def lookup(path: str) -> Any:
    """Return the griffe object at a path such as ``bookstand.open``."""
    at: Any = package()
    for name in path.split(".")[1:]:
        at = at[name]
        if at.is_alias:
            at = lookup(at.target_path)
    return at


def settings(path: str) -> str:
    """Return the table of a function's or class's parameters; of a dataclass, without inherited fields."""
    target = lookup(path)
    parameters = signature(_imported(path)).parameters
    if target.is_class and "dataclass" in target.labels:
        grouped = list(_grouped(target))
    else:
        descriptions = _descriptions(target)
        grouped = [([name], descriptions.get(name, "")) for name in parameters]
    head: tuple[str, ...] = HEAD
    rows: list[tuple[str, ...]] = [_row([parameters[name] for name in names], text) for names, text in grouped]
    if path in WHILE_OPEN:
        changeable = _imported(WHILE_OPEN[path]).changeable
        head = (*head, "while open")
        rows = [
            (*row, "<br>".join("changeable" if name in changeable else "fixed" for name in names))
            for row, (names, _) in zip(rows, grouped, strict=True)
        ]
    return name_table(table(head, rows))


def _imported(path: str) -> Any:
    at: Any = import_module("bookstand")
    for name in path.split(".")[1:]:
        if not hasattr(at, name):
            at = import_module(f"{at.__name__}.{name}")
        else:
            at = getattr(at, name)
    return at


def _grouped(target: Any) -> Iterator[tuple[list[str], str]]:
    """Group fields with their docstring, which applies to all preceding fields without one."""
    names: list[str] = []
    for name, member in target.members.items():
        if member.is_attribute and "property" not in member.labels:
            names.append(name)
            if member.docstring is not None:
                yield names, member.docstring.value
                names = []
    if names:
        raise ValueError(f"{target.path}: {', '.join(names)} must have a docstring")


def _descriptions(target: Any) -> dict[str, str]:
    """Return the descriptions of parameters from the docstring's sections."""
    sections = target.docstring.parse("google")
    return {one.name: one.description for part in sections if part.kind.value == "parameters" for one in part.value}


def _row(parameters: Sequence[Parameter], description: str) -> tuple[str, str, str, str]:
    return (
        "<br>".join(breakable_name(one.name) for one in parameters),
        prose(description),
        "<br>".join("" if one.default is one.empty else code(_value(one.default)) for one in parameters),
        "<br>".join(code(one.annotation) for one in parameters),
    )


def _value(default: object) -> str:
    if type(default) is int and default >= 10_000:
        return f"{default:_}"
    return f"{type(default).__name__}()" if type(default).__module__.startswith("bookstand.") else repr(default)
