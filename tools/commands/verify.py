"""Read everything at PATH, and say what is wrong with it.

Of a store: every page, record and digest. Of bookies' disks: every file and digest, where ledgers end, what is missing
or has too few copies. Of both: the records of topics, the states of cursors, and the buckets of delayed messages. What
is told as a note is no damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from bookstand.disk.damage import Damage
from bookstand.errors import StoreDamagedError
from bookstand.tools import output
from bookstand.tools.exit_codes import DAMAGE, FINE
from bookstand.tools.options import Json, Metadata, Password, Place, progress_bar
from bookstand.tools.output import counted
from bookstand.tools.target import STORE, find, open_view
from bookstand.tools.view import Verdict

EXAMPLES = (
    "bookstand verify my-store",
    "bookstand verify my-store --messages --json",
    "bookstand verify bookie --metadata metadata.jsonl.gz",
)


def run(
    path: Place,
    messages: Annotated[
        bool, typer.Option("--messages", help="Check the checksums that messages themselves have, too.")
    ] = False,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    target = find(path)
    kind = STORE if target.kind == STORE else "bookie"
    title = f"store {target.path}"
    try:
        with progress_bar("reading the disks") as progress, open_view(path, metadata, password or (), progress) as view:
            title = view.title
            hint = getattr(view, "hint", None)
            if hint is not None:
                output.note(hint)
            verdict = view.verify(messages)
    except StoreDamagedError as error:
        # So much that it cannot be opened.
        verdict = Verdict([Damage(str(target.path), -1, str(error))], [], {})
    if json:
        output.document(
            {
                "kind": kind,
                "path": str(target.path),
                "ok": not verdict.findings,
                "findings": [_facts(one) for one in verdict.findings],
                "notes": verdict.notes,
                "counts": verdict.counts,
            }
        )
    else:
        _print(title, verdict)
    raise typer.Exit(DAMAGE if verdict.findings else FINE)


def _facts(damage: Damage) -> dict[str, Any]:
    return {
        "what": damage.what,
        "file": damage.file or None,
        "offset": None if damage.offset < 0 else damage.offset,
        "ledger": None if damage.ledger_id < 0 else damage.ledger_id,
        "entry": None if damage.entry_id < 0 else damage.entry_id,
    }


def _print(title: str, verdict: Verdict) -> None:
    output.line(title)
    for damage in verdict.findings:
        output.paragraph(f"damage: {_told(damage)}")
    for note in verdict.notes:
        output.paragraph(f"note: {note}")
    if verdict.counts:
        read = ", ".join(counted(count, what) for what, count in _read(verdict))
        output.paragraph(f"read: {read}")
    count = len(verdict.findings)
    output.line(f"damage was found in {counted(count, 'place')}" if count else "nothing is wrong")


def _read(verdict: Verdict) -> Iterator[tuple[str, int]]:
    for what, count in verdict.counts.items():
        if what != "bytes":
            yield ("entry" if what == "entries" else what.removesuffix("s")), count


def _told(damage: Damage) -> str:
    where = damage.file if damage.offset < 0 else f"{damage.file} at {damage.offset}"
    if damage.entry_id >= 0:
        where += f", entry {damage.ledger_id}:{damage.entry_id}"
    elif damage.ledger_id >= 0:
        where += f", ledger {damage.ledger_id}"
    return f"{where}: {damage.what}"
