"""Bookie cookies, which bind a bookie id to its directories.

The first line is the layout version, 5. The rest is a message in protobuf's text format:

    bookieHost      the bookie id that ensembles use
    journalDir      the journal directories, separated by commas
    ledgerDirs      the number of ledger directories, then each directory preceded by a tab
    instanceId      the cluster

A cookie is stored in the metadata store at ``/ledgers/cookies/<bookie>``, and in each directory of the bookie as the
file ``VERSION``.
"""

from __future__ import annotations

from typing import NamedTuple

from bookstand.errors import MalformedError
from bookstand.proto.text_format import TextReader, quoted
from bookstand.proto.wire_format import WireError

# Layouts that contain the message. Older ones were written by bookies before 4.0.
_LAYOUTS = (b"4", b"5")
_STRINGS = ("bookieHost", "journalDir", "ledgerDirs", "instanceId")


class Cookie(NamedTuple):
    """Owner of a directory. Paths are from the bookie's configuration, on its own machine."""

    bookie: str
    journal_folders: tuple[str, ...]
    ledger_folders: tuple[str, ...]
    instance_id: str = ""


def parse(data: bytes) -> Cookie:
    """Parse a cookie, or raise :class:`MalformedError`."""
    layout, _, text = data.partition(b"\n")
    if layout.strip() not in _LAYOUTS:
        raise MalformedError(f"its layout version {layout[:20]!r} is unknown")
    try:
        found = _read_strings(text)
    except (WireError, UnicodeDecodeError) as error:
        raise MalformedError(str(error)) from None
    for name in ("bookieHost", "journalDir", "ledgerDirs"):
        if not found.get(name):
            raise MalformedError(f"it has no {name}")
    count, *ledger_folders = found["ledgerDirs"].split("\t")
    if count != str(len(ledger_folders)):
        raise MalformedError(f"it should list {count} ledger directories, but lists {len(ledger_folders)}")
    journal_folders = tuple(found["journalDir"].split(","))
    return Cookie(found["bookieHost"], journal_folders, tuple(ledger_folders), found.get("instanceId", ""))


def serialize(cookie: Cookie) -> bytes:
    ledger_folders = "\t".join((str(len(cookie.ledger_folders)), *cookie.ledger_folders))
    values = cookie.bookie, ",".join(cookie.journal_folders), ledger_folders, cookie.instance_id
    lines = [f"{name}: {quoted(value.encode())}\n" for name, value in zip(_STRINGS, values, strict=True)]
    return _LAYOUTS[-1] + b"\n" + "".join(lines).encode()


def _read_strings(text: bytes) -> dict[str, str]:
    reader = TextReader(text)
    found: dict[str, str] = {}
    while not reader.at_end_of_message():
        name = reader.identifier()
        if name in _STRINGS:
            reader.separator()
            found[name] = reader.string().decode()
        else:
            reader.skip_value()
        reader.end_field()
    return found
