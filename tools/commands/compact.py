"""Return the space of deleted ledgers and free pages to the file system.

The data file is rewritten beside the old one and then replaces it atomically; if the command is interrupted, the old
file remains. The file system needs space for both files. While another process has the store open, the command only
removes the entries of deleted ledgers: the store reuses their space, and the size of the file does not change. A store
with damaged pages is refused.
"""

from __future__ import annotations

import os

import bookstand
from bookstand.storage.backup import copy_progress, reclaimable_bytes
from bookstand.storage.lmdb.environment import data_file
from bookstand.storage.process import process_markers
from bookstand.tools.cli import output
from bookstand.tools.cli.options import DryRun, Json, StorePlace, store_at, watched
from bookstand.tools.cli.output import Fact

EXAMPLES = (
    "bookstand compact my-store --dry-run",
    "bookstand compact my-store",
    "bookstand compact my-store --json",
)

_FACTS = (
    Fact("before", "size", output.size_and_bytes),
    Fact("free", "of that, free pages", output.size_and_bytes),
    Fact("of_deleted", "of deleted ledgers", output.size_and_bytes),
    Fact("after", "size now", output.size_and_bytes),
    Fact("gained", "freed", output.size_and_bytes),
)
_IN_USE = "another process has the store open: the size of the file does not change"


def run(store: StorePlace, dry_run: DryRun = False, json: Json = False) -> None:
    folder = store_at(store)
    others = process_markers.OpenProcesses(folder)
    in_use = bool(others.writers or others.readers)
    # A damaged page would be copied into the new file, or crash the process.
    with bookstand.open(folder, create=False, read_only=dry_run, check="structure") as opened:
        size, free, of_deleted = reclaimable_bytes(opened.storage)
        if not dry_run:
            with watched(lambda: copy_progress(folder), size - free, "rewriting the store"):
                opened.compact()
    after = None if dry_run else os.path.getsize(data_file(folder))
    # Removing entries may have enlarged the file before it was rewritten.
    gained = None if after is None else max(0, size - after)
    facts = {"before": size, "free": free, "of_deleted": of_deleted, "after": after, "gained": gained}
    notes = [_IN_USE] if in_use else []
    if json:
        output.document({"kind": "compact", "path": folder, "dry_run": dry_run, **facts, "notes": notes})
        return
    output.paragraph(f"store {folder}{', which was not changed' if dry_run else ''}")
    output.facts(_FACTS, facts)
    for note in notes:
        output.paragraph(f"note: {note}")
