"""Tables of settings, from the classes and functions that take them and from the docstrings beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from website.markup import code, described_names, name_that_breaks, prose, table

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
"""Configurations, with the tables of their settings that can be changed while the object that has them is open."""


@cache
def package() -> griffe.Module:
    """The sources as griffe reads them, without importing anything."""
    import griffe

    return griffe.load("bookstand", search_paths=[ROOT], resolve_aliases=False)  # type: ignore[return-value]


def found(path: str) -> Any:
    """What has that path, ``bookstand.open`` say."""
    at: Any = package()
    for name in path.split(".")[1:]:
        at = at[name]
        if at.is_alias:
            at = found(at.target_path)
    return at


def settings(path: str) -> str:
    """The parameters of a function or of a class; those of a dataclass are its own fields, without inherited ones."""
    described = found(path)
    taken = signature(_imported(path)).parameters
    if described.is_class and "dataclass" in described.labels:
        grouped = list(_grouped(described))
    else:
        meanings = _meanings(described)
        grouped = [([name], meanings.get(name, "")) for name in taken]
    head: tuple[str, ...] = HEAD
    rows: list[tuple[str, ...]] = [_row([taken[name] for name in names], meaning) for names, meaning in grouped]
    if path in WHILE_OPEN:
        changeable = _imported(WHILE_OPEN[path]).changeable
        head = (*head, "while open")
        rows = [
            (*row, "<br>".join("changeable" if name in changeable else "fixed" for name in names))
            for row, (names, _) in zip(rows, grouped, strict=True)
        ]
    return described_names(table(head, rows))


def _imported(path: str) -> Any:
    at: Any = import_module("bookstand")
    for name in path.split(".")[1:]:
        if not hasattr(at, name):
            at = import_module(f"{at.__name__}.{name}")
        else:
            at = getattr(at, name)
    return at


def _grouped(described: Any) -> Iterator[tuple[list[str], str]]:
    """Fields with what is said of them. A docstring is about all fields above it that have none."""
    names: list[str] = []
    for name, member in described.members.items():
        if member.is_attribute and "property" not in member.labels:
            names.append(name)
            if member.docstring is not None:
                yield names, member.docstring.value
                names = []
    if names:
        raise ValueError(f"{described.path}: nothing is said of {', '.join(names)}")


def _meanings(described: Any) -> dict[str, str]:
    """Of each parameter, by the sections of the docstring."""
    sections = described.docstring.parse("google")
    return {one.name: one.description for part in sections if part.kind.value == "parameters" for one in part.value}


def _row(taken: Sequence[Parameter], meaning: str) -> tuple[str, str, str, str]:
    return (
        "<br>".join(name_that_breaks(one.name) for one in taken),
        prose(meaning),
        "<br>".join("" if one.default is one.empty else code(_value(one.default)) for one in taken),
        "<br>".join(code(one.annotation) for one in taken),
    )


def _value(default: object) -> str:
    if type(default) is int and default >= 10_000:
        return f"{default:_}"
    return f"{type(default).__name__}()" if type(default).__module__.startswith("bookstand.") else repr(default)
