"""Format of a metadata dump, with one line for each node.

    {"path": "/ledgers/00/0000/L0012", "version": 1, "ctime": ms, "mtime": ms, "value": "base64"}

``version`` and the times are optional. A dump is one file of such lines, plain or gzipped, or a folder of files that
end in ``.jsonl`` or ``.jsonl.gz``. An unreadable line is reported and affects only its node.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bookstand.disk.damage import Damage, Report
from bookstand.errors import IncorrectParameterError, MalformedError
from bookstand.storage.process.data_files import raise_os_error
from bookstand.storage.process.process_markers import sync_folder

_ENDINGS = (".jsonl", ".jsonl.gz")
_GZIP = b"\x1f\x8b"
# Metadata stores limit values to a few MiB. A longer line is not a node and is not loaded.
_MAX_LINE = 64 << 20
_INT64 = 1 << 63
_NUMBERS = ("version", "ctime", "mtime")


class DumpNode(NamedTuple):
    """A metadata node; times are in milliseconds."""

    path: str
    value: bytes
    version: int = 0
    ctime: int = 0
    mtime: int = 0


class DumpLine(NamedTuple):
    """Position of a node in a dump: file, line, and offset of the line in the uncompressed file."""

    file: str
    line: int
    offset: int


def read_nodes(path: Path, report: Report) -> Iterator[tuple[DumpLine, DumpNode]]:
    """Yield the nodes of the dump at ``path`` in line order."""
    for file in _files_of(path):
        yield from _read_file(file, report)


def _files_of(path: Path) -> list[Path]:
    try:
        if not os.path.isdir(path):
            return [path]
        files = sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS) and file.is_file())
    except OSError as error:
        raise_os_error(error, f"the metadata dump {path} cannot be read")
    if not files:
        raise IncorrectParameterError(f"there is no metadata dump in {path}: no file ends in {' or '.join(_ENDINGS)}")
    return files


def _read_file(path: Path, report: Report) -> Iterator[tuple[DumpLine, DumpNode]]:
    try:
        file = open(path, "rb")  # noqa: SIM115
    except (FileNotFoundError, ValueError):
        raise IncorrectParameterError(f"there is no metadata dump {str(path)!r}") from None
    except OSError as error:
        raise_os_error(error, f"the metadata dump {path} cannot be read")
    with file:
        for source, line in _lines(str(path), file, report):
            try:
                yield source, _read_line(line)
            except ValueError as error:
                report(Damage(source.file, source.offset, f"line {source.line}: {error}"))


def _lines(name: str, file: io.BufferedReader, report: Report) -> Iterator[tuple[DumpLine, bytes]]:
    packed = file.peek(len(_GZIP)).startswith(_GZIP)
    lines: gzip.GzipFile | io.BufferedReader = gzip.GzipFile(fileobj=file) if packed else file
    number, offset, in_long_line = 0, 0, False
    while True:
        try:
            line = lines.readline(_MAX_LINE)
        except (OSError, EOFError, zlib.error) as error:
            report(Damage(name, offset, f"after line {number}, the rest cannot be read: {error}"))
            return
        if not line:
            return
        if not in_long_line:
            number += 1
            source = DumpLine(name, number, offset)
        ends = line.endswith(b"\n") or len(line) < _MAX_LINE
        offset += len(line)
        if in_long_line:
            in_long_line = not ends
        elif not ends:
            in_long_line = True
            report(Damage(name, source.offset, f"line {number}: it is longer than {_MAX_LINE} bytes"))
        elif line.strip():
            yield source, line


def _read_line(line: bytes) -> DumpNode:
    fields = object_of(line)
    if "path" not in fields or "value" not in fields:
        raise MalformedError(f"it is no node: {_shown(line)}")
    path, value = fields["path"], fields["value"]
    numbers = [fields.get(name, 0) for name in _NUMBERS]
    fault = _fault(path, numbers)
    if fault:
        raise MalformedError(f"{fault}: {_shown(line)}")
    try:
        return DumpNode(path, base64.b64decode("" if value is None else value, validate=True), *numbers)
    except (TypeError, ValueError):
        raise MalformedError(f"node {path}: its value is not base64") from None


def _fault(path: object, numbers: list[object]) -> str:
    """Describe the error in a node's path or numbers; empty if they are valid."""
    if not isinstance(path, str) or not path.startswith("/"):
        return "the path of a node begins with a slash"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "the path of a node is text"
    for name, number in zip(_NUMBERS, numbers, strict=True):
        if type(number) is not int or not -_INT64 <= number < _INT64:
            return f"the {name} of a node is a number of 64 bits"
    return ""


def object_of(data: bytes) -> dict[str, Any]:
    """Decode a JSON object; return an empty one for any other data."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shown(line: bytes) -> str:
    start = line[:60].rstrip()
    return repr(start)[1:] + ("…" if len(line) > len(start) + 1 else "")


def write_dump(path: str | os.PathLike[str], nodes: Iterable[DumpNode]) -> None:
    """Write a dump, gzipped if the name ends in ``.gz``. The complete dump atomically replaces a file at ``path``.

    Only its owner may read the file, because it holds the passwords of ledgers in plain text.
    """
    target = Path(path)
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with open(descriptor, "wb") as file:
            if target.name.endswith(".gz"):
                # Without name and time, the same nodes give the same bytes.
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                    packed.writelines(map(_line, nodes))
            else:
                file.writelines(map(_line, nodes))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = ""
        sync_folder(str(target.parent))
    except OSError as error:
        raise_os_error(error, f"the metadata dump {target} cannot be written")
    finally:
        if temporary:
            os.unlink(temporary)


def _line(node: DumpNode) -> bytes:
    path, value, *numbers = node
    fault = _fault(path, [*numbers]) or ("" if isinstance(value, bytes) else "the value of a node is bytes")
    if fault:
        raise IncorrectParameterError(f"{fault}: {node!r}")
    fields = {"path": path, **dict(zip(_NUMBERS, numbers, strict=True)), "value": base64.b64encode(value).decode()}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
