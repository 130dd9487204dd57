"""Topic: publishing of messages, and access to subscriptions and cursors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.nacks import log
from bookstand.delivery.subscription.subscription import Subscription
from bookstand.delivery.time_arguments import Moment, Span, delivery_time
from bookstand.delivery.timer import Alarm, timer_for
from bookstand.delivery.topic_config import TOPIC_WHILE_OPEN, SubscriptionConfig, TopicConfig
from bookstand.delivery.tracker.shared_index import BUILDER, SharedDelayedIndex
from bookstand.errors import (
    BookstandError,
    ExpansionError,
    IllegalOperationError,
    IncorrectParameterError,
    WriteOnReadOnlyError,
)
from bookstand.ledger.validation import as_payload, as_payloads
from bookstand.managed_ledger.message.format import batch_alike, encode_message, encode_messages
from bookstand.proto.expansion import FREE_BYTES, MESSAGE_BYTES
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.cursor.config import CursorConfig
    from bookstand.managed_ledger.managed_ledger import ManagedLedger
    from bookstand.storage.commit.futures import Pending

    class Store(log.Store, Protocol):
        """Methods of a store that a topic uses."""

        def managed_ledger(self, name: str) -> ManagedLedger: ...
        def topic(self, name: str) -> Topic: ...


# Cursors write acknowledgments within a second; the delay lets a trim see them.
_TRIM_AFTER_MILLIS = 1_500


class Topic(ProcessBound):
    """Use ``store.topic(name)``. All methods are thread-safe.

    Spans and moments are milliseconds or ``datetime`` objects. Moments are relative to 1970, by the store's clock.
    """

    def __init__(self, store: Store, name: str, config: TopicConfig | None = None) -> None:
        if config is not None:
            _check_config(config)
        self.name = name
        self.store = store
        self.ledger = ledger = store.managed_ledger(name)
        if config is None:
            # Retain the limits of a managed ledger that is already open.
            config = TopicConfig(
                max_entries_per_ledger=ledger.max_entries_per_ledger,
                max_bytes_per_ledger=ledger.max_bytes_per_ledger,
                max_ledger_age=ledger.max_ledger_age,
            )
        self.config = config
        self._apply_ledger_limits()
        self._clock = self.ledger.client.clock
        self.timer = timer_for(self._clock)
        self._lock = RLock()
        self._cursors: dict[str, Cursor] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._trim_alarm: Alarm | None = None
        self._index: SharedDelayedIndex | None = None
        if not self.ledger.client.read_only:
            if self.config.delayed_delivery_shared_index_enabled:
                self._index = SharedDelayedIndex(self.ledger, self.config, clock=self._clock, timer=self.timer)
            elif BUILDER in self.ledger.cursor_names():
                # The index can be rebuilt from the topic.
                Cursor.discard(self.ledger, BUILDER)

    # -- settings ----------------------------------------------------------------------------------------------------

    def change_config(self, config: TopicConfig) -> None:
        """Replace the settings while the topic is open: all of them, or none if one is rejected.
        :class:`IllegalOperationError` for another ``delayed_delivery_tracker``,
        ``is_delayed_delivery_deliver_at_time_strict`` or ``delayed_delivery_shared_index_enabled``."""
        _check_config(config)
        with self._lock:
            TOPIC_WHILE_OPEN.check(f"topic {self.name}", self.config, config)
            self.config = config
            self._apply_ledger_limits()
            if self._index is not None:
                self._index.change_config(config)
            for subscription in self._subscriptions.values():
                subscription.config_changed()
        self.schedule_trim()

    def _apply_ledger_limits(self) -> None:
        self.ledger.change_options(
            self.config.max_entries_per_ledger, self.config.max_bytes_per_ledger, self.config.max_ledger_age
        )

    @property
    def shared_index(self) -> SharedDelayedIndex | None:
        """The index of delayed messages that all subscriptions share; None if each has its own."""
        return self._index

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self,
        payload: bytes,
        deliver_after: Span | None = None,
        deliver_at: Moment | None = None,
        properties: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Position:
        """Publish a message, durably on return. It is delivered immediately, after ``deliver_after``, or at
        ``deliver_at``.

        ``more``: ``key``, ``event_time``, ``sequence_id``, ``producer_name``, and other fields of Pulsar's
        ``MessageMetadata`` in snake case.
        """
        return self._append(self._encode(payload, deliver_after, deliver_at, properties, more))

    def publish_async(
        self,
        payload: bytes,
        deliver_after: Span | None = None,
        deliver_at: Moment | None = None,
        properties: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Pending:
        """Publish a message without waiting. The Pending is awaitable; its result is the position."""
        pending = self.ledger.append_entry_async(self._encode(payload, deliver_after, deliver_at, properties, more))
        if self._subscriptions:
            pending._completion.when_done(self._notify_subscriptions)
        return pending

    def _encode(
        self,
        payload: bytes,
        deliver_after: Span | None,
        deliver_at: Moment | None,
        properties: Mapping[str, str] | None,
        more: dict[str, Any],
    ) -> bytes:
        now = self._clock.now()
        payload = as_payload(payload)
        entry = encode_message(
            payload,
            publish_time=now,
            deliver_at=delivery_time(deliver_after, deliver_at, now),
            properties=properties,
            compression=self.config.compression,
            **_metadata(more),
        )
        self._check_expansion(entry, len(payload))
        return entry

    @property
    def _unchecked_bytes(self) -> int:
        return min(FREE_BYTES, self.ledger.client.expansion_limits.max_expanded_bytes)

    def _check_expansion(self, entry: bytes, size: int, count: int = 0) -> None:
        """Reject a message of ``size`` bytes, or a batch of ``count``, that this store would not deliver."""
        expanded = count * MESSAGE_BYTES + (size if self.config.compression != "NONE" else 0)
        if expanded <= self._unchecked_bytes:
            return
        try:
            expansion = self.ledger.client.expansion_limits.of(len(entry))
            expansion.take(expanded, f"a batch of {count} messages" if count else "the message")
        except ExpansionError as error:
            raise IncorrectParameterError(f"{error} (ExpansionLimits of the store)") from None

    def publish_many(
        self,
        payloads: Iterable[bytes],
        deliver_after: Span | Iterable[Span | None] | None = None,
        deliver_at: Moment | Iterable[Moment | None] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[Position]:
        """Publish many messages as one entry each, durably on return, in as few commits as possible. Times apply to all
        messages, or are lists with a time or None for each."""
        # Check all payloads before any is added.
        checked = as_payloads(payloads)
        now = self._clock.now()
        times = _delivery_times(deliver_after, deliver_at, now)
        if isinstance(times, list) and len(times) != len(checked):
            raise IncorrectParameterError(
                f"there must be a time for each of {len(checked)} messages, not {len(times)} times"
            )
        entries: Iterable[bytes] = encode_messages(
            checked, publish_time=now, deliver_at=times, properties=properties, compression=self.config.compression
        )
        if self.config.compression != "NONE" and max(map(len, checked), default=0) > self._unchecked_bytes:
            entries = list(entries)
            for entry, payload in zip(entries, checked, strict=True):
                self._check_expansion(entry, len(payload))
        positions = self.ledger.append_entries(entries)
        self._notify_subscriptions()
        return positions

    def publish_batch(
        self,
        payloads: Iterable[bytes],
        deliver_after: Span | None = None,
        deliver_at: Moment | None = None,
        properties: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Position:
        """Publish many messages as one entry, like the batches of Pulsar's producers. They are delivered, acknowledged
        and counted one by one, but redelivered together. ``properties`` apply to each message."""
        now = self._clock.now()
        metadata = _metadata(more)
        checked = as_payloads(payloads)
        entry = batch_alike(
            checked,
            publish_time=now,
            deliver_at=delivery_time(deliver_after, deliver_at, now),
            member_properties=properties,
            compression=self.config.compression,
            **metadata,
        )
        self._check_expansion(entry, sum(map(len, checked)), len(checked))
        return self._append(entry)

    def _append(self, entry: bytes) -> Position:
        try:
            return self.ledger.append_entry(entry)
        finally:
            # The entry may have been added even if the wait was interrupted.
            self._notify_subscriptions()

    def _notify_subscriptions(self) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.notifier.notify()

    # -- reading -----------------------------------------------------------------------------------------------------

    def cursor(self, name: str, config: CursorConfig | None = None, **options: Any) -> Cursor:
        """Open or create a cursor; ``options`` are passed to :meth:`Cursor.open`.

        While it is open, later calls return the same object. A ``config`` then replaces its settings, as
        :meth:`Cursor.change_config` does; None does not change them. ``initial``, ``properties`` and
        ``cursor_properties`` apply only to a new cursor.
        """
        with self._lock:
            cursor = self._cursors.get(name)
            if cursor is None or not cursor.usable:
                self.ledger.check_owned()
                cursor = self._cursors[name] = Cursor.open(self.ledger, name, config, **options)
                return cursor
            self._check_same_cursor(cursor, options)
            subscription = self._subscriptions.get(name)
            if config is not None and subscription is not None and subscription.usable:
                subscription.change_config(replace(subscription.config, cursor=config))
            elif config is not None:
                cursor.change_config(config)
            return cursor

    def reopen_cursor(self, interrupted: Cursor, config: CursorConfig) -> Cursor:
        """Open a cursor again after an interrupted change. Only for its subscription, which holds its own lock; taking
        the topic's lock as well could deadlock."""
        interrupted.close()
        cursor = Cursor.open(self.ledger, interrupted.name, config, create=False)
        self._cursors[interrupted.name] = cursor
        return cursor

    def _check_same_cursor(self, cursor: Cursor, options: Mapping[str, Any]) -> None:
        """Reject options that contradict the open cursor."""
        for name, present in (("at_marker", cursor.at_marker), ("read_only", cursor.read_only)):
            asked = options.get(name) or present
            if asked != present:
                raise IllegalOperationError(
                    f"cursor {cursor.name!r} of topic {self.name} is open with {name}={present!r}, not {asked!r}; "
                    "close it first, or open a second one with Cursor.open"
                )

    def subscription(
        self, name: str, config: SubscriptionConfig | None = None, initial: str = "earliest"
    ) -> Subscription:
        """Open or create a subscription.

        A new one starts with the ``"earliest"`` message, or after the ``"latest"``. ``initial`` does not move an
        existing subscription.

        While it is open, later calls return the same object. A ``config`` then replaces its settings, as
        :meth:`Subscription.change_config` does; None does not change them.
        """
        if config is not None and not isinstance(config, SubscriptionConfig):
            raise IncorrectParameterError(f"config must be a SubscriptionConfig, not {config!r}")
        if initial not in ("earliest", "latest"):
            raise IncorrectParameterError(f"initial must be 'earliest' or 'latest', not {initial!r}")
        self._check_name(name)
        with self._lock:
            if self.ledger.client.read_only:
                raise WriteOnReadOnlyError(f"topic {self.name}: a read-only store has no subscriptions; use cursor()")
            found = self._subscriptions.get(name)
            if found is None or not found.usable:
                cursor = self._cursors.get(name)
                if config is None and cursor is not None and cursor.usable:
                    config = SubscriptionConfig(cursor=cursor.config)
                found = Subscription(self, name, config or SubscriptionConfig(), initial)
                self._subscriptions[name] = found
            elif config is not None:
                found.change_config(config)
            return found

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not name:
            raise IncorrectParameterError(f"name of a subscription must be a non-empty string, not {name!r}")
        if name == BUILDER:
            raise IncorrectParameterError(
                f"name of a subscription must not be {name!r}, which the index of delayed messages uses"
            )

    def subscriptions(self) -> list[str]:
        """Names of all stored subscriptions, open or not."""
        return [name for name in self.ledger.cursor_names() if name != BUILDER]

    def unsubscribe(self, name: str) -> None:
        """Delete a subscription and all its data, readable or not. :class:`NoSuchNodeError` if it does not exist."""
        self._check_name(name)
        with self._lock:
            subscription = self._subscriptions.pop(name, None)
            if subscription is not None:
                subscription.stop()
            nacks = log.nack_name(self.name, name)
            cursor = self._cursors.pop(name, None)
            if cursor is not None and cursor.usable:
                log.delete(self.store, nacks)
                cursor.delete()
            else:
                self.ledger.check_owned()
                log.delete(self.store, nacks)
                Cursor.discard(self.ledger, name)
        self.schedule_trim()

    # -- retention ---------------------------------------------------------------------------------------------------

    def trim(self) -> list[int]:
        """Delete the ledgers that no cursor, redelivery or index of delayed messages needs, and return their ids.
        Nothing is deleted while a stored subscription is not open."""
        with self._lock:
            for cursor in self._cursors.values():
                if cursor.usable and not cursor.read_only:
                    cursor.flush()
            if self._index is not None:
                self._index.trim()
            return self.ledger.trim_consumed()

    def schedule_trim(self) -> None:
        """Delete consumed ledgers in the background soon, if the settings say so."""
        if self._trim_alarm is None and self.config.trim_consumed:
            self._trim_alarm = self.timer.arm(self._clock.now() + _TRIM_AFTER_MILLIS, self._trim_in_background)

    def _trim_in_background(self, _: Alarm) -> None:
        self._trim_alarm = None
        try:
            self.trim()
        except BookstandError as error:
            logger().warning("topic %s: consumed ledgers could not be deleted: %s", self.name, error)

    # -- closing -----------------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """True until the topic is closed, deleted or taken over by another process."""
        return self.ledger.usable

    def close(self) -> None:
        """Write acknowledgments durably, and close the subscriptions, cursors, index and managed ledger."""
        with self._lock:
            self.timer.close()
            closing: list[Callable[[], object]] = [one.stop for one in self._subscriptions.values()]
            if self._index is not None:
                closing.append(self._index.close)
            closing += [cursor.close for cursor in self._cursors.values()]
            _run_all([*closing, self.ledger.close])

    def delete(self) -> None:
        """Delete the topic with all its subscriptions."""
        with self._lock:
            for name in self.subscriptions():
                self.unsubscribe(name)
            if self._index is not None:
                self._index.delete()
            self.timer.close()
            self.ledger.delete()

    def __enter__(self) -> Topic:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}>"


def _check_config(config: object) -> None:
    if not isinstance(config, TopicConfig):
        raise IncorrectParameterError(f"config must be a TopicConfig, not {config!r}")


def _run_all(actions: Iterable[Callable[[], object]]) -> None:
    """Run all actions, even if some fail; raise the first failure."""
    failure: BookstandError | None = None
    for action in actions:
        try:
            action()
        except BookstandError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _metadata(more: dict[str, Any]) -> dict[str, Any]:
    """Rename ``key`` to ``partition_key``, and drop fields that are None."""
    if not more:
        return more
    renamed = {"partition_key" if name == "key" else name: value for name, value in more.items()}
    return {name: value for name, value in renamed.items() if value is not None}


def _delivery_times(
    deliver_after: Span | Iterable[Span | None] | None, deliver_at: Moment | Iterable[Moment | None] | None, now: int
) -> int | list[int | None] | None:
    if deliver_after is None and deliver_at is None:
        return None
    if isinstance(deliver_after, Iterable) and deliver_at is None:
        return [delivery_time(after, None, now) for after in deliver_after]
    if isinstance(deliver_at, Iterable) and deliver_after is None:
        return [delivery_time(None, at, now) for at in deliver_at]
    if isinstance(deliver_after, Iterable) or isinstance(deliver_at, Iterable):
        raise IncorrectParameterError("deliver_after and deliver_at exclude each other: set one of them")
    return delivery_time(deliver_after, deliver_at, now)
