"""File on a bookie's disk that stays readable where the disk fails."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from bookstand.disk.damage import Damage, Report

_PAGE = 4096
_BLOCK = 512


class TolerantFile:
    """File in which unreadable pages read as zeros. A failing page is reported once and stays zero from then on, so
    that all readers see the same bytes. The size is fixed when the file is opened, unless the file turns out to be
    shorter. ``allocated`` excludes holes, which read as zeros and take no space."""

    def __init__(self, path: str | os.PathLike[str], report: Report) -> None:
        self.name = str(Path(path))
        self.report = report
        self._refused: set[int] = set()
        self._descriptor = -1
        self.size = 0
        self.allocated = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(self._descriptor)
            self.size = found.st_size
            self.allocated = min(found.st_size, found.st_blocks * _BLOCK)
        except OSError as error:
            report(Damage(self.name, 0, f"cannot be opened: {error.strerror}"))

    def __enter__(self) -> TolerantFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, offset: int, count: int) -> bytes:
        """Read ``count`` bytes, or fewer at the end of the file."""
        count = min(count, self.size - offset)
        if count <= 0:
            return b""
        if self._refused and not self._refused.isdisjoint(_pages(offset, count)):
            return self._read_pages(offset, count, "refused before")
        try:
            data = os.pread(self._descriptor, count, offset)
            while len(data) < count:
                more = os.pread(self._descriptor, count - len(data), offset + len(data))
                if not more:
                    self.size = offset + len(data)
                    break
                data += more
        except OSError as error:
            return self._read_pages(offset, count, error.strerror or str(error))
        return data

    def _read_pages(self, offset: int, count: int, why: str) -> bytes:
        pages = _pages(offset, count)
        if len(pages) == 1:
            if pages[0] not in self._refused:
                self._refused.add(pages[0])
                self.report(Damage(self.name, pages[0] * _PAGE, f"a page that cannot be read: {why}"))
            return bytes(count)
        ends = [*range(offset - offset % _PAGE + _PAGE, offset + count, _PAGE), offset + count]
        return b"".join(self.read(start, end - start) for start, end in zip([offset, *ends[:-1]], ends, strict=True))


def _pages(offset: int, count: int) -> range:
    return range(offset // _PAGE, (offset + count - 1) // _PAGE + 1)
