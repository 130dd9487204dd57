"""Print the entries of ledgers or topics: one line per entry, with its position and its payload as text. Bytes that are
not text are escaped, as in \\x00.

Entries of a topic are messages with the metadata of the producer and the broker. --messages prints the single messages:
batches are split and payloads are decompressed. The index of a message in its entry follows the id of the entry.

--json prints one JSON object per entry or message, with the metadata; payloads that are not text are in payload_base64.
If damage is found, it is listed in the last lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from bookstand.disk.bookies.disk_ledger import StoredEntry
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from bookstand.tools.cli import output
from bookstand.tools.cli.options import Metadata, MoreDisks, Password, Place, damage_lines, looking_at
from bookstand.tools.view.base import View, ledger_of, position_of
from bookstand.tools.view.messages import message_facts, message_of, payload_facts, value_facts

EXAMPLES = (
    "bookstand cat my-store 0 --first 2 --last 5",
    "bookstand cat my-store 0 1",
    "bookstand cat my-store orders --messages",
    "bookstand cat my-store orders --messages --json",
    "bookstand cat my-store 0 --raw > payloads",
    "bookstand cat bookie 5 --hex",
)

_HEX_ROW = 16


def run(
    path: Place,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="LEDGER|TOPIC...", help="Ledger ids, or topic names or the ends of them.", show_default=False
        ),
    ],
    first: Annotated[
        str | None,
        typer.Option(metavar="ENTRY", help="First entry: its id, or LEDGER:ENTRY for a topic.", show_default=False),
    ] = None,
    last: Annotated[
        str | None, typer.Option(metavar="ENTRY", help="Last entry, inclusive.", show_default=False)
    ] = None,
    messages: Annotated[bool, typer.Option("--messages", help="Split batches and decompress messages.")] = False,
    beyond: Annotated[bool, typer.Option("--beyond", help="Also print entries after the end of the ledger.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print only the bytes of the payloads; refused on a terminal.")
    ] = False,
    hex: Annotated[bool, typer.Option("--hex", help="Print the payloads in hexadecimal.")] = False,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    if raw + hex + json > 1:
        raise IncorrectParameterError("--raw, --hex and --json exclude each other")
    if raw and sys.stdout.isatty():
        raise IncorrectParameterError(
            "--raw writes unescaped payloads, which may control the terminal that stdout is: redirect stdout"
        )
    if len(what) > 1 and (first is not None or last is not None):
        raise IncorrectParameterError("--first and --last require a single ledger or topic")
    # ``json=True`` suppresses the title on stdout, where only payloads belong.
    with looking_at(path, disk, metadata, password, json=True) as view:
        if sys.stderr.isatty():
            output.note(view.title)
        for one in what:
            for entry, topic in _entries(view, one, first, last, beyond):
                for number, (payload, facts) in enumerate(_parts(view, entry, topic, messages, json)):
                    _print(entry, number if messages else None, payload, facts, raw, hex, json)
        if json:
            damage_lines(view)
        sys.stdout.flush()


def _entries(
    view: View, what: str, first: str | None, last: str | None, beyond: bool
) -> Iterator[tuple[StoredEntry, str]]:
    """Yield entries with the names of their topics."""
    ledger_id = ledger_of(what)
    if ledger_id is not None:
        ledger = view.ledger(ledger_id)
        start, end = _bound("--first", first, ledger_id), _bound("--last", last, ledger_id)
        topic = view.content(ledger).topic
        for entry in view.entries(ledger, start or 0, end, beyond):
            yield entry, topic
        return
    name = view.find_topic(what)
    begin, stop = _position("--first", first), _position("--last", last)
    for entry in view.topic(name).entries(begin):
        if stop is not None and (entry.ledger_id, entry.entry_id) > stop:
            return
        yield entry, name


def _bound(option: str, text: str | None, ledger_id: int) -> int | None:
    if text is None:
        return None
    position = position_of(text)
    if position is not None and position.ledger_id == ledger_id:
        return position.entry_id
    entry_id = ledger_of(text)
    if entry_id is None:
        raise IncorrectParameterError(f"{option} must be the id of an entry of ledger {ledger_id}, not {text!r}")
    return entry_id


def _position(option: str, text: str | None) -> Position | None:
    position = None if text is None else position_of(text)
    if text is not None and position is None:
        raise IncorrectParameterError(f"{option} of a topic must be LEDGER:ENTRY, not {text!r}")
    return position


def _parts(
    view: View, entry: StoredEntry, topic: str, messages: bool, facts: bool
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the parts of an entry to print: its payload, or the messages in it."""
    message = message_of(entry, topic, view.source.damage.append, view.source.limits) if messages or facts else None
    if message is None or not messages:
        yield entry.payload, {} if message is None else {"message": message_facts(message)}
        return
    head = message_facts(message) if facts else {}
    for payload, own in value_facts(message):
        yield payload, {"message": {**head, **own}}


def _print(
    entry: StoredEntry, number: int | None, payload: bytes, facts: dict[str, Any], raw: bool, hex: bool, json: bool
) -> None:
    place = f"{entry.ledger_id}:{entry.entry_id}" + ("" if number is None else f":{number}")
    if raw:
        sys.stdout.buffer.write(payload)
    elif json:
        row: dict[str, Any] = {"ledger": entry.ledger_id, "entry": entry.entry_id}
        if number is not None:
            row["index"] = number
        row |= {"bytes": len(payload), "lac": entry.lac, "digest_right": entry.checked, **facts}
        output.json_line({**row, **payload_facts(payload)})
    elif hex:
        output.whole_line(f"{place}  {len(payload)} bytes")
        for at in range(0, len(payload), _HEX_ROW):
            row_bytes = payload[at : at + _HEX_ROW]
            text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row_bytes)
            output.whole_line(f"{at:08x}  {row_bytes.hex(' '):<{_HEX_ROW * 3 - 1}}  {text}")
    else:
        output.whole_line(f"{place}  {payload.decode(errors='backslashreplace')}")
