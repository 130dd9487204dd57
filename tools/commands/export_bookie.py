"""Write a store as the disk of one bookie, with the matching metadata dump. BookKeeper and Pulsar can be started on
both, and import-bookie reads them. The store is only read.

Cursors are written in forms that every reader of Pulsar's supports. A cursor is converted to a snapshot if its state
is in pages, which only bookstand reads, or if its record contains partial batches, which Pulsar does not read there.

Data that the store has lost is listed, and the rest is exported. FOLDER must be empty; the export is all or nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import bookstand
from bookstand.disk.exporter.run import ExportReport, export_topics
from bookstand.disk.format.entry_log_writer import LARGEST_LOG
from bookstand.storage.process.data_files import check_local
from bookstand.tools.cli import output
from bookstand.tools.cli.damage_report import damage_facts, damage_line
from bookstand.tools.cli.exit_codes import DAMAGE
from bookstand.tools.cli.options import DryRun, Json, StorePlace, Topics, progress_bar, some_ledgers, store_at
from bookstand.tools.cli.output import Column, counted
from bookstand.tools.view.targets import LIMITS, topics_meant

EXAMPLES = (
    "bookstand export-bookie my-store exported --dry-run",
    "bookstand export-bookie my-store exported",
    "bookstand export-bookie my-store some-topics --topic '*/shop/orders' --bookie bookie-7 --json",
    "bookstand export-bookie my-store for-a-store --as-stored",
)

_COUNTS = (
    Column("what", ""),
    Column("topics", "TOPICS", right=True),
    Column("ledgers", "LEDGERS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("logs", "LOGS", right=True, rank=1),
    Column("nodes", "NODES", right=True),
)


def run(
    store: StorePlace,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder for the disk, new or empty.")],
    topic: Topics = None,
    ledger: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="Export this ledger, and no topics except those of --topic. May be repeated."),
    ] = None,
    bookie: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the bookie, which its configuration must have.")
    ] = "bookie-0",
    log_bytes: Annotated[int, typer.Option(metavar="BYTES", help="Maximum size of an entry log.")] = LARGEST_LOG,
    as_stored: Annotated[
        bool,
        typer.Option("--as-stored", help="Do not convert cursors. For import into a store; Pulsar cannot read pages."),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    check_local(folder, "FOLDER")
    source = store_at(store)
    with (
        bookstand.open(
            source, create=False, read_only=True, check="structure", expansion_limits=LIMITS.get()
        ) as opened,
        progress_bar("writing the disk", counts=True) as progress,
    ):
        report = export_topics(
            opened,
            folder,
            topics_meant(opened, topic) if topic else None,
            ledgers=ledger or None,
            bookie=bookie,
            log_bytes=log_bytes,
            old_form=not as_stored,
            dry_run=dry_run,
            progress=progress,
        )
    if json:
        output.document({"kind": "export", "store": source, "folder": folder, "dry_run": dry_run, **_facts(report)})
    else:
        _print(report, source, Path(folder), dry_run)
    if report.damage:
        raise typer.Exit(DAMAGE)


def _facts(report: ExportReport) -> dict[str, Any]:
    return {
        **report._asdict(),
        "bookie": str(report.bookie),
        "metadata": str(report.metadata),
        "damage": [damage_facts(one) for one in report.damage],
    }


def _print(report: ExportReport, store: str, folder: Path, dry_run: bool) -> None:
    output.paragraph(f"store {store}")
    output.table(_COUNTS, [{**report._asdict(), "what": "would be exported" if dry_run else "exported"}])
    output.paragraph(f"disk: {folder / report.bookie.name}, metadata: {folder / report.metadata.name}")
    if report.cursors:
        output.paragraph(f"converted to Pulsar snapshots: {counted(report.cursors, 'cursor')}")
    if report.superseded:
        output.paragraph(f"left out because snapshots replace them: {some_ledgers(report.superseded)}")
    if report.left_out:
        output.paragraph(f"left out because they were not requested: {some_ledgers(report.left_out)}")
    for damage in report.damage:
        output.paragraph(f"damage: {damage_line(damage)}")
