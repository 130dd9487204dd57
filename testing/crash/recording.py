"""Recorded file operations below a directory, in order, with the acknowledgments between them. No I/O."""

from __future__ import annotations

import base64
import json
import zlib
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

PAGE = 4096
"""Unit in which operating systems write to disks. Writes of several pages are recorded as several writes."""

CREATE, WRITE, TRUNCATE, SYNC = "create", "write", "truncate", "sync"
RENAME, UNLINK, MKDIR, RMDIR, SYNC_FOLDER = "rename", "unlink", "mkdir", "rmdir", "sync_folder"
ACKNOWLEDGE = "acknowledge"

DATA_KINDS = frozenset({WRITE, TRUNCATE})
NAME_KINDS = frozenset({CREATE, RENAME, UNLINK, MKDIR, RMDIR})
KINDS = DATA_KINDS | NAME_KINDS | {SYNC, SYNC_FOLDER, ACKNOWLEDGE}

_FORMAT = "bookstand-recording-1"


class Operation(NamedTuple):
    """File operation. Names are relative to the recorded directory; a renamed file keeps its number."""

    kind: str
    path: str = ""
    """Name that the operation was applied to; the directory itself is ``""``."""
    file: int = 0
    """Number of the file, from 1 up; 0 if the operation needs none."""
    offset: int = 0
    """Offset of a write; new size of a truncation."""
    data: bytes = b""
    synchronous: bool = False
    """A write through ``O_DSYNC``, which is durable when it returns."""
    target: str = ""
    """New name of a renamed file."""

    def __str__(self) -> str:
        if self.kind == WRITE:
            how = " synchronously" if self.synchronous else ""
            return f"write {len(self.data)} bytes at {self.offset} of {self.path}{how}"
        if self.kind == TRUNCATE:
            return f"truncate {self.path} to {self.offset} bytes"
        if self.kind == RENAME:
            return f"rename {self.path} to {self.target}"
        return f"{self.kind} {self.path}".rstrip()


class Recording:
    """Operations in order of execution, including acknowledgments.

    ``acknowledged`` has the values of the acknowledgments; each has an operation ``acknowledge`` at its position.
    ``store`` is the name of the store's directory. ``recorder`` is ``"pages"`` or ``"observed"``.
    """

    def __init__(
        self,
        store: str,
        recorder: str = "pages",
        operations: Iterable[Operation] = (),
        acknowledged: Iterable[Any] = (),
    ) -> None:
        self.store = store
        self.recorder = recorder
        self.operations: list[Operation] = []
        self.acknowledged: list[Any] = list(acknowledged)
        for operation in operations:
            self.add(operation)

    def add(self, operation: Operation) -> None:
        if operation.kind not in KINDS:
            raise IncorrectParameterError(f"{operation.kind!r} is no kind of file operation")
        if operation.kind == WRITE:
            self.operations += _by_page(operation)
        else:
            self.operations.append(operation)

    def acknowledge(self, value: Any) -> None:
        self.acknowledged.append(value)
        self.operations.append(Operation(ACKNOWLEDGE))

    def acknowledged_by(self, cut: int) -> list[Any]:
        """Return the values acknowledged within the first ``cut`` operations."""
        count = sum(operation.kind == ACKNOWLEDGE for operation in self.operations[:cut])
        return self.acknowledged[:count]

    def files(self, cut: int | None = None) -> dict[str, bytes | None]:
        """Return the files after ``cut`` operations if nothing is lost: name to content, None for directories."""
        names: dict[str, int | None] = {}
        contents: dict[int, bytearray] = {}
        for operation in self.operations[:cut]:
            for path, file in changed_names(operation):
                if file == GONE:
                    names.pop(path, None)
                else:
                    names[path] = file or None
            if operation.kind in DATA_KINDS:
                content = contents.setdefault(operation.file, bytearray())
                end = operation.offset + len(operation.data)
                if len(content) < end:
                    content.extend(bytes(end - len(content)))
                if operation.kind == TRUNCATE:
                    del content[operation.offset :]
                else:
                    content[operation.offset : end] = operation.data
        return {path: None if file is None else bytes(contents.get(file, b"")) for path, file in sorted(names.items())}

    @property
    def shape(self) -> str:
        """Short fingerprint of the sequence of operations, which is equal if a workload repeats exactly.

        Excludes contents, and the part of names after a dash: process ids and random numbers.
        """
        told = (
            (one.kind, one.offset, len(one.data), one.path.rpartition("/")[2].partition("-")[0])
            for one in self.operations
        )
        return f"{zlib.crc32(repr(list(told)).encode()):08x}"

    # -- serialization -----------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Serialize the recording; acknowledged values must be JSON values."""
        rows = [
            [one.kind, one.path, one.file, one.offset, base64.b85encode(one.data).decode(), one.synchronous, one.target]
            for one in self.operations
        ]
        told = {
            "format": _FORMAT,
            "store": self.store,
            "recorder": self.recorder,
            "acknowledged": self.acknowledged,
            "operations": rows,
        }
        try:
            return zlib.compress(json.dumps(told).encode())
        except TypeError as error:
            raise IncorrectParameterError(f"acknowledged values that are kept must be JSON's: {error}") from None

    @staticmethod
    def from_bytes(kept: bytes) -> Recording:
        try:
            told = json.loads(zlib.decompress(kept))
            if told["format"] != _FORMAT:
                raise ValueError(told["format"])
            operations = [
                Operation(kind, path, file, offset, base64.b85decode(data), synchronous, target)
                for kind, path, file, offset, data, synchronous, target in told["operations"]
            ]
            return Recording(told["store"], told["recorder"], operations, told["acknowledged"])
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise IncorrectParameterError(f"these bytes are no recording: {error}") from None

    def __repr__(self) -> str:
        return f"<Recording of {len(self.operations)} operations, {len(self.acknowledged)} acknowledged>"


GONE = -1
"""Replaces the file number of a name that does not exist. Directories have number 0."""


def changed_names(operation: Operation) -> tuple[tuple[str, int], ...]:
    """Return the effects of an operation on names, as (name, new file number). They are atomic."""
    kind = operation.kind
    if kind == CREATE:
        return ((operation.path, operation.file),)
    if kind == MKDIR:
        return ((operation.path, 0),)
    if kind == RENAME:
        return ((operation.path, GONE), (operation.target, operation.file))
    if kind in (UNLINK, RMDIR):
        return ((operation.path, GONE),)
    return ()


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _by_page(operation: Operation) -> Iterator[Operation]:
    start, data = operation.offset, operation.data
    done = 0
    while done < len(data):
        size = min(PAGE - (start + done) % PAGE, len(data) - done)
        yield operation._replace(offset=start + done, data=data[done : done + size])
        done += size
