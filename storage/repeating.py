"""What becomes of a commit that a power cut has kept from counting: the header has its changes only, and they are
repeated (:mod:`bookstand.storage.redo`)."""

from __future__ import annotations

import os

import lmdb

from bookstand.errors import StoreError
from bookstand.storage import keys, redo
from bookstand.storage.log import logger
from bookstand.storage.meta_page import SMALLEST_PAGE, parse_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NamedTuple

    from bookstand.storage.apart import Found

    class Left(NamedTuple):
        """A commit that is to be repeated."""

        commit: int
        changes: list[redo.Written]
        large: Mapping[redo.Apart, Found] | None
        """Its large values; None if one of them is not there: the sync was not over, or it is damaged."""

else:
    from collections import namedtuple

    Left = namedtuple("Left", ["commit", "changes", "large"])


def repeat(path: str, env: lmdb.Environment, databases: dict[bytes, lmdb._Database]) -> None:
    """Commit what is written down, if that is all there is of it. Only for who has the file to himself: what another
    process is about to commit, or has failed to, is written down as well."""
    written = left(path)
    if written is None:
        return
    commit, changes, large = written
    if large is None:
        tell_of(path, commit)
    elif large:
        from bookstand.storage import apart

        apart.keep(path, large.values(), len(changes))
        _commit(apart.put_into(changes, large), env, databases)
        # The copies lie behind the last page, and a hole before them.
        os.truncate(path, (env.info()["last_pgno"] + 1) * env.stat()["psize"])
    else:
        _commit(changes, env, databases)  # type: ignore[arg-type]


def tell_of(path: str, commit: int) -> None:
    """Of a commit that cannot be repeated. The next one takes its place."""
    logger().warning(
        "%s: commit %d is left out: its process or the machine stopped under it, or a large value of it is damaged",
        path,
        commit,
    )


def _commit(changes: list[redo.Change], env: lmdb.Environment, databases: dict[bytes, lmdb._Database]) -> None:
    while True:
        try:
            with env.begin(write=True) as transaction:
                for database, key, value in changes:
                    if value is None:
                        transaction.delete(key, b"", databases[database])
                    else:
                        transaction.put(key, value, db=databases[database])
                # LMDB counts no commit that changes nothing, and this one may have changed nothing in the end.
                format_record: bytes = transaction.get(keys.META_FORMAT, None, databases[keys.META])  # type: ignore[assignment]
                transaction.put(keys.META_FORMAT, format_record, db=databases[keys.META])
            return
        except lmdb.MapFullError:
            env.set_mapsize(2 * env.info()["map_size"])


def left(path: str) -> Left | None:
    """What there is to be repeated in a data file that nobody writes to."""
    written = redo.pending(_header_pages(path))
    if written is None:
        return None
    commit, changes = written
    if not any(isinstance(value, redo.Apart) for *_, value in changes):
        return Left(commit, changes, {})
    from bookstand.storage import apart
    from bookstand.storage.pages import PageFile

    wanted = apart.of(changes)
    file = PageFile(path)
    try:
        found = apart.find(file, wanted)
    finally:
        file.close()
    if len(found) == len(wanted):
        return Left(commit, changes, found)
    if file.failure is not None:
        raise StoreError(
            f"{path}: commit {commit} is to be repeated, and what belongs to it cannot be looked for: {file.failure}; "
            "bookstand repair saves what can be saved"
        ) from file.failure
    return Left(commit, changes, None)


def _header_pages(path: str) -> list[bytes]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        first = os.pread(file, SMALLEST_PAGE, 0)
        meta = parse_meta(first)
        page_size = SMALLEST_PAGE if meta is None else meta.page_size
        return [first, os.pread(file, SMALLEST_PAGE, page_size)]
    finally:
        os.close(file)
