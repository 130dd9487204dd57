"""Persistent directory for temporary files that only the current user can write to."""

from __future__ import annotations

import os
import stat
import tempfile

from bookstand.errors import StoreError


def private_folder() -> str:
    folder = os.path.join(tempfile.gettempdir(), f"bookstand-testing-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        # Another user could place a library that gets loaded here, or a forged recording.
        raise StoreError(f"{folder} is no folder of this user's alone")
    return folder
