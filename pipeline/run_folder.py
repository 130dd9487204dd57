"""The folder of one run of a job, in which its attempts have theirs: gone when the run ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_folder(work: Path | None, name: str) -> Iterator[Path | None]:
    """A new folder below ``work``. What runs have left that were killed is removed: nobody holds their locks."""
    if work is None:
        yield None
        return
    work.mkdir(parents=True, exist_ok=True)
    for other in work.iterdir():
        _remove_if_left(other)
    folder = work / f"{name}-{uuid.uuid4().hex}"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        # An attempt that is late finds its place gone.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
