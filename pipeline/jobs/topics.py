"""Topics of many stores, for jobs with one unit for each topic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from bookstand.disk.topics.topics import DiskTopic, topics
from bookstand.errors import BookstandError
from bookstand.managed_ledger.topic_name import fits
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source
from bookstand.proto.expansion import DEFAULT, ExpansionLimits


def each_topic(
    stores: Sequence[str], wanted: Collection[str], problems: list[str], limits: ExpansionLimits = DEFAULT
) -> Iterator[tuple[str, DiskTopic]]:
    """Yield each topic with its store, which is open while its topics are iterated. Damage is added to ``problems`` and
    affects no other topic or store. ``wanted`` selects topics by name, suffix of the name, or pattern."""
    for store in stores:
        try:
            # The job will write to the store. With a damaged free list, that would overwrite pages in use.
            with open_source(DataSource(STORE, (store,), limits=limits), check="structure") as disks:
                for topic in topics(disks):
                    if not wanted or any(fits(topic.name, one) for one in wanted):
                        yield store, topic
                problems += dict.fromkeys(f"store {store}: {one.what}" for one in disks.damage)
        except (BookstandError, OSError) as error:
            problems.append(f"store {store}: {error}")


def is_wanted(cursor: str, wanted: Collection[str]) -> bool:
    """Return True if a cursor matches a name or pattern in ``wanted``, or if ``wanted`` is empty."""
    return not wanted or any(cursor == one or fnmatchcase(cursor, one) for one in wanted)


def missing(wanted: Collection[str], found: Collection[str]) -> list[str]:
    """Problems for the wanted topics that no store has."""
    return [f"topic {one} is in none of the stores" for one in wanted if not any(fits(name, one) for name in found)]
