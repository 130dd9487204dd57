"""Upgrade of a store's records to their newest forms.

There is one store format so far. Within it, some records may have older forms, which clients choose for compatibility:
ledger metadata in BookKeeper's formats 1 and 2, and cursors as Pulsar's snapshots. Each record is upgraded atomically,
in its own commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bookstand.cursor.store.migration import PAGES, migrate_cursor
from bookstand.errors import BookstandError, StoreInUseError
from bookstand.pipeline.jobs.busy_cursors import check_not_held, skip_reason
from bookstand.storage.format.ledger_metadata import CURRENT_FORMAT
from bookstand.storage.format.schema import FORMAT_VERSION
from bookstand.store import Store

Progress = Callable[[int, int], None]
"""Called with the number of ledgers and topics processed, and their total."""


@dataclass
class UpgradeReport:
    """Records that were upgraded or, in a dry run, would be upgraded."""

    dry_run: bool
    format: int = FORMAT_VERSION
    """Format of the store. It is the newest one, because stores of other formats cannot be opened."""
    metadata: list[dict[str, int]] = field(default_factory=list)
    """Ledgers with metadata in an older format: ``ledger``, ``before``, ``after``."""
    kept: list[int] = field(default_factory=list)
    """Ledgers with unchanged metadata: it has neither digest nor password, which the newest format requires."""
    cursors: list[dict[str, str]] = field(default_factory=list)
    """Cursors that were snapshots: ``topic``, ``cursor``, ``before``, ``after``."""
    left: list[dict[str, Any]] = field(default_factory=list)
    """Skipped cursors: ``topic``, ``cursor``, ``why``, and whether they are ``held`` (open elsewhere) or
    ``damaged``."""
    problems: list[str] = field(default_factory=list)
    """Records that could not be read, and are unchanged."""

    @property
    def changed(self) -> bool:
        return bool(self.metadata or self.cursors)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look(store: Store, topics: Iterable[str], progress: Progress | None = None) -> UpgradeReport:
    """Find records in older forms. The store is not changed and may be read-only."""
    report = UpgradeReport(dry_run=True)
    ledger_ids, names = list(store.list_ledgers()), list(topics)
    total = len(ledger_ids) + len(names)
    for done, ledger_id in enumerate(ledger_ids, 1):
        try:
            _look_at_metadata(store, ledger_id, report)
        except BookstandError as error:
            report.problems.append(str(error))
        if progress is not None:
            progress(done, total)
    for done, name in enumerate(names, len(ledger_ids) + 1):
        _look_at_cursors(store, name, report)
        if progress is not None:
            progress(done, total)
    return report


def upgrade(store: Store, found: UpgradeReport, progress: Progress | None = None) -> UpgradeReport:
    """Rewrite the records that :func:`look` found. Other topics are not opened, because opening one for writing creates
    a ledger."""
    if store.storage.other_processes().writers:
        raise StoreInUseError(f"store {store.storage.path} is being written to by another process")
    report = UpgradeReport(False, kept=found.kept, left=list(found.left), problems=list(found.problems))
    total = len(found.metadata) + len(found.cursors)
    for one in found.metadata:
        metadata = store.ledger_metadata(one["ledger"])
        store.write_ledger_metadata(metadata.replace(format_version=CURRENT_FORMAT), metadata.version)
        report.metadata.append(one)
        if progress is not None:
            progress(len(report.metadata), total)
    for number, cursor in enumerate(found.cursors, 1):
        topic, name = cursor["topic"], cursor["cursor"]
        try:
            # Another process may have opened the store since :func:`look`.
            check_not_held(store.storage, topic, name, store.expansion_limits)
            migrate_cursor(store.managed_ledger(topic, create=False), name, PAGES)
            report.cursors.append(cursor)
        except BookstandError as error:
            report.left.append({"topic": topic, "cursor": name, **skip_reason(error)})
        if progress is not None:
            progress(len(report.metadata) + number, total)
    return report


def _look_at_metadata(store: Store, ledger_id: int, report: UpgradeReport) -> None:
    found = store.ledger_metadata(ledger_id)
    if found.format_version == CURRENT_FORMAT:
        return
    if found.digest_type is None:
        report.kept.append(ledger_id)
        return
    report.metadata.append({"ledger": ledger_id, "before": found.format_version, "after": CURRENT_FORMAT})


def _look_at_cursors(store: Store, topic: str, report: UpgradeReport) -> None:
    try:
        ledgers = store.managed_ledger(topic, create=False)
        names = ledgers.cursor_names()
    except BookstandError as error:
        report.problems.append(f"topic {topic}: {error}")
        return
    for name in names:
        try:
            check_not_held(store.storage, topic, name, store.expansion_limits)
            found = migrate_cursor(ledgers, name, PAGES, dry_run=True)
        except BookstandError as error:
            report.left.append({"topic": topic, "cursor": name, **skip_reason(error)})
            continue
        if found.changed:
            report.cursors.append({"topic": topic, "cursor": name, "before": found.before, "after": found.after})
