"""Report files: written atomically, and never over other files."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from bookstand.errors import IncorrectParameterError
from bookstand.storage.process.data_files import check_local
from bookstand.storage.process.process_markers import sync_folder
from bookstand.tools.report.page import BEGINNING


def default_name(path: Path) -> Path:
    """Return the default file name, derived from the inspected path, in the current directory."""
    name = path.resolve().name if path.name in ("", "..") else path.name
    return Path(f"{name}-report.html")


def check(file: Path) -> None:
    """Raise unless ``file`` is new or an earlier report."""
    check_local(str(file), "the file for the report")
    if not file.parent.is_dir():
        raise IncorrectParameterError(f"there is no folder {file.parent} to write {file.name} to")
    if not os.path.lexists(file):
        return
    if not file.is_file():
        raise IncorrectParameterError(f"{file} is not a regular file: the report is not written")
    with open(file, "rb") as there:
        if there.read(len(BEGINNING)) != BEGINNING.encode():
            raise IncorrectParameterError(f"{file} exists and is not a report: it is not replaced")


def write(file: Path, page: str) -> int:
    """Write the page atomically; return its size in bytes."""
    check(file)
    # Paths may contain bytes that are not valid text.
    data = page.encode(errors="backslashreplace")
    # Replace the target of a symbolic link, not the link.
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
