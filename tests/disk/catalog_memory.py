"""How much memory it takes to catalogue a generated disk and to read it.

``python -m tests.disk.catalog_memory [MiB] [bytes of a payload]``: every entry is in a journal and in a log. Prints how
much private memory was gained at the most.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bookstand.disk.disks import Disks
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_batch import encode_entries
from tests.disk.made import Bookie

_FILE_BYTES = 16 << 20
_LEDGER_ENTRIES = 20_000


def generate(folder: Path, mebibytes: int, payload_bytes: int) -> int:
    """Writes that many MiB, and tells how many entries there are."""
    bookie = Bookie(folder, "bookie-0")
    digest = digest_for("crc32c", b"")
    payload = bytes(range(256)) * (payload_bytes // 256 + 1)
    total = 0

    def stored() -> Iterator[bytes]:
        nonlocal total
        for ledger_id in range(1 << 30):
            for first in range(0, _LEDGER_ENTRIES, 1000):
                made = encode_entries(
                    digest, ledger_id, first, first - 1, first * payload_bytes, [payload[:payload_bytes]] * 1000
                )
                total += made.count
                yield from (entry for _, entry in made.pairs())

    records = stored()
    per_file = _FILE_BYTES // (payload_bytes + 40)
    for file in range((mebibytes << 20) // _FILE_BYTES // 2):
        some = [next(records) for _ in range(per_file)]
        bookie.journal(file + 1, some)
        # A flush is sorted: the journal's order is another one.
        bookie.log(file, sorted(some))
    return per_file * ((mebibytes << 20) // _FILE_BYTES // 2)


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError("this system does not tell RssAnon")


class Peak(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = private_bytes()
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, private_bytes())

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.peak - self.before


def measure(folder: Path, entries: int) -> dict[str, float]:
    import numpy as np

    np.lexsort((np.arange(10), np.arange(10)))
    peak = Peak()
    peak.start()
    began = time.process_time()
    with Disks.open([folder], folder=folder) as disks:
        opened = time.process_time()
        read = sum(1 for ledger_id in disks.ledger_ids for _ in disks.ledger(ledger_id).entries())
        assert read == entries, (read, entries)
        assert not disks.damage, disks.damage[:3]
    done = time.process_time()
    return {
        "entries": entries,
        "private_mib": round(peak.stop() / (1 << 20), 1),
        "open_seconds": round(opened - began, 2),
        "read_seconds": round(done - opened, 2),
    }


def measured_apart(folder: Path, entries: int) -> dict[str, float]:
    """In a process of its own, that has nothing left over from making the disk."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (folder, entries))


if __name__ == "__main__":
    mebibytes, payload_bytes = (int(given) for given in (sys.argv[1:] + ["256", "1000"][len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        made = generate(Path(folder), mebibytes, payload_bytes)
        print(json.dumps(measured_apart(Path(folder), made)))
