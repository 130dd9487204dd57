"""Base class of jobs that inspect each place independently and change nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bookstand.pipeline.execution.unit import JobPlan, Result, Unit
from bookstand.pipeline.tables.sources import DataSource, check_present


@dataclass(frozen=True)
class ReadOnlyJob(ABC):
    """A :class:`bookstand.pipeline.execution.protocol.Job` with one unit for each place. Subclasses define ``name``."""

    places: tuple[DataSource, ...]

    @abstractmethod
    def look(self, name: str, place: DataSource) -> Result:
        """Inspect a place. ``name`` is the name of the unit."""

    def work(self) -> Path | None:
        return None

    def plan(self) -> JobPlan:
        return JobPlan([Unit(place.name, {"place": list(place)}) for place in self.places])

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return {}

    def preview(self) -> Self:
        return self

    def do(self, unit: Unit, folder: Path) -> Result:
        place = DataSource.of(unit.of["place"])
        check_present(place)
        return self.look(unit.name, place)

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return [result for _, result in done]
