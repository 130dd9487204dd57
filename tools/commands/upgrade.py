"""Convert a store's records in older formats to the newest ones.

There is one store format so far. Within it, older formats are ledger metadata in BookKeeper's formats 1 and 2, and
cursors as Pulsar's snapshots, which become pages and markers; "bookstand migrate cursors --to snapshot" converts
cursors back. Each record is upgraded atomically; to resume an interrupted upgrade, run it again. A store that other
processes write to is refused, and so is one of a newer format. A cursor is skipped if it is damaged, or if another
process has opened the store since the upgrade began and may have it open; the exit code reports it.
"""

from __future__ import annotations

from pathlib import Path

import typer

import bookstand
from bookstand.errors import StoreInUseError
from bookstand.storage.process import process_markers
from bookstand.tools.cli import output
from bookstand.tools.cli.exit_codes import FINE
from bookstand.tools.cli.options import DryRun, Json, StorePlace, progress_bar, some_ledgers, store_at
from bookstand.tools.migration import code_of_left, left_line
from bookstand.tools.store_upgrade import UpgradeReport, look, upgrade
from bookstand.tools.view.store import StoreView
from bookstand.tools.view.targets import LIMITS

EXAMPLES = (
    "bookstand upgrade my-store --dry-run",
    "bookstand upgrade my-store",
    "bookstand upgrade my-store --json",
)


def run(store: StorePlace, dry_run: DryRun = False, json: Json = False) -> None:
    folder = store_at(store)
    if not dry_run and process_markers.OpenProcesses(folder).writers:
        raise StoreInUseError(f"store {folder} is being written to by another process")
    with StoreView(Path(folder), limits=LIMITS.get()) as view, progress_bar("checking") as progress:
        report = look(view.store, view.topics(), progress)
    if not dry_run:
        try:
            report = _upgraded(folder, report)
        except KeyboardInterrupt:
            output.note("the upgrade is not finished: run it again to resume it")
            raise
    if json:
        output.document({"kind": "upgrade", "path": folder, **report.as_dict()})
    else:
        _print(folder, report)
    code = code_of_left(report.left, report.problems)
    if code != FINE:
        raise typer.Exit(code)


def _upgraded(folder: str, found: UpgradeReport) -> UpgradeReport:
    if not found.changed:
        # Opening the store for writing would change it.
        found.dry_run = False
        return found
    with (
        bookstand.open(folder, create=False, expansion_limits=LIMITS.get()) as store,
        progress_bar("upgrading") as progress,
    ):
        return upgrade(store, found, progress)


def _print(folder: str, report: UpgradeReport) -> None:
    would = "would be " if report.dry_run else ""
    output.paragraph(f"store {folder}{', which was not changed' if report.dry_run else ''}")
    output.paragraph(f"format {report.format}, the newest")
    for one in report.metadata:
        output.line(f"ledger {one['ledger']}: metadata {would}upgraded from format {one['before']} to {one['after']}")
    for cursor in report.cursors:
        output.paragraph(
            f"cursor {cursor['cursor']} of {cursor['topic']}: {would}upgraded from {cursor['before']} to "
            f"{cursor['after']}"
        )
    if report.kept:
        output.paragraph(
            f"note: not upgraded, because the metadata has neither digest nor password: {some_ledgers(report.kept)}"
        )
    for left in report.left:
        output.paragraph(left_line(left))
    for problem in report.problems:
        output.paragraph(f"damage: {problem}")
    if not report.changed:
        output.line("there is nothing to upgrade")
