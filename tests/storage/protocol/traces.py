"""Whether what real processes did to the files of a store is a way through the model.

The journal of the shim is read as *marks*: what a process did that the model has a step for. Every step of the model
leaves a fixed row of marks. A history is a way through the model if steps can be found, one after the other, that
leave exactly its marks. Where several states are possible, all of them are followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.storage.protocol.model import Bounds, Rules, World, successors

PAGE = 4096


class Mark(NamedTuple):
    process: int
    what: str

    def __str__(self) -> str:
        return f"{'AB'[self.process]} {self.what}"


# -- from the journal to marks -----------------------------------------------------------------------------------------

_LOCK_EX, _LOCK_UN = 2, 8
_READ, _WRITE = 0, 1
_RECORD_LOCKS = ("fcntl", "fcntl64")
_SYNCS = ("fsync", "fdatasync")
_WRITES = ("write", "writev", "pwrite", "pwrite64", "pwritev", "pwritev64")


def read_marks(journal: str, folder: str) -> list[Mark]:
    """The marks of a journal; processes are 0 and 1, in the lines that :mod:`histories` adds."""
    marks: list[Mark] = []
    slots: dict[int, int] = {}
    for line in journal.splitlines():
        pid, name, result, detail, subject = line.split(" ", 4)
        if name == "STARTED":
            slots[int(pid)] = int(detail)
        elif name in ("RESULT", "KILLED"):
            marks.append(Mark(slots[int(pid)], subject))
        else:
            what = _what(name, int(result), int(detail), os.path.relpath(subject, folder))
            mark = Mark(slots[int(pid)], what)
            if what and not (what == "data" and marks and marks[-1] == mark):
                marks.append(mark)
    return marks


def _what(name: str, result: int, detail: int, path: str) -> str:
    fails = "!" if result else ""
    if path == "." and name == "flock":
        return "" if result else {_LOCK_EX: "lock", _LOCK_UN: "unlock"}.get(detail, "")
    if path == "." and name in _SYNCS:
        return f"names{fails}"
    if path == "lock.mdb" and name in _RECORD_LOCKS:
        return {_READ: f"shared{fails}", _WRITE: f"exclusive{fails}"}.get(detail, "")
    if path == "creating-copy/data.mdb" and name in _SYNCS:
        return f"copy{fails}"
    if path != "data.mdb":
        return ""
    if name == "rename":
        return f"rename{fails}"
    if name in _SYNCS:
        return f"sync{fails}"
    if name == "dsync":
        return {0: "flush", -2: "flush!"}.get(result, "header!")
    if name in _WRITES:
        return f"{'rewrite' if detail < 2 * PAGE else 'data'}{fails}"
    return ""


# -- from steps to marks -----------------------------------------------------------------------------------------------

_BEGIN = "begin a commit and write its data pages"
_REPAIRED = "sync the repaired header pages and write the data pages"

_FIXED: dict[str, list[tuple[str, ...]]] = {
    "lock the folder to open the store": [("lock",)],
    "wait for LMDB's lock file": [()],
    "lock LMDB's lock file": [("exclusive",)],
    "show the newest commit": [()],
    "leave the marker": [("names", "unlock")],
    "fail to leave the marker": [("unlock", "no store"), ("names!", "unlock", "no store")],
    "close the store": [("closed",)],
    "lock the folder to open LMDB's environment": [("lock",)],
    "lock the folder to open an environment that cannot grow": [("lock",)],
    "sync the folder": [("names",)],
    "begin a transaction that changes nothing": [()],
    "begin a commit and repair the header pages": [("rewrite", "rewrite")],
    "fail to prepare the header pages": [("rewrite!", "failed"), ("rewrite", "rewrite!", "failed")],
    _REPAIRED: [("sync", "data")],
    f"{_REPAIRED}, which fails": [("sync", "data!"), ("sync", "data", "data!")],
    "fail to sync the repaired header pages": [("sync!", "failed")],
    "sync the data file": [("sync",)],
    "fail to sync the data file": [("sync!",)],
    "write the header page": [()],
    "fail to write the header page": [("header!",)],
    "acknowledge the commit": [("flush", "done")],
    "fail to sync the header page": [("flush!",)],
    # LMDB does not look at the result.
    "undo the header page": [("rewrite",), ("rewrite!",)],
    "fail to undo the header page": [("rewrite!",)],
    "lock the folder to open the environment again": [("lock",)],
    "look for the mark and write both header pages again": [("rewrite", "rewrite")],
    "fail to write both header pages again": [("rewrite!", "unknown"), ("rewrite", "rewrite!", "unknown")],
    "report the commit as done": [("sync", "done")],
    "report the commit as failed": [("sync", "failed")],
    "report the outcome as unknown": [("sync", "unknown")],
    "fail to sync the header pages": [("sync!", "unknown")],
    "compact the store and rename the copy": [("lock", "copy", "rename")],
    "fail to compact the store": [("lock",), ("lock", "copy!"), ("lock", "copy", "rename!")],
    "sync the folder after the compaction": [("names", "unlock")],
    "fail to sync the folder after the compaction": [("names!", "unlock")],
    "kill the process": [("killed",)],
}


def marks_of(label: str, world: World, process: int) -> list[tuple[str, ...]]:
    """The marks that a step leaves, as one of several rows; it begins in this state."""
    one = world.processes[process]
    rewrite = () if one.own else ("rewrite",)
    if label == _BEGIN:
        return [(*rewrite, "data")]
    if label == f"{_BEGIN}, which fails":
        return [(*rewrite, "data!"), (*rewrite, "data", "data!")]
    unlock = ("unlock",) if one.then in ("idle", "settle") else ()
    if label == "share LMDB's lock file":
        return [("exclusive!", "shared", *unlock)]
    if label == "initialize LMDB's lock file":
        return [("shared", *unlock)]
    if label == "fail to open LMDB's environment":
        end = {"show": ("no store",), "settle": ("unknown",)}.get(one.then, ())
        return [("unlock", *end), ("shared", "unlock", *end), ("exclusive!", "shared", "unlock", *end)]
    return _FIXED[label]


def _unnoticed(world: World, process: int) -> Iterator[tuple[str, ...]]:
    """What a process does without changing a state of the model."""
    one = world.processes[process]
    if one.step == "idle":
        # The map grows, or a compaction finds that another process has the store open.
        yield ("lock", "unlock")
        if not one.name_synced:
            yield ("names!", "failed")


# -- ways --------------------------------------------------------------------------------------------------------------


class NotAWayError(Exception):
    """No step of the model leaves the next marks."""


def follow(marks: list[Mark], rules: Rules) -> int:
    """Return in how many states of the model the marks may end; :class:`NotAWayError` if in none."""
    reached: dict[int, dict[bytes, World]] = {0: {b"": World(rules, Bounds())}}
    furthest = 0
    while reached:
        position = min(reached)
        worlds = list(reached.pop(position).values())
        furthest = position
        if position == len(marks):
            return len(worlds)
        known = set()
        while worlds:
            world = worlds.pop()
            for consumed, new in _moves(world, marks, position):
                key = new.key()
                if consumed:
                    reached.setdefault(position + consumed, {})[key] = new
                elif key not in known:
                    known.add(key)
                    new.check()
                    worlds.append(new)
    around = ", ".join(map(str, marks[max(0, furthest - 12) : furthest]))
    ahead = ", ".join(map(str, marks[furthest : furthest + 6]))
    raise NotAWayError(f"after mark {furthest} ({around}) no step of the model leaves: {ahead}")


def _moves(world: World, marks: list[Mark], position: int) -> Iterator[tuple[int, World]]:
    process = marks[position].process
    for step in successors(world):
        for row in marks_of(step.label, world, step.process):
            if not row or (step.process == process and _matches(row, marks, position)):
                yield len(row), step.world
            elif step.process == process and step.label != "kill the process":
                consumed = _cut_short(row, marks, position)
                if consumed:
                    # The process was killed in the middle of the step: as if before it.
                    yield from ((consumed, killed) for killed in _killed(world, process))
    for row in _unnoticed(world, process):
        if _matches(row, marks, position):
            yield len(row), world
        elif consumed := _cut_short(row, marks, position):
            yield from ((consumed, killed) for killed in _killed(world, process))


def _matches(row: Iterable[str], marks: list[Mark], position: int) -> bool:
    process = marks[position].process
    return [Mark(process, what) for what in row] == marks[position : position + len(tuple(row))]


def _cut_short(row: tuple[str, ...], marks: list[Mark], position: int) -> int:
    """How many marks there are if the process was killed after some of the row; 0 if it was not."""
    for count in range(1, len(row)):
        if _matches((*row[:count], "killed"), marks, position):
            return count + 1
    return 0


def _killed(world: World, process: int) -> Iterator[World]:
    for step in successors(world):
        if step.process == process and step.label == "kill the process":
            yield step.world
