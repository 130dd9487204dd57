"""``python -m bookstand.demo``: kill a writer in the middle, and compare what was confirmed with what survived.

Exit code 1 if an entry that was confirmed is missing or has other bytes, or if the store does not verify.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from threading import Thread
from time import monotonic

import bookstand
from bookstand.errors import BookstandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import NamedTuple

    class Row(NamedTuple):
        """What became of one ledger."""

        ledger_id: int
        writer: str
        found: str
        confirmed: int
        survived: int
        missing: int
        wrong: int

else:
    Row = namedtuple("Row", ["ledger_id", "writer", "found", "confirmed", "survived", "missing", "wrong"])

WRITERS = 4
ENTRIES = 500
# Confirmations, in each ledger and in all, after which the writing process is killed.
KILL_AFTER_EACH = 25
KILL_AFTER_ALL = 1_000
# Entries that one of the killed threads hands over at a time; the others append one by one.
BATCH = 50

HEADINGS = ("ledger", "written by", "found", "confirmed", "survived", "missing", "wrong")


def payload(ledger_id: int, entry_id: int) -> bytes:
    """What an entry holds; no two are equal."""
    return b"entry %d of ledger %d. " % (entry_id, ledger_id) * (1 + entry_id % 20)


def main() -> int:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="bookstand-demo-") as folder:
        path = os.path.join(folder, "store")
        started = monotonic()
        print(f"bookstand {bookstand.__version__}, a store in {path}\n")
        print(f"1. {WRITERS} threads write {ENTRIES:,} entries each, and close their ledgers.")
        with bookstand.open(path) as store:
            confirmed = write_and_close(store)
        written_by = dict.fromkeys(confirmed, "a thread")
        print(f"2. {WRITERS} threads of another process append, and tell of each entry that was confirmed.")
        print("   The process is killed with SIGKILL while they do.")
        killed = write_and_be_killed(path)
        written_by |= dict.fromkeys(killed, "the killed process")
        confirmed |= killed
        print("3. The store is opened again, and every ledger recovered, read and verified.\n")
        with bookstand.open(path, create=False) as store:
            rows = [examine(store, ledger_id, written_by[ledger_id], confirmed[ledger_id]) for ledger_id in confirmed]
            report = store.verify()
        print(table(rows))
        print(f"\nverify: {len(report.problems)} problems in {report.ledgers} ledgers, {report.entries:,} entries")
        for problem in report.problems:
            print(f"  {problem.message}")
        print()
        return conclude(rows, report.ok, monotonic() - started)


def write_and_close(store: bookstand.Store) -> dict[int, int]:
    """Ledgers written by threads: the number of entries by ledger id."""
    ledgers = [store.create_ledger() for _ in range(WRITERS)]

    def write(number: int) -> None:
        with ledgers[number] as ledger:
            for entry_id in range(ENTRIES):
                ledger.append(payload(ledger.id, entry_id))

    in_threads(write)
    return {ledger.id: ENTRIES for ledger in ledgers}


def write_and_be_killed(path: str) -> dict[int, int]:
    """Have another process write, and kill it: the number of entries by ledger id that it said were confirmed."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "bookstand.demo", "write", path], stdout=subprocess.PIPE, text=True
    )
    confirmed: dict[int, int] = {}
    try:
        assert writer.stdout is not None
        # What lies in the pipe when the process dies was confirmed as well: read on to its end.
        for line in writer.stdout:
            ledger_id, last_entry = map(int, line.split())
            confirmed[ledger_id] = last_entry + 1
            if enough(list(confirmed.values())):
                writer.kill()
    finally:
        writer.kill()
        writer.wait()
        if writer.stdout is not None:
            writer.stdout.close()
    if not confirmed:
        raise SystemExit("the writing process ended before it had written anything")
    return dict(sorted(confirmed.items()))


def enough(confirmed: Sequence[int]) -> bool:
    return len(confirmed) == WRITERS and min(confirmed) >= KILL_AFTER_EACH and sum(confirmed) >= KILL_AFTER_ALL


def write_until_killed(path: str) -> int:
    """The other process. A line on its standard output says that a ledger's entries are confirmed up to there."""
    store = bookstand.open(path, create=False)

    def write(number: int) -> None:
        ledger = store.create_ledger()
        while True:
            next_entry = ledger.last_add_pushed + 1
            if number:
                last = ledger.append(payload(ledger.id, next_entry))
            else:
                batch = range(next_entry, next_entry + BATCH)
                last = ledger.append_many(payload(ledger.id, entry_id) for entry_id in batch)[-1]
            try:
                os.write(1, b"%d %d\n" % (ledger.id, last))
            except BrokenPipeError:
                return

    in_threads(write)
    return 0


def in_threads(work: Callable[[int], None]) -> None:
    threads = [Thread(target=work, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def examine(store: bookstand.Store, ledger_id: int, writer: str, confirmed: int) -> Row:
    """Recover a ledger, and compare its entries with what was confirmed."""
    found = store.ledger_metadata(ledger_id).state
    right = set()
    survived = wrong = 0
    try:
        for entry in store.open_ledger(ledger_id):
            survived += 1
            if entry.data == payload(ledger_id, entry.entry_id):
                right.add(entry.entry_id)
            else:
                wrong += 1
    except BookstandError as error:
        print(f"ledger {ledger_id}: {error}")
    missing = len(set(range(confirmed)) - right)
    return Row(ledger_id, writer, found, confirmed, survived, missing, wrong)


def table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *(tuple(f"{value:,}" if isinstance(value, int) else value for value in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]

    def aligned(line: Iterable[str]) -> str:
        # The two columns of words to the left, numbers to the right.
        cells = enumerate(zip(line, widths, strict=True))
        return "  ".join(
            cell.ljust(width) if column in (1, 2) else cell.rjust(width) for column, (cell, width) in cells
        )

    return "\n".join([aligned(lines[0]), aligned("-" * width for width in widths), *map(aligned, lines[1:])])


def conclude(rows: Sequence[Row], verified: bool, seconds: float) -> int:
    """Say in one line what came of it; the exit code."""
    confirmed = sum(row.confirmed for row in rows)
    missing = sum(row.missing for row in rows)
    wrong = sum(row.wrong for row in rows)
    more = sum(row.survived for row in rows) - confirmed
    if missing or wrong or not verified:
        state = "verifies" if verified else "does not verify"
        print(
            f"FAILED: {missing:,} of {confirmed:,} confirmed entries are missing, {wrong:,} wrong; the store {state}."
        )
        return 1
    print(
        f"OK: all {confirmed:,} confirmed entries are there, {more:,} more survived unconfirmed; "
        f"nothing is wrong. ({seconds:.1f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(write_until_killed(sys.argv[2]) if sys.argv[1:2] == ["write"] else main())
