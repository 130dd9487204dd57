"""Reports as files: whole or not at all, and never in the place of something else."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from bookstand.errors import IncorrectParameterError
from bookstand.storage.process.process_markers import sync_folder
from bookstand.tools.report.page import BEGINNING


def default_name(path: Path) -> Path:
    """In the folder that one is in, after what was looked at."""
    name = path.resolve().name if path.name in ("", "..") else path.name
    return Path(f"{name}-report.html")


def check(file: Path) -> None:
    """An earlier report may be written over, and nothing else."""
    if not file.parent.is_dir():
        raise IncorrectParameterError(f"there is no folder {file.parent} to write {file.name} to")
    if not os.path.lexists(file):
        return
    if not file.is_file():
        raise IncorrectParameterError(f"{file} is no file, so no report is written over it")
    with open(file, "rb") as there:
        if there.read(len(BEGINNING)) != BEGINNING.encode():
            raise IncorrectParameterError(f"{file} is there, and is no report: it is not written over")


def write(file: Path, page: str) -> int:
    """How many bytes it has."""
    check(file)
    # What is no text, a path may have.
    data = page.encode(errors="backslashreplace")
    # Through a link to the file that it names.
    target = file.resolve()
    with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}-", delete=False) as part:
        try:
            part.write(data)
            part.flush()
            os.fsync(part.fileno())
            os.fchmod(part.fileno(), 0o666 & ~_umask())
            os.replace(part.name, target)
        except BaseException:
            os.unlink(part.name)
            raise
    sync_folder(str(target.parent))
    return len(data)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
