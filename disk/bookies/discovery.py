"""Discovery of bookies' folders and files.

A bookie has journal folders and ledger folders, which may be the same; :mod:`bookstand.disk.bookies.bookie_directory`
reads one. Folders are assigned to bookies by their cookies, or by their location if a cookie is missing.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bookstand.disk.bookies.bookie_directory import (
    CURRENT,
    DirectoryListing,
    LastMark,
    id_of,
    is_bookie_directory,
    is_folder,
    read_folder,
    read_last_mark,
    unreadable,
)
from bookstand.disk.damage import Damage, Report
from bookstand.disk.format.cookie import read_cookie
from bookstand.disk.format.index_file import IndexFile, read_index
from bookstand.errors import IncorrectParameterError
from bookstand.ledger.cluster.cookie import Cookie
from bookstand.storage.process.data_files import raise_os_error

__all__ = [
    "BookieDisk",
    "Cookie",
    "IndexFile",
    "LastMark",
    "find_bookies",
    "id_of",
    "read_cookie",
    "read_index",
    "read_last_mark",
]

# Maximum depth of ``current`` below a given folder; it is 3 for the parent of bookies.
_DEEPEST = 4


class BookieDisk(NamedTuple):
    """Folders and files of one bookie. ``name`` comes from the cookie, or from the folder if it has no cookie.

    The keys of ``marks`` are indexes into ``journal_folders``, which is in the order of the cookie. Logs and journals
    are sorted by id within each folder; ids of different folders are unrelated.
    """

    name: str
    folder: Path
    journal_folders: list[Path]
    ledger_folders: list[Path]
    cookie: Cookie | None
    marks: dict[int, LastMark]
    entry_logs: list[Path]
    journals: list[Path]
    index_files: list[Path]


def find_bookies(paths: Iterable[str | os.PathLike[str]], report: Report) -> list[BookieDisk]:
    """Find the bookies at or below ``paths``, sorted by name. A path is a bookie's folder, the parent of several, a
    journal or ledger folder, or the ``current`` of one of these.

    Folders belong to one bookie if their cookies name the same one. A folder without a cookie belongs to the bookie
    beside it whose cookie names a folder of the same name; otherwise folders side by side form one bookie. Missing,
    damaged and foreign files are reported; foreign files are not touched.
    """
    if isinstance(paths, str | os.PathLike):
        raise IncorrectParameterError("the paths of bookies are given as a list, not as one path")
    contents: dict[tuple[int, int], DirectoryListing] = {}
    for path in paths:
        for identity, folder in _folders_of(Path(path), report):
            if identity not in contents:
                contents[identity] = read_folder(folder, report)
    found = [_bookie(group, report) for group in _grouped(list(contents.values()))]
    _report_clusters(found, report)
    return sorted(found, key=lambda bookie: (bookie.name, bookie.folder))


# -- looking for folders ---------------------------------------------------------------------------------------------


def _folders_of(given: Path, report: Report) -> Iterator[tuple[tuple[int, int], Path]]:
    """Yield the journal and ledger folders at or below ``given``, with their identities."""
    if "\0" in str(given):
        raise IncorrectParameterError(f"{str(given)!r} is no path of a bookie")
    try:
        top = given.resolve(strict=True)
        if not top.is_dir():
            raise IncorrectParameterError(f"{given} is no folder, so there is no bookie in it")
        os.scandir(top).close()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        raise IncorrectParameterError(f"there is no folder {given}") from None
    except OSError as error:
        raise_os_error(error, f"the folder {given} cannot be read")
    if top.name == CURRENT and is_bookie_directory(top):
        yield _identity(top), top.parent
        return
    any_found = False
    for folder in _walked(top, report):
        current = folder / CURRENT
        try:
            if current.is_dir() and is_bookie_directory(current):
                any_found = True
                yield _identity(current), folder
        except OSError as error:
            any_found = True
            report(unreadable(current, error))
    if not any_found:
        report(Damage(str(given), 0, "there is no bookie in this folder"))


def _walked(top: Path, report: Report) -> Iterator[Path]:
    """Yield ``top`` and folders below it that may contain ``current``, each only once in spite of links."""
    seen: set[tuple[int, int]] = set()
    pending = deque([(top, 0)])
    while pending:
        folder, depth = pending.popleft()
        try:
            identity = _identity(folder)
            if identity in seen:
                continue
            seen.add(identity)
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            report(unreadable(folder, error))
            continue
        yield folder
        if depth + 1 < _DEEPEST:
            below = [entry for entry in entries if entry.name != CURRENT and is_folder(entry)]
            pending += [(Path(entry.path).resolve(), depth + 1) for entry in below]


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


# -- folders of one bookie -------------------------------------------------------------------------------------------


def _grouped(contents: list[DirectoryListing]) -> list[list[DirectoryListing]]:
    by_cookie: dict[tuple[str, str], list[DirectoryListing]] = {}
    for one in contents:
        if one.cookie is not None:
            by_cookie.setdefault((one.cookie.instance_id, one.cookie.bookie), []).append(one)
    groups = list(by_cookie.values())
    beside: dict[Path, list[DirectoryListing]] = {}
    for one in contents:
        if one.cookie is not None:
            continue
        owners = [group for group in by_cookie.values() if _is_named_beside(one.folder, group)]
        if len(owners) == 1:
            owners[0].append(one)
        elif one.journals and one.holds_ledgers:
            groups.append([one])  # a whole bookie
        else:
            beside.setdefault(one.folder.parent, []).append(one)
    return groups + list(beside.values())


def _is_named_beside(folder: Path, group: list[DirectoryListing]) -> bool:
    """Return True if a cookie in a sibling folder assigns a folder of this name to the bookie."""
    return any(
        one.cookie is not None
        and one.folder.parent == folder.parent
        and any(_common_tail(folder, named) for named in one.cookie.journal_folders + one.cookie.ledger_folders)
        for one in group
    )


def _common_tail(folder: Path, named: str) -> int:
    """Count the equal trailing components of two paths, to recognize a copy of a folder."""
    mine, other = folder.parts[::-1], re.split(r"[/\\]+", named.rstrip("/\\"))[::-1]
    same = 0
    for ours, theirs in zip(mine, other, strict=False):
        if ours != theirs:
            break
        same += 1
    return same


def _place(folder: Path, named: Sequence[str]) -> tuple[int, int]:
    """Return the folder's index in the cookie, and the number of path components that match."""
    tails = [_common_tail(folder, name) for name in named]
    best = max(tails, default=0)
    return (tails.index(best) if best else len(tails)), best


def _bookie(group: list[DirectoryListing], report: Report) -> BookieDisk:
    cookie = next((one.cookie for one in group if one.cookie is not None), None)
    folder = Path(os.path.commonpath([one.folder for one in group]))
    journal_names = cookie.journal_folders if cookie else ()
    ledger_names = cookie.ledger_folders if cookie else ()
    journal_folders: list[tuple[int, DirectoryListing]] = []
    ledger_folders: list[tuple[int, DirectoryListing]] = []
    for one in sorted(group, key=lambda one: one.folder):
        as_journal, for_journal = _place(one.folder, journal_names)
        as_ledgers, for_ledgers = _place(one.folder, ledger_names)
        is_journal = bool(one.journals) or for_journal >= max(for_ledgers, 1)
        if is_journal:
            journal_folders.append((as_journal, one))
        if one.holds_ledgers or not is_journal or for_ledgers >= max(for_journal, 1):
            ledger_folders.append((as_ledgers, one))
    journals = [one for _, one in sorted(journal_folders, key=lambda pair: pair[0])]
    ledgers = [one for _, one in sorted(ledger_folders, key=lambda pair: pair[0])]
    for what, here, named in (("journal", journals, journal_names), ("ledger", ledgers, ledger_names)):
        if len(here) < len(named):
            report(Damage(str(folder), 0, f"of the bookie's {len(named)} {what} folders {len(here)} are here"))
    return BookieDisk(
        cookie.bookie if cookie else folder.name,
        folder,
        [one.folder for one in journals],
        [one.folder for one in ledgers],
        cookie,
        _marks(journals, ledgers, len(journal_names), report),
        [path for one in ledgers for path in one.logs],
        [path for one in journals for path in one.journals],
        [path for one in ledgers for path in one.indexes],
    )


def _marks(
    journals: list[DirectoryListing], ledgers: list[DirectoryListing], named: int, report: Report
) -> dict[int, LastMark]:
    """Return the largest mark of each journal folder."""
    marks: dict[int, LastMark] = {}
    seen: set[int] = set()
    for one in ledgers:
        seen.update(one.marks)
        for number, mark in one.marks.items():
            if mark is not None:
                marks[number] = max(mark, marks.get(number, mark))
    count = named or len(journals) or 1
    for number in range(count):
        if ledgers and number not in seen:
            path = ledgers[0].folder / CURRENT / ("lastMark" if count == 1 else f"lastMark.{number}")
            report(Damage(str(path), 0, "there is no mark of how far the journal is in the logs"))
        mark = marks.get(number)
        if mark is None or not mark.journal_id or len(journals) != count:
            continue
        if mark.journal_id not in map(id_of, journals[number].journals):
            path = journals[number].folder / CURRENT / f"{mark.journal_id:x}.txn"
            report(Damage(str(path), 0, "the journal that the mark is in is missing; what it had behind it is lost"))
    return dict(sorted(marks.items()))


def _report_clusters(bookies: list[BookieDisk], report: Report) -> None:
    clusters = {bookie.cookie.instance_id: bookie for bookie in bookies if bookie.cookie and bookie.cookie.instance_id}
    if len(clusters) > 1:
        who = ", ".join(f"{bookie.name} of {cluster}" for cluster, bookie in clusters.items())
        last = next(reversed(clusters.values()))
        report(Damage(str(last.folder), 0, f"bookies of several clusters, whose ledgers are not the same ones: {who}"))
