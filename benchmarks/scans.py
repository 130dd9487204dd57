"""P4: scan of a closed ledger with verified digests, compared with a bare cursor over values of the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import bookstand
from benchmarks.baselines.raw_lmdb import RawLmdb
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, interleave, timed
from benchmarks.places import Bench
from benchmarks.rows import Row

ENTRIES = 200_000
BATCH = 2_000


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory()
    payloads = [number.to_bytes(4) * 32 for number in range(BATCH)]
    with (
        place.directory() as directory,
        closing(RawLmdb(directory)) as bare,
        bookstand.open(directory / "ours") as store,
    ):
        bare.append_batches(bare.stored(payloads), ENTRIES // BATCH)
        with store.create_ledger() as writer:
            for _ in range(ENTRIES // BATCH):
                writer.append_many(payloads)
        reader = store.open_ledger(writer.id)

        def entries() -> None:
            for _entry in reader:
                pass

        def only_payloads() -> None:
            for _payload in reader.payloads():
                pass

        expected = payloads * (ENTRIES // BATCH)
        forms: dict[str, tuple[Callable[[], None], Callable[[], list[bytes]]]] = {
            "P4": (only_payloads, lambda: list(reader.payloads())),
            "P4o": (entries, lambda: [entry.data for entry in reader]),
        }
        candidates: dict[str, Callable[[], Sample]] = {"raw": lambda: timed(bare.scan, ENTRIES)}
        for row in rows:
            scan, collect = forms[row.row]
            if collect() != expected:
                raise RuntimeError(f"{row.row}: the scan returned other entries than were written")
            candidates[row.row] = lambda scan=scan: timed(scan, ENTRIES)
        measured = interleave(candidates, bench.rounds(11, 31))
    for row in rows:
        yield ratio(row, measured[row.row], measured["raw"], f"on {place.kind}")
