"""Atomic output: files are written to a staging folder and moved into place when all of them are complete."""

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
    """Yield a staging folder within ``folder``; if the block succeeds, move ``names`` from it to ``folder``."""
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
            # Files are synced when they are written; their folders are not.
            for made, _, _ in os.walk(staging, topdown=False):
                sync_folder(made)
            for name in names:
                os.rename(staging / name, folder / name)
        except BaseException:
            # If this fails, the staging folder marks the attempt as unfinished, and the next one removes it.
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
    """Yield the folder if :func:`atomic_output` would accept it; nothing is created or removed."""
    if folder.exists():
        _check_room(folder, names)
    yield folder


def _check_room(folder: Path, names: tuple[str, str]) -> None:
    """Check that the folder is empty except for an unfinished attempt. The last of ``names`` is moved last: if it
    exists, the export is complete."""
    first, _ = names
    staging = folder / UNFINISHED
    others = sorted(one.name for one in folder.iterdir() if one != staging)
    unfinished = staging.exists() and any(staging.iterdir())
    if others and not (unfinished and others == [first]):
        raise StoreError(f"{folder} is not empty: {others[0]} is there; an export begins in an empty folder")


def _remove_unfinished(folder: Path, staging: Path, names: tuple[str, str]) -> None:
    """Remove the files of an unfinished attempt."""
    first, _ = names
    try:
        _check_room(folder, names)
    except StoreError:
        if not any(staging.iterdir()):
            staging.rmdir()
        raise
    # The contents of the staging folder prove that the other folder belongs to the attempt: remove them last.
    for one in (folder / first, *staging.iterdir()):
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink(missing_ok=True)
