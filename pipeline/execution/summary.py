"""Summary of a job, printed as a text table or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bookstand.pipeline.execution.unit import Result
from bookstand.storage.format.escapes import json_text, visible

_SHOWN = 20


@dataclass
class Summary:
    """Summary of a job. ``before`` has the results that an earlier run has committed. In a dry run, ``results``
    describes the changes that a real run would make."""

    job: str
    dry_run: bool
    units: int
    before: list[Result] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    problems: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.failure is not None]

    @property
    def ok(self) -> bool:
        """True if every unit succeeded and no damage was found."""
        return not self.failed and not self.problems and not any(result.problems for result in self.results)

    @property
    def counts(self) -> dict[str, int]:
        """Sums of the counts of all units."""
        total: Counter[str] = Counter()
        for result in self.results:
            total.update(result.counts)
        return dict(total)

    def as_dict(self) -> dict[str, Any]:
        """The document that ``--json`` prints."""
        return {
            "job": self.job,
            "dry_run": self.dry_run,
            "ok": self.ok,
            "units": self.units,
            "done": len(self.results) - len(self.failed),
            "done_before": [result.unit for result in self.before],
            "failed": [{"unit": result.unit, "why": result.failure} for result in self.failed],
            "counts": self.counts,
            "problems": [
                *({"unit": None, "what": what} for what in self.problems),
                *({"unit": one.unit, "what": what} for one in self.results for what in one.problems),
            ],
            "results": [
                {"unit": result.unit, "counts": result.counts, "facts": result.facts}
                for result in self.results
                if result.failure is None
            ],
            "facts": self.facts,
        }

    def to_json(self) -> str:
        return json_text(self.as_dict(), indent=2)

    def lines(self) -> Iterator[str]:
        """Lines of the text summary. Needs no optional packages."""
        done = len(self.results) - len(self.failed)
        would = "would be done" if self.dry_run else "done"
        yield f"{self.job}: {done} of {self.units} units {would}" + (
            f", {len(self.before)} were done before" if self.before else ""
        )
        if self.counts:
            yield ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in self.counts.items())
        yield from _table([result for result in self.results if result.failure is None])
        for result in self.failed:
            yield f"failed: {result.unit}: {result.failure}"
        for what in self.problems:
            yield f"problem: {what}"
        for result in self.results:
            yield from (f"problem: {result.unit}: {what}" for what in result.problems)

    def __str__(self) -> str:
        return "\n".join(map(visible, self.lines()))


def _table(results: list[Result]) -> Iterator[str]:
    """Table with one line for each unit, largest first."""
    if not results:
        return
    names = list(dict.fromkeys(name for result in results for name in result.counts))
    ordered = sorted(results, key=lambda result: (-sum(result.counts.values()), result.unit))
    rows = [["UNIT", *(name.replace("_", " ").upper() for name in names)]]
    rows += [[one.unit, *(f"{one.counts.get(name, 0):,}" for name in names)] for one in ordered[:_SHOWN]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
    if len(ordered) > _SHOWN:
        yield f"… and {len(ordered) - _SHOWN} more"
