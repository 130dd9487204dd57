"""Published figures of the time bucket and of PIP-393, compared with measurements: ``python -m benchmarks.published``.

Prints the chapter's table row by row, PIP-393's figures, and additional measurements: random delays, half and a tenth
of the ids, and the published structure in Java in the same run. ``--svg FILE`` draws memory and time against the number
of messages. Memory is the growth of the process's private memory; for Java it is the heap after a collection.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import ROOT, Missing
from benchmarks.time_index import LARGE, ORDERED, PUBLISHED_MIB, RANDOM, alone
from benchmarks.time_index_children import Answer, children
from benchmarks.time_index_work import PER_LEDGER, Work

PICTURE = ROOT / "docs" / "time-index.svg"
MIB = 1 << 20
MB_HEAP = 240.0
PREDICTED_MIB = {(1, 10): 19.1, (4, 10): 19.1, (8, 10): 9.53, (8, 15): 1.55}
PUBLISHED_BUCKETS = {(1, 10): 9_767, (4, 10): 2_443}
TRIPLE_BYTES = 24
SIZES = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000)
JAVA_UP_TO = 10_000_000


class Measured(NamedTuple):
    """Bytes and CPU nanoseconds per message of one candidate."""

    memory: float
    add: float
    drain: float

    @property
    def mib(self) -> float:
        """Memory of 10 M messages in MiB."""
        return self.memory * 10_000_000 / MIB


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument(
        "--svg", metavar="FILE", nargs="?", const=PICTURE, type=Path, help="also draw a picture (docs/)"
    )
    parser.add_argument("--only-svg", action="store_true", help="draw, without printing tables")
    options = parser.parse_args(arguments)
    if not options.only_svg:
        for line in tables():
            print(line, flush=True)
    if options.svg or options.only_svg:
        draw(options.svg or PICTURE)
        print(f"drawn: {options.svg or PICTURE}")
    return 0


@cache
def ours(work: Work) -> Measured:
    """Measure memory with ten times the messages, where single pages do not matter, and times in a separate run."""
    memory = alone("batches", work.sized(LARGE))
    return _measured(alone("batches", work, memory=False, drain="all"), memory)


@cache
def theirs(structure: str, work: Work) -> Measured | Missing:
    """Measure time and memory in a second round, when Java's JIT is warm."""
    with children(f"{structure}-java") as made:
        child = made[f"{structure}-java"]
        if isinstance(child, Missing):
            return child
        child.ask(work)
        answer = child.ask(work, memory=True)
        return _measured(answer, answer)


def _measured(times: Answer, memory: Answer) -> Measured:
    return Measured(
        memory["memory"] / memory["added"],
        times["add_cpu"] / times["added"],
        times["drain_cpu"] / times["drained"],
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def tables() -> Iterator[str]:
    yield from _chapter()
    yield from _pip()
    yield from _unpublished()


def _chapter() -> Iterator[str]:
    yield "The chapter on the time bucket: 10 M messages, 50 000 entries per ledger, MB of 2^20 bytes."
    yield f"The heap of triples: {MB_HEAP:.0f} published, of which {10_000_000 * TRIPLE_BYTES / MIB:.1f} are its longs."
    yield ""
    head = ("x", "y", "published", "predicted", "Java here", "bookstand", "of published", "of the heap", "buckets")
    lines = [(*head, "B/entry: published", "Java", "bookstand")]
    for (per_milli, bits), published in PUBLISHED_MIB.items():
        work = Work("ordered", per_milli, bits)
        mine, java = ours(work), theirs("published", work)
        buckets = f"{work.buckets:,}"
        if (per_milli, bits) in PUBLISHED_BUCKETS:
            buckets += f" ({PUBLISHED_BUCKETS[per_milli, bits]:,} published)"
        lines.append(
            (
                str(per_milli),
                str(bits),
                f"{published:g}",
                f"{PREDICTED_MIB[per_milli, bits]:g}",
                _or(java, "mib"),
                f"{mine.mib:.2f}",
                f"{mine.mib / published:.1%}",
                f"{mine.mib / MB_HEAP:.2%}",
                buckets,
                f"{published * MIB / work.messages:.3f}",
                _or(java, "memory", ".3f"),
                f"{mine.memory:.4f}",
            )
        )
    yield from _aligned(lines)
    yield "The chapter's best is 0.235 B per entry; it predicts 0.163 for large buckets, and 1 bit as the lower limit."
    yield ""
    # A bucket of a second holds 102 entries; here 128.
    day = ours(Work("ordered", per_milli=1, bits=7))
    batches = 24 * 3600 * 10_000 // 100
    heap = batches * TRIPLE_BYTES / MIB
    yield f"A day's delay, 10 000 messages a second in batches of 100: {batches:,} entries."
    yield f"One subscription: {heap:.0f} MB as triples (198 published), {day.memory * batches / MIB:.2f} here; two:"
    yield f"{2 * heap:.0f} (396 published), {2 * day.memory * batches / MIB:.2f} here."
    yield ""


def _pip() -> Iterator[str]:
    yield "PIP-393: N negative acknowledgments; M of them fall into one bucket."
    lines: list[tuple[str, ...]] = [
        ("structure", "bytes/entry: complexity", "1 M", "10 M", "1 h at 10 k/s", "5 h at 10 k/s")
    ]
    lines.append(("HashMap (before #23582)", "-", "178 MB", "1 132 MB", "-", "-"))
    lines.append(("ConcurrentLongLongPairHashMap", "48 to 213", "64 MB", "512 MB", "1.77 GB", "8.88 GB"))
    for what, per_milli, bits, published in (
        ("M < 4096", 1, 8, "4"),
        ("4096 < M < 50 000", 8, 10, f"8192/M = {8192 / (8 << 10):.2f}"),
        ("M > 50 000", 8, 15, "0.163"),
    ):
        work = Work("ordered", per_milli, bits)
        java, mine = theirs("pip393", work), ours(work)
        lines.append(_complexity(f"PIP-393, {what}, in Java here", published, java))
        lines.append(_complexity(f"bookstand, {what}", "-", mine))
    random = ours(RANDOM)
    lines.append(_complexity("bookstand, random delays", "-", random))
    yield from _aligned(lines)
    yield "(x, y) is (1, 8), (8, 10), (8, 15). The PIP gives M as 2**x*y, but means x * 2**y."
    yield ""


def _complexity(name: str, published: str, measured: Measured | Missing) -> tuple[str, ...]:
    if isinstance(measured, Missing):
        return (name, published, *["missing"] * 4)
    sizes = (1_000_000, 10_000_000, 36_000_000, 180_000_000)
    complexity = (
        f"{published}; measured {measured.memory:.3f}" if published != "-" else f"measured {measured.memory:.4f}"
    )
    return (name, complexity, *(f"{measured.memory * size / MIB:.2f} MB" for size in sizes))


def _unpublished() -> Iterator[str]:
    yield f"Not published: 10 M ids, {PER_LEDGER:,} entries per ledger; CPU in nanoseconds per message."
    head = ("workload", "structure", "B/entry", "add ns", "drain ns")
    lines = [head]
    for name, work in (
        ("ordered (8,10)", ORDERED),
        ("half of the ids", Work("ordered", 8, 10, percent=50)),
        ("a tenth of the ids", Work("ordered", 8, 10, percent=10)),
        ("random delay of 0 to 1 h, y=10", RANDOM),
    ):
        for structure, measured in (
            ("bookstand, batches of 10 000", ours(work)),
            ("published, in Java", theirs("published", work)),
            ("PIP-393, in Java", theirs("pip393", work)),
        ):
            lines.append(
                (
                    name,
                    structure,
                    _or(measured, "memory", ".3f"),
                    _or(measured, "add", ".1f"),
                    _or(measured, "drain", ".1f"),
                )
            )
    yield from _aligned(lines)


def _or(measured: Measured | Missing, name: str, form: str = ".2f") -> str:
    return "missing" if isinstance(measured, Missing) else format(getattr(measured, name), form)


def _aligned(lines: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


# -- the picture -------------------------------------------------------------------------------------------------------


def draw(path: Path) -> None:
    """Memory and CPU time against the number of messages."""
    import matplotlib as mpl

    mpl.use("svg")
    # Make the picture reproducible, and store text as text.
    mpl.rcParams.update({"svg.hashsalt": "bookstand", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, (memory, time) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for name, work, color in (("in order (8,10)", ORDERED, "C0"), ("random delay", RANDOM, "C1")):
        lines = {
            f"bookstand, {name}": ("o-", [(size, alone("batches", work.sized(size))) for size in SIZES]),
            f"published, Java, {name}": ("s--", list(_java(work))),
        }
        for label, (style, points) in lines.items():
            sizes = [size for size, _ in points]
            if not sizes:
                continue
            memory.plot(sizes, [answer["memory"] / MIB for _, answer in points], style, label=label, color=color)
            time.plot(sizes, [answer["add_cpu"] / answer["added"] for _, answer in points], style, color=color)
    memory.plot(SIZES, [size * TRIPLE_BYTES / MIB for size in SIZES], ":", label="heap of triples, 24 B", color="0.4")
    memory.plot([10_000_000] * 4, list(PUBLISHED_MIB.values()), "k_", label="published, 10 M, four rows")
    for axes, what in ((memory, "private memory, MiB"), (time, "CPU per message added, ns")):
        axes.set(xscale="log", yscale="log", xlabel="messages", ylabel=what)
        axes.grid(True, which="major", alpha=0.3)
    memory.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def _java(work: Work) -> Iterator[tuple[int, Answer]]:
    with children("published-java") as made:
        child = made["published-java"]
        if isinstance(child, Missing):
            print(f"without Java: {child}", file=sys.stderr)
            return
        child.ask(work.sized(SIZES[0]))
        for size in SIZES:
            if size <= JAVA_UP_TO:
                yield size, child.ask(work.sized(size), memory=True)


if __name__ == "__main__":
    sys.exit(main())
