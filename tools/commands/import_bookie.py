"""Import bookies' disks into a store: ledgers with their entries, byte for byte, and, with the metadata dump of the
cluster, topics and cursors.

The store is created if it does not exist. If it holds different data under the same names, it is refused before
anything changes. To resume an interrupted import, run the same command again. Ledgers that are not in the metadata were
deleted; they are left out, unless --unlisted is given or there is no metadata.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import bookstand
from bookstand.disk.disks import Disks
from bookstand.disk.importer.plan import Skipped
from bookstand.disk.importer.report import ImportReport
from bookstand.disk.importer.run import import_disks
from bookstand.errors import NotAStoreError
from bookstand.storage.lmdb.environment import data_file
from bookstand.storage.process.data_files import check_local
from bookstand.tools.cli import output
from bookstand.tools.cli.damage_report import damage_facts, damage_line
from bookstand.tools.cli.exit_codes import DAMAGE
from bookstand.tools.cli.options import DryRun, Json, Metadata, Password, progress_bar
from bookstand.tools.cli.output import counted
from bookstand.tools.view.targets import LIMITS, check_bookies, check_dump, find_dump

EXAMPLES = (
    "bookstand import-bookie bookie copy --metadata metadata.jsonl.gz --dry-run",
    "bookstand import-bookie bookie copy --metadata metadata.jsonl.gz",
    "bookstand import-bookie bookie copy --metadata metadata.jsonl.gz --json",
    "bookstand import-bookie bookie some-ledgers --ledger 5 --ledger 6",
)


def run(
    disks: Annotated[
        list[str], typer.Argument(metavar="DISK...", help="Folders of bookies, or folders that contain several.")
    ],
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder of the store, which may be new.")],
    ledger: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="Import only this ledger, and no topics. May be repeated.", show_default=False),
    ] = None,
    unlisted: Annotated[
        bool, typer.Option("--unlisted", help="Also import ledgers that are not in the metadata.")
    ] = False,
    dry_run: DryRun = False,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    check_local(store, "STORE")
    check_bookies(disks)
    check_dump(metadata)
    beside = find_dump(Path(disks[0])) if metadata is None else None
    if beside is not None:
        output.note(f"{beside} may be the metadata: pass it with --metadata")
    passwords = [os.fsencode(word) for word in password or ()]
    with progress_bar("reading the disks") as reading:
        source = Disks.open(disks, metadata, passwords, progress=reading, limits=LIMITS.get())
    try:
        with source, _store(store, dry_run) as target, progress_bar("writing the store") as writing:
            report = import_disks(
                source, target, dry_run=dry_run, ledgers=ledger or None, unlisted=unlisted, progress=writing
            )
    except KeyboardInterrupt:
        if not dry_run:
            output.note("the import is not finished: run the same command again to resume it")
        raise
    if json:
        output.document({"kind": "import", "disks": disks, "store": store, **_facts(report)})
    else:
        _print(report, store)
    if report.damage or report.missing:
        raise typer.Exit(DAMAGE)


@contextmanager
def _store(path: str, dry_run: bool) -> Iterator[bookstand.Store]:
    if not dry_run:
        with bookstand.open(path, check="structure") as store:
            yield store
    elif Path(data_file(path)).exists():
        with bookstand.open(path, create=False, read_only=True, check="structure") as store:
            yield store
    else:
        if Path(path).exists() and (not Path(path).is_dir() or any(Path(path).iterdir())):
            raise NotAStoreError(f"{path} is neither empty nor a store")
        # A dry run imports into an empty store.
        with bookstand.temporary() as store:
            yield store


def _facts(report: ImportReport) -> dict[str, Any]:
    return {**report.as_dict(), "damage": [damage_facts(one) for one in report.damage]}


def _print(report: ImportReport, store: str) -> None:
    output.paragraph(f"store {store}{', which was not changed' if report.dry_run else ''}")
    done = {
        "what": "would be imported" if report.dry_run else "imported",
        "ledgers": report.ledgers,
        "entries": report.entries,
        "bytes": report.bytes,
        "nodes": report.nodes,
    }
    there = {
        "what": "existing",
        "ledgers": report.ledgers_there,
        "entries": report.entries_there,
        "nodes": report.nodes_there,
    }
    output.table(
        output.COUNTS, [done, there] if report.ledgers_there + report.entries_there + report.nodes_there else [done]
    )
    if report.resumed:
        output.line("an interrupted import " + ("would be resumed" if report.dry_run else "was resumed"))
    for line in _left_out(report.left_out):
        output.paragraph(f"left out: {line}")
    for note in report.notes:
        output.paragraph(f"note: {note}")
    for path in report.rewritten:
        output.paragraph(f"note: written uncompressed, because Pulsar 4.2.4 cannot load it compressed: {path}")
    for damage in report.damage:
        output.paragraph(f"damage: {damage_line(damage)}")


def _left_out(found: tuple[Skipped, ...]) -> Iterator[str]:
    """Describe skipped ledgers; those with the same reason are only counted."""
    reasons: dict[str, list[Skipped]] = {}
    for one in found:
        reasons.setdefault(one.why, []).append(one)
    for why, some in reasons.items():
        if len(some) == 1:
            yield str(some[0])
        else:
            yield f"{counted(len(some), 'ledger')} with {counted(sum(one.entries for one in some), 'entry')}: {why}"
