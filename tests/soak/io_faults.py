"""Devices that fail: every file call of a life fails once or from there on, before or after it was done, or in part.

What was confirmed is there afterwards, what was refused is not, ``verify()`` finds nothing, nothing but errors of ours
comes out, and the store works again as soon as the device does.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterator

from tests.soak import lives
from tests.soak.kinds import Done, Kind
from tests.soak.victims import Case, Victims
from tests.storage import shim

CASES_PER_ROUND = 170
ONCE, FOR_EVER = 1, -1
FAULTS: list[tuple[str, int]] = [
    (shim.CHANGING, errno.ENOSPC),
    (shim.CHANGING, errno.EIO),
    # Done, and failed all the same.
    (shim.CHANGING, -errno.EIO),
    (shim.WRITES, shim.SHORT),
    (shim.LOOKING, errno.EIO),
]


def life_of(seed: int) -> str:
    return list(lives.LIVES)[seed % len(lives.LIVES)]


def all_cases(victims: Victims, seed: int) -> Iterator[Case]:
    """Each fault at each call of the life that the seed stands for."""
    for operations, answer in FAULTS:
        counting = Case(life_of(seed), seed, operations)
        for when in range(1, victims.run(counting).seen + 1):
            for times in (ONCE, FOR_EVER):
                yield counting._replace(when=when, answer=answer, times=times)


def choose(cases: list[Case], seed: int, limit: int) -> list[Case]:
    """At random, but a second fault at a call only once each call has met one."""
    shuffled = random.Random(seed).sample(cases, len(cases))
    met: Counter[tuple[str, int]] = Counter()
    ranked = []
    for case in shuffled:
        call = case.operations, case.when
        ranked.append((met[call], case))
        met[call] += 1
    ranked.sort(key=lambda one: one[0])
    return [case for _, case in ranked[:limit]]


def one_round(seed: int, limit: int = CASES_PER_ROUND) -> Done:
    """Some of them, each another one; those to which it did not come to the call do not count."""
    with Victims() as victims:
        return run(victims, choose(list(all_cases(victims, seed)), seed, limit))


def run(victims: Victims, cases: list[Case]) -> Done:
    met, problems = 0, []
    for case in cases:
        outcome = victims.run(case)
        met += outcome.met
        problems += [f"{case}: {problem}" for problem in outcome.problems]
    return Done(met, problems)


KIND = Kind(one_round)
