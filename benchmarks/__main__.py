"""Command line of the benchmarks: `python -m benchmarks [ROW...] [--json] [--quick] [--record]`."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from benchmarks import places, recorded, rows
from benchmarks.figures import Figure, failure, table
from benchmarks.rows import Row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure bookstand and its baselines. The exit code is 1 if a row could not be measured.",
    )
    parser.add_argument("rows", metavar="ROW", nargs="*", help="rows to measure, such as P1 or P4o (default: all)")
    parser.add_argument("--json", action="store_true", help='print {"rows": [...]} and nothing else')
    parser.add_argument("--quick", action="store_true", help="fewer rounds of the same sizes")
    parser.add_argument("--record", action="store_true", help="record the figures in docs/benchmarks.json")
    parser.add_argument("--list", action="store_true", help="list the rows without measuring")
    parser.add_argument("--disk", metavar="DIR", help="directory for measurements on disk (build/bench)")
    options = parser.parse_args(arguments)
    try:
        selected = rows.select(options.rows)
    except KeyError as unknown:
        parser.error(f"unknown row {unknown}; the rows are {', '.join(rows.BY_NAME)}")
    if options.list:
        for row in selected:
            goal = str(row.goal) if row.goal else "-"
            print(f"{row.row:14}{goal:8}{row.name} [{row.against}]")
        return 0
    figures = []
    for figure in _measure(selected, places.bench(options.quick, options.disk)):
        figures.append(figure)
        if options.record:
            recorded.record(figure, options.quick)
    order = {row.row: number for number, row in enumerate(selected)}
    figures.sort(key=lambda figure: order[figure.row.row])
    if options.json:
        json.dump({"rows": [figure.as_json() for figure in figures]}, sys.stdout, indent=1)
        print()
    else:
        for line in table(figures):
            print(line)
    return 1 if any(figure.failed for figure in figures) else 0


def _measure(selected: Iterable[Row], bench: places.Bench) -> Iterator[Figure]:
    write = sys.stderr.write
    memory = bench.tmpfs.folder if bench.tmpfs else "no tmpfs"
    disk = f"{bench.disk.folder} ({bench.disk.kind})"
    write(f"Python {platform.python_version()}, {platform.platform()}; {memory}; {disk}\n")
    by_module = sorted(selected, key=lambda row: row.module)
    for name, group in groupby(by_module, key=lambda row: row.module):
        members = list(group)
        write(f"{' '.join(row.row for row in members)} ... ")
        sys.stderr.flush()
        start = time.monotonic()
        measured: set[str] = set()
        try:
            for figure in importlib.import_module(f"benchmarks.{name}").measure(members, bench):
                measured.add(figure.row.row)
                yield figure
        except Exception as error:
            traceback.print_exc()
            for row in members:
                if row.row not in measured:
                    yield failure(row, f"failed: {type(error).__name__}: {error}")
        write(f"{time.monotonic() - start:.0f} s\n")


if __name__ == "__main__":
    sys.exit(main())
