"""A block device that logs what reaches it: ``python -m tests.soak.block_device_process FILE IMAGE LOG``.

Mounts one file over ``FILE`` by the kernel's FUSE protocol, with the contents of ``IMAGE`` at first. A loop device over
it passes on each write of a real file system, and each flush as a call of ``fsync``. They are appended to ``LOG`` in
order: a header for each (`ENTRY`), and the data of writes. Nothing else keeps the file's contents, which end with the
process.

Standard output says ``ready`` once the file is mounted. Then each line of standard input asks for the number of entries
in the log so far; the end of standard input asks for nothing more. The process ends when the file is unmounted.

It must not be part of the process that uses the file system: a page fault there waits for an answer from here.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO

ENTRY = struct.Struct("<QI")
"""Offset and length of a write; of a flush, ``FLUSH`` and 0."""
FLUSH = (1 << 64) - 1

# linux/fuse.h, version 7.31.
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")
_INIT_IN = struct.Struct("<IIII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
_ATTR_OUT = struct.Struct("<QII6Q10I")
_OPEN_OUT = struct.Struct("<QII")
_TRANSFER_IN = struct.Struct("<QQIIQII")
_WRITE_OUT = struct.Struct("<II")
_STATFS_OUT = struct.Struct("<5Q4I24x")
_FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC = 2, 3, 4, 14, 15, 16, 17, 18, 20
_CLOSE, _INIT, _INTERRUPT, _DESTROY, _BATCH_FORGET = 25, 26, 36, 38, 42
_NOT_ANSWERED = {_FORGET, _INTERRUPT, _BATCH_FORGET}
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_MAX_WRITE = 1 << 20
_PAGE = 4096
_REGULAR_FILE = 0o100644
_MS_NOSUID, _MS_NODEV = 2, 4


class Device:
    """The contents, and the log of their changes."""

    def __init__(self, image: mmap.mmap, log: BinaryIO) -> None:
        self._image = image
        self._log = log
        self.entries = 0
        self._answers: dict[int, Callable[[memoryview], bytes]] = {
            _INIT: self._init,
            _GETATTR: self._attributes,
            _SETATTR: self._attributes,
            _OPEN: lambda _: _OPEN_OUT.pack(0, 0, 0),
            _READ: self._read,
            _WRITE: self._write,
            _FSYNC: self._flush,
            _STATFS: self._statistics,
        } | dict.fromkeys((_RELEASE, _CLOSE, _DESTROY), lambda _: b"")

    def answer(self, opcode: int, body: memoryview) -> bytes:
        """Handle a request, and return the body of the answer."""
        if opcode not in self._answers:
            # Above all discards and holes, which file systems do without.
            raise OSError(errno.ENOSYS, f"request {opcode}")
        return self._answers[opcode](body)

    def _init(self, body: memoryview) -> bytes:
        major, minor, readahead, _ = _INIT_IN.unpack_from(body)
        flags, pages = _BIG_WRITES | _MAX_PAGES, _MAX_WRITE // _PAGE
        return _INIT_OUT.pack(major, min(minor, 31), readahead, flags, 16, 12, _MAX_WRITE, 1, pages, 0, 0)

    def _attributes(self, _: memoryview) -> bytes:
        size = len(self._image)
        owner = os.getuid(), os.getgid()
        times = (0,) * 6
        return _ATTR_OUT.pack(3600, 0, 0, 1, size, size // 512, *times, _REGULAR_FILE, 1, *owner, 0, _PAGE, 0)

    def _read(self, body: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER_IN.unpack_from(body)
        return self._image[offset : offset + size]

    def _write(self, body: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER_IN.unpack_from(body)
        data = body[_TRANSFER_IN.size : _TRANSFER_IN.size + size]
        if offset + size > len(self._image):
            raise OSError(errno.ENOSPC, "beyond the end of the device")
        self._image[offset : offset + size] = data
        self._note(ENTRY.pack(offset, size), data)
        return _WRITE_OUT.pack(size, 0)

    def _flush(self, _: memoryview) -> bytes:
        self._note(ENTRY.pack(FLUSH, 0))
        return b""

    def _statistics(self, _: memoryview) -> bytes:
        return _STATFS_OUT.pack(len(self._image) // _PAGE, 0, 0, 1, 0, _PAGE, 255, _PAGE, 0)

    def _note(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            self._log.write(part)
        self.entries += 1


def serve(fuse: int, device: Device) -> None:
    """Answer requests of the kernel and questions for the length of the log, until the file is unmounted."""
    questions = select.poll()
    questions.register(fuse, select.POLLIN)
    questions.register(0, select.POLLIN)
    while True:
        for file, event in questions.poll():
            if file == 0:
                if asked := os.read(0, _PAGE):
                    for _ in range(asked.count(b"\n")):
                        os.write(1, b"%d\n" % device.entries)
                else:
                    questions.unregister(0)
            elif event & select.POLLIN:
                try:
                    request = os.read(fuse, _MAX_WRITE + _PAGE)
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return
                    if error.errno not in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                        raise
                else:
                    _answer(fuse, device, memoryview(request))
            else:
                return


def _answer(fuse: int, device: Device, request: memoryview) -> None:
    _, opcode, unique, *_ = _IN_HEADER.unpack_from(request)
    if opcode in _NOT_ANSWERED:
        return
    try:
        body, error = device.answer(opcode, request[_IN_HEADER.size :]), 0
    except OSError as failure:
        body, error = b"", -(failure.errno or errno.EIO)
    try:
        os.write(fuse, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), error, unique) + body)
    except OSError as failure:
        # The request was interrupted.
        if failure.errno != errno.ENOENT:
            raise


def mount_file(path: str) -> int:
    """Mount a single file over ``path``, and return the descriptor that its requests arrive at."""
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode={_REGULAR_FILE:o},user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"bookstand", os.fsencode(path), b"fuse", _MS_NOSUID | _MS_NODEV, options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, f"a FUSE file cannot be mounted: {os.strerror(code)}", path)
    return fuse


def main(path: str, image: str, log: str) -> None:
    fuse = mount_file(path)
    with (
        open(image, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as contents,
        open(log, "wb") as entries,
    ):
        os.write(1, b"ready\n")
        serve(fuse, Device(contents, entries))


if __name__ == "__main__":
    main(*sys.argv[1:])
