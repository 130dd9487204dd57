"""``migrate-cursors``: cursors from Pulsar's forms to pages and markers, or back, in stores.

Tasks look at every cursor, and say what it takes; what is in the form already is left alone. The change itself is
:func:`bookstand.cursor.migrating.migrate_cursor`: a cursor has one form or the other, whenever it is stopped, and so
none is migrated twice by a job that runs again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookstand.cursor.migrating import PAGES, SNAPSHOT, migrate_cursor
from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.pipeline.store_topics import each_topic
from bookstand.pipeline.unit import Plan, Result, Unit
from bookstand.store import Store
from bookstand.store import open as open_store


@dataclass(frozen=True)
class MigrateCursors:
    """``form``: ``"pages"``, or ``"snapshot"``, which every reader of Pulsar's understands."""

    stores: tuple[str, ...]
    form: str = PAGES
    topics: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()

    name = "migrate-cursors"

    def __post_init__(self) -> None:
        if self.form not in (PAGES, SNAPSHOT):
            raise IncorrectParameterError(f"cursors have the form {PAGES!r} or {SNAPSHOT!r}, not {self.form!r}")

    def work(self) -> None:
        return None

    def plan(self) -> Plan:
        units: list[Unit] = []
        problems: list[str] = []
        for store, topic in each_topic(self.stores, self.topics, problems):
            names = [name for name in topic.cursors() if not self.cursors or name in self.cursors]
            if names:
                of = {"store": store, "topic": topic.name, "cursors": names, "form": self.form}
                units.append(Unit(f"{store} {topic.name}", of))
        return Plan(units, problems=tuple(problems))

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return {}

    def preview(self) -> MigrateCursors:
        return self

    def do(self, unit: Unit, folder: Path) -> Result:
        with open_store(unit.of["store"], create=False, read_only=True) as store:
            return self._migrate(store, unit, unit.of["cursors"], dry_run=True)

    def _migrate(self, store: Store, unit: Unit, names: Sequence[str], *, dry_run: bool) -> Result:
        topic = store.managed_ledger(unit.of["topic"], create=False)
        counts = Counter[str](cursors=0, changed=0, ranges=0, batches=0)
        problems: list[str] = []
        changed: list[str] = []
        for name in names:
            try:
                found = migrate_cursor(topic, name, self.form, dry_run=dry_run)
            except BookstandError as error:
                problems.append(f"cursor {name!r}: {error}")
                continue
            if found.changed:
                changed.append(name)
            counts.update(cursors=1, changed=found.changed, ranges=found.ranges, batches=found.batches)
        return Result(unit.name, dict(counts), tuple(problems), facts={"changed": changed})

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return [self._committed(unit, result) for unit, result in done]

    def _committed(self, unit: Unit, result: Result) -> Result:
        names: Any = result.facts["changed"]
        if not names:
            return result
        try:
            # A topic is taken over from whoever has it, and so is not opened for nothing.
            with open_store(unit.of["store"], create=False) as store:
                migrated = self._migrate(store, unit, names, dry_run=False)
        except (BookstandError, OSError) as error:
            return Result(unit.name, failure=f"{type(error).__name__}: {error}")
        return result._replace(
            counts={**result.counts, "changed": migrated.counts["changed"]},
            problems=(*result.problems, *migrated.problems),
            facts=migrated.facts,
        )
