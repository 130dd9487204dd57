"""Damage of twelve kinds to small stores, each repaired into a new one: nothing wrong is in it, and whatever is not as
it was is in the list of losses."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bookstand.storage.repair.repair import NothingToSaveError
from tests.soak import damaged_files
from tests.soak.kinds import Done, Kind
from tests.storage.repairs import Store, check, repaired
from tests.storage.trials import Shape


def one_round(seed: int) -> Done:
    folder = Path(tempfile.mkdtemp(prefix="bookstand-repairs-", dir=damaged_files.place()))
    try:
        store = Store(folder, Shape.of(seed))
        cases = damaged_files.cases(seed, store.target)
        problems = []
        for case in cases:
            damaged, new = store.damaged(case.damage)
            try:
                check(store, repaired(damaged, new), new)
            except NothingToSaveError:
                if new.exists():
                    problems.append(f"{case.kind}: {new} was made for nothing: {damaged_files.short(case.damage)}")
            except Exception as failure:
                problems.append(f"{case.kind}: {failure!r}: {damaged_files.short(case.damage)}")
            shutil.rmtree(damaged)
            shutil.rmtree(new, ignore_errors=True)
        return Done(len(cases), problems)
    finally:
        shutil.rmtree(folder)


KIND = Kind(one_round)
