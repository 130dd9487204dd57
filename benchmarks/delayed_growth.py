"""P15: a hundred million delayed messages on buckets, beside a million: memory of each, and what anything costs.

Settings as one would have them for that many: buckets of 200 000 (``delayed_delivery_min_index_count_per_bucket``), so
that there are 500 of them, and all others as they are. Both sizes have the same. Each is a process of its own, and they
take turns; the best round of each counts.

``python -m benchmarks.delayed_growth`` draws the picture in docs/: 1, 10 and 100 million.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import places
from benchmarks.delayed_growth_worker import AT_A_TIME
from benchmarks.figures import Figure
from benchmarks.measure import ROOT
from benchmarks.places import Bench
from benchmarks.rows import Row

SMALL, LARGE = 1_000_000, 100_000_000
PER_SEAL = 200_000
COSTS = {
    "add": "ns/add",
    "poll": f"ns/poll of {AT_A_TIME}",
    "idle": "ns/poll of nothing",
    "restart": "ns/bucket to begin again",
}
PICTURE = ROOT / "docs" / "delayed-growth.svg"
# Snapshots of that many, and as much again for those who use the machine.
_BYTES_EACH = 40

Told = dict[str, int]


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    measured, where = costs((SMALL, LARGE), PER_SEAL, bench, bench.rounds(1, 2))
    for row in rows:
        yield (_memory if row.row == "P15" else _growth)(row, measured, f"buckets of {PER_SEAL:,}; on {where}")


def costs(sizes: Sequence[int], per_seal: int, bench: Bench, rounds: int) -> tuple[dict[int, list[Told]], str]:
    """What each size came to in each round, and where the store was."""
    measured: dict[int, list[Told]] = {size: [] for size in sizes}
    place = bench.memory(_BYTES_EACH * max(sizes))
    for _ in range(rounds):
        for size in sizes:
            with place.directory() as folder:
                measured[size].append(_run(folder, size, per_seal))
    return measured, place.kind


def _run(folder: Path, messages: int, per_seal: int) -> Told:
    command = [sys.executable, "-m", "benchmarks.delayed_growth_worker", str(folder), str(messages), str(per_seal)]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return {name: int(value) for name, _, value in (word.partition("=") for word in said)}


def best(measured: Sequence[Told], what: str) -> int:
    return min(told[what] for told in measured)


def _memory(row: Row, measured: dict[int, list[Told]], note: str) -> Figure:
    size = max(measured)
    each = {what: [told[what] / size for told in measured[size]] for what in ("bytes", "bytes_again")}
    again = f"{min(each['bytes_again']):.2f} bytes when it begins again"
    return Figure(
        row,
        value=min(each["bytes"]),
        ours=min(each["bytes"]),
        note=f"{again}; {measured[size][0]['buckets']} buckets; {note}",
        rounds={"ours": each},
    )


def _growth(row: Row, measured: dict[int, list[Told]], note: str) -> Figure:
    """The worst of what grows."""
    small, large = min(measured), max(measured)
    figure = Figure(row, value=0)
    told = []
    for what, unit in COSTS.items():
        one, other = best(measured[small], what), best(measured[large], what)
        told.append(f"{one:,} -> {other:,} {unit}")
        figure.rounds[what] = {str(size): [float(said[what]) for said in found] for size, found in measured.items()}
        if other / one >= (figure.value or 0):
            figure.value, figure.ours, figure.baseline = other / one, other, one
    figure.note = "; ".join((*told, note))
    return figure


# -- the picture -------------------------------------------------------------------------------------------------------


def draw(path: Path, sizes: Sequence[int], per_seal: int, bench: Bench) -> None:
    """Memory and costs against the number of messages."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same picture of the same figures, and text that can be read in the file.
    mpl.rcParams.update({"svg.hashsalt": "bookstand", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    measured, _ = costs(sizes, per_seal, bench, 1)
    figure, (memory, time) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for what, label in (("bytes", "while they are added"), ("bytes_again", "begun again")):
        memory.plot(sizes, [best(measured[size], what) / size for size in sizes], "o-", label=label)
    memory.set(xscale="log", ylim=(0, None), xlabel="messages", ylabel="private memory, bytes per message")
    for what, unit in COSTS.items():
        time.plot(sizes, [best(measured[size], what) for size in sizes], "o-", label=unit)
    time.set(xscale="log", yscale="log", xlabel="messages", ylabel="CPU, ns")
    for axes in (memory, time):
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delayed_growth", description="Draw the picture.")
    parser.add_argument("--svg", metavar="FILE", default=PICTURE, type=Path, help="where to (docs/)")
    options = parser.parse_args(arguments)
    draw(options.svg, (SMALL, 10_000_000, LARGE), PER_SEAL, places.bench(False))
    print(f"drawn: {options.svg}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
