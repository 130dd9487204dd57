"""One journal or ledger folder of a bookie.

A bookie stores the data of such a folder in ``current`` below it: journals (``<id>.txn``), entry logs (``<id>.log``),
index files (``<a>/<b>/<ledger>.idx``), the cookie, and marks. A mark is the position up to which a journal has been
flushed to the entry logs: ``lastMark``, or ``lastMark.<k>`` for journal folder ``k`` of several. Ids are hexadecimal.
Entry logs are only searched for in ``current`` itself, because the databases below it use such names, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bookstand.disk.damage import Damage, Report
from bookstand.disk.format import cookie as cookies
from bookstand.disk.format import index_file
from bookstand.disk.format.cookie import read_cookie
from bookstand.ledger.cluster.cookie import Cookie
from bookstand.proto.struct_layout import Layout

CURRENT = "current"

_JOURNAL = re.compile(r"([0-9a-fA-F]{1,16})\.txn")
_LOG = re.compile(r"([0-9a-fA-F]{1,16})\.log")
_INDEX = re.compile(r"([0-9a-fA-F]{1,16})\.idx")
_INDEX_FOLDER = re.compile(r"[0-9a-fA-F]{1,2}")
_LAST_MARK = re.compile(r"lastMark(?:\.([0-9]{1,4}))?")
# Interrupted compactions: the entries that they copied are still in the old log.
_UNFINISHED = re.compile(r"[0-9a-fA-F]{1,16}\.log(\.compacting|\.[0-9a-fA-F]{1,16}\.compacted)")
_LEDGER_FOLDERS = frozenset({"ledgers", "locations"})
_LEDGER_FILES = frozenset({"lastId", "DIRTY"})
# Cache of log metadata for garbage collection.
_NOT_READ = frozenset({"metadata-cache"})

MARK = Layout("a file `lastMark`", ("journal id", "q", ""), ("offset", "q", "up to which the journal is in the logs"))
_MARK = MARK.struct


class LastMark(NamedTuple):
    """Position up to which a journal has been flushed to the entry logs."""

    journal_id: int
    offset: int


def mark_bytes(mark: LastMark) -> bytes:
    """Encode a mark."""
    return _MARK.pack(*mark)


def id_of(path: Path) -> int:
    """Return the id in the name of a journal or an entry log."""
    return int(path.stem, 16)


class DirectoryListing(NamedTuple):
    """Contents of the folder; logs, journals and indexes are sorted by id."""

    folder: Path
    cookie: Cookie | None
    journals: list[Path]
    logs: list[Path]
    indexes: list[Path]
    # None: the mark is unreadable.
    marks: dict[int, LastMark | None]
    holds_ledgers: bool


def read_folder(folder: Path, report: Report) -> DirectoryListing:
    current = folder / CURRENT
    journals: list[Path] = []
    logs: list[Path] = []
    indexes: list[Path] = []
    marks: dict[int, LastMark | None] = {}
    holds_ledgers = False
    cookie: Cookie | None = None
    any_cookie = False
    try:
        entries = sorted(os.scandir(current), key=lambda entry: entry.name)
    except OSError as error:
        report(unreadable(current, error))
        entries = []
    for entry in entries:
        path = current / entry.name
        any_cookie |= entry.name == cookies.FILE
        if is_folder(entry):
            if entry.name in _LEDGER_FOLDERS:
                holds_ledgers = True
            elif _INDEX_FOLDER.fullmatch(entry.name):
                for below in _children(path, _INDEX_FOLDER, is_folder, report):
                    indexes += _children(below, _INDEX, _is_file, report)
            elif entry.name not in _NOT_READ:
                report(_foreign(path))
        elif not _is_file(entry):
            report(_foreign(path))
        elif _JOURNAL.fullmatch(entry.name):
            journals.append(path)
        elif _LOG.fullmatch(entry.name):
            logs.append(path)
        elif mark_of := _LAST_MARK.fullmatch(entry.name):
            holds_ledgers = True
            number = int(mark_of[1] or 0)
            # Both ``lastMark`` and ``lastMark.0`` exist if a second journal folder was added later.
            known = [mark for mark in (marks.get(number), read_last_mark(path, report)) if mark is not None]
            marks[number] = max(known, default=None)
        elif entry.name in _LEDGER_FILES:
            holds_ledgers = True
        elif entry.name == cookies.FILE:
            cookie = read_cookie(path, report)
        elif not _UNFINISHED.fullmatch(entry.name):
            report(_foreign(path))
    if not any_cookie:
        report(Damage(str(current), 0, f"there is no {cookies.FILE}: whose folder it is can be told by its place only"))
    return DirectoryListing(
        folder,
        cookie,
        sorted(journals, key=id_of),
        sorted(logs, key=id_of),
        sorted(indexes, key=index_file.ledger_id_of),
        marks,
        holds_ledgers or bool(logs or indexes),
    )


def _children(
    folder: Path, wanted: re.Pattern[str], fits: Callable[[os.DirEntry[str]], bool], report: Report
) -> list[Path]:
    """Return the children that match ``wanted`` and ``fits``; others are reported as foreign."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        report(unreadable(folder, error))
        return []
    found: list[Path] = []
    for entry in entries:
        if wanted.fullmatch(entry.name) and fits(entry):
            found.append(folder / entry.name)
        else:
            report(_foreign(folder / entry.name))
    return found


def _foreign(path: Path) -> Damage:
    return Damage(str(path), 0, "this is nothing that a bookie keeps here; it is not looked at")


def read_last_mark(path: Path, report: Report) -> LastMark | None:
    """Read the mark at ``path``; return None if it is unreadable, which is reported."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MARK.size + 1)
    except OSError as error:
        report(unreadable(path, error))
        return None
    if len(data) != _MARK.size:
        size = "more" if len(data) > _MARK.size else len(data)
        report(Damage(str(path), 0, f"the mark is damaged: it should have {_MARK.size} bytes and has {size}"))
        return None
    mark = LastMark(*_MARK.unpack(data))
    if mark.journal_id < 0 or mark.offset < 0:
        report(Damage(str(path), 0, f"the mark is damaged: journal {mark.journal_id}, offset {mark.offset}"))
        return None
    return mark


def is_bookie_directory(current: Path) -> bool:
    """Return True if a folder called ``current`` is a bookie's: other programs use this name, too."""
    with os.scandir(current) as entries:
        return any(
            entry.name == cookies.FILE or any(pattern.fullmatch(entry.name) for pattern in (_JOURNAL, _LOG, _LAST_MARK))
            for entry in entries
        )


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symbolic link to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def unreadable(path: Path, error: OSError) -> Damage:
    return Damage(str(path), 0, f"it cannot be read: {error.strerror or error}")
