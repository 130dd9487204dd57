"""Salvage a damaged store into a new one, and list the losses: entries, ledgers, nodes, cursors.

The damaged store is not changed. Its file is read page by page, and unreadable pages are skipped; entries with correct
digests are saved. Lost entries read as lost in the new store. The new store is built in the folder unfinished-repair in
NEW, and moved to NEW when it is complete and verified. If the command is interrupted, run it again.

Exit code 0: everything was saved. 1: something is lost. 4: nothing could be saved, and NEW was not created.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from bookstand.disk.damage import Damage
from bookstand.storage.commit.restore_operations import runs
from bookstand.storage.lmdb.environment import data_file
from bookstand.storage.repair.repair import Loss, RepairReport, repair
from bookstand.storage.repair.salvage import Progress
from bookstand.tools.cli import output
from bookstand.tools.cli.damage_report import damage_facts, damage_line
from bookstand.tools.cli.exit_codes import DAMAGE
from bookstand.tools.cli.options import DryRun, Json, Password, StorePlace, progress_bar, some_ledgers, store_at
from bookstand.tools.cli.output import counted

EXAMPLES = (
    "bookstand repair my-store saved --dry-run",
    "bookstand repair my-store saved",
    "bookstand repair my-store saved --json",
)


def run(
    store: StorePlace,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Folder for the new store, new or empty.")],
    dry_run: DryRun = False,
    password: Password = None,
    json: Json = False,
) -> None:
    folder = store_at(store)
    words = [os.fsencode(word) for word in password or ()]
    try:
        with progress_bar("repairing") as progress:
            looking, saving, verifying = (_part(progress, number, 2 if dry_run else 3) for number in range(3))
            report = repair(
                folder,
                new,
                passwords=words,
                dry_run=dry_run,
                looking=looking,
                saving=saving,
                verifying=verifying,
            )
    except KeyboardInterrupt:
        output.note(f"the repair is not finished, and there is no store at {new}: run it again")
        raise
    affected = [] if dry_run or report.whole else _affected(new, report, words)
    if json:
        output.document(
            {
                "kind": "repair",
                "path": folder,
                "new": new,
                "ok": report.whole,
                **report.as_dict(),
                "affected": [damage_facts(one) for one in affected],
            }
        )
    else:
        _print(report, affected)
    if not report.whole:
        raise typer.Exit(DAMAGE)


def _part(progress: Progress | None, number: int, parts: int) -> Progress | None:
    """Map the progress of one of ``parts`` passes over the file to a single bar."""
    if progress is None:
        return None
    return lambda done, total: progress((number * total + done) // parts, total)


def _affected(new: str, report: RepairReport, passwords: list[bytes]) -> list[Damage]:
    """Return the damage to topics, cursors and delayed messages of the new store. Lost entries are already listed."""
    from bookstand.tools.view.store import StoreView

    with StoreView(Path(new), passwords) as view:
        told = {str(view.path), data_file(str(view.path))}
        return [one for one in view.verify().findings if one.file not in told and one.ledger_id not in report.unchecked]


def _print(report: RepairReport, affected: list[Damage]) -> None:
    output.paragraph(f"store {report.source}, which was not changed")
    saved = {"ledgers": report.ledgers, "entries": report.entries, "bytes": report.bytes, "nodes": report.nodes}
    output.table(output.COUNTS, [{"what": "would be saved" if report.dry_run else "saved", **saved}])
    for line in _notes(report):
        output.paragraph(f"note: {line}")
    for line in _losses(report.losses):
        output.paragraph(f"lost: {line}")
    for damage in affected:
        output.paragraph(f"affected: {damage_line(damage)}")
    verified = "" if report.dry_run else f"; {report.destination} is verified"
    if report.whole:
        output.line(f"nothing is lost{verified}")
    else:
        output.line(f"something is lost, in {counted(len(report.losses), 'place')}{verified}")


def _losses(losses: list[Loss]) -> Iterator[str]:
    """Yield losses; ledgers with the same loss are merged into one line."""
    alike: dict[tuple[str, str], list[int]] = {}
    for loss in losses:
        if loss.what in ("state", "metadata") and loss.ledger_id is not None:
            alike.setdefault((loss.what, loss.why), []).append(loss.ledger_id)
        else:
            yield str(loss)
    for (what, why), ids in alike.items():
        some = [f"{first}" if first == last else f"{first} to {last}" for first, last in runs(ids)]
        yield f"{what} of ledger{'s' if len(ids) > 1 else ''} {', '.join(some)}: {why}"


def _notes(report: RepairReport) -> list[str]:
    notes = []
    if report.found_elsewhere:
        notes.append(f"found on unreferenced pages: {counted(report.found_elsewhere, 'entry')}")
    if report.deleted_ledgers:
        notes.append(f"deleted earlier, and not copied: {counted(report.deleted_ledgers, 'ledger')}")
    if report.unchecked:
        notes.append(f"not checked, because the password is unknown (--password): {some_ledgers(report.unchecked)}")
    return notes
