"""What a cursor knows: where it stands, the holes beyond, how large its state is, and how it was before.

``python inspecting_a_cursor.py`` acknowledges messages in no order, prints the cursor, and looks back in time.
"""

from __future__ import annotations

import sys
import tempfile

import bookstand


def show(cursor):
    print(f"everything up to {cursor.mark_delete_position} is acknowledged, and beyond:")
    for acknowledged in cursor.acked_ranges():
        print(f"  {acknowledged}")
    print(f"{cursor.backlog} to come, {cursor.cursor_metadata_size_in_bytes} bytes of state\n")


def main():
    with tempfile.TemporaryDirectory() as path, bookstand.open(path) as store:
        topic = store.topic("events", bookstand.TopicConfig(max_entries_per_ledger=100, trim_consumed=False))
        positions = topic.publish_many(b"event %d" % number for number in range(300))
        cursor = topic.cursor("reader")

        for acknowledged in (positions[:40], positions[60:100:3], positions[120:220], positions[40:60]):
            cursor.ack(acknowledged).result()  # durable, and a state of its own in the cursor's ledger
            show(cursor)

        print("its history, newest first:")
        print("  marker   mark-delete  acknowledged beyond   bytes")
        history = cursor.history()
        for state in history:
            print(f"  {state.marker!s:<8} {state.mark_delete!s:<12} {state.acked:>19} {state.size:>7}")

        # Time travel: the cursor as it was, to read what was still to come then.
        before, now = history[2], history[0]
        with topic.cursor("reader").open(topic.ledger, "reader", create=False, at_marker=before.marker) as earlier:
            assert earlier.backlog == 300 - 40 - 14
            print(f"\nat {before.marker} the next to come was {earlier.read(1)[0].position}, now it is", end=" ")
        print(cursor.read(1)[0].position)

        changed = cursor.diff(before.marker, now.marker)
        for ledger_id, entries in changed.acked.items():
            print(f"acknowledged since then in ledger {ledger_id}: {len(entries)}, {min(entries)} to {max(entries)}")
        assert sum(map(len, changed.acked.values())) == 120
        assert not changed.unacked


if __name__ == "__main__":
    sys.exit(main())
