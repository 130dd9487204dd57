"""Tables of all errors: code, base classes and description."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import cleandoc

from website.markup import breakable_name, code, name_table, prose, table

FAMILIES = ("answers", "store", "others")


@cache
def classes() -> tuple[type[Exception], ...]:
    """Return all error classes of the package: first those in ``bookstand.errors``, then the others by module."""
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
    """Return the table of a family: ``answers`` (with BookKeeper's codes), ``store`` or ``others``."""
    chosen = [kind for kind in classes() if family_of(kind) == family]
    if family == "answers":
        chosen.sort(key=lambda kind: (kind.__module__ != "bookstand.errors", -kind.code))  # type: ignore[attr-defined]
        rows = [(*_describe(one), code(str(one.code)), _kinds(one)) for one in chosen]  # type: ignore[attr-defined]
        return name_table(table(("error", "", "code", "is also"), rows))
    return name_table(table(("error", "", "is also"), [(*_describe(one), _kinds(one)) for one in chosen]))


def _describe(kind: type[Exception]) -> tuple[str, str]:
    return breakable_name(path_of(kind)), description(kind)


def family_of(kind: type[Exception]) -> str:
    from bookstand.errors import LedgerError, StoreError

    return "answers" if issubclass(kind, LedgerError) else "store" if issubclass(kind, StoreError) else "others"


def path_of(kind: type[Exception]) -> str:
    """Return the name of an error, with its module unless that is ``bookstand.errors``."""
    return kind.__name__ if kind.__module__ == "bookstand.errors" else f"{kind.__module__}.{kind.__name__}"


def _kinds(kind: type[Exception]) -> str:
    from bookstand.errors import BookstandError, LedgerError, StoreError

    roots = (BookstandError, LedgerError, StoreError)
    return ", ".join(code(base.__name__) for base in kind.__bases__ if base not in roots)


def description(kind: type[Exception]) -> str:
    """Return a class's own docstring, not an inherited one."""
    return prose(cleandoc(kind.__dict__.get("__doc__") or ""))
