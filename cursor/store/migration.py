"""Cursors from the old form to pages and markers, and back: at once, not with their next acknowledgment."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.store.recovery import MARKER
from bookstand.errors import IllegalOperationError, IncorrectParameterError, StoreDamagedError
from bookstand.managed_ledger.managed_ledger import ManagedLedger

PAGES, SNAPSHOT = "pages", "snapshot"

# In the old form: whatever there is, for what is left out would be delivered again.
_ALL = (1 << 31) - 1


class Migration(NamedTuple):
    """What became of a cursor, or would: ``before`` and ``after`` are forms, ``"pages"`` or ``"snapshot"``, with the
    sizes of the whole state in them. ``pages`` and ``bytes`` were written for it."""

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
    """Write the state of a cursor in this form if it is in another: whole or not at all, and nothing is left out.

    ``"snapshot"`` is what every reader of Pulsar's understands; refused where the state does not fit into an entry.
    Refused, too, where the newest state is damaged, for it would be gone then. Whoever has the cursor open is fenced.
    ``dry_run``: change nothing, and say what would be done, with the same numbers.
    """
    if form not in (PAGES, SNAPSHOT):
        raise IncorrectParameterError(f"cursors have the form {PAGES!r} or {SNAPSHOT!r}, not {form!r}")
    config = CursorConfig() if form == PAGES else _OLD
    found = _look(topic.preview_takeover() if topic.client.read_only else topic, name, form, config)
    if not found.changed or dry_run:
        return found
    with Cursor.open(topic, name, config, create=False) as cursor:
        cursor.flush()
        stats = cursor.stats
    return found._replace(size_after=stats.metadata_size, pages=stats.pages_written, bytes=stats.bytes_written)


def _look(topic: ManagedLedger, name: str, form: str, config: CursorConfig) -> Migration:
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
    """All cursors of a topic; ``progress`` is told of each that is done."""
    found = []
    for name in topic.cursor_names():
        found.append(migrate_cursor(topic, name, form, dry_run=dry_run))
        if progress is not None:
            progress(found[-1])
    return found


_OLD = CursorConfig(
    enable_lru_cache_max_unacked_ranges=False,
    max_unacked_ranges_to_persist=_ALL,
    max_batch_deleted_index_to_persist=_ALL,
    max_unacked_ranges_in_metadata_store=0,
)
