"""P15: memory and costs of a hundred million delayed messages in buckets, compared with one million.

Both sizes use buckets of 200 000 messages (``delayed_delivery_min_index_count_per_bucket``), which is realistic for 500
buckets, and defaults otherwise. Each size runs in its own process, the sizes alternate, and the best round counts.

``python -m benchmarks.delayed_growth`` draws the picture in docs/ for 1, 10 and 100 million.
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
    "idle": "ns/empty poll",
    "restart": "ns/bucket to restart",
}
PICTURE = ROOT / "docs" / "delayed-growth.svg"
# The snapshots take half of this; the rest stays free for other processes.
_BYTES_EACH = 40

RunCosts = dict[str, int]


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    measured, where = costs((SMALL, LARGE), PER_SEAL, bench, bench.rounds(1, 2))
    for row in rows:
        yield (_memory if row.row == "P15" else _growth)(row, measured, f"buckets of {PER_SEAL:,}; on {where}")


def costs(sizes: Sequence[int], per_seal: int, bench: Bench, rounds: int) -> tuple[dict[int, list[RunCosts]], str]:
    """Measure each size in each round. Also returns the kind of place that the store was in."""
    measured: dict[int, list[RunCosts]] = {size: [] for size in sizes}
    place = bench.memory(_BYTES_EACH * max(sizes))
    for _ in range(rounds):
        for size in sizes:
            with place.directory() as folder:
                measured[size].append(_run(folder, size, per_seal))
    return measured, place.kind


def _run(folder: Path, messages: int, per_seal: int) -> RunCosts:
    command = [sys.executable, "-m", "benchmarks.delayed_growth_worker", str(folder), str(messages), str(per_seal)]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return {name: int(value) for name, _, value in (word.partition("=") for word in output)}


def best(measured: Sequence[RunCosts], what: str) -> int:
    return min(run[what] for run in measured)


def _memory(row: Row, measured: dict[int, list[RunCosts]], note: str) -> Figure:
    size = max(measured)
    each = {what: [run[what] / size for run in measured[size]] for what in ("bytes", "bytes_again")}
    again = f"{min(each['bytes_again']):.2f} bytes after a restart"
    return Figure(
        row,
        value=min(each["bytes"]),
        ours=min(each["bytes"]),
        note=f"{again}; {measured[size][0]['buckets']} buckets; {note}",
        rounds={"ours": each},
    )


def _growth(row: Row, measured: dict[int, list[RunCosts]], note: str) -> Figure:
    """Return the figure of the cost that grows most."""
    small, large = min(measured), max(measured)
    figure = Figure(row, value=0)
    notes = []
    for what, unit in COSTS.items():
        one, other = best(measured[small], what), best(measured[large], what)
        notes.append(f"{one:,} -> {other:,} {unit}")
        figure.rounds[what] = {str(size): [float(run[what]) for run in found] for size, found in measured.items()}
        if other / one >= (figure.value or 0):
            figure.value, figure.ours, figure.baseline = other / one, other, one
    figure.note = "; ".join((*notes, note))
    return figure


# -- the picture -------------------------------------------------------------------------------------------------------


def draw(path: Path, sizes: Sequence[int], per_seal: int, bench: Bench) -> None:
    """Memory and costs against the number of messages."""
    import matplotlib as mpl

    mpl.use("svg")
    # Make the picture reproducible, and store text as text.
    mpl.rcParams.update({"svg.hashsalt": "bookstand", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    measured, _ = costs(sizes, per_seal, bench, 1)
    figure, (memory, time) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for what, label in (("bytes", "after adding"), ("bytes_again", "after a restart")):
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
    parser.add_argument("--svg", metavar="FILE", default=PICTURE, type=Path, help="output file (docs/)")
    options = parser.parse_args(arguments)
    draw(options.svg, (SMALL, 10_000_000, LARGE), PER_SEAL, places.bench(False))
    print(f"drawn: {options.svg}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
