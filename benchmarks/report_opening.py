"""PRopen: time for a browser to load a report. The note contains its size and the CPU time of creating it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks import chromium, report_store
from benchmarks.figures import Figure, failure
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.tools.report.collect import collect
from bookstand.tools.report.page import page
from bookstand.tools.view.targets import open_view


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    (row,) = rows
    if chromium.MISSING is not None:
        yield Figure(row, note=f"missing: {chromium.MISSING}")
        return
    with bench.memory().directory() as folder:
        report_store.make(folder / "store")
        cpu = time.process_time()
        with open_view(str(folder / "store")) as view:
            text = page(collect(view))
        cpu = time.process_time() - cpu
        file = folder / "report.html"
        size = file.write_bytes(text.encode())
        seconds = []
        for _ in range(bench.rounds(3, 9)):
            # Use a new browser each time, with an empty cache.
            with chromium.browser() as browser:
                browser.set_viewport(1280)
                browser.open(file)
                if browser.run("document.querySelectorAll('[data-table=ledgers] tbody tr').length") == 0:
                    yield failure(row, "its tables are empty")
                    return
                seconds.append(browser.seconds_to_load)
    value = statistics.median(seconds)
    note = f"{size / 1e6:.2f} MB, created in {cpu:.1f} s of CPU"
    yield Figure(row, value=value, ours=value, note=note, rounds={"ours": {"wall s": seconds}})
