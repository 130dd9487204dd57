"""Diagram of the packages and the imports between them.

Rows and arrows are derived from the imports. The import-linter contract ensures that all arrows point down.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from website.drawing import HEAD, arrow, picture, rect, text

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "bookstand"

_WIDTH, _HEIGHT = 128.0, 46.0
_ACROSS, _DOWN = 40.0, 34.0


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the subpackages that each subpackage imports; the facade itself is ``bookstand``."""
    import grimp

    graph = grimp.build_graph(PACKAGE)
    imported: dict[str, set[str]] = {_subpackage(module): set() for module in graph.modules}
    for module in graph.modules:
        imported[_subpackage(module)] |= {_subpackage(one) for one in graph.find_modules_directly_imported_by(module)}
    return {name: frozenset(others - {name}) for name, others in imported.items()}


def _subpackage(module: str) -> str:
    return module.split(".")[1] if "." in module else PACKAGE


def contract() -> list[list[str]]:
    """Return the layers of the import-linter contract, from top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in settings if one["type"] == "layers"]
    return [[_subpackage(name.strip()) for name in layer.split("|")] for layer in layers]


def arrows() -> list[tuple[str, str]]:
    """Return the pairs (importing, imported), without transitive ones."""
    return [
        (name, other)
        for name, others in sorted(imports().items())
        for other in sorted(others)
        if not any(other in _all_below(between) for between in others - {other})
    ]


@cache
def _all_below(name: str) -> frozenset[str]:
    below = imports()[name]
    return below.union(*map(_all_below, below))


@cache
def _level(name: str) -> int:
    return 1 + max(map(_level, imports()[name]), default=-1)


def in_a_line() -> str:
    """Format the contract in one line, as the documentation pages do."""
    layers = reversed(contract())
    return " ← ".join(layer[0] if len(layer) == 1 else f"{{{', '.join(layer)}}}" for layer in layers)


def packages() -> str:
    """Return the diagram as SVG."""
    levels: dict[int, list[str]] = {}
    for name in sorted(imports()):
        levels.setdefault(_level(name), []).append(name)
    columns = max(map(len, levels.values()))
    width = columns * _WIDTH + (columns - 1) * _ACROSS
    top = max(levels)
    places: dict[str, tuple[float, float]] = {}
    for level, names in levels.items():
        row = len(names) * _WIDTH + (len(names) - 1) * _ACROSS
        for number, name in enumerate(names):
            x = (width - row) / 2 + number * (_WIDTH + _ACROSS)
            places[name] = (x, (top - level) * (_HEIGHT + _DOWN))
    shapes = [HEAD]
    for name, other in arrows():
        (x, y), (to_x, to_y) = places[name], places[other]
        shapes.append(arrow([(x + _WIDTH / 2, y + _HEIGHT), (to_x + _WIDTH / 2, to_y - 1)]))
    for name, (x, y) in places.items():
        shapes += [
            rect(x, y, _WIDTH, _HEIGHT, "package"),
            text(x + _WIDTH / 2, y + 20, name),
            text(x + _WIDTH / 2, y + 36, _size(name), "small"),
        ]
    drawn = picture("packages and their imports", width + 2, (top + 1) * (_HEIGHT + _DOWN) - _DOWN + 2, shapes)
    return f"{drawn}\n\n*Arrows are imports; transitive ones are omitted.*\n"


def _files(name: str) -> list[Path]:
    if name == PACKAGE:
        return [ROOT / PACKAGE / "__init__.py"]
    folder = ROOT / PACKAGE / name
    if not folder.is_dir():
        return [folder.with_suffix(".py")]
    return sorted(path for path in folder.rglob("*.py") if not path.name.endswith("_pb2.py"))


def _size(name: str) -> str:
    count = len(_files(name))
    return f"{count} modules" if count > 1 else "1 module"
