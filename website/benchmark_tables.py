"""Tables of benchmarks with the most recently recorded results."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from benchmarks.recorded import recorded
from benchmarks.rows import ROWS, Row
from website.markup import code, table

HEAD = ("row", "what, and against what", "figure", "goal", "", "ours", "baseline")


def benchmarks() -> str:
    """Return a table for each script, with the machine and date of the measurements."""
    results = recorded()
    by_script = groupby(sorted(ROWS, key=lambda row: row.module), key=lambda row: row.module)
    return "\n".join(_script(module, list(rows), results) for module, rows in by_script)


def _script(module: str, rows: list[Row], results: dict[str, dict[str, Any]]) -> str:
    lines = [_line(row, results.get(row.row)) for row in rows]
    return f"### {code(f'benchmarks/{module}.py')}\n\n{table(HEAD, lines)}\n{_conditions(rows, results)}\n"


def _line(row: Row, figure: dict[str, Any] | None) -> tuple[str, ...]:
    what = row.name if row.against == "-" else f"{row.name}; against {row.against}"
    goal = str(row.goal).replace(">= ", "≥\N{NO-BREAK SPACE}").replace("<= ", "≤\N{NO-BREAK SPACE}") if row.goal else ""
    if figure is None:
        return code(row.row), what, "not recorded", goal, "", "", ""
    value = figure["value"]
    if value is None:
        return code(row.row), f"{what} ({figure['note']})", "not measured", goal, "", "", ""
    met = "" if row.goal is None else "met" if row.goal.met(value) else "**missed**"
    note = f" ({figure['note']})" if figure["note"] else ""
    ours, baseline = (_absolute(row, figure, side) for side in ("ours", "baseline"))
    return code(row.row), what + note, f"{_short(value)}\N{NO-BREAK SPACE}{row.unit}", goal, met, ours, baseline


def _absolute(row: Row, figure: dict[str, Any], side: str) -> str:
    """Format an absolute result, with the CPU time if the row is compared by wall time."""
    if figure[side] is None:
        return ""
    text = f"{_short(figure[side])} {row.measured_in}"
    clocks = figure["clocks"].get(side, {})
    if row.measured_in.startswith("wall") and "cpu" in clocks:
        text += f" (CPU {_short(clocks['cpu'])})"
    return text


def _conditions(rows: list[Row], results: dict[str, dict[str, Any]]) -> str:
    loads: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.row in results:
            figure = results[row.row]
            loads.setdefault((figure["at"], figure["machine"], figure["rounds"]), []).append(figure["load"])
    return " ".join(_condition(*setup, measured) for setup, measured in loads.items())


def _condition(at: str, machine: str, rounds: str, loads: list[float]) -> str:
    load = f"{min(loads):g}" if min(loads) == max(loads) else f"{min(loads):g} to {max(loads):g}"
    fewer = " with fewer rounds (`--quick`)" if rounds == "fewer" else ""
    return f"Measured on {at}{fewer}: {machine}, load {load}."


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
