"""The topics of many stores, for jobs that plan a unit for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from bookstand.disk.topics.topics import DiskTopic, topics
from bookstand.errors import BookstandError
from bookstand.managed_ledger.topic_name import fits
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source


def each_topic(stores: Sequence[str], wanted: Collection[str], problems: list[str]) -> Iterator[tuple[str, DiskTopic]]:
    """With the store that it is in, which is open meanwhile. What cannot be read is added to ``problems``, and costs no
    other topic or store. ``wanted``: only these, by their names, the ends of their names, or patterns."""
    for store in stores:
        try:
            # Whoever asks will write to it: where the list of free pages is damaged, over what is in use.
            with open_source(DataSource(STORE, (store,)), check="structure") as disks:
                for topic in topics(disks):
                    if not wanted or any(fits(topic.name, one) for one in wanted):
                        yield store, topic
                problems += dict.fromkeys(f"store {store}: {one.what}" for one in disks.damage)
        except (BookstandError, OSError) as error:
            problems.append(f"store {store}: {error}")


def is_wanted(cursor: str, wanted: Collection[str]) -> bool:
    """By its name, or a pattern; all are, where none is named."""
    return not wanted or any(cursor == one or fnmatchcase(cursor, one) for one in wanted)


def missing(wanted: Collection[str], found: Collection[str]) -> list[str]:
    """What was asked for and is nowhere, in words."""
    return [f"topic {one} is in none of the stores" for one in wanted if not any(fits(name, one) for name in found)]
