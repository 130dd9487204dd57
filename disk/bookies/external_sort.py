"""External merge sort for rows that exceed memory, by column.

A row has a number in each column. Rows are ordered by two columns, ``major`` and ``minor``; rows with equal keys are
returned together, in an order that the caller defines. Memory holds one run while rows are added, and about as much
during the merge. The rest is in unnamed temporary files in a folder that the caller chooses; they disappear with the
process, even after a crash.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bookstand.errors import DiskFullError, IncorrectParameterError
from bookstand.storage.process.data_files import raise_os_error

Rows = dict[str, NDArray[Any]]
"""Columns of equal length by name."""

RUN_ROWS = 1 << 17
MERGED_ROWS = 1 << 16
# Sampling interval of the keys of each run; the samples determine where to cut the runs for merging.
_SAMPLED = 256
_FULL = (errno.ENOSPC, errno.EDQUOT)


class SpilledTable:
    """Append-only table in temporary files. Its columns are memory-mapped, so they take no heap memory."""

    def __init__(self, dtypes: Mapping[str, str], folder: str | os.PathLike[str] | None = None) -> None:
        self._dtypes = dict(dtypes)
        self._folder = os.fspath(folder) if folder is not None else tempfile.gettempdir()
        self._files: dict[str, int] = {}
        self._rows = 0
        try:
            for name in self._dtypes:
                self._files[name] = _unnamed(self._folder)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._rows

    def append(self, rows: Rows) -> None:
        count = len(next(iter(rows.values())))
        for name, dtype in self._dtypes.items():
            column = np.ascontiguousarray(rows[name], dtype).data.cast("B")
            try:
                while len(column):
                    column = column[os.write(self._files[name], column) :]
            except OSError as error:
                _refuse(error, self._folder, f"{self._rows} rows are sorted")
        self._rows += count

    def columns(self) -> Rows:
        """Return all rows appended so far. They remain valid when the table is closed."""
        return {name: self._mapped(name, dtype) for name, dtype in self._dtypes.items()}

    def _mapped(self, name: str, dtype: str) -> NDArray[Any]:
        if not self._rows:
            return np.empty(0, dtype)
        return np.frombuffer(mmap.mmap(self._files[name], 0, access=mmap.ACCESS_READ), dtype)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()


class ExternalSorter:
    """Sorter that accepts rows and then returns them :meth:`merged`. ``order`` returns the indices that sort rows by
    major, minor, and the caller's own criteria."""

    def __init__(
        self,
        dtypes: Mapping[str, str],
        major: str,
        minor: str,
        order: Callable[[Rows], NDArray[Any]],
        folder: str | os.PathLike[str] | None = None,
        run_rows: int = RUN_ROWS,
        merged_rows: int = MERGED_ROWS,
    ) -> None:
        self._spilled = SpilledTable(dtypes, folder)
        self._dtypes = dict(dtypes)
        self._keys = major, minor
        self._order = order
        self._run_rows = run_rows
        self._merged_rows = merged_rows
        self._held: list[Rows] = []
        self._held_rows = 0
        self._stops: list[int] = []
        self._samples: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def add(self, rows: Rows) -> None:
        self._held.append(rows)
        self._held_rows += len(rows[self._keys[0]])
        if self._held_rows >= self._run_rows:
            self._spill()

    def _spill(self) -> None:
        if not self._held_rows:
            return
        run = {name: np.concatenate([rows[name] for rows in self._held]) for name in self._dtypes}
        self._held, self._held_rows = [], 0
        order = self._order(run)
        for name in run:
            run[name] = run[name][order]
        self._spilled.append(run)
        self._stops.append(len(self._spilled))
        major, minor = (run[key][::_SAMPLED].copy() for key in self._keys)
        self._samples.append((major, minor))

    def merged(self) -> Iterator[Rows]:
        """Yield all rows in order, in blocks; rows with equal keys are never split. May be called once."""
        self._spill()
        columns = self._spilled.columns()
        runs = [
            {name: column[start:stop] for name, column in columns.items()}
            for start, stop in zip([0, *self._stops], self._stops, strict=False)
        ]
        starts = [0] * len(runs)
        for pivot in self._pivots():
            stops = [self._behind(run, start, pivot) for run, start in zip(runs, starts, strict=True)]
            parts = [(run, start, stop) for run, start, stop in zip(runs, starts, stops, strict=True) if start < stop]
            starts = stops
            if parts:
                some = {name: np.concatenate([run[name][a:b] for run, a, b in parts]) for name in columns}
                order = self._order(some)
                yield {name: column[order] for name, column in some.items()}

    def _pivots(self) -> Iterator[tuple[int, int] | None]:
        """Yield keys that divide the rows into blocks of about ``merged_rows``; None for the last block."""
        if self._samples:
            major, minor = (np.concatenate(keys) for keys in zip(*self._samples, strict=True))
            order = np.lexsort((minor, major))[:: max(1, self._merged_rows // _SAMPLED)][1:]
            for at in order.tolist():
                yield int(major[at]), int(minor[at])
        yield None

    def _behind(self, run: Rows, start: int, pivot: tuple[int, int] | None) -> int:
        """Return the index of the run's first row after the pivot."""
        majors, minors = run[self._keys[0]], run[self._keys[1]]
        if pivot is None:
            return len(majors)
        first = start + int(np.searchsorted(majors[start:], pivot[0], "left"))
        last = start + int(np.searchsorted(majors[start:], pivot[0], "right"))
        return first + int(np.searchsorted(minors[first:last], pivot[1], "right"))

    def close(self) -> None:
        self._held = []
        self._spilled.close()


def _unnamed(folder: str) -> int:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return os.dup(file.fileno())
    except FileNotFoundError:
        raise IncorrectParameterError(f"there is no folder {folder} for temporary files") from None
    except OSError as error:
        _refuse(error, folder, "nothing is sorted yet")


def _refuse(error: OSError, folder: str, state: str) -> NoReturn:
    if error.errno in _FULL:
        what = f"folder {folder}: no space left for sorting, {state}; free some, or name another folder"
        raise DiskFullError(what) from error
    raise_os_error(error, f"folder {folder}: temporary files, {state}")
