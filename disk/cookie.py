"""The file ``VERSION`` of each of a bookie's folders, which says whose folder it is.

Its first line is the version of its layout, 5; what follows is a message in protobuf's text format:

    bookieHost      the name by which ensembles know the bookie
    journalDir      its journal folders, joined by commas
    ledgerDirs      the number of its ledger folders and they themselves, each preceded by a tab
    instanceId      the cluster

The metadata store has the same text, as ``/ledgers/cookies/<bookie>``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bookstand.disk.damage import Damage, Report
from bookstand.errors import MalformedError
from bookstand.proto.text import TextReader, quoted
from bookstand.proto.wire import WireError

FILE = "VERSION"

# Those that hold the message; older ones are of bookies before 4.0.
_LAYOUTS = (b"4", b"5")
_STRINGS = ("bookieHost", "journalDir", "ledgerDirs", "instanceId")
# A cookie names some folders. A larger file is none, and is not read.
_MOST_BYTES = 1 << 20


class Cookie(NamedTuple):
    """Whose folder it is. The folders are named as the bookie was configured, on its own machine."""

    bookie: str
    journal_folders: tuple[str, ...]
    ledger_folders: tuple[str, ...]
    instance_id: str = ""


def parse(data: bytes) -> Cookie:
    """The cookie that ``data`` holds, or :class:`MalformedError`."""
    layout, _, text = data.partition(b"\n")
    if layout.strip() not in _LAYOUTS:
        raise MalformedError(f"its layout is {layout[:20]!r}, which is not known")
    try:
        found = _read_strings(text)
    except (WireError, UnicodeDecodeError) as error:
        raise MalformedError(str(error)) from None
    for name in ("bookieHost", "journalDir", "ledgerDirs"):
        if not found.get(name):
            raise MalformedError(f"it has no {name}")
    count, *ledger_folders = found["ledgerDirs"].split("\t")
    if count != str(len(ledger_folders)):
        raise MalformedError(f"it should name {count} ledger folders, and names {len(ledger_folders)}")
    journal_folders = tuple(found["journalDir"].split(","))
    return Cookie(found["bookieHost"], journal_folders, tuple(ledger_folders), found.get("instanceId", ""))


def serialize(cookie: Cookie) -> bytes:
    """The bytes that :func:`parse` reads."""
    ledger_folders = "\t".join((str(len(cookie.ledger_folders)), *cookie.ledger_folders))
    values = cookie.bookie, ",".join(cookie.journal_folders), ledger_folders, cookie.instance_id
    lines = [f"{name}: {quoted(value.encode())}\n" for name, value in zip(_STRINGS, values, strict=True)]
    return _LAYOUTS[-1] + b"\n" + "".join(lines).encode()


def _read_strings(text: bytes) -> dict[str, str]:
    reader = TextReader(text)
    found: dict[str, str] = {}
    while not reader.at_fields_end():
        name = reader.identifier()
        if name in _STRINGS:
            reader.separator()
            found[name] = reader.string().decode()
        else:
            reader.skip_value()
        reader.end_field()
    return found


def read_cookie(path: Path, report: Report) -> Cookie | None:
    """The cookie in the file ``path``; None if there is none that can be read, which is reported."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise MalformedError(f"it has more than {_MOST_BYTES} bytes")
        return parse(data)
    except OSError as error:
        report(Damage(str(path), 0, f"the cookie cannot be read: {error.strerror or error}"))
    except MalformedError as error:
        report(Damage(str(path), 0, f"the cookie is damaged: {error}"))
    return None
