"""Migration of cursors between the snapshot form and pages, without waiting for their next acknowledgment."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.store.recovery import MARKER
from bookstand.errors import IllegalOperationError, IncorrectParameterError, StoreDamagedError
from bookstand.managed_ledger.managed_ledger import ManagedLedger

PAGES, SNAPSHOT = "pages", "snapshot"

# Limits that exclude nothing, because excluded acknowledgments would be redelivered.
_NO_LIMIT = (1 << 31) - 1


class Migration(NamedTuple):
    """Result of a migration or its dry run. ``before`` and ``after`` are the forms, ``"pages"`` or ``"snapshot"``, and
    ``size_…`` the sizes of the whole state in them. ``pages`` and ``bytes`` count the migration's writes."""

    topic: str
    cursor: str
    before: str
    after: str
    ranges: int
    batches: int
    size_before: int
    size_after: int
    pages: int
    bytes: int

    @property
    def changed(self) -> bool:
        return self.before != self.after


def migrate_cursor(topic: ManagedLedger, name: str, form: str = PAGES, *, dry_run: bool = False) -> Migration:
    """Convert the stored state of a cursor to ``form``, completely or not at all.

    ``"snapshot"`` is the form that every version of Pulsar reads. It is rejected if the state does not fit into one
    entry. A migration is also rejected if the newest state is damaged, because it would overwrite that state. A current
    owner of the cursor is fenced. ``dry_run`` changes nothing, and returns the same numbers.
    """
    if form not in (PAGES, SNAPSHOT):
        raise IncorrectParameterError(f"form must be {PAGES!r} or {SNAPSHOT!r}, not {form!r}")
    config = CursorConfig() if form == PAGES else _SNAPSHOT_CONFIG
    found = _plan(topic.preview_takeover() if topic.client.read_only else topic, name, form, config)
    if not found.changed or dry_run:
        return found
    with Cursor.open(topic, name, config, create=False) as cursor:
        cursor.flush()
        stats = cursor.stats
    return found._replace(size_after=stats.metadata_size, pages=stats.pages_written, bytes=stats.bytes_written)


def _plan(topic: ManagedLedger, name: str, form: str, config: CursorConfig) -> Migration:
    with Cursor.open(topic, name, config, create=False, read_only=True) as cursor:
        source = cursor.recovered_from
        before = PAGES if source.how == MARKER else SNAPSHOT
        if before != form and source.damage:
            raise StoreDamagedError(
                f"the newest state of cursor {name!r} of topic {topic.name} is damaged: {source.damage[0]}"
            )
        misfit = cursor.snapshot_misfit() if before != form and form == SNAPSHOT else None
        if misfit is not None:
            raise IllegalOperationError(
                f"cursor {name!r} of topic {topic.name} cannot be stored as a snapshot without losing acknowledgments: "
                f"its state {misfit}"
            )
        size = cursor.cursor_metadata_size_in_bytes
        pages, written, after = (0, 0, size) if before == form else cursor.preview()
        return Migration(
            topic.name,
            name,
            before,
            form,
            len(cursor.acked_ranges()),
            len(cursor.partial_batches()),
            size,
            after,
            pages,
            written,
        )


def migrate_cursors(
    topic: ManagedLedger,
    form: str = PAGES,
    *,
    dry_run: bool = False,
    progress: Callable[[Migration], object] | None = None,
) -> list[Migration]:
    """Migrate all cursors of a topic; ``progress`` is called with each result."""
    found = []
    for name in topic.cursor_names():
        found.append(migrate_cursor(topic, name, form, dry_run=dry_run))
        if progress is not None:
            progress(found[-1])
    return found


_SNAPSHOT_CONFIG = CursorConfig(
    enable_lru_cache_max_unacked_ranges=False,
    max_unacked_ranges_to_persist=_NO_LIMIT,
    max_batch_deleted_index_to_persist=_NO_LIMIT,
    max_unacked_ranges_in_metadata_store=0,
)
