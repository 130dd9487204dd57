"""A small file beside the store that remembers the newest commit.

A rollback of the whole data file to an earlier commit (a restored backup, a lying disk) is a perfect store: nothing
inside the file can show it. With the witness it shows, unless both files went back together.

It has two slots, which are written in turn, so that a torn write loses one.
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
    def told(folder: str) -> int | None:
        """The newest commit that was witnessed, with a look only; None where there is no witness, or one that is
        damaged."""
        try:
            with open(os.path.join(folder, FILE), "rb") as file:
                return _newest(file.read(WITNESS.struct.size))
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
        try:
            # Inside, for an interruption may come right after it; releasing what is not locked does nothing.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if self._newest() < commit:
                self._write(_SLOT.pack(commit, _crc(commit)), len(_MAGIC) + (commit & 1) * _SLOT.size)
                os.fdatasync(self._file)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def restart(self) -> None:
        """Forget all commits: the data file is about to be replaced by one that counts from the beginning."""
        self._write(bytes(2 * _SLOT.size), len(_MAGIC))
        os.fsync(self._file)

    def _write(self, data: bytes, where: int) -> None:
        if os.pwrite(self._file, data, where) != len(data):
            raise OSError(errno.EIO, f"{self._path}: written only in part")

    def close(self) -> None:
        # The system closes the file even if it reports an error: a repeated call must not close another file.
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _newest(self) -> int:
        newest = _newest(os.pread(self._file, WITNESS.struct.size, 0))
        if newest is None:
            raise StoreDamagedError(f"{self._path} is not a witness file")
        return newest


def _newest(content: bytes) -> int | None:
    """0 where both slots are damaged; None where it is no witness's content."""
    if len(content) != WITNESS.struct.size or not content.startswith(_MAGIC):
        return None
    newest = 0
    for commit, crc in _SLOT.iter_unpack(content[len(_MAGIC) :]):
        if crc == _crc(commit):
            newest = max(newest, commit)
    return newest


def _crc(commit: int) -> int:
    return int(google_crc32c.value(commit.to_bytes(8, "big")))
