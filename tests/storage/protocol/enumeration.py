"""All states of the model that can be reached, level by level: after one step, after two, until no new one is found.

States are compared by their keys, so three reductions are made. None of them hides a violation, because states with the
same key have the same continuations, and the invariants do not look at what a key leaves out:

- Names do not matter. Processes, files and versions are renamed in one order; so are numbers of commits, by shifting
  all of a file's by a multiple of 6: a commit's header page depends on its number modulo 2, its data page modulo 3.
- What nothing can reach is left out: a file without a name that no process has open, a version that no header page has
  and no process writes, the content of a data page that belongs to none, LMDB's lock file while no process uses it.
- Power cuts end all processes, so states with the same files have the same power cuts; they are made once.

With names and numbers left out the state space is finite although the number of commits, kills, faults and power cuts
is not bounded. Bounds make it smaller, for a first look, or larger, because what is left of them belongs to the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from tests.storage.protocol.model import NOBODY, Bounds, Rules, Step, ViolationError, World, power_cuts, successors

ALL_RULES, NO_BOUNDS = Rules(), Bounds()


class Enumeration(NamedTuple):
    states: int
    steps: int
    depth: int
    """The largest number of steps that a state needs."""
    violation: str | None
    is_complete: bool


def enumerate_states(rules: Rules = ALL_RULES, bounds: Bounds = NO_BOUNDS, limit: int | None = None) -> Enumeration:
    """Enumerate the states up to the first violation, or at most ``limit``."""
    levels = _Levels(rules, bounds)
    try:
        while levels.advance():
            if limit is not None and len(levels.known) > limit:
                return levels.result(is_complete=False)
    except ViolationError as violation:
        return levels.result(str(violation), is_complete=False)
    return levels.result()


def find_violation(rules: Rules, bounds: Bounds = NO_BOUNDS) -> list[str]:
    """Return the steps to the first violation, as few as there can be, and the violation; [] if there is none."""
    levels = _Levels(rules, bounds, remember=True)
    try:
        while levels.advance():
            pass
    except ViolationError as violation:
        return [*levels.way(), str(violation)]
    return []


class _Levels:
    def __init__(self, rules: Rules, bounds: Bounds, remember: bool = False) -> None:
        world = World(rules, bounds)
        self.known = {_digest(world.key())}
        self.steps = self.depth = 0
        self._level = [world]
        self._cut: set[bytes] = set()
        self._remember = remember
        # Of each state the state before it and the step between them.
        self._before: dict[int, tuple[World, Step]] = {}
        self._last: World = world
        self._kept: list[World] = [world]

    def result(self, violation: str | None = None, is_complete: bool = True) -> Enumeration:
        return Enumeration(len(self.known), self.steps, self.depth, violation, is_complete)

    def advance(self) -> bool:
        """Make all states that are one step further; return False if there are none."""
        following = []
        for world in self._level:
            self._last = world
            for step in self._steps(world):
                self.steps += 1
                new = step.world
                digest = _digest(new.key())
                if digest in self.known:
                    continue
                self.known.add(digest)
                following.append(new)
                if self._remember:
                    self._before[id(new)] = world, step
                    self._last = new
                    self._kept.append(new)
                new.check()
            self._last = world
        self._level = following
        self.depth += bool(following)
        return bool(following)

    def _steps(self, world: World) -> Iterator[Step]:
        yield from successors(world)
        files = _digest(world.files_key())
        if files not in self._cut:
            self._cut.add(files)
            yield from power_cuts(world)

    def way(self) -> list[str]:
        world, labels = self._last, []
        while id(world) in self._before:
            world, step = self._before[id(world)]
            who = "" if step.process == NOBODY else f"process {step.process}: "
            labels.append(f"{who}{step.label}")
        return labels[::-1]


def _digest(key: bytes) -> bytes:
    """Of a billion states, two have the same one with a probability below 10⁻²⁰."""
    return blake2b(key, digest_size=16).digest()
