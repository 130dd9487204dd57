"""Atomic publication of the files of units: a published file is complete and durable, and is never replaced.

::

    <output>/<name>                  output of a unit: a store or a file
    <output>/_bookstand/lock         marks the folder as created by jobs; locked during publication
                        attempts/    run folders (:mod:`bookstand.pipeline.execution.run_directory`)
                        manifest     renames in progress; written before the first rename, removed after the last
                        published    units whose output exists, with the fingerprints of their inputs

Attempts sync their files before the files are renamed. The manifest is a redo log: after a crash, its incomplete
renames are completed. A rename is complete if its source does not exist and its target exists.
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
    """Output folder of a job."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(local_path(folder, "output"))
        self._own = self.folder / _FOLDER

    def attempts(self) -> Path:
        """Folder for the run folders. An interrupted commit is completed first, because its files are in the folder of
        a killed run, which the next run removes. Creates the output folder if it does not exist."""
        with self._locked():
            self._replay()
        return self._own / _ATTEMPTS

    @staticmethod
    def place(attempt: Path, name: str) -> Path:
        """Path to which an attempt writes the output to be published as ``name``, which may contain folders."""
        folder, _, last = name.rpartition("/")
        # The last component is not quoted: quoting could exceed the maximum length of file names.
        place = attempt / _READY / f"{_IN}{quote(folder, safe='')}"
        for missing in (place.parent, place):
            missing.mkdir(exist_ok=True)
        return place / last

    @staticmethod
    def sync(attempt: Path) -> None:
        """Sync the files of an attempt. Call it on the machine that wrote them: a rename does not sync data."""
        for folder, _, files in os.walk(attempt / _READY, topdown=False):
            for file in files:
                sync_file(os.path.join(folder, file))
            sync_folder(folder)

    def published(self, units: Sequence[Unit], *, look_only: bool = False) -> dict[str, Result]:
        """Results of the units whose output exists. An interrupted commit is completed first. ``look_only`` changes
        nothing and treats the units of an interrupted commit as published.

        Raises :class:`StoreError` if an output was made from another input or with other options."""
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
        """Publish the output of units. If interrupted, the next call of :meth:`published` completes it."""
        with self._locked(), os_errors(f"cannot write to {self.folder}"):
            self._replay()
            moves, entries, results = [], {}, []
            taken = self._read(_PUBLISHED, {})
            for unit, result in done:
                if unit.name in taken and self._has(taken[unit.name]):
                    if taken[unit.name]["fingerprint"] != unit.fingerprint:
                        results.append(Result(unit.name, failure=str(self._of_another_state(unit))))
                    else:
                        # Another job has published the same output in the meantime.
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
        """Return True if everything that was published still exists."""
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
        # If a run fails during publication, its folder is removed with the files that were not renamed yet. A file of
        # the user may also occupy a target. The units of such files are not published.
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
            # Durable output requires durable directory entries of all parent folders.
            sync_folder(str(self.folder))
            yield


def _moves(attempt: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    ready = attempt / _READY
    for place in sorted(ready.iterdir()) if ready.is_dir() else ():
        for source in sorted(place.iterdir()):
            yield source, folder / unquote(place.name.removeprefix(_IN)) / source.name
