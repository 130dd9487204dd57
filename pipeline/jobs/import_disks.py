"""``import``: import bookies' disks into stores, one for each cluster. Each store is published atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.execution.input_state import place_state
from bookstand.pipeline.execution.publish import Output
from bookstand.pipeline.execution.unit import JobPlan, Result, Unit, fingerprint
from bookstand.pipeline.tables.sources import BOOKIE, DataSource, check_present
from bookstand.store import open as open_store
from bookstand.store import temporary


@dataclass(frozen=True)
class Import:
    """Job that imports clusters. ``clusters`` maps the name of each new store to the bookies of its cluster."""

    clusters: Mapping[str, DataSource]
    output: str
    unlisted: bool = False
    passwords: tuple[bytes, ...] = ()
    looking: bool = False
    """True in a dry run."""

    name = "import"

    def __post_init__(self) -> None:
        Output(self.output)
        for name, place in self.clusters.items():
            if place.kind != BOOKIE:
                raise IncorrectParameterError(f"{place.name} is a {place.kind}, not a bookie's disk")
            if not name or "/" in name or name.startswith((".", "_")):
                raise IncorrectParameterError(f"{name!r} is no name for a store")

    def work(self) -> Path | None:
        return None if self.looking else Output(self.output).attempts()

    def plan(self) -> JobPlan:
        common = {"unlisted": self.unlisted, "passwords": fingerprint([one.hex() for one in self.passwords])}
        return JobPlan(
            [
                Unit(name, {"place": list(place), "state": place_state(place), **common})
                for name, place in self.clusters.items()
            ]
        )

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return Output(self.output).published(units, look_only=self.looking)

    def preview(self) -> Import:
        return replace(self, looking=True)

    def do(self, unit: Unit, folder: Path) -> Result:
        place = self.clusters[unit.name]
        check_present(place)
        room = None if self.looking else folder
        with (
            Disks.open(place.paths, place.metadata, self.passwords, folder=room, limits=place.limits) as disks,
            temporary() if self.looking else open_store(Output.place(folder, unit.name)) as store,
        ):
            report = import_disks(disks, store, unlisted=self.unlisted, dry_run=self.looking)
        counts = {"ledgers": report.ledgers, "entries": report.entries, "bytes": report.bytes, "nodes": report.nodes}
        Output.sync(folder)
        told = [*(str(one) for one in report.damage), *(str(one) for one in report.notes if one.missing)]
        notes = [*(str(one) for one in report.left_out), *(str(one) for one in report.notes if not one.missing)]
        return Result(unit.name, counts, tuple(told), facts={"notes": notes})

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return Output(self.output).publish(done)
