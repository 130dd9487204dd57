"""All or nothing: what is written in a folder beside its place is moved there once it is whole."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bookstand.errors import StoreError, StoreInUseError
from bookstand.storage.process.process_markers import make_folders, sync_folder

UNFINISHED = ".unfinished"


@contextmanager
def atomic_output(folder: Path, names: tuple[str, str]) -> Iterator[Path]:
    """A folder within ``folder``, from which what is called ``names`` is moved there when the block ends well."""
    make_folders(str(folder))
    staging = folder / UNFINISHED
    staging.mkdir(exist_ok=True)
    descriptor = os.open(staging, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreInUseError(f"another export to {folder} is under way") from None
        _remove_unfinished(folder, staging, names)
        try:
            yield staging
            # The files in it are synced as they are written; their names are not.
            for made, _, _ in os.walk(staging, topdown=False):
                sync_folder(made)
            for name in names:
                os.rename(staging / name, folder / name)
        except BaseException:
            # What cannot be removed now is known by the staging folder, and the next attempt removes it.
            with suppress(OSError, StoreError):
                _remove_unfinished(folder, staging, names)
                staging.rmdir()
            raise
        staging.rmdir()
        sync_folder(str(folder))
    finally:
        os.close(descriptor)


@contextmanager
def dry_output(folder: Path, names: tuple[str, str]) -> Iterator[Path]:
    """The folder, where :func:`staged` would take it; nothing is made or removed."""
    if folder.exists():
        _check_room(folder, names)
    yield folder


def _check_room(folder: Path, names: tuple[str, str]) -> None:
    """It is empty, but for what an attempt left that did not come to its end. The last of ``names`` was moved last:
    where it is, the export is whole."""
    first, _ = names
    staging = folder / UNFINISHED
    others = sorted(one.name for one in folder.iterdir() if one != staging)
    unfinished = staging.exists() and any(staging.iterdir())
    if others and not (unfinished and others == [first]):
        raise StoreError(f"{folder} is not empty: {others[0]} is there; an export begins in an empty folder")


def _remove_unfinished(folder: Path, staging: Path, names: tuple[str, str]) -> None:
    """What an attempt left."""
    first, _ = names
    try:
        _check_room(folder, names)
    except StoreError:
        if not any(staging.iterdir()):
            staging.rmdir()
        raise
    # What is in the staging folder tells that the other is none of somebody else's: it goes last.
    for one in (folder / first, *staging.iterdir()):
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink(missing_ok=True)
