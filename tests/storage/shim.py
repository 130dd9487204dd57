"""Failing file operations, and kills between them, for programs that run under ``shim.c``."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
KILL = 0
SHORT = 10_000
"""In place of an errno: the write writes half of it."""

CHANGING, LOOKING, ALL = "*", "?", "**"
WRITES = "write,writev,pwrite,pwrite64,pwritev,pwritev64"


def build(folder: Path) -> Path | None:
    """The compiled shim, or None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    return library if built.returncode == 0 else None


def is_loaded() -> bool:
    """Whether this program runs under the shim."""
    return hasattr(ctypes.CDLL(None), "shim_arm")


def arm(folder: str, operations: str, when: int, answer: int = KILL, times: int = 1) -> None:
    """In a program under the shim: let the ``when``-th of the operations below the folder meet with ``answer``: KILL,
    an errno in place of the operation, a negative errno after it was done, or SHORT. ``operations`` are names with
    commas between them (``dsync``: writes that wait for the disk), or CHANGING, LOOKING (those that change nothing),
    ALL. With 0 for ``when`` they are only counted."""
    wanted = operations if operations in (CHANGING, LOOKING, ALL) else f",{operations},"
    ctypes.CDLL(None).shim_arm(
        os.fsencode(folder), wanted.encode(), ctypes.c_long(when), ctypes.c_long(times), ctypes.c_int(answer)
    )


def then(answer: int) -> None:
    """After ``arm``: let the first write after the operation meet with this answer as well."""
    ctypes.CDLL(None).shim_then(ctypes.c_int(answer))


def journal(file: str) -> None:
    """From now on append a line for each operation below the folder that was given to ``arm``: process, name, result
    (0: done, -1: failed, -2: done and reported as failed, -3: done in part), detail, path. The detail is the offset of
    a write, the operation of ``flock``, or the kind of a record lock on the first byte."""
    ctypes.CDLL(None).shim_journal(os.fsencode(file))


def disarm() -> None:
    ctypes.CDLL(None).shim_disarm()


def count() -> int:
    """Operations since ``arm``."""
    counted = ctypes.CDLL(None).shim_count
    counted.restype = ctypes.c_long
    return int(counted())
