"""The topics of many stores, for jobs that plan a unit for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from bookstand.disk.topics import DiskTopic, topics
from bookstand.errors import BookstandError
from bookstand.pipeline.places import STORE, Place, opened


def each_topic(stores: Sequence[str], wanted: Collection[str], problems: list[str]) -> Iterator[tuple[str, DiskTopic]]:
    """With the store that it is in, which is open meanwhile. What cannot be read is added to ``problems``, and costs no
    other topic or store. ``wanted``: only these."""
    for store in stores:
        try:
            with opened(Place(STORE, (store,))) as disks:
                for topic in topics(disks):
                    if not wanted or topic.name in wanted:
                        yield store, topic
                problems += dict.fromkeys(f"store {store}: {one.what}" for one in disks.damage)
        except (BookstandError, OSError) as error:
            problems.append(f"store {store}: {error}")
