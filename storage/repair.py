"""Saves what can be saved of a damaged store: into a new one, with a list of what could not.

The damaged store is only read, and not by LMDB, which believes what it reads (:mod:`bookstand.storage.salvage`). What
is copied is decided in :mod:`bookstand.storage.repair_copying`. The new store is made in a folder of its
name with :data:`UNFINISHED` behind it, and gets its name once it is whole, verified and synced: what a repair that was
killed leaves is called unfinished.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookstand.errors import IncorrectParameterError, NotAStoreError, StoreInUseError, StoreNotFoundError
from bookstand.storage import files, owners
from bookstand.storage.environment import data_file
from bookstand.storage.repair_copying import Copying, NothingToSaveError
from bookstand.storage.repair_report import Loss, RepairReport
from bookstand.storage.salvage import Progress, Salvage
from bookstand.storage.storage import open_storage
from bookstand.storage.verify import verify

if TYPE_CHECKING:
    from bookstand.storage.storage import Storage

__all__ = ["UNFINISHED", "Loss", "NothingToSaveError", "RepairReport", "repair"]

UNFINISHED = ".unfinished"


def repair(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    passwords: Sequence[bytes] = (),
    dry_run: bool = False,
    looking: Progress | None = None,
    saving: Progress | None = None,
) -> RepairReport:
    """Copy what can be saved into a new store. ``passwords`` are tried on ledgers that have lost theirs. ``dry_run``:
    write nothing, and say what would be saved.

    :class:`NothingToSaveError` if there is nothing that could be saved; nothing is written then.
    """
    folder, new = files.folder_name(source), files.folder_name(destination)
    _check_places(folder, new)
    with _salvage(folder, looking) as found:
        report = RepairReport(folder, new, dry_run)
        if dry_run:
            Copying(found, report, passwords, None, saving).run()
            _check_unchanged(found, folder)
            return report
        unfinished = _place_for(new)
        try:
            with files.os_errors(f"cannot make the folder {unfinished}"):
                owners.make_folders(unfinished)
            # Nothing is promised before the end: it is synced then, as a whole.
            storage = open_storage(unfinished, durability="none")
            try:
                Copying(found, report, passwords, storage, saving).run()
                _check_unchanged(found, folder)
                _add_what_verify_finds(storage, report)
            finally:
                storage.close()
            files.verify_structure(unfinished)
            _finish(unfinished, new)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return report


# -- places ------------------------------------------------------------------------------------------------------------


def _check_places(folder: str, new: str) -> None:
    if not os.path.isdir(folder) or not files.has_data_file(folder):
        raise StoreNotFoundError(f"there is no store at {folder}")
    if os.path.exists(new) and (not os.path.isdir(new) or os.listdir(new)):
        raise IncorrectParameterError(f"{new} for what is saved is there already, and not empty")
    within = os.path.realpath(folder)
    if os.path.commonpath([within, os.path.realpath(new)]) == within:
        raise IncorrectParameterError(f"{new} for what is saved lies in the store {folder}, which is not changed")
    _check_unused(folder)


def _check_unused(folder: str) -> None:
    if owners.Survey(folder).writers:
        raise StoreInUseError(f"store {folder} is being written to by a process")


def _salvage(folder: str, looking: Progress | None) -> Salvage:
    with files.os_errors(f"cannot read {data_file(folder)}"):
        return Salvage(data_file(folder), looking)


def _check_unchanged(found: Salvage, folder: str) -> None:
    _check_unused(folder)
    if found.file.changed:
        raise StoreInUseError(f"store {folder} was written to while it was read")


def _place_for(new: str) -> str:
    """The folder that the new store is made in, which is not there; what an earlier repair left of it goes."""
    unfinished = os.path.abspath(new) + UNFINISHED
    with files.os_errors(f"cannot clear the folder {unfinished}"):
        if os.path.lexists(unfinished):
            if not os.path.isdir(unfinished) or not all(map(files.is_ours, os.listdir(unfinished))):
                raise NotAStoreError(f"{unfinished} is there already, and nothing that a repair left")
            if owners.Survey(unfinished).writers:
                raise StoreInUseError(f"another repair is writing to {unfinished}")
            shutil.rmtree(unfinished)
    return unfinished


def _finish(unfinished: str, new: str) -> None:
    with files.os_errors(f"cannot finish the store {new}"):
        files.sync_file(data_file(unfinished))
        owners.sync_folder(unfinished)
        os.rename(unfinished, new)
        owners.sync_folder(os.path.dirname(os.path.abspath(new)))


def _add_what_verify_finds(storage: Storage, report: RepairReport) -> None:
    """What is told to be lost reads as lost; anything else would be new."""
    storage.flush()
    is_told = report.entry_is_lost()
    for problem in verify(storage).problems:
        if not is_told(problem.ledger_id, problem.entry_id):
            report.losses.append(Loss("store", f"verifying the new store: {problem.message}", problem.ledger_id))
