"""SIGKILL at random moments for a server of three bookies, while clients of both versions write to them.

What was answered is there when the store is served again, at every bookie that answered it, and ``verify()`` finds
nothing. A case is a kill.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import bookstand
from tests.server.bookie.killing import write_and_kill
from tests.soak.kinds import Done, Kind

KILLS_PER_ROUND = 5


def one_round(seed: int, kills: int = KILLS_PER_ROUND) -> Done:
    folder = Path(tempfile.mkdtemp(prefix="bookstand-server-kills-"))
    confirmed, problems = write_and_kill(folder / "store", seed, kills)
    if not confirmed:
        problems.append("nothing was confirmed")
    with bookstand.open(folder / "store", create=False) as store:
        problems += [f"verify: {problem.message}" for problem in store.verify().problems]
    if problems:
        problems.append(f"the store is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return Done(kills, problems)


KIND = Kind(one_round)
