"""Read all data at PATH, and report damage.

Of a store: every page, record and digest. Of bookies' disks: every file and digest, the ends of ledgers, and missing or
under-replicated entries. Of both: the records of topics, the states of cursors, and the buckets of delayed messages.
Notes are not damage.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bookstand.disk.damage import Damage
from bookstand.errors import StoreDamagedError
from bookstand.tools.cli import output
from bookstand.tools.cli.damage_report import amounts, damage_facts, damage_line
from bookstand.tools.cli.exit_codes import DAMAGE, FINE
from bookstand.tools.cli.options import Json, Metadata, MoreDisks, Password, Place, progress_bar
from bookstand.tools.cli.output import counted
from bookstand.tools.view.base import VerifyResult
from bookstand.tools.view.targets import BOOKIE, STORE, classify, open_view

EXAMPLES = (
    "bookstand verify my-store",
    "bookstand verify my-store --messages --json",
    "bookstand verify bookie --metadata metadata.jsonl.gz",
)


def run(
    path: Place,
    messages: Annotated[bool, typer.Option("--messages", help="Also verify the checksums of messages.")] = False,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    target = classify(path)
    kind, title = STORE if target.kind == STORE else BOOKIE, f"store {target.path}"
    try:
        with progress_bar("reading the disks") as progress:
            view = open_view(path, disk or (), metadata, password or (), progress)
        with view:
            title = view.title
            if view.hint is not None:
                output.note(view.hint)
            verdict = view.verify(messages)
    except StoreDamagedError as error:
        # The store is too damaged to open.
        verdict = VerifyResult([Damage(str(target.path), -1, str(error))], [], {})
    if json:
        output.document(
            {
                "kind": kind,
                "path": str(target.path),
                "ok": not verdict.findings,
                "counts": verdict.counts,
                "damage": [damage_facts(one) for one in verdict.findings],
                "notes": verdict.notes,
            }
        )
    else:
        _print(title, verdict)
    raise typer.Exit(DAMAGE if verdict.findings else FINE)


def _print(title: str, verdict: VerifyResult) -> None:
    output.paragraph(title)
    for damage in verdict.findings:
        output.paragraph(f"damage: {damage_line(damage)}")
    for note in verdict.notes:
        output.paragraph(f"note: {note}")
    if verdict.counts:
        output.paragraph(f"read: {amounts(verdict.counts)}")
    count = len(verdict.findings)
    output.line(f"damage was found in {counted(count, 'place')}" if count else "nothing is wrong")
