"""P5, P6, P7 and P19: time and memory of the time index, compared with the published structure.

The published structure is time bucket -> ledger -> Roaring64Bitmap, with one add per message, as in the chapter on the
time bucket. It is measured in Java in the same run, or in Python without Java. Java's CPU time is that of the adding
thread alone, its memory that of the heap after a collection; ours are those of the whole process.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.figures import Figure
from benchmarks.measure import Missing, Sample, Series, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row
from benchmarks.time_index_children import Answer, Child, children
from benchmarks.time_index_work import Work

ORDERED = Work("ordered", per_milli=8, bits=10)
RANDOM = Work("random", per_milli=10, bits=10)
PUBLISHED_MIB = {(1, 10): 25.0, (4, 10): 20.48, (8, 10): 11.0, (8, 15): 2.25}
"""Memory of 10 M messages, by messages per millisecond and bits."""
LARGE = 100_000_000
SMALL = 1_000_000
DUE = 100_000
JAVA = "published-java"
PYTHON = "published"

_MIB = 1 << 20
_ADDING = {"P5": "batches", "P5h": "handles", "P5a": "singles"}


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    named = {row.row: row for row in rows}
    ordered = [row for name, row in named.items() if name in (*_ADDING, "P6d")]
    if ordered:
        yield from _ordered(ordered, bench.rounds(3, 7))
    if "P6" in named:
        yield _random(named["P6"], bench.rounds(3, 5))
    if "P6m" in named:
        yield _random_memory(named["P6m"], bench.rounds(1, 3))
    if "P7" in named:
        yield published_table(named["P7"], bench.rounds(1, 3))
    if "P19" in named:
        yield _growth(named["P19"], bench.rounds(3, 5))


# -- rounds ------------------------------------------------------------------------------------------------------------


def _adds(answer: Answer) -> Sample:
    return Sample(answer["add_cpu"] / answer["added"] / 1e9, answer["add_wall"] / answer["added"] / 1e9)


def _drains(answer: Answer) -> Sample:
    return Sample(answer["drain_cpu"] / answer["drained"] / 1e9, answer["drain_wall"] / answer["drained"] / 1e9)


def take_turns(work: Work, rounds: int, *candidates: str) -> tuple[dict[str, Series | Missing], dict[str, Series]]:
    """Measure adding and draining in alternating rounds. All candidates must drain the same messages."""
    drained: dict[str, Series] = {candidate: Series() for candidate in candidates}
    seen: dict[str, set[tuple[int, int]]] = {}
    with children(*candidates) as made:

        def once(candidate: str, child: Child | Missing) -> Sample:
            if isinstance(child, Missing):
                raise child
            answer = child.ask(work)
            seen.setdefault(candidate, set()).add((answer["drained"], answer["checksum"]))
            drained[candidate].samples.append(_drains(answer))
            return _adds(answer)

        turns: dict[str, Callable[[], Sample]] = {
            candidate: lambda candidate=candidate, child=child: once(candidate, child)  # type: ignore[misc]
            for candidate, child in made.items()
        }
        added = interleave(turns, rounds)
    if len(set().union(*seen.values())) > 1:
        raise RuntimeError(f"the candidates drained different messages: {seen}")
    for series in drained.values():
        # Drop the warm-up round, like interleave() does for adding.
        del series.samples[:1]
    return added, drained


def _baseline(added: Mapping[str, Series | Missing]) -> tuple[str, str]:
    """Return the candidate for the published structure, and a note about it."""
    java = added[JAVA]
    if isinstance(java, Missing):
        return PYTHON, f"missing: Java ({java}); against the same structure in Python"
    return JAVA, ""


def _series(found: Series | Missing) -> Series:
    if isinstance(found, Missing):
        raise found
    return found


# -- time --------------------------------------------------------------------------------------------------------------


def _ordered(rows: list[Row], rounds: int) -> Iterator[Figure]:
    ours = sorted({_ADDING.get(row.row, "batches") for row in rows})
    added, drained = take_turns(ORDERED, rounds, *ours, *_published())
    published, note = _baseline(added)
    for row in rows:
        if row.row == "P6d":
            yield _speed(row, drained["batches"], drained[published], note)
        else:
            yield _speed(row, _series(added[_ADDING[row.row]]), _series(added[published]), note)


def _random(row: Row, rounds: int) -> Figure:
    added, _ = take_turns(RANDOM, rounds, "batches", *_published())
    published, note = _baseline(added)
    return _speed(row, _series(added["batches"]), _series(added[published]), note)


def _published() -> tuple[str, ...]:
    with children(JAVA) as made:
        return (JAVA, PYTHON) if isinstance(made[JAVA], Missing) else (JAVA,)


def _speed(row: Row, ours: Series, published: Series, note: str) -> Figure:
    figure = Figure(row, note=note)
    for side, series in (("ours", ours), ("baseline", published)):
        cpu = [round(sample.cpu * 1e9, 3) for sample in series.samples]
        wall = [round(sample.wall * 1e9, 3) for sample in series.samples]
        figure.rounds[side] = {"cpu": cpu, "wall": wall}
        figure.clocks[side] = {"cpu": statistics.median(cpu), "wall": statistics.median(wall)}
    figure.ours, figure.baseline = ours.cpu * 1e9, published.cpu * 1e9
    figure.value = figure.baseline / figure.ours
    return figure


# -- memory ------------------------------------------------------------------------------------------------------------


def alone(candidate: str, work: Work, *, memory: bool = True, drain: str = "none") -> Answer:
    """Measure one round in a separate process, with memory growth (which makes the clocks coarser)."""
    with children(candidate) as made:
        child = made[candidate]
        if isinstance(child, Missing):
            raise child
        return child.ask(work, memory=memory, drain=drain)


def _random_memory(row: Row, rounds: int) -> Figure:
    baseline, note = JAVA, ""
    if JAVA not in (published := _published()) or PYTHON in published:
        baseline, note = PYTHON, "missing: Java; against the same structure in Python"
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(alone("batches", RANDOM)["memory"] / _MIB)
        theirs.append(alone(baseline, RANDOM)["memory"] / _MIB)
    figure = Figure(row, note=note, ours=statistics.median(ours), baseline=statistics.median(theirs))
    figure.value = statistics.median(theirs) / statistics.median(ours)
    figure.rounds = {"ours": {"MiB": ours}, "baseline": {"MiB": theirs}}
    return figure


def published_table(row: Row, rounds: int) -> Figure:
    """Compare with the published table, and return the worst row. Measured with LARGE messages, scaled to 10 M."""
    figure = Figure(row, value=0)
    notes = []
    for (per_milli, bits), published in PUBLISHED_MIB.items():
        work = Work("ordered", per_milli, bits)
        measured = [
            alone("batches", work.sized(LARGE))["memory"] / _MIB / (LARGE / work.messages) for _ in range(rounds)
        ]
        ours = statistics.median(measured)
        figure.rounds[f"({per_milli},{bits})"] = {"MiB of 10 M": measured}
        notes.append(f"({per_milli},{bits}): {ours:.2f} of {published:g}")
        if ours / published >= (figure.value or 0):
            figure.value, figure.ours, figure.baseline = ours / published, ours, published
    figure.note = "; ".join(notes)
    return figure


# -- growth ------------------------------------------------------------------------------------------------------------


def _growth(row: Row, rounds: int) -> Figure:
    """Compare the costs per message of LARGE and SMALL: adding, memory, and draining the first DUE messages."""
    figure = Figure(row, value=0)
    notes = []
    for work in (ORDERED, RANDOM):
        costs: dict[int, list[dict[str, float]]] = {SMALL: [], LARGE: []}
        for _ in range(rounds):
            for size, measured in costs.items():
                answer = alone("batches", work.sized(size), memory=False, drain=str(DUE))
                measured.append(
                    {
                        "add ns": answer["add_cpu"] / size,
                        "bytes": answer["reported"] / size,
                        "drain ns": answer["drain_cpu"] / answer["drained"],
                    }
                )
        for what in ("add ns", "bytes", "drain ns"):
            small, large = (statistics.median(one[what] for one in costs[size]) for size in (SMALL, LARGE))
            notes.append(f"{work.workload} {what} {small:.3g} -> {large:.3g}")
            figure.rounds[f"{work.workload} {what}"] = {
                str(size): [one[what] for one in measured] for size, measured in costs.items()
            }
            if large / small >= (figure.value or 0):
                figure.value, figure.ours, figure.baseline = large / small, large, small
    figure.note = "; ".join(notes)
    return figure
