"""SIGKILL before each single file operation of a life, while another process has the store open and goes on writing."""

from __future__ import annotations

from collections.abc import Iterator

from tests.soak import lives
from tests.soak.io_faults import run
from tests.soak.kinds import Done, Kind
from tests.soak.victims import Case, Victims
from tests.storage import shim

LIVES = [name for name in lives.LIVES if name != "reading"]


def all_cases(victims: Victims, seed: int) -> Iterator[Case]:
    """Before each operation of the life that the seed stands for that changes a file."""
    life = LIVES[seed % len(LIVES)]
    counting = Case(life, seed, shim.CHANGING, survivor=True)
    for when in range(1, victims.run(counting).seen + 1):
        yield counting._replace(when=when, answer=shim.KILL)


def one_round(seed: int) -> Done:
    with Victims() as victims:
        return run(victims, list(all_cases(victims, seed)))


KIND = Kind(one_round)
