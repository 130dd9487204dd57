"""Repair: save what can be saved of a damaged store into a new one, and list the losses.

The damaged store is only read, and not through LMDB, which trusts every page
(:mod:`bookstand.storage.repair.salvage`). :mod:`bookstand.storage.repair.rebuild` selects the records to copy. The new
store is built in the folder :data:`UNFINISHED` inside the destination. When it is complete, verified and synced, its
data file moves to the destination. The destination may therefore be an empty disk, the last step needs no disk space,
and the remains of a killed repair are neither a store nor an empty folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from bookstand.errors import IncorrectParameterError, NotAStoreError, StoreInUseError, StoreNotFoundError
from bookstand.storage.lmdb.environment import data_file
from bookstand.storage.process import data_files, process_markers
from bookstand.storage.repair.rebuild import NothingToSaveError, StoreRebuilder
from bookstand.storage.repair.report import Loss, RepairReport
from bookstand.storage.repair.salvage import Progress, Salvage
from bookstand.storage.storage import open_storage
from bookstand.storage.verify import verify

if TYPE_CHECKING:
    from bookstand.storage.storage import Storage

__all__ = ["UNFINISHED", "Loss", "NothingToSaveError", "RepairReport", "repair"]

UNFINISHED = "unfinished-repair"


def repair(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    passwords: Sequence[bytes] = (),
    dry_run: bool = False,
    looking: Progress | None = None,
    saving: Progress | None = None,
    verifying: Progress | None = None,
) -> RepairReport:
    """Copy what can be saved into a new store. ``passwords`` are tried on ledgers that have lost theirs. With
    ``dry_run`` nothing is written, and the report says what would be saved.

    :class:`NothingToSaveError` if nothing can be saved; nothing is written then.
    """
    folder, new = data_files.folder_name(source), data_files.folder_name(destination)
    _check_paths(folder, new)
    with _salvage(folder, looking) as found:
        report = RepairReport(folder, new, dry_run)
        if dry_run:
            StoreRebuilder(found, report, passwords, None, saving).run()
            _check_unchanged(found, folder)
            return report
        with _unfinished_store(new) as storage:
            StoreRebuilder(found, report, passwords, storage, saving).run()
            _check_unchanged(found, folder)
            _verify_new_store(storage, report, found.file.bytes, verifying)
        _finish(new)
    return report


# -- checks and the unfinished store -----------------------------------------------------------------------------------


def _check_paths(folder: str, new: str) -> None:
    if not os.path.isdir(folder) or not data_files.has_data_file(folder):
        raise StoreNotFoundError(f"there is no store at {folder}")
    if os.path.lexists(new) and not (os.path.isdir(new) and set(os.listdir(new)) <= {UNFINISHED}):
        raise IncorrectParameterError(f"the destination {new} exists already and is not an empty folder")
    within = os.path.realpath(folder)
    if os.path.commonpath([within, os.path.realpath(new)]) == within:
        raise IncorrectParameterError(f"the destination {new} is inside the store {folder}, which must not change")
    _check_unused(folder)


def _check_unused(folder: str) -> None:
    if process_markers.OpenProcesses(folder).writers:
        raise StoreInUseError(f"store {folder} is being written to by a process")


def _salvage(folder: str, looking: Progress | None) -> Salvage:
    with data_files.os_errors(f"cannot read {data_file(folder)}"):
        return Salvage(data_file(folder), looking)


def _check_unchanged(found: Salvage, folder: str) -> None:
    _check_unused(folder)
    if found.file.changed:
        raise StoreInUseError(f"store {folder} was written to while it was read")


@contextmanager
def _unfinished_store(new: str) -> Iterator[Storage]:
    """Create the store that will become ``new``. On exit it is closed and verified; after a failure it is removed."""
    existed, made = os.path.isdir(new), False
    unfinished = os.path.join(new, UNFINISHED)
    try:
        with data_files.os_errors(f"cannot create the folder {unfinished}"):
            if not existed:
                process_markers.make_folders(os.path.abspath(new))
            with process_markers.FolderLock(new) as lock:
                _clear(unfinished)
                os.mkdir(unfinished)
                made = True
                # Nothing needs to be durable before the end, when the whole file is synced.
                storage = open_storage(unfinished, durability="none")
                lock.release()
        try:
            yield storage
        finally:
            storage.close()
        data_files.verify_structure(unfinished)
    except BaseException:
        if made:
            shutil.rmtree(unfinished, ignore_errors=True)
        if not existed:
            with suppress(OSError):
                os.rmdir(new)
        raise


def _clear(unfinished: str) -> None:
    if not os.path.lexists(unfinished):
        return
    if not os.path.isdir(unfinished) or not all(map(data_files.is_store_file, os.listdir(unfinished))):
        raise NotAStoreError(f"{unfinished} exists already and was not left by a repair")
    if process_markers.OpenProcesses(unfinished).writers:
        raise StoreInUseError(f"another repair is writing to {unfinished}")
    shutil.rmtree(unfinished)


def _finish(new: str) -> None:
    unfinished = os.path.join(new, UNFINISHED)
    with data_files.os_errors(f"the repaired store is complete in {unfinished}, but cannot be moved to {new}"):
        data_files.sync_file(data_file(unfinished))
        os.rename(data_file(unfinished), data_file(new))
        process_markers.sync_folder(new)
    shutil.rmtree(unfinished, ignore_errors=True)


def _verify_new_store(storage: Storage, report: RepairReport, file_bytes: int, progress: Progress | None) -> None:
    """Add problems of the new store to the report, except entries that it lists as lost."""
    storage.flush()
    is_lost = report.entry_is_lost()
    on_bytes = None if progress is None else lambda done: progress(min(done, file_bytes), file_bytes)
    for problem in verify(storage, structure=False, progress=on_bytes).problems:
        if not is_lost(problem.ledger_id, problem.entry_id):
            report.losses.append(Loss("store", f"verifying the new store: {problem.message}", problem.ledger_id))
