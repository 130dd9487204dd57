"""Files that units have made get their names, each once and whole.

::

    <output>/<name>                  what a unit has made: a store, a file
    <output>/_bookstand/attempts/    what attempts are making
                        manifest     what is being renamed: written before the first rename, gone after the last
                        published    units whose outcome is there, with what they were made of

The manifest says what is to be renamed to what. Reading it again after a crash does what was not done yet, and nothing
twice: a rename that was done is one whose source is gone and whose target is there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from bookstand.errors import StoreError, StoreInUseError
from bookstand.pipeline.unit import Result, Unit
from bookstand.storage.files import os_errors, sync_file

_FOLDER = "_bookstand"
_ATTEMPTS, _MANIFEST, _PUBLISHED, _LOCK = "attempts", "manifest", "published", "lock"
_READY = "ready"


class Output:
    """A folder that a job fills."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._own = self.folder / _FOLDER

    @property
    def attempts(self) -> Path:
        return self._own / _ATTEMPTS

    @staticmethod
    def place(attempt: Path, name: str) -> Path:
        """Where an attempt makes what is to be published as ``name``, which may have folders in it."""
        ready = attempt / _READY
        ready.mkdir(exist_ok=True)
        return ready / quote(name, safe="")

    def published(self, units: Sequence[Unit], *, look_only: bool = False) -> dict[str, Result]:
        """Those of the units whose outcome is there, made of the same; a commit that was stopped ends first.
        ``look_only``: that is left to others, and what it would publish counts."""
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
                raise StoreError(
                    f"{self.folder} has the outcome of unit {unit.name!r} as it was before its source changed: "
                    "give an empty folder"
                )
            found[unit.name] = Result(unit.name, one["counts"], tuple(one["problems"]), facts=one["facts"])
        return found

    def publish(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        """All of it, or after a crash the rest with the next call of :meth:`published`."""
        self._own.mkdir(parents=True, exist_ok=True)
        with self._locked(), os_errors(f"cannot write to {self.folder}"):
            self._replay()
            moves, entries, results = [], {}, []
            taken = self._read(_PUBLISHED, {})
            for unit, result in done:
                if unit.name in taken and self._has(taken[unit.name]):
                    # Somebody else was faster.
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

    def _has(self, one: Mapping[str, Any]) -> bool:
        """Whether what was published has been left there."""
        return all(os.path.lexists(self.folder / made) for made in one["made"])

    # -- the manifest ------------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        manifest = self._read(_MANIFEST, None)
        if manifest is None:
            return
        for source, target in manifest["moves"]:
            if os.path.lexists(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(source, target)
            elif not os.path.lexists(target):
                raise StoreError(f"{target} was to be published, and is gone: remove {self.folder} and begin anew")
        for folder in {os.path.dirname(target) for _, target in manifest["moves"]}:
            sync_file(folder)
        self._write(_PUBLISHED, {**self._read(_PUBLISHED, {}), **manifest["units"]})
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
        sync_file(str(self._own))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._own / _LOCK, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreInUseError(f"another job is publishing to {self.folder}") from None
            yield


def _moves(attempt: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    ready = attempt / _READY
    for source in sorted(ready.iterdir()) if ready.is_dir() else ():
        yield source, folder / unquote(source.name)
