"""Publication of the files of units: each gets its name once, complete and durable.

::

    <output>/<name>                  the outcome of a unit: a store, a file
    <output>/_bookstand/lock         marks the folder as made by jobs; locked while one publishes
                        attempts/    the folders of runs (:mod:`bookstand.pipeline.execution.run_directory`)
                        manifest     renames under way: written before the first one, removed after the last
                        published    units whose outcome exists, with the fingerprints of their inputs

Attempts sync their files before these are renamed. The manifest lists the renames. After a crash it is read again: the
missing renames are done, and no other. A rename was done if its source is gone and its target exists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from bookstand.errors import StoreError
from bookstand.pipeline.execution.run_directory import check_made_by_jobs, locked_folder
from bookstand.pipeline.execution.unit import Result, Unit
from bookstand.pipeline.tables.sources import local_path
from bookstand.storage.process.data_files import os_errors, sync_file
from bookstand.storage.process.process_markers import make_folders, sync_folder

_FOLDER = "_bookstand"
_ATTEMPTS, _MANIFEST, _PUBLISHED, _LOCK = "attempts", "manifest", "published", "lock"
_READY = "ready"
_IN = "in-"


class Output:
    """A folder that a job fills."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(local_path(folder, "output"))
        self._own = self.folder / _FOLDER

    def attempts(self) -> Path:
        """The place for the folders of runs, in an output that exists. An interrupted commit is finished first: its
        files are in the folder of a run that was killed."""
        with self._locked():
            self._replay()
        return self._own / _ATTEMPTS

    @staticmethod
    def place(attempt: Path, name: str) -> Path:
        """Path to which an attempt writes the outcome that is published as ``name``, which may contain folders."""
        folder, _, last = name.rpartition("/")
        # The last part stays as it is: quoted, it may be longer than names can be.
        place = attempt / _READY / f"{_IN}{quote(folder, safe='')}"
        for missing in (place.parent, place):
            missing.mkdir(exist_ok=True)
        return place / last

    @staticmethod
    def sync(attempt: Path) -> None:
        """Make the files of an attempt durable, on the machine that wrote them: a rename orders names, not data."""
        for folder, _, files in os.walk(attempt / _READY, topdown=False):
            for file in files:
                sync_file(os.path.join(folder, file))
            sync_folder(folder)

    def published(self, units: Sequence[Unit], *, look_only: bool = False) -> dict[str, Result]:
        """Results of those units whose outcome exists and was made from the same input. An interrupted commit is
        finished first; with ``look_only`` nothing is changed, and its units count as published."""
        check_made_by_jobs(self._own, _LOCK)
        if not self._own.is_dir():
            return {}
        if look_only:
            coming = self._read(_MANIFEST, {"units": {}})["units"]
            there = {**self._read(_PUBLISHED, {}), **coming}
        else:
            coming = {}
            with self._locked():
                self._replay()
                there = self._read(_PUBLISHED, {})
        found = {}
        for unit in units:
            one = there.get(unit.name)
            if one is None or not (unit.name in coming or self._has(one)):
                continue
            if one["fingerprint"] != unit.fingerprint:
                raise self._of_another_state(unit)
            found[unit.name] = Result(unit.name, one["counts"], tuple(one["problems"]), facts=one["facts"])
        return found

    def publish(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        """Publish all of it. After a crash, the next call of :meth:`published` does the rest."""
        with self._locked(), os_errors(f"cannot write to {self.folder}"):
            self._replay()
            moves, entries, results = [], {}, []
            taken = self._read(_PUBLISHED, {})
            for unit, result in done:
                if unit.name in taken and self._has(taken[unit.name]):
                    if taken[unit.name]["fingerprint"] != unit.fingerprint:
                        results.append(Result(unit.name, failure=str(self._of_another_state(unit))))
                    else:
                        # Another job has published the same.
                        results.append(result._replace(staged=None))
                    continue
                some = list(_moves(Path(result.staged or ""), self.folder))
                there = [target for _, target in some if os.path.lexists(target)]
                if there:
                    results.append(Result(unit.name, failure=f"{there[0]} is there, and is not of this job"))
                    continue
                moves += [(str(source), str(target)) for source, target in some]
                entries[unit.name] = {
                    "fingerprint": unit.fingerprint,
                    "counts": result.counts,
                    "problems": list(result.problems),
                    "facts": result.facts,
                    "made": [os.path.relpath(target, self.folder) for _, target in some],
                }
                results.append(result._replace(staged=None))
            self._write(_MANIFEST, {"moves": moves, "units": entries})
            self._replay()
        return results

    def _of_another_state(self, unit: Unit) -> StoreError:
        return StoreError(
            f"{self.folder} has the outcome of unit {unit.name!r} as it was before its source changed, or with other "
            "options: give an empty folder"
        )

    def _has(self, one: Mapping[str, Any]) -> bool:
        """True if everything that was published still exists."""
        return all(os.path.lexists(self.folder / made) for made in one["made"])

    # -- the manifest ------------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        manifest = self._read(_MANIFEST, None)
        if manifest is None:
            return
        folders = {os.path.dirname(target) for _, target in manifest["moves"]}
        for folder in folders:
            make_folders(folder)
        for source, target in manifest["moves"]:
            if os.path.lexists(source) and not os.path.lexists(target):
                os.rename(source, target)
        for folder in folders:
            sync_folder(folder)
        # A run that failed while it published has removed what it had not renamed, and a file of the user may have
        # taken a name since: such units are not published.
        left = {os.path.relpath(target, self.folder) for source, target in manifest["moves"] if os.path.lexists(source)}
        made = {name: one for name, one in manifest["units"].items() if self._has(one) and left.isdisjoint(one["made"])}
        self._write(_PUBLISHED, {**self._read(_PUBLISHED, {}), **made})
        (self._own / _MANIFEST).unlink()

    def _read(self, name: str, default: Any) -> Any:
        try:
            return json.loads((self._own / name).read_bytes())
        except FileNotFoundError:
            return default

    def _write(self, name: str, value: object) -> None:
        growing = self._own / f"{name}.growing"
        growing.write_text(json.dumps(value))
        sync_file(str(growing))
        os.rename(growing, self._own / name)
        sync_folder(str(self._own))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folders(str(self.folder))
        with locked_folder(self._own, _LOCK):
            # Outcomes need the names of all folders above them.
            sync_folder(str(self.folder))
            yield


def _moves(attempt: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    ready = attempt / _READY
    for place in sorted(ready.iterdir()) if ready.is_dir() else ():
        for source in sorted(place.iterdir()):
            yield source, folder / unquote(place.name.removeprefix(_IN)) / source.name
