"""Large values of a commit whose header page did not come to the disk: what was written down says which they are, and
they are there, on pages to which nothing leads yet.

LMDB took these behind the last page in use, or where pages were free, and writes over none of them before the commit is
repeated. That might: so a copy is made first, where repeating does not come.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from bookstand.storage.pages import PageFile, own_pages, with_header
from bookstand.storage.redo import Apart

if TYPE_CHECKING:
    from bookstand.storage.redo import Change, Written

# How far behind the last page repeating a commit may come, but for the pages of its large values: for each change a few
# pages of a tree, and 8 bytes for each page of the file that may be free; twice that, as trees are not full.
_PAGES_OF_A_CHANGE = 16
_PAGES_BESIDES = 64
_FREE_TOLD_ON_A_PAGE = 256


class Found(NamedTuple):
    page: int
    value: bytes


def find(file: PageFile, wanted: Iterable[Apart]) -> dict[Apart, Found]:
    """Those that are there. Of all pages that have no use the beginning is looked at, and few are read."""
    found: dict[Apart, Found] = {}
    missing = set(wanted)
    # By what they begin with, and by how many pages they take.
    sizes: dict[tuple[bytes, int], set[int]] = {}
    for one in missing:
        sizes.setdefault((one.begins, own_pages(one.size, file.page_size)), set()).add(one.size)
    lengths = {len(begins) for begins, _ in sizes}
    for number in file.unused() if missing else ():
        extent = file.extent_of_value(number)
        for begins in [file.value_at(number, length) or b"" for length in lengths] if extent else ():
            for size in sizes.get((begins, extent), ()):
                value = file.value_at(number, size)
                if value is not None and (one := Apart(size, google_crc32c.value(value), begins)) in missing:
                    found[one] = Found(number, value)
                    missing.remove(one)
        if not missing:
            break
    return found


def of(changes: Iterable[Written]) -> set[Apart]:
    return {value for *_, value in changes if isinstance(value, Apart)}


def put_into(changes: Iterable[Written], found: Mapping[Apart, Found]) -> list[Change]:
    """With the values, all of which were found."""
    return [
        (database, key, found[value].value if isinstance(value, Apart) else value) for database, key, value in changes
    ]


def keep(path: str, values: Iterable[Found], changes: int) -> None:
    """Copy them to where they are found again if the power goes while their commit, of so many changes, is repeated."""
    file = PageFile(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        last_page = max(meta.last_page for meta in file.metas if meta is not None)
        extents = [(one, own_pages(len(one.value), file.page_size)) for one in values]
        reach = last_page + 1 + sum(pages for _, pages in extents) + changes * _PAGES_OF_A_CHANGE + _PAGES_BESIDES
        reach += last_page // _FREE_TOLD_ON_A_PAGE
        # Where the commit came further, or a copy is all that is left, they are there.
        place = max([reach, *(one.page + pages for one, pages in extents)])
        for one, pages in extents:
            copy = with_header(one.value, place, file.page_size)
            if os.pwrite(descriptor, copy, place * file.page_size) != len(copy):
                raise OSError(errno.ENOSPC, "written only in part")
            place += pages
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        file.close()
