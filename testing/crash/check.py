"""Checks of a store after a power cut: the user's check, and the requirements for every store."""

from __future__ import annotations

import os
import shutil

import bookstand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from bookstand.store import Store
    from bookstand.testing.crash.states import Content

    Check = Callable[[Store, list[Any]], object]


class Images:
    """Writes images into a directory, each over the previous one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def put(self, image: Mapping[str, Content | None]) -> None:
        self._clear(self.folder, "", image)
        for path, content in image.items():
            full = os.path.join(self.folder, path)
            if content is None:
                if not os.path.isdir(full):
                    os.mkdir(full)
            else:
                _overwrite(full, content.to_bytes())

    def _clear(self, folder: str, name: str, image: Mapping[str, Content | None]) -> None:
        with os.scandir(folder) as found:
            entries = list(found)
        for entry in entries:
            path = f"{name}/{entry.name}" if name else entry.name
            folder_here = entry.is_dir(follow_symlinks=False)
            if path in image and (image[path] is None) == folder_here:
                if folder_here:
                    self._clear(entry.path, path, image)
            elif folder_here:
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _overwrite(path: str, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.ftruncate(file, len(content))
    finally:
        os.close(file)


def examine_store(
    path: str,
    check: Check,
    acknowledged: list[Any],
    open_options: Mapping[str, Any],
    own_checks: bool = True,
    twice: bool = True,
) -> None:
    """Open the store and check it. ``own_checks``: also verify it, write to it and read the new entries. ``twice``:
    then open and check it again."""
    with bookstand.open(path, **open_options) as store:
        check(store, acknowledged)
        if own_checks:
            verify(store)
            if not open_options.get("read_only"):
                write_a_little(store, remove=twice)
    if twice:
        with bookstand.open(path, **open_options) as store:
            check(store, acknowledged)
            if own_checks:
                verify(store)


def verify(store: Store) -> None:
    report = store.verify()
    assert report.ok, f"verify() finds the store damaged: {report}"


def write_a_little(store: Store, remove: bool) -> None:
    """Assert that the store accepts and returns new entries. ``remove``: delete them afterwards, without a trace."""
    payloads = [b"after the power cut", b"", bytes(300)]
    writer = store.create_ledger(1, 1, 1, digest="crc32c", password=b"")
    assert writer.append(payloads[0]) == 0
    assert writer.append_many(payloads[1:]) == range(1, 3)
    reader = store.open_ledger(writer.id, recovery=False)
    found = [entry.data for entry in reader.read_unconfirmed(0, 2)]
    assert found == payloads, f"what was written after the power cut reads as {found}"
    if remove:
        store.delete_ledger(writer.id)
