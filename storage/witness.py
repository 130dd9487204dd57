"""A small file beside the store that remembers the newest commit.

A rollback of the whole data file to an earlier commit (a restored backup, a lying disk) is a perfect store: nothing
inside the file can show it. With the witness it shows, unless both files went back together.

::

    0        8                 20
    +--------+--------+--------+--------+--------+
    | magic  | commit | CRC32C | commit | CRC32C |     two slots, written in turn, so that a torn write loses one
    +--------+--------+--------+--------+--------+
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

import google_crc32c

from bookstand.errors import StoreDamagedError, StoreRolledBackError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FILE = "witness"
_MAGIC = b"bkstwit1"
_COMMIT = struct.Struct(">Q")
_CRC = struct.Struct(">I")
_SLOT_BYTES = _COMMIT.size + _CRC.size
_FILE_BYTES = len(_MAGIC) + 2 * _SLOT_BYTES


class Witness:
    """Open while the store is. ``saw`` returns once the commit's number is on the disk."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FILE)
        try:
            there = os.stat(self._path).st_size > 0
        except FileNotFoundError:
            there = False
        if there:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        else:
            self._create(folder)

    def _create(self, folder: str) -> None:
        """Under another name first, which whoever opens the store next removes: a part of a witness is none."""
        temporary = os.path.join(folder, f"creating-{FILE}")
        self._file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._write(_MAGIC.ljust(_FILE_BYTES, b"\0"), 0)
            os.fsync(self._file)
            os.rename(temporary, self._path)
        except BaseException:
            os.close(self._file)
            raise

    @staticmethod
    def exists(folder: str) -> bool:
        return os.path.exists(os.path.join(folder, FILE))

    @staticmethod
    def told(folder: str) -> int | None:
        """The newest commit that was witnessed, with a look only; None where there is no witness, or one that is
        damaged."""
        try:
            with open(os.path.join(folder, FILE), "rb") as file:
                return _newest(file.read(_FILE_BYTES))
        except OSError:
            return None

    def check(self, newest_commit: Callable[[], int]) -> None:
        """:class:`StoreRolledBackError` if the file has fewer commits than were witnessed."""
        # In this order: others may commit, and witness it, between the two.
        witnessed = self._newest()
        last_commit = newest_commit()
        if last_commit < witnessed:
            raise StoreRolledBackError(
                f"{self._path}: commit {witnessed} was witnessed, but the store's newest is {last_commit}: "
                "the data file is an earlier state of itself"
            )

    def saw(self, commit: int) -> None:
        # Other processes witness their commits too; the number must never go back.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if self._newest() < commit:
                number = _COMMIT.pack(commit)
                slot = number + _CRC.pack(google_crc32c.value(number))
                self._write(slot, len(_MAGIC) + (commit & 1) * _SLOT_BYTES)
                os.fdatasync(self._file)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def restart(self) -> None:
        """Forget all commits: the data file is about to be replaced by one that counts from the beginning."""
        self._write(bytes(2 * _SLOT_BYTES), len(_MAGIC))
        os.fsync(self._file)

    def _write(self, data: bytes, where: int) -> None:
        if os.pwrite(self._file, data, where) != len(data):
            raise OSError(errno.EIO, f"{self._path}: written only in part")

    def close(self) -> None:
        os.close(self._file)

    def _newest(self) -> int:
        newest = _newest(os.pread(self._file, _FILE_BYTES, 0))
        if newest is None:
            raise StoreDamagedError(f"{self._path} is not a witness file")
        return newest


def _newest(content: bytes) -> int | None:
    """0 where both slots are damaged; None where it is no witness's content."""
    if len(content) != _FILE_BYTES or not content.startswith(_MAGIC):
        return None
    newest = 0
    for start in (len(_MAGIC), len(_MAGIC) + _SLOT_BYTES):
        number = content[start : start + _COMMIT.size]
        (crc,) = _CRC.unpack_from(content, start + _COMMIT.size)
        if crc == google_crc32c.value(number):
            newest = max(newest, _COMMIT.unpack(number)[0])
    return newest
