"""PMimport: private memory of importing a bookie's disks; the note contains the CPU time.

``python -m benchmarks.disk_import write FOLDER MiB BYTES`` writes a bookie's disks with that many MiB of entry logs and
payloads of BYTES bytes. ``python -m benchmarks.disk_import import FOLDER`` imports them into a new store in the same
folder, and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.measure import ROOT, private_mib
from benchmarks.places import Bench
from benchmarks.rows import Row

MEBIBYTES = 1024
PAYLOAD_BYTES = 1_000
_LOG_BYTES = 64 << 20
_LEDGER_BYTES = 32 << 20
_AT_ONCE = 500


def write_disks(folder: Path, mebibytes: int, payload_bytes: int) -> None:
    """Write the disks of one bookie. Each ledger is larger than a commit, and a log contains several ledgers."""
    import struct

    from bookstand.storage.format.digest import digest_for
    from bookstand.storage.format.entry_batch import encode_entries

    current = folder / "bookie-0" / "ledgers" / "current"
    journal = folder / "bookie-0" / "journal" / "current"
    cookie = '5\nbookieHost: "bookie-0"\njournalDir: "journal"\nledgerDirs: "1\\tledgers"\ninstanceId: "i"\n'
    for place in (current, journal):
        place.mkdir(parents=True)
        (place / "VERSION").write_text(cookie)
    (current / "lastMark").write_bytes(bytes(16))
    (journal / "0.txn").write_bytes(struct.pack(">4si", b"BKLG", 6).ljust(512, b"\0"))
    digest = digest_for("crc32c", b"")
    payloads = [os.urandom(payload_bytes)] * _AT_ONCE
    per_ledger = max(_AT_ONCE, _LEDGER_BYTES // payload_bytes // _AT_ONCE * _AT_ONCE)
    written, number, ledger_id, entry_id = 0, 0, 0, 0
    while written < mebibytes << 20:
        with (current / f"{number:x}.log").open("wb") as log:
            log.write(struct.pack(">4siqi", b"BKLO", 1, 0, 0).ljust(1024, b"\0"))
            while log.tell() < _LOG_BYTES and written < mebibytes << 20:
                made = encode_entries(digest, ledger_id, entry_id, entry_id - 1, entry_id * payload_bytes, payloads)
                for _, stored in made.pairs():
                    log.write(struct.pack(">i", len(stored)) + stored)
                    written += len(stored)
                entry_id += _AT_ONCE
                if entry_id >= per_ledger:
                    ledger_id, entry_id = ledger_id + 1, 0
        number += 1


class PeakMemory(threading.Thread):
    """Samples the private memory of this process in the background."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = private_mib()
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, private_mib())

    def stop(self) -> float:
        self._done.set()
        self.join()
        return self.peak - self.before


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(4 * MEBIBYTES << 20)
    for row in rows:
        with place.directory() as folder:
            result = run(folder, MEBIBYTES, PAYLOAD_BYTES)
        note = f"{result['mib']:.0f} MiB in {result['entries']} entries; CPU s: {result['import_seconds']} to import, "
        note += f"{result['open_seconds']} to open, {result['again_seconds']} to import again; on {place.kind}"
        yield Figure(row, result["private_mib"], result["private_mib"], note=note)


def run(folder: Path, mebibytes: int, payload_bytes: int) -> dict[str, float]:
    """Write the disks and import them in separate processes, so that the import starts with little memory."""
    _child("write", folder, mebibytes, payload_bytes)
    result: dict[str, float] = json.loads(_child("import", folder))
    return result


def _child(*arguments: object) -> str:
    command = [sys.executable, "-m", "benchmarks.disk_import", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def import_all(folder: Path) -> dict[str, float]:
    """Import the disks in ``folder / "disks"`` twice; the second import must not change the store."""
    import numpy as np

    import bookstand
    from bookstand.disk.disks import Disks
    from bookstand.disk.importer.run import import_disks

    np.lexsort((np.arange(10), np.arange(10)))  # load its code before memory is measured
    found: dict[str, float] = {}
    with bookstand.open(folder / "store") as store:
        peak = PeakMemory()
        peak.start()
        began = time.process_time()
        with Disks.open([folder / "disks"], folder=folder) as disks:
            found["open_seconds"] = time.process_time() - began
            began = time.process_time()
            report = import_disks(disks, store)
            found["import_seconds"] = time.process_time() - began
            found["private_mib"] = peak.stop()
            began = time.process_time()
            again = import_disks(disks, store)
            found["again_seconds"] = time.process_time() - began
        if again.changed or report.damage or again.entries_there != report.entries:
            raise RuntimeError(f"the import is incomplete: {report.damage}")
    found |= {"ledgers": report.ledgers, "entries": report.entries, "mib": report.bytes / (1 << 20)}
    return {name: round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    what, where, *numbers = sys.argv[1:]
    if what == "write":
        write_disks(Path(where) / "disks", *map(int, numbers))
    else:
        print(json.dumps(import_all(Path(where))))
