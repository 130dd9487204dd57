"""What a program did to the files below a folder, in order, and the promises it was given meanwhile. No I/O here."""

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
"""What an operating system writes to a disk at a time; a write of several pages is recorded as several writes."""

CREATE, WRITE, TRUNCATE, SYNC = "create", "write", "truncate", "sync"
RENAME, UNLINK, MKDIR, RMDIR, SYNC_FOLDER = "rename", "unlink", "mkdir", "rmdir", "sync_folder"
ACKNOWLEDGE = "acknowledge"

DATA_KINDS = frozenset({WRITE, TRUNCATE})
NAME_KINDS = frozenset({CREATE, RENAME, UNLINK, MKDIR, RMDIR})
KINDS = DATA_KINDS | NAME_KINDS | {SYNC, SYNC_FOLDER, ACKNOWLEDGE}

_FORMAT = "bookstand-recording-1"


class Operation(NamedTuple):
    """One operation. Names are relative to the recorded folder; a file keeps its number when it is renamed."""

    kind: str
    path: str = ""
    """The name it was done to or through; the folder itself is ``""``."""
    file: int = 0
    """Number of the file, from 1 on, for what concerns a file."""
    offset: int = 0
    """Of a write; of a truncation, the size."""
    data: bytes = b""
    synchronous: bool = False
    """A write through ``O_DSYNC``: once it has returned, it is on the disk."""
    target: str = ""
    """Of a renaming: the new name."""

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
    """Operations in the order in which they were done, acknowledgments among them.

    ``acknowledged`` holds the values of the acknowledgments; an operation ``acknowledge`` stands where each was given.
    ``store`` is the name of the store's folder, ``recorder`` says who watched: ``"pages"`` or ``"observed"``.
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
        """The values acknowledged within the first ``cut`` operations."""
        count = sum(operation.kind == ACKNOWLEDGE for operation in self.operations[:cut])
        return self.acknowledged[:count]

    def files(self, cut: int | None = None) -> dict[str, bytes | None]:
        """What the first operations, or all, leave where nothing is lost: name -> content, None for folders."""
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
        """A short name for the sequence of operations: the same where a workload was repeated exactly.

        Contents are left out, and so is what stands behind a dash in a name: process ids and random numbers.
        """
        told = (
            (one.kind, one.offset, len(one.data), one.path.rpartition("/")[2].partition("-")[0])
            for one in self.operations
        )
        return f"{zlib.crc32(repr(list(told)).encode()):08x}"

    # -- serialization -----------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """For keeping a recording; acknowledged values have to be what JSON has."""
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
"""In place of a file's number: the name does not exist. A folder's number is 0."""


def changed_names(operation: Operation) -> tuple[tuple[str, int], ...]:
    """What an operation does to names: (name, file it then has) for each, all at once or not at all."""
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
