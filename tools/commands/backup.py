"""Copy a consistent snapshot of a store to a folder, while other processes may write to the store.

The folder must be new or empty. The copy gets its final name when it is complete and synced, so that an interrupted
backup leaves no store.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

import bookstand
from bookstand.storage.backup import copy_progress
from bookstand.storage.lmdb.environment import data_file
from bookstand.storage.lmdb.pages import newest_commit
from bookstand.storage.process.data_files import check_local
from bookstand.tools.cli import output
from bookstand.tools.cli.options import Json, StorePlace, store_at, watched

EXAMPLES = (
    "bookstand backup my-store copy",
    "bookstand backup my-store copy --json",
)


def run(
    store: StorePlace,
    to: Annotated[str, typer.Argument(metavar="TO", help="Folder for the copy, new or empty.")],
    json: Json = False,
) -> None:
    check_local(to, "TO")
    folder = store_at(store)
    was_there = Path(to).exists()
    try:
        with (
            bookstand.open(folder, create=False, read_only=True, check="structure") as source,
            watched(lambda: copy_progress(to), os.path.getsize(data_file(folder)), "copying the store"),
        ):
            source.backup(to)
    except BaseException:
        if not was_there:
            # Fails unless the directory is empty.
            with suppress(OSError):
                os.rmdir(to)
        raise
    file = data_file(to)
    size, commit = os.path.getsize(file), newest_commit(file)
    if json:
        output.document({"kind": "backup", "path": folder, "to": to, "file": file, "bytes": size, "commit": commit})
    else:
        output.paragraph(f"store {folder}")
        output.paragraph(f"copied to {to}: {output.size_and_bytes(size)}, up to commit {commit}")
