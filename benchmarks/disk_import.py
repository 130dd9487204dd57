"""What it takes to import bookies' disks: private memory, processor time.

``python -m benchmarks.disk_import [MiB] [bytes of a payload] [folder]`` writes disks of one bookie that hold so much in
entry logs, imports them into a new store, and prints one JSON object. The disks and the store lie in ``folder``, by
default in memory where there is such a place; both are removed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.measure import ROOT, private_mib

_LOG_BYTES = 64 << 20
_LEDGER_BYTES = 32 << 20
_AT_ONCE = 500


def write_disks(folder: Path, mebibytes: int, payload_bytes: int) -> None:
    """One bookie below ``folder``. Each ledger is larger than a commit, and several of them are in a log."""
    import struct

    from bookstand.storage.batch import encode_entries
    from bookstand.storage.digest import digest_for

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
                for stored in made.stored:
                    log.write(struct.pack(">i", len(stored)) + stored)
                    written += len(stored)
                entry_id += _AT_ONCE
                if entry_id >= per_ledger:
                    ledger_id, entry_id = ledger_id + 1, 0
        number += 1


class Peak(threading.Thread):
    """Looks at this process's private memory while something else is done."""

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


def measure(folder: Path) -> dict[str, float]:
    """Import what is below ``folder / "disks"``, and import it again."""
    import numpy as np

    import bookstand
    from bookstand.disk.disks import Disks
    from bookstand.disk.importing import import_disks

    np.lexsort((np.arange(10), np.arange(10)))  # whose code is in memory from now on
    found: dict[str, float] = {}
    with bookstand.open(folder / "store") as store:
        peak = Peak()
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
            raise RuntimeError(f"that was no whole import: {report.damage}")
    found |= {"ledgers": report.ledgers, "entries": report.entries, "mib": report.bytes / (1 << 20)}
    return {name: round(value, 2) for name, value in found.items()}


def run(mebibytes: int, payload_bytes: int, folder: str | None = None) -> dict[str, float]:
    """Disks are written by a process of their own, so that the one that imports begins small."""
    if folder is None and os.access("/dev/shm", os.W_OK):
        folder = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="bookstand-import-", dir=folder) as place:
        _child("write", place, str(mebibytes), str(payload_bytes))
        told: dict[str, float] = json.loads(_child("measure", place))
    return told


def _child(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.disk_import", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["write"]:
        write_disks(Path(arguments[1]) / "disks", int(arguments[2]), int(arguments[3]))
    elif arguments[:1] == ["measure"]:
        print(json.dumps(measure(Path(arguments[1]))))
    else:
        mebibytes, payload_bytes = (int(given) for given in (*arguments[:2], *("1024", "1000")[len(arguments[:2]) :]))
        print(json.dumps(run(mebibytes, payload_bytes, *arguments[2:3])))


if __name__ == "__main__":
    main(sys.argv[1:])
