"""Every error that there is: its code, what it is a kind of, and when it is raised."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import cleandoc

from website.markup import code, described_names, name_that_breaks, prose, table

FAMILIES = ("answers", "store", "others")


@cache
def classes() -> tuple[type[Exception], ...]:
    """All of them, wherever they are defined: those of ``bookstand.errors`` first, and the others by their module."""
    import bookstand
    from bookstand.errors import BookstandError

    for module in pkgutil.walk_packages(bookstand.__path__, "bookstand."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    kinds = dict.fromkeys(_below(BookstandError))
    return tuple(sorted(kinds, key=lambda kind: (kind.__module__ != "bookstand.errors", kind.__module__)))


def _below(kind: type[Exception]) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        if one.__module__.startswith("bookstand."):
            yield one
            yield from _below(one)


def errors(family: str) -> str:
    """``answers``: those with a code of BookKeeper's. ``store``: what only a store says. ``others``: all others."""
    chosen = [kind for kind in classes() if family_of(kind) == family]
    if family == "answers":
        chosen.sort(key=lambda kind: (kind.__module__ != "bookstand.errors", -kind.code))  # type: ignore[attr-defined]
        rows = [(*_described(one), code(str(one.code)), _kinds(one)) for one in chosen]  # type: ignore[attr-defined]
        return described_names(table(("error", "", "code", "is also"), rows))
    return described_names(table(("error", "", "is also"), [(*_described(one), _kinds(one)) for one in chosen]))


def _described(kind: type[Exception]) -> tuple[str, str]:
    return name_that_breaks(path_of(kind)), meaning(kind)


def family_of(kind: type[Exception]) -> str:
    from bookstand.errors import LedgerError, StoreError

    return "answers" if issubclass(kind, LedgerError) else "store" if issubclass(kind, StoreError) else "others"


def path_of(kind: type[Exception]) -> str:
    """Its name, with its module where that is not ``bookstand.errors``."""
    return kind.__name__ if kind.__module__ == "bookstand.errors" else f"{kind.__module__}.{kind.__name__}"


def _kinds(kind: type[Exception]) -> str:
    from bookstand.errors import BookstandError, LedgerError, StoreError

    roots = (BookstandError, LedgerError, StoreError)
    return ", ".join(code(base.__name__) for base in kind.__bases__ if base not in roots)


def meaning(kind: type[Exception]) -> str:
    """Its own docstring; an inherited one says nothing of it."""
    return prose(cleandoc(kind.__dict__.get("__doc__") or ""))
