"""A bookie's cookie, which says whose its folders are and which bookie a name belongs to.

Its first line is the version of its layout, 5; what follows is a message in protobuf's text format:

    bookieHost      the name by which ensembles know the bookie
    journalDir      its journal folders, joined by commas
    ledgerDirs      the number of its ledger folders and they themselves, each preceded by a tab
    instanceId      the cluster

The metadata store has it as ``/ledgers/cookies/<bookie>``, and each of a bookie's folders as the file ``VERSION``.
"""

from __future__ import annotations

from typing import NamedTuple

from bookstand.errors import MalformedError
from bookstand.proto.text_format import TextReader, quoted
from bookstand.proto.wire_format import WireError

# Those that hold the message; older ones are of bookies before 4.0.
_LAYOUTS = (b"4", b"5")
_STRINGS = ("bookieHost", "journalDir", "ledgerDirs", "instanceId")


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
