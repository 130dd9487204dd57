"""Witness: a small file beside the store that records the newest commit.

A rollback of the whole data file to an earlier commit (a restored backup, a disk that lied about a sync) leaves a valid
store: nothing inside the file reveals it. The witness does, unless both files were rolled back together.

It has two slots, which are written alternately, so a torn write loses only one.
"""

from __future__ import annotations

import errno
import fcntl
import os

import google_crc32c

from bookstand.errors import StoreDamagedError, StoreRolledBackError
from bookstand.proto.struct_layout import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FILE = "witness"
_MAGIC = b"bkstwit1"
SLOT = Layout("a slot of the witness", ("commit", "Q", "its number"), ("CRC32C", "I", "of the number's bytes"))
WITNESS = Layout(
    "the witness file",
    ("magic", f"{len(_MAGIC)}s", f"`{_MAGIC.decode()}`"),
    ("slot 0", f"{SLOT.struct.size}s", "the newest commit with an even number"),
    ("slot 1", f"{SLOT.struct.size}s", "the newest commit with an odd number"),
)
_SLOT = SLOT.struct


class Witness:
    """Witness of an open store. ``record_commit`` returns when the commit's number is durable."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FILE)
        try:
            exists_already = os.stat(self._path).st_size > 0
        except FileNotFoundError:
            exists_already = False
        if exists_already:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        else:
            self._create(folder)

    def _create(self, folder: str) -> None:
        """Create the file under a temporary name, which the next opening removes if incomplete, and rename it."""
        temporary = os.path.join(folder, f"creating-{FILE}")
        self._file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._write(_MAGIC.ljust(WITNESS.struct.size, b"\0"), 0)
            os.fsync(self._file)
            os.rename(temporary, self._path)
        except BaseException:
            os.close(self._file)
            raise

    @staticmethod
    def exists(folder: str) -> bool:
        return os.path.exists(os.path.join(folder, FILE))

    @staticmethod
    def read(folder: str) -> int | None:
        """Newest witnessed commit; None if there is no witness or it is damaged."""
        try:
            with open(os.path.join(folder, FILE), "rb") as file:
                return _newest(file.read(WITNESS.struct.size))
        except OSError:
            return None

    def check(self, newest_commit: Callable[[], int]) -> None:
        """Raise :class:`StoreRolledBackError` if the data file has fewer commits than were witnessed."""
        # In this order: another process may commit, and witness that, between the two reads.
        witnessed = self._newest()
        last_commit = newest_commit()
        if last_commit < witnessed:
            raise StoreRolledBackError(
                f"{self._path}: commit {witnessed} was witnessed, but the store's newest is {last_commit}: "
                "the data file was rolled back to an earlier state"
            )

    def record_commit(self, commit: int) -> None:
        # Other processes witness their commits too, and the number must never decrease.
        try:
            # Inside the block: an interruption may arrive right after it, and unlocking an unlocked file does nothing.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if self._newest() < commit:
                self._write(_SLOT.pack(commit, _crc(commit)), len(_MAGIC) + (commit & 1) * _SLOT.size)
                os.fdatasync(self._file)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def restart(self) -> None:
        """Discard all commits, because the data file will be replaced by one whose numbers restart."""
        self._write(bytes(2 * _SLOT.size), len(_MAGIC))
        os.fsync(self._file)

    def _write(self, data: bytes, where: int) -> None:
        if os.pwrite(self._file, data, where) != len(data):
            raise OSError(errno.EIO, f"{self._path}: written only in part")

    def close(self) -> None:
        # The system closes the file even if it reports an error. A repeated call must not close another file.
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _newest(self) -> int:
        newest = _newest(os.pread(self._file, WITNESS.struct.size, 0))
        if newest is None:
            raise StoreDamagedError(f"{self._path} is not a witness file")
        return newest


def _newest(content: bytes) -> int | None:
    """Newest commit of a witness; 0 if both slots are damaged, None if the content is not a witness's."""
    if len(content) != WITNESS.struct.size or not content.startswith(_MAGIC):
        return None
    newest = 0
    for commit, crc in _SLOT.iter_unpack(content[len(_MAGIC) :]):
        if crc == _crc(commit):
            newest = max(newest, commit)
    return newest


def _crc(commit: int) -> int:
    return int(google_crc32c.value(commit.to_bytes(8, "big")))
