"""Backup and compaction of a store."""

from __future__ import annotations

import os

import lmdb

from bookstand.errors import IncorrectParameterError, StoreInUseError
from bookstand.storage.format import schema
from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.lmdb.environment import DATA_FILE, data_file
from bookstand.storage.lmdb.errors import reraise
from bookstand.storage.lmdb.meta_page import META_PAGES
from bookstand.storage.lmdb.pages import estimate_pages
from bookstand.storage.process import data_files, process_markers
from bookstand.storage.process.interrupt_guard import is_interruption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.storage import Storage

_COPYING = "creating-copy"


def copy_progress(folder: str) -> int:
    """Bytes written so far of the copy that a backup or compaction makes in a folder; 0 if none is running."""
    try:
        return os.path.getsize(os.path.join(folder, _COPYING, DATA_FILE))
    except OSError:
        return 0


def reclaimable_bytes(storage: Storage) -> tuple[int, int, int]:
    """Estimate for a compaction: (file size, bytes of free pages, bytes of pages of deleted ledgers)."""
    size = os.path.getsize(data_file(storage.path))
    sizes = list(storage.sizes())
    page_size = next(size // pages for _, _, pages, size, _ in sizes if pages)
    # Including the meta pages and the root page of the main tree.
    in_use = sum(size for _, _, _, size, _ in sizes) + (META_PAGES + 1) * page_size
    of_deleted = 0
    for key in storage.meta_keys(schema.META_DELETED):
        _, ledger_id = schema.parse_deletion(key)
        of_deleted += page_size * sum(
            estimate_pages(map(len, some), schema.ENTRY_KEY.size, page_size)
            for _, some in storage.runs(ledger_id, schema.MAX_ENTRY_ID)
        )
    return size, max(0, size - in_use), of_deleted


def backup(storage: Storage, destination: str | os.PathLike[str]) -> None:
    """Write a consistent copy into an empty or new folder. It gets its final name when it is complete and synced."""
    folder = data_files.folder_name(destination)
    storage.flush_if_queued()
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder)
        process_markers.sync_parents(folder)
        # Concurrent backups into one folder run one after the other, and the second is refused.
        with process_markers.FolderLock(folder) as lock:
            if not all(_is_partial_copy(folder, name) for name in os.listdir(folder)):
                raise IncorrectParameterError(f"the folder {folder} for the backup is not empty")
            if storage.hooks is not None:
                storage.point("backup.before")
            _copy(storage, folder, compact=False)
            process_markers.sync_folder(folder)
            lock.release()
    except OSError as error:
        data_files.raise_os_error(error, f"cannot back up store {storage.path} to {folder}")


def _is_partial_copy(folder: str, name: str) -> bool:
    """True for the remains of a killed backup, which the next one removes."""
    path = os.path.join(folder, name)
    return name == _COPYING and os.path.isdir(path) and set(os.listdir(path)) <= {DATA_FILE}


def compact(storage: Storage, now: int) -> int:
    """Remove entries of deleted ledgers and rewrite the data file; return the number of bytes reclaimed."""
    if storage.hooks is not None:
        storage.point("compact.before")
    storage.collect_deleted(now)
    if storage.hooks is not None:
        storage.point("compact.collected")
    try:
        before = os.path.getsize(data_file(storage.path))
        try:
            storage.replace_data_file(lambda: _copy(storage, storage.path, compact=True))
        except StoreInUseError:
            return 0
        if storage.hooks is not None:
            storage.point("compact.after")
        return max(0, before - os.path.getsize(data_file(storage.path)))
    except OSError as error:
        data_files.raise_os_error(error, f"cannot compact store {storage.path}")


def _copy(storage: Storage, folder: str, compact: bool) -> None:
    """Copy the data file into the folder under a temporary name, sync it and rename it. The caller syncs the folder."""
    work = os.path.join(folder, _COPYING)
    _remove(work)
    os.mkdir(work)
    crashed = False
    try:
        storage.copy(work, compact)
        copied = os.path.join(work, DATA_FILE)
        data_files.sync_file(copied)
        if storage.hooks is not None:
            storage.point("compact.copied" if compact else "backup.copied")
        os.rename(copied, data_file(folder))
        if storage.hooks is not None:
            storage.point("compact.renamed" if compact else "backup.renamed")
    except SimulatedCrash:
        crashed = True
        raise
    except lmdb.Error as error:
        reraise(error, storage.path, f"copying it to {folder}")
    finally:
        if not crashed:
            _remove(work)


def _remove(work: str) -> None:
    """Remove the folder of a copy, if possible. An interrupted ``rmtree`` may close a descriptor twice."""
    for remove, path in ((os.unlink, data_file(work)), (os.rmdir, work)):
        try:
            remove(path)
        except OSError as error:
            if is_interruption(error):
                raise
