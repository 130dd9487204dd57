"""``migrate-cursors``: convert cursors between Pulsar's format and pages with markers.

Tasks do a dry run for every cursor. The commit converts the cursors that are not in the requested format, with
:func:`bookstand.cursor.store.migration.migrate_cursor`. Each conversion is atomic. Thus a job that runs again after an
interruption converts only the remaining cursors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookstand.cursor.store.migration import PAGES, SNAPSHOT, Migration, migrate_cursor
from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.pipeline.execution.unit import JobPlan, Result, Unit
from bookstand.pipeline.jobs.busy_cursors import check_not_held, skip_reason
from bookstand.pipeline.jobs.topics import each_topic, is_wanted, missing
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.store import Store
from bookstand.store import open as open_store


@dataclass(frozen=True)
class MigrateCursors:
    """Job that converts cursors to ``form``: ``"pages"`` or ``"snapshot"``, which Pulsar can read. In the facts of a
    result, ``cursors`` has the :class:`Migration` of each cursor, and ``left`` the reasons for skipped cursors."""

    stores: tuple[str, ...]
    form: str = PAGES
    topics: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()
    take_over: bool = False
    """True to migrate also cursors that other processes may have open."""
    limits: ExpansionLimits = DEFAULT

    name = "migrate-cursors"

    def __post_init__(self) -> None:
        if self.form not in (PAGES, SNAPSHOT):
            raise IncorrectParameterError(f"form must be {PAGES!r} or {SNAPSHOT!r}, not {self.form!r}")

    def work(self) -> None:
        return None

    def plan(self) -> JobPlan:
        units: list[Unit] = []
        problems: list[str] = []
        found: set[str] = set()
        for store, topic in each_topic(self.stores, self.topics, problems, self.limits):
            found.add(topic.name)
            names = [name for name in topic.cursors() if is_wanted(name, self.cursors)]
            if names:
                of = {"store": store, "topic": topic.name, "cursors": names, "form": self.form}
                units.append(Unit(f"{store} {topic.name}", of))
        problems += missing(self.topics, found)
        return JobPlan(units, problems=tuple(problems))

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return {}

    def preview(self) -> MigrateCursors:
        return self

    def do(self, unit: Unit, folder: Path) -> Result:
        with open_store(unit.of["store"], create=False, read_only=True, expansion_limits=self.limits) as store:
            outcome = _Outcome()
            self._migrate(store, unit, unit.of["cursors"], outcome, dry_run=True)
            return outcome.result(unit)

    def _migrate(self, store: Store, unit: Unit, names: Sequence[str], outcome: _Outcome, *, dry_run: bool) -> None:
        name = unit.of["topic"]
        # Opening a topic fences the process that has it open: open it only if there is a cursor to migrate.
        free = names
        if not self.take_over:
            free = outcome.each(names, lambda one: check_not_held(store.storage, name, one, self.limits))
        topics: list[ManagedLedger] = []

        def migrate(cursor: str) -> None:
            if not topics:
                topics.append(store.managed_ledger(name, create=False))
            outcome.migrated[cursor] = migrate_cursor(topics[0], cursor, self.form, dry_run=dry_run)

        outcome.each(free, migrate)
        for topic in topics:
            topic.close()

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return [self._committed(unit, result) for unit, result in done]

    def _committed(self, unit: Unit, result: Result) -> Result:
        outcome = _Outcome.of(result)
        names = [name for name, found in outcome.migrated.items() if found.changed]
        if not names:
            return result
        try:
            with open_store(unit.of["store"], create=False, expansion_limits=self.limits) as store:
                self._migrate(store, unit, names, outcome, dry_run=False)
        except (BookstandError, OSError) as error:
            return Result(unit.name, failure=f"{type(error).__name__}: {error}")
        return outcome.result(unit)


class _Outcome:
    """Migrations of a unit by cursor, including cursors already in the format, and reasons for skipped cursors."""

    def __init__(self) -> None:
        self.migrated: dict[str, Migration] = {}
        self.left: dict[str, dict[str, Any]] = {}

    @classmethod
    def of(cls, result: Result) -> _Outcome:
        found = cls()
        for name, facts in result.facts["cursors"].items():
            found.migrated[name] = Migration(*(facts[field] for field in Migration._fields))
        found.left = dict(result.facts["left"])
        return found

    def each(self, cursors: Sequence[str], do: Callable[[str], object]) -> list[str]:
        """Call ``do`` for each cursor. Return the cursors for which it succeeded; record the others as skipped."""
        good = []
        for name in cursors:
            try:
                do(name)
                good.append(name)
            except BookstandError as error:
                self.migrated.pop(name, None)
                self.left[name] = skip_reason(error)
        return good

    def result(self, unit: Unit) -> Result:
        counts = Counter[str](cursors=0, changed=0, ranges=0, batches=0, pages=0, bytes=0)
        for one in self.migrated.values():
            counts.update(cursors=1, changed=one.changed, ranges=one.ranges, batches=one.batches)
            counts.update(pages=one.pages, bytes=one.bytes)
        problems = tuple(f"cursor {name!r}: {left['why']}" for name, left in self.left.items())
        cursors = {name: {**one._asdict(), "changed": one.changed} for name, one in self.migrated.items()}
        facts = {"cursors": cursors, "left": self.left}
        return Result(unit.name, dict(counts), problems, facts=facts)
