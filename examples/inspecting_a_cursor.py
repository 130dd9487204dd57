"""Inspect a cursor: its mark-delete position, acknowledgment holes, state size and history.

``python inspecting_a_cursor.py`` acknowledges messages out of order, prints the cursor, and reads from earlier states.
"""

from __future__ import annotations

import sys
import tempfile

import bookstand


def show(cursor):
    print(f"all entries up to {cursor.mark_delete_position} are acknowledged, and also:")
    for acknowledged in cursor.acked_ranges():
        print(f"  {acknowledged}")
    print(f"backlog: {cursor.backlog}, {cursor.cursor_metadata_size_in_bytes} bytes of state\n")


def main():
    with tempfile.TemporaryDirectory() as path, bookstand.open(path) as store:
        topic = store.topic("events", bookstand.TopicConfig(max_entries_per_ledger=100, trim_consumed=False))
        positions = topic.publish_many(b"event %d" % number for number in range(300))
        cursor = topic.cursor("reader")

        for acknowledged in (positions[:40], positions[60:100:3], positions[120:220], positions[40:60]):
            cursor.ack(acknowledged).result()  # durable as a new state in the cursor ledger
            show(cursor)

        print("history, newest first:")
        print("  marker   mark-delete  acknowledged after    bytes")
        history = cursor.history()
        for state in history:
            print(f"  {state.marker!s:<8} {state.mark_delete!s:<12} {state.acked:>19} {state.size:>7}")

        # Open the cursor in an earlier state, and read from its first unacknowledged entry.
        before, now = history[2], history[0]
        with topic.cursor("reader").open(topic.ledger, "reader", create=False, at_marker=before.marker) as earlier:
            assert earlier.backlog == 300 - 40 - 14
            print(f"\nfirst unacknowledged entry at {before.marker}: {earlier.read(1)[0].position}, now:", end=" ")
        print(cursor.read(1)[0].position)

        changed = cursor.diff(before.marker, now.marker)
        for ledger_id, entries in changed.acked.items():
            print(f"acknowledged since in ledger {ledger_id}: {len(entries)}, {min(entries)} to {max(entries)}")
        assert sum(map(len, changed.acked.values())) == 120
        assert not changed.unacked


if __name__ == "__main__":
    sys.exit(main())
