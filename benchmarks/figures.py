"""Measured rows, and their output as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import Missing, Series
from benchmarks.rows import Row

Measured = Mapping[str, "Series | Missing"]


@dataclass
class Figure:
    """One row with its value. `value` is None if it could not be measured; `note` then contains the reason."""

    row: Row
    value: float | None = None
    ours: float | None = None
    baseline: float | None = None
    note: str = ""
    failed: bool = False
    clocks: dict[str, dict[str, float]] = field(default_factory=dict)
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        """True if the goal is met; None without a goal or a value."""
        if self.row.goal is None or self.value is None:
            return None
        return self.row.goal.met(self.value)

    def as_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "row": row.row,
            "name": row.name,
            "value": _rounded(self.value),
            "unit": row.unit,
            "ours": _rounded(self.ours),
            "baseline": _rounded(self.baseline),
            "against": row.against,
            "goal": None if row.goal is None else str(row.goal),
            "ok": self.ok,
            "measured_in": row.measured_in,
            "clocks": self.clocks,
            "note": self.note,
            "rounds": self.rounds,
        }


def failure(row: Row, reason: str) -> Figure:
    return Figure(row, note=reason, failed=True)


def ratio(row: Row, ours: Series | Missing, baseline: Series | Missing, note: str = "") -> Figure:
    """Compare two series by the clock and unit of `row.measured_in`.

    If the goal is an upper bound, the value is our time over the baseline's. Otherwise it is a speed: the baseline's
    time over ours.
    """
    figure = Figure(row, note=note)
    scale = 1e3 if row.measured_in.split("/")[0].endswith("ms") else 1e6
    clock = "wall" if row.measured_in.startswith("wall") else "cpu"
    medians: dict[str, float] = {}
    for side, series in (("ours", ours), ("baseline", baseline)):
        if isinstance(series, Missing):
            what = row.against if side == "baseline" else "bookstand"
            figure.note = "; ".join(filter(None, (f"missing: {what}: {series}", figure.note)))
            continue
        both = {"cpu": [s.cpu * scale for s in series.samples], "wall": [s.wall * scale for s in series.samples]}
        figure.rounds[side] = {name: [_rounded(v) or 0.0 for v in values] for name, values in both.items()}
        figure.clocks[side] = {"cpu": _rounded(series.cpu * scale) or 0.0, "wall": _rounded(series.wall * scale) or 0.0}
        medians[side] = (series.cpu if clock == "cpu" else series.wall) * scale
    figure.ours = medians.get("ours")
    figure.baseline = medians.get("baseline")
    if figure.ours and figure.baseline:
        cost = row.goal is not None and row.goal.sign == "<="
        figure.value = figure.ours / figure.baseline if cost else figure.baseline / figure.ours
    return figure


def best_of(row: Row, ours: Series, baseline: Series, note: str = "") -> Figure:
    """Like :func:`ratio`, but compare the CPU time of the best rounds."""
    figure = ratio(row, ours, baseline, note)
    scale = 1e3 if row.measured_in.split("/")[0].endswith("ms") else 1e6
    figure.ours, figure.baseline = ours.best_cpu * scale, baseline.best_cpu * scale
    cost = row.goal is not None and row.goal.sign == "<="
    figure.value = figure.ours / figure.baseline if cost else figure.baseline / figure.ours
    return figure


def table(figures: Iterable[Figure]) -> Iterator[str]:
    """Yield the lines of an aligned table."""
    head = ("row", "value", "goal", "ok", "ours", "baseline", "measured in", "what, against, notes")
    lines: list[tuple[str, ...]] = [head]
    for figure in figures:
        row = figure.row
        mark = {True: "ok", False: "MISS", None: "-"}[figure.ok]
        if figure.value is None:
            mark = "failed" if figure.failed else "missing"
        what = f"{row.name} [{row.against}]" if row.against != "-" else row.name
        lines.append(
            (
                row.row,
                f"{_short(figure.value)} {row.unit}" if figure.value is not None else "-",
                str(row.goal) if row.goal else "-",
                mark,
                _with_other_clock(figure, "ours", figure.ours),
                _with_other_clock(figure, "baseline", figure.baseline),
                row.measured_in,
                "; ".join(filter(None, (what, figure.note))),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    for line in lines:
        yield "  ".join([cell.ljust(width) for cell, width in zip(line, widths, strict=False)] + [line[-1]]).rstrip()


def _with_other_clock(figure: Figure, side: str, value: float | None) -> str:
    """Format a value; a row that compares wall times also shows CPU times."""
    if value is None:
        return "-"
    clocks = figure.clocks.get(side)
    if clocks and figure.row.measured_in.startswith("wall"):
        return f"{_short(value)} (CPU {_short(clocks['cpu'])})"
    return _short(value)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
