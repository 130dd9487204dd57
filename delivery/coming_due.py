"""The second place that messages come from: delayed ones whose time has come, which the tracker knows."""

from __future__ import annotations

from bookstand.delivery.delayed import Delayed
from bookstand.delivery.living import Living
from bookstand.delivery.portions import Portions
from bookstand.delivery.received import Portion
from bookstand.delivery.whereabouts import Whereabouts
from bookstand.errors import BookstandError


class ComingDue:
    """A :class:`~bookstand.delivery.gathering.Source`."""

    def __init__(self, delayed: Delayed, where: Whereabouts, living: Living, portions: Portions) -> None:
        self._delayed = delayed
        self._where = where
        self._living = living
        self._portions = portions

    @property
    def has_some(self) -> bool:
        return self._delayed.tracker.has_message_available()

    def take(self, most: int) -> list[Portion]:
        found: list[Portion] = []
        # Mostly nothing is due, and asking costs less than looking.
        if not self.has_some:
            return found
        where = self._where
        while len(found) < most and (positions := self._delayed.tracker.pop_due(most - len(found))):
            where.reach(positions)
            wanted = [position for position in positions if position not in where]
            try:
                entries = self._living.at(wanted)
                entries.sort(key=lambda entry: (entry.deliver_at or 0, entry.position))
                found += self._portions.of(entries)
            except BookstandError:
                where.again.add(wanted)
                if not found:
                    raise
                break
        return found
