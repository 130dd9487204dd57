"""A file system that forgets what was not synced: ``python -m tests.storage.forgetful MOUNT_POINT``.

Speaks the kernel's FUSE protocol itself, so it needs nothing but Linux, ``/dev/fuse`` and the right to mount. Files
are kept in memory, each twice: as they are, and as they were when they were synced last; so are the names in folders.
Each line on standard input cuts the power: the file system goes away and comes back with what was synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

BIGGEST_WRITE = 128 << 10
ROOT = 1

_REQUEST = struct.Struct("<IIQQIIII")
_ANSWER = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_OPENED = struct.Struct("<QII")
_DETACH = 2
_TRUNCATES = 1 << 3

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Node:
    """A file or a folder. ``synced`` and ``synced_names`` are what a power cut leaves of it."""

    number: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    names: dict[bytes, Node] = field(default_factory=dict)
    synced_names: dict[bytes, Node] = field(default_factory=dict)

    def sync(self) -> None:
        self.synced = bytes(self.data)
        self.synced_names = dict(self.names)

    def forget(self) -> None:
        self.data = bytearray(self.synced)
        self.names = dict(self.synced_names)

    def attributes(self) -> bytes:
        size = len(self.data)
        return _ATTRIBUTES.pack(
            self.number, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, self.mode, 1, os.getuid(), os.getgid(), 0, 4096, 0
        )


class Forgetful:
    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._root = self._make(stat.S_IFDIR | 0o755)
        self._operations: dict[int, Callable[[Node, bytes], bytes | None]] = {
            1: self._look_up,
            3: lambda node, _: self._attributes(node),
            4: self._set_attributes,
            9: self._make_folder,
            10: self._remove,
            11: self._remove,
            12: lambda node, given: self._rename(node, given[:8], given[8:]),
            14: lambda node, _: _OPENED.pack(node.number, 0, 0),
            15: self._read,
            16: self._write,
            17: lambda node, _: struct.pack(
                "<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0
            ),
            18: lambda node, _: b"",
            20: self._sync,
            25: lambda node, _: b"",
            26: self._greet,
            27: lambda node, _: _OPENED.pack(node.number, 0, 0),
            28: self._list,
            29: lambda node, _: b"",
            30: self._sync,
            34: lambda node, _: b"",
            35: self._create,
            45: lambda node, given: self._rename(node, given[:8], given[16:]),
        }

    def _make(self, mode: int) -> Node:
        node = Node(len(self._nodes) + 1, mode)
        self._nodes[node.number] = node
        return node

    def forget(self) -> None:
        for node in self._nodes.values():
            node.forget()

    def answer(self, request: bytes) -> bytes | None:
        """None where the kernel wants none."""
        _, operation, unique, number, *_ = _REQUEST.unpack_from(request)
        if operation in (2, 36, 42):
            return None
        error, body = 0, b""
        handler = self._operations.get(operation)
        try:
            if handler is None:
                raise OSError(errno.ENOSYS, "")
            body = handler(self._nodes[number or ROOT], request[_REQUEST.size :]) or b""
        except OSError as failure:
            error = -(failure.errno or errno.EIO)
        return _ANSWER.pack(_ANSWER.size + len(body), error, unique) + body

    # -- operations, by what the kernel gives -------------------------------------------------------------------------

    def _greet(self, node: Node, given: bytes) -> bytes:
        _, _, read_ahead, _ = struct.unpack_from("<4I", given)
        big_writes = 1 << 5
        return struct.pack("<4I2H2I2H2I24x", 7, 31, read_ahead, big_writes, 16, 12, BIGGEST_WRITE, 1, 32, 0, 0, 0)

    def _attributes(self, node: Node) -> bytes:
        return struct.pack("<QII", 1, 0, 0) + node.attributes()

    def _entry(self, node: Node) -> bytes:
        return _ENTRY.pack(node.number, 0, 1, 1, 0, 0) + node.attributes()

    def _child(self, folder: Node, name: bytes) -> Node:
        if name not in folder.names:
            raise FileNotFoundError(errno.ENOENT, "")
        return folder.names[name]

    def _look_up(self, folder: Node, given: bytes) -> bytes:
        return self._entry(self._child(folder, given.rstrip(b"\0")))

    def _set_attributes(self, node: Node, given: bytes) -> bytes:
        which, _, _, size = struct.unpack_from("<IIQQ", given)
        if which & _TRUNCATES:
            del node.data[size:]
            node.data.extend(bytes(size - len(node.data)))
        return self._attributes(node)

    def _make_folder(self, folder: Node, given: bytes) -> bytes:
        made = self._make(stat.S_IFDIR | struct.unpack_from("<I", given)[0])
        folder.names[given[8:].rstrip(b"\0")] = made
        return self._entry(made)

    def _create(self, folder: Node, given: bytes) -> bytes:
        made = self._make(stat.S_IFREG | struct.unpack_from("<II", given)[1])
        folder.names[given[16:].rstrip(b"\0")] = made
        return self._entry(made) + _OPENED.pack(made.number, 0, 0)

    def _remove(self, folder: Node, given: bytes) -> None:
        name = given.rstrip(b"\0")
        if self._child(folder, name).names:
            raise OSError(errno.ENOTEMPTY, "")
        del folder.names[name]

    def _rename(self, folder: Node, target: bytes, names: bytes) -> None:
        old, new, *_ = names.split(b"\0")
        moved = self._child(folder, old)
        del folder.names[old]
        self._nodes[struct.unpack("<Q", target)[0]].names[new] = moved

    def _read(self, node: Node, given: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", given)
        return bytes(node.data[offset : offset + size])

    def _write(self, node: Node, given: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", given)
        node.data.extend(bytes(max(0, offset - len(node.data))))
        node.data[offset : offset + size] = given[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def _sync(self, node: Node, given: bytes) -> None:
        node.sync()

    def _list(self, folder: Node, given: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", given)
        listed = b""
        for position, (name, node) in enumerate(list(folder.names.items())[offset:], offset + 1):
            one = struct.pack("<QQII", node.number, position, len(name), stat.S_IFMT(node.mode) >> 12) + name
            one += bytes(-len(one) % 8)
            if len(listed) + len(one) > size:
                break
            listed += one
        return listed


def mount(where: str) -> int:
    """The descriptor on which the kernel asks; :class:`OSError` where that is not allowed."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if _libc.mount(b"forgetful", os.fsencode(where), b"fuse", 0, options.encode()):
        number = ctypes.get_errno()
        os.close(device)
        raise OSError(number, os.strerror(number))
    return device


def unmount(where: str, device: int) -> None:
    _libc.umount2(os.fsencode(where), _DETACH)
    os.close(device)


def serve(where: str) -> None:
    files = Forgetful()
    device = mount(where)
    print("mounted", flush=True)
    while True:
        ready, _, _ = select.select([device, sys.stdin], [], [])
        if sys.stdin in ready:
            unmount(where, device)
            if not sys.stdin.readline():
                return
            files.forget()
            device = mount(where)
            print("cut", flush=True)
            continue
        try:
            answer = files.answer(os.read(device, BIGGEST_WRITE + 4096))
        except OSError as error:
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                continue
            raise
        if answer is not None:
            # A request that was interrupted wants no answer any more.
            with contextlib.suppress(FileNotFoundError):
                os.write(device, answer)


if __name__ == "__main__":
    serve(sys.argv[1])
