"""The picture of the rooms: boxes are the folders and modules of the package, arrows what they import.

Rows and arrows come from the imports themselves; that they point one way is what the contract of lint-imports says.
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
    """What each room imports of the others, with the package itself as ``bookstand``."""
    import grimp

    graph = grimp.build_graph(PACKAGE)
    found: dict[str, set[str]] = {_room(module): set() for module in graph.modules}
    for module in graph.modules:
        found[_room(module)] |= {_room(one) for one in graph.find_modules_directly_imported_by(module)}
    return {room: frozenset(others - {room}) for room, others in found.items()}


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else PACKAGE


def contract() -> list[list[str]]:
    """The layers of lint-imports' contract, the uppermost first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in settings if one["type"] == "layers"]
    return [[_room(name.strip()) for name in layer.split("|")] for layer in layers]


def arrows() -> list[tuple[str, str]]:
    """Who imports whom, without what follows from the other arrows."""
    return [
        (room, other)
        for room, others in sorted(imports().items())
        for other in sorted(others)
        if not any(other in _all_below(between) for between in others - {other})
    ]


@cache
def _all_below(room: str) -> frozenset[str]:
    below = imports()[room]
    return below.union(*map(_all_below, below))


@cache
def _level(room: str) -> int:
    return 1 + max(map(_level, imports()[room]), default=-1)


def in_a_line() -> str:
    """The contract, as pages write it."""
    layers = reversed(contract())
    return " ← ".join(layer[0] if len(layer) == 1 else f"{{{', '.join(layer)}}}" for layer in layers)


def rooms() -> str:
    """The picture."""
    levels: dict[int, list[str]] = {}
    for room in sorted(imports()):
        levels.setdefault(_level(room), []).append(room)
    most = max(map(len, levels.values()))
    width = most * _WIDTH + (most - 1) * _ACROSS
    top = max(levels)
    places: dict[str, tuple[float, float]] = {}
    for level, names in levels.items():
        row = len(names) * _WIDTH + (len(names) - 1) * _ACROSS
        for number, name in enumerate(names):
            x = (width - row) / 2 + number * (_WIDTH + _ACROSS)
            places[name] = (x, (top - level) * (_HEIGHT + _DOWN))
    shapes = [HEAD]
    for room, other in arrows():
        (x, y), (to_x, to_y) = places[room], places[other]
        shapes.append(arrow([(x + _WIDTH / 2, y + _HEIGHT), (to_x + _WIDTH / 2, to_y - 1)]))
    for room, (x, y) in places.items():
        shapes += [
            rect(x, y, _WIDTH, _HEIGHT, "room"),
            text(x + _WIDTH / 2, y + 20, room),
            text(x + _WIDTH / 2, y + 36, _size(room), "small"),
        ]
    drawn = picture("rooms, and what they import", width + 2, (top + 1) * (_HEIGHT + _DOWN) - _DOWN + 2, shapes)
    return f"{drawn}\n\n*Arrows are imports; those that follow from others are left out.*\n"


def _files(room: str) -> list[Path]:
    if room == PACKAGE:
        return [ROOT / PACKAGE / "__init__.py"]
    folder = ROOT / PACKAGE / room
    if not folder.is_dir():
        return [folder.with_suffix(".py")]
    return sorted(path for path in folder.rglob("*.py") if not path.name.endswith("_pb2.py"))


def _size(room: str) -> str:
    count = len(_files(room))
    return f"{count} modules" if count > 1 else "1 module"
