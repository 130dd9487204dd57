"""Reading of messages with a time to live: expired ones are acknowledged instead of returned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.reader import EntryFilter
from bookstand.delivery.message.message_id import position_of
from bookstand.delivery.message.received_message import (
    DecodedEntries,
    MetadataCache,
    ReceivedMessage,
    decode_entries,
    decode_entry,
    decode_entry_runs,
    expires_at,
)
from bookstand.delivery.subscription.delayed_delivery import DelayedDelivery
from bookstand.delivery.subscription.mark_delete_watcher import MarkDeleteWatcher
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.delivery.subscription.stats import Counters
from bookstand.delivery.subscription.unreadable_entries import UnreadableEntries
from bookstand.delivery.time_arguments import to_millis
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.managed_ledger.managed_ledger import UnreadableEntryError
from bookstand.managed_ledger.topic_entries import EntryRun, TopicEntry
from bookstand.storage.format.position import Position

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock


class ExpiringReader:
    """Not thread-safe; callers hold the subscription's lock."""

    def __init__(
        self,
        cursor: Cursor,
        config: Callable[[], SubscriptionConfig],
        clock: Clock,
        states: MessageStates,
        delayed: DelayedDelivery,
        watcher: MarkDeleteWatcher,
        counters: Counters,
        unreadable: UnreadableEntries,
    ) -> None:
        self._cursor = cursor
        self._config = config
        self._clock = clock
        self._states = states
        self._delayed = delayed
        self._watcher = watcher
        self._counters = counters
        self._unreadable = unreadable
        self._metadata_cache: MetadataCache = {}
        self._limits = cursor.topic.client.expansion_limits

    @property
    def _time_to_live(self) -> int | None:
        span = self._config().time_to_live
        return None if span is None else to_millis("time_to_live", span)

    def decode(self, entry: TopicEntry) -> ReceivedMessage:
        """Decode an entry, expired or not."""
        return decode_entry(entry, self._metadata_cache, self._limits)

    def read_positions(self, positions: Iterable[Position]) -> list[ReceivedMessage]:
        """Read the unacknowledged entries among these, without damaged and expired ones."""
        entries = self._cursor.replay(positions, self._unreadable.record)
        return self.without_expired(decode_entries(entries, self._metadata_cache, self._limits).entries)

    def read(
        self, count: int, entry_filter: EntryFilter | None, upto: Position | None = None
    ) -> tuple[DecodedEntries, bool]:
        """Read up to ``count`` intact, unexpired entries up to ``upto``. The second value is False at the end."""
        runs = self._read_runs(count, entry_filter, upto)
        found = decode_entry_runs(runs, self._metadata_cache, self._limits)
        if self._config().time_to_live is None:
            return found, bool(runs)
        return found._replace(entries=self.without_expired(found.entries)), bool(runs)

    def _read_runs(self, count: int, entry_filter: EntryFilter | None, upto: Position | None) -> list[EntryRun]:
        while True:
            try:
                return self._cursor.read_runs(count, entry_filter, upto)
            except UnreadableEntryError as error:
                self._unreadable.record(error)
                self._cursor.seek(error.last.next)

    def unacked(self, entry_filter: EntryFilter, start: Position | None = None) -> Iterator[TopicEntry]:
        """Unacknowledged entries from ``start`` on, without damaged ones. The read position does not change."""
        return self._cursor.unacked(entry_filter, start, self._unreadable.record)

    def without_expired(self, found: list[ReceivedMessage]) -> list[ReceivedMessage]:
        time_to_live = self._time_to_live
        if time_to_live is None:
            return found
        expired = [entry.position for entry in found if self._is_expired(entry, time_to_live)]
        if not expired:
            return found
        self._expire(expired)
        expired_positions = set(expired)
        return [entry for entry in found if entry.position not in expired_positions]

    def expire_all(self) -> int:
        """Acknowledge all expired messages that are not in flight and return their number."""
        time_to_live = self._time_to_live
        if time_to_live is None:
            return 0
        out = set(map(position_of, self._states.unacked.all()))
        expired: list[Position] = []
        for entry in self.unacked(self._delayed.not_delayed):
            read = self.decode(entry)
            if self._is_expired(read, time_to_live):
                if entry.position not in out:
                    expired.append(entry.position)
            elif read.metadata is not None and read.deliver_at is None:
                # Messages that were published later expire later.
                break
        if expired:
            self._expire(expired)
        return len(expired)

    def _is_expired(self, entry: ReceivedMessage, time_to_live: int) -> bool:
        end = expires_at(entry, time_to_live, self._delayed.rescheduled_times.get(entry.position))
        return end is not None and end <= self._clock.now()

    def _expire(self, positions: list[Position]) -> None:
        self._cursor.ack(positions)
        self._counters.expired += len(positions)
        self._watcher.check()
