"""What exports take of memory, whatever the size of the store."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit import Program

MIB = 1 << 20

FILL = """
import sys
import bookstand
from bookstand.cursor.config import CursorConfig

with bookstand.open(sys.argv[1], durability="none") as store:
    large = [bytes([number]) * 100_000 for number in range(200)]
    for _ in range(7):
        with store.create_ledger() as writer:
            writer.append_many(large)
    # Many small entries in one ledger, and cursors with more single acknowledgments than any record has room for.
    topic = store.managed_ledger("topic", max_entries_per_ledger=10 ** 6)
    entries = topic.append_entries([b"0123456789" * 4] * 200_000)
    for number in range(10):
        with store.topic("topic").cursor(f"sub-{number}", CursorConfig(flush_interval=1e9)) as cursor:
            cursor.ack_many(entries[0].ledger_id, range(1, len(entries), 2))
            cursor.flush()
"""

EXPORT = """
import json, sys
import bookstand
from benchmarks.disk_import import PeakMemory
from bookstand.disk.exporter.run import export_topics

with bookstand.open(sys.argv[1], read_only=True) as store:
    # What it loads is in memory from now on.
    export_topics(store, sys.argv[2] + "-first", ledgers=[])
    peak = PeakMemory()
    peak.start()
    report = export_topics(store, sys.argv[2], log_bytes=50 << 20)
    private = peak.stop()
print(json.dumps([private, report.bytes, report.cursors, report.logs]))
"""


def test_a_store_is_never_in_memory_as_a_whole(memory_path: Path) -> None:
    with Program(FILL, memory_path / "store") as filling:
        assert filling.finish() == 0
    with Program(EXPORT, memory_path / "store", memory_path / "place") as exporting:
        assert exporting.finish() == 0
    private, size, snapshots, logs = json.loads(exporting.lines[0])
    assert size > 140 * MIB
    assert (snapshots, logs) == (10, 4)
    assert private < 48
