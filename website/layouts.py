"""Diagrams and tables of binary layouts, from the same definitions that the codecs use."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from bookstand.proto.struct_layout import Layout, MessageFields, is_struct_code
from website.drawing import Box, row_of_boxes
from website.markup import code, prose, table

_WIDTHS = {"b": 8, "h": 16, "i": 32, "q": 64}
_TYPES = {one: f"int{bits}" for one, bits in _WIDTHS.items()}
_TYPES |= {one.upper(): f"uint{bits}" for one, bits in _WIDTHS.items()}
_ORDERS = {">": "big-endian", "<": "little-endian"}


def layouts_of(module: str) -> Iterator[Layout | MessageFields]:
    """Return the layouts that a module defines, in order. ``module`` is relative to the package."""
    for name, value in vars(import_module(f"bookstand.{module}")).items():
        if isinstance(value, Layout | MessageFields) and name not in _imported(module):
            yield value


def _imported(module: str) -> set[str]:
    """Return the names that a module imports."""
    import ast
    from pathlib import Path

    source = Path(import_module(f"bookstand.{module}").__file__ or "").read_text()
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in imports for alias in node.names}


def layouts(*modules: str) -> str:
    """Return the layouts of the modules."""
    return "\n".join(_describe(layout) for module in modules for layout in layouts_of(module))


def _describe(layout: Layout | MessageFields) -> str:
    if isinstance(layout, MessageFields):
        rows = [(str(number), code(name), kind, prose(meaning)) for number, name, kind, meaning in layout.fields]
        return f"**Message {code(layout.title)}**\n\n{table(('number', 'field', 'type', ''), rows)}"
    places = list(_places(layout))
    boxes = [Box(name, _short(size), place) for (name, size, _), place in zip(layout.fields, places, strict=True)]
    rows = [
        (place, _long(size), name, prose(meaning))
        for (name, size, meaning), place in zip(layout.fields, places, strict=True)
    ]
    title = layout.title[0].upper() + layout.title[1:]
    order = f" Numbers are {_ORDERS[layout.order]}." if any(size in _TYPES for _, size, _ in layout.fields) else ""
    return f"**{title}.**{order}\n\n{row_of_boxes(layout.title, boxes)}\n\n{table(('at', 'size', 'field', ''), rows)}"


def _places(layout: Layout) -> Iterator[str]:
    """Return the offset of each field, empty after a field of variable size."""
    at: int | None = 0
    for _, size, _ in layout.fields:
        yield "" if at is None else str(at)
        at = at + _bytes(size) if at is not None and is_struct_code(size) else None


def _bytes(size: str) -> int:
    return Layout("", ("", size, "")).struct.size


def _short(size: str) -> str:
    return str(_bytes(size)) if is_struct_code(size) else size


def _long(size: str) -> str:
    if not is_struct_code(size):
        return size
    return f"{_bytes(size)} bytes" if size not in _TYPES else f"{_bytes(size)}, {_TYPES[size]}"


def tables() -> str:
    """Return a table of a store's sub-databases, and the keys in ``meta``."""
    from bookstand.storage.format.schema import META_DELETED, META_RECORDS, TABLES

    rows = [(code(name.decode()), key, prose(value)) for name, key, value in TABLES]
    names = ", ".join(code(name.decode()) for name in META_RECORDS)
    return (
        table(("sub-database", "key", "value"), rows)
        + f"\nKeys in `meta`: {names}, and one that starts with {code(META_DELETED.decode())} for each deletion.\n"
    )


def digests() -> str:
    """Return a table of the digest types and their sizes."""
    from bookstand.storage.format.digest import DIGEST_NAMES, digest_for

    return table(("digest", "bytes"), [(code(name), str(digest_for(name, b"").size)) for name in DIGEST_NAMES])
