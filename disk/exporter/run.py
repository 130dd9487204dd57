"""Export of topics and ledgers of a store to the disk of one bookie, with the metadata that belongs to it.

::

    <folder>/metadata.jsonl.gz                    nodes of ledgers, topics, cursors and the bookie (dump_file.py)
    <folder>/<bookie>/ledgers/current/0.log …     all entries, sorted by ledger and entry
                                      lastId, lastMark, VERSION
    <folder>/<bookie>/journal/current/1.txn       master keys, fences, explicit LACs
                                      VERSION

A bookie with DbLedgerStorage that is started in the place where the disk was written finds the entries after its
indexes have been rebuilt: ``bookkeeper shell rebuild-db-ledgers-index``, then ``rebuild-db-ledger-locations-index``. It
replays the journal, which has no entries. The same store gives the same bytes in the same place.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bookstand.disk.bookies.bookie_writer import BookieWriter, nodes_of
from bookstand.disk.bookies.copy_catalog import Progress
from bookstand.disk.damage import Damage
from bookstand.disk.exporter.plan import Plan
from bookstand.disk.exporter.staging import UNFINISHED, atomic_output, dry_output
from bookstand.disk.format.entry_log_writer import LARGEST_LOG, check_log_bytes
from bookstand.disk.importer.run import IMPORT_NODE
from bookstand.disk.metadata.dump import write_dump
from bookstand.errors import IllegalOperationError, IncorrectParameterError
from bookstand.storage.format.ledger_metadata import LedgerMetadata
from bookstand.storage.process.data_files import check_local, os_errors

if TYPE_CHECKING:
    from typing import Protocol

    from bookstand.proto.expansion import ExpansionLimits
    from bookstand.storage.storage import Storage

    class Store(Protocol):
        """Interface of a store that an export requires."""

        @property
        def storage(self) -> Storage: ...
        @property
        def expansion_limits(self) -> ExpansionLimits: ...


METADATA = "metadata.jsonl.gz"


class ExportReport(NamedTuple):
    """Result of an export. ``bookie`` is the folder of the disk, ``metadata`` the dump. ``bytes`` is the size of the
    entries in the logs; ``cursors`` counts converted cursors. ``damage`` lists lost and unreadable data of the store.
    ``superseded`` lists ledgers that converted cursors no longer need, ``left_out`` ledgers that were not requested."""

    bookie: Path
    metadata: Path
    topics: int
    ledgers: int
    entries: int
    bytes: int
    logs: int
    cursors: int
    damage: list[Damage]
    nodes: int
    superseded: list[int]
    left_out: list[int]


def export_topics(
    store: Store,
    folder: str | os.PathLike[str],
    topics: Iterable[str] | None = None,
    *,
    ledgers: Iterable[int] | None = None,
    bookie: str = "bookie-0",
    log_bytes: int = LARGEST_LOG,
    old_form: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Export topics with all related data, or ``ledgers``, or both; without either, the whole store.

    A partitioned topic selects its partitions. ``folder`` must be empty or missing. The export is complete when this
    returns; after a crash, the next attempt removes the unfinished one. Data that is not durable yet, such as the
    latest acknowledgments of open subscriptions, is not exported. If topics or cursors change during the export,
    :class:`StoreInUseError` is raised: export a backup then. ``progress`` is called with the number of ledgers written
    and their total.

    ``old_form``: convert cursors to the form that Pulsar reads (:mod:`bookstand.disk.exporter.cursors`) instead of
    copying them. ``dry_run``: write nothing, and return the report that the export would have.
    """
    check_local(os.fspath(folder), "the folder for the disk")
    _check_names("topics", topics, str)
    _check_names("ledgers", ledgers, int)
    if not isinstance(bookie, str) or "/" in bookie or bookie in ("", ".", "..", METADATA, UNFINISHED):
        raise IncorrectParameterError(f"{bookie!r} is no name of a bookie")
    _check_bookie(bookie)
    check_log_bytes(log_bytes)
    damage: list[Damage] = []
    store.storage.flush_if_queued()
    if store.storage.node(IMPORT_NODE) is not None:
        raise IllegalOperationError("the store has an unfinished import: run the import again to finish it first")
    plan = Plan(store.storage, damage.append, store.expansion_limits)
    plan.choose(topics, ledgers)
    chosen = set(plan.ledgers)
    target = Path(os.path.abspath(folder))
    _check_text(target / bookie)
    begin = dry_output if dry_run else atomic_output
    with os_errors(f"cannot export to {target}"), begin(target, (METADATA, bookie)) as place:
        if old_form:
            plan.use_old_form()
        disk = BookieWriter(place / bookie, bookie, target / bookie, str(uuid.UUID(bytes=store.storage.store_id)))
        written = (disk.count if dry_run else disk.write)(plan, log_bytes, damage.append, progress)
        nodes = nodes_of(plan, disk)
        if not dry_run:
            write_dump(place / METADATA, nodes)
        plan.check_unchanged()
    return ExportReport(
        target / bookie,
        target / METADATA,
        len(plan.topics),
        len(plan.ledgers) + len(plan.snapshots),
        written.entries,
        written.bytes,
        len(written.logs),
        plan.converted,
        damage,
        len(nodes),
        sorted(chosen - plan.ledgers),
        sorted(set(store.storage.ledger_ids()) - chosen),
    )


def _check_names(what: str, given: object, kind: type) -> None:
    if given is None:
        return
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise IncorrectParameterError(f"{what} are given as a list, not as {given!r}")
    if isinstance(given, Iterator):
        raise IncorrectParameterError(f"{what} are given as a list, not as an iterator")
    for one in given:
        if not isinstance(one, kind) or isinstance(one, bool):
            raise IncorrectParameterError(f"{what} are given as a list of {kind.__name__}, with no {one!r} in it")


def _check_text(place: Path) -> None:
    """Check that the path is text, because the cookie contains the paths of its disk as text."""
    try:
        str(place).encode()
    except UnicodeEncodeError:
        raise IncorrectParameterError(f"{place} is no UTF-8, as the places in a bookie's cookie have to be") from None


def _check_bookie(name: str) -> None:
    """Check that ensembles can contain the name."""
    LedgerMetadata(
        0,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        ensembles=[(0, [name])],
    )
