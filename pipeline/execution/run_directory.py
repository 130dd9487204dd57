"""Folders for runs of jobs. The folder of a run contains its attempts and is removed when the run ends.

::

    <place>/                 folder of the user; nothing else in it is read or changed
    <place>/bookstand-runs-<uid>/
            marker           marks the folder as created by jobs; locked while a run starts or ends
            <job>-<id>/      run
                 lock        locked while the process of the run is alive
                 …           attempts

The last run removes the shared folder. Each run starts by removing the folders of killed runs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bookstand.errors import IncorrectParameterError

NAME = f"bookstand-runs-{os.getuid()}"
"""Name of the folder that all runs of a user in one place share."""

_MARKER, _LOCK = "marker", "lock"
_CONTENT = b"made by jobs of bookstand\n"
_ATTEMPTS = 100
_RUN = re.compile(r"[a-z-]+-[0-9a-f]{32}")


@contextmanager
def run_folder(place: Path | None, name: str) -> Iterator[Path | None]:
    """Create a folder for one run of the job ``name``; yield None if ``place`` is None."""
    if place is None:
        yield None
        return
    place.mkdir(parents=True, exist_ok=True)
    runs = place / NAME
    run = runs / f"{name}-{uuid.uuid4().hex}"
    # Hold the marker's lock: until the new folder is locked, another run would remove it as that of a killed run.
    with locked_folder(runs, _MARKER):
        _remove_killed(runs)
        run.mkdir()
        lock = os.open(run / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield run
    finally:
        try:
            _remove(run)
        finally:
            os.close(lock)
        with suppress(OSError, IncorrectParameterError), locked_folder(runs, _MARKER):
            _remove_if_empty(runs)


@contextmanager
def locked_folder(folder: Path, marker: str) -> Iterator[None]:
    """Lock a folder of jobs, and create it if it is missing. Folders that no job created are rejected."""
    descriptor = _open_marker(folder, marker)
    try:
        yield
    finally:
        os.close(descriptor)


def check_made_by_jobs(folder: Path, marker: str) -> None:
    """Raise :class:`IncorrectParameterError` if the folder exists and no job created it. Changes nothing."""
    for _ in range(_ATTEMPTS):
        if not _exists(folder):
            return
        try:
            names = set(os.listdir(folder))
            content = (folder / marker).read_bytes() if marker in names else b""
        except FileNotFoundError:
            # The last run has just removed the folder or its marker.
            continue
        # A job that is killed while it creates the folder leaves an empty folder or an empty marker.
        if content == _CONTENT or not (content or names - {marker}):
            return
        if content or marker not in names:
            break
        # Files next to an empty marker: another run has just replaced the folder, or no job created it.
        time.sleep(0.001)
    raise IncorrectParameterError(
        f"folder {folder} was not made by a job of bookstand and is not used: move it, or choose another folder"
    )


def _open_marker(folder: Path, marker: str) -> int:
    """Lock the folder's marker and return the file descriptor that holds the lock."""
    while True:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700 if _is_open_to_all(folder.parent) else 0o777)
        try:
            check_made_by_jobs(folder, marker)
            descriptor = os.open(folder / marker, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            # The last run has just removed the folder.
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, folder / marker):
                if not os.fstat(descriptor).st_size:
                    os.write(descriptor, _CONTENT)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _exists(folder: Path) -> bool:
    """Return True if the folder exists. Raises if the path cannot be a folder of this user's jobs."""
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        raise IncorrectParameterError(f"{folder} was not made by a job of bookstand: it is not a folder")
    if _is_open_to_all(folder.parent) and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise IncorrectParameterError(f"folder {folder} belongs to another user, or another user can write to it")
    return True


def _is_open_to_all(folder: Path) -> bool:
    return bool(os.stat(folder).st_mode & stat.S_IWOTH)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if the path still refers to the open file."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _remove_killed(runs: Path) -> None:
    for run in list(runs.iterdir()):
        if not _RUN.fullmatch(run.name) or run.is_symlink() or not run.is_dir():
            continue
        try:
            descriptor = os.open(run / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # The run was killed before it created its lock, or this is not a run: remove it only if it is empty.
            with suppress(OSError):
                run.rmdir()
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(run)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _remove(run: Path) -> None:
    """Remove the folder of a run, whose lock this process holds.

    The lock file is removed last. While it exists, the next run removes the remaining files, which are left if this
    process is killed or if an attempt still writes on another machine.
    """
    with suppress(OSError):
        for path in list(run.iterdir()):
            if path.name != _LOCK:
                # An attempt that still runs fails when it creates its next file.
                shutil.rmtree(path, ignore_errors=True)
        if os.listdir(run) == [_LOCK]:
            (run / _LOCK).unlink()
            run.rmdir()


def _remove_if_empty(runs: Path) -> None:
    if os.listdir(runs) == [_MARKER]:
        (runs / _MARKER).unlink()
        # Another run may have created a new marker in the meantime.
        with suppress(OSError):
            runs.rmdir()
