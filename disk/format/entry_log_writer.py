"""Writer of consecutive entry logs: when a log is full, the next one begins, as in a bookie."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from bookstand.disk.format import entry_log
from bookstand.disk.format.record_scanner import LENGTH
from bookstand.errors import IncorrectParameterError
from bookstand.storage.process.data_files import sync_file

LARGEST_LOG = 1 << 30
"""Largest log size that a bookie accepts: offsets in its indexes have 32 bits."""

_SMALLEST_LOG = entry_log.HEADER_BYTES


def check_log_bytes(log_bytes: int) -> None:
    if type(log_bytes) is not int or not _SMALLEST_LOG <= log_bytes <= LARGEST_LOG:
        raise IncorrectParameterError(f"a log has from {_SMALLEST_LOG} to {LARGEST_LOG} bytes, not {log_bytes!r}")


class EntryLogWriter:
    """Context manager that writes entries to logs. Each log has a ledgers map, and all logs are synced at the end.

    ``folder`` is ``current`` of a ledger folder without logs. If it is None, the writer counts without writing. A
    bookie sorts each batch of writes by ledger and entry; the caller adds entries in that order.
    """

    def __init__(self, folder: Path | None, log_bytes: int = LARGEST_LOG) -> None:
        check_log_bytes(log_bytes)
        self._folder = folder
        self._log_bytes = log_bytes
        self._ledgers: Counter[int] = Counter()
        self._position = 0
        self.logs: list[Path] = []
        self.entries = 0
        # Size of the entries in all logs, including their length fields.
        self.bytes = 0
        self._file = self._begin()

    def __enter__(self) -> EntryLogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        else:
            self._file.close()

    def add(self, ledger_id: int, entries: Sequence[bytes]) -> None:
        """Append stored entries of one ledger."""
        part: list[bytes] = []
        size = 0
        for stored in entries:
            needed = LENGTH.size + len(stored)
            if self._position + size + needed > self._log_bytes and (self._ledgers or part):
                self._write(ledger_id, part, size)
                part, size = [], 0
                self._end()
                self._file = self._begin()
            part += LENGTH.pack(len(stored)), stored
            size += needed
        self._write(ledger_id, part, size)
        self.entries += len(entries)

    def _write(self, ledger_id: int, part: list[bytes], size: int) -> None:
        if part:
            self._file.write(b"".join(part))
            self._position += size
            self._ledgers[ledger_id] += size
            self.bytes += size

    def _begin(self) -> BinaryIO:
        path = (self._folder or Path()) / f"{len(self.logs):x}.log"
        self.logs.append(path)
        self._position = entry_log.HEADER_BYTES
        file = open(os.devnull, "wb") if self._folder is None else open(path, "xb")  # noqa: SIM115
        file.write(entry_log.header())
        return file

    def _end(self) -> None:
        """Append the ledgers map, then write its offset to the header."""
        with self._file as file:
            if self._ledgers:
                for record in entry_log.map_records(self._ledgers):
                    file.write(LENGTH.pack(len(record)) + record)
                file.seek(0)
                file.write(entry_log.header(self._position, len(self._ledgers)))
        if self._folder is not None:
            sync_file(str(self.logs[-1]))
        self._ledgers.clear()
