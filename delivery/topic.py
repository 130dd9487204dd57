"""A topic as its users see it: where messages are published, and who is subscribed."""

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
        """What a topic needs of a store."""

        def managed_ledger(self, name: str) -> ManagedLedger: ...
        def topic(self, name: str) -> Topic: ...


# Acknowledgments are written a second after they came at the latest; then ledgers may go.
_TRIM_AFTER_MILLIS = 1_500


class Topic(ProcessBound):
    """Use ``store.topic(name)``. All methods may be called from any thread.

    Spans and moments are milliseconds, or ``datetime``'s; moments count from 1970, by the store's clock.
    """

    def __init__(self, store: Store, name: str, config: TopicConfig | None = None) -> None:
        if config is not None:
            _check_config(config)
        self.name = name
        self.store = store
        self.ledger = ledger = store.managed_ledger(name)
        if config is None:
            # The managed ledger may be open already: then its limits stay as they are.
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
                # The topic itself has what the former shared index held.
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
        """The index of delayed messages, where all subscriptions share one."""
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
        """Add a message; durable on return. It is delivered at once, or after a while, or at a time.

        ``more``: ``key``, ``event_time``, ``sequence_id``, ``producer_name``, and whatever else Pulsar's
        ``MessageMetadata`` has, by its name in snake case.
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
        """The same; the Pending's result is the position, and it can be awaited."""
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
        """Reject what the same store would refuse to deliver: a payload of ``size`` bytes, a batch of ``count``."""
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
        """Many messages, an entry each, the fast way: durable on return, in as few commits as may be. Times are for
        all, or one for each, where None is none."""
        # A wrong one among them is found before any is added.
        checked = as_payloads(payloads)
        now = self._clock.now()
        times = _delivery_times(deliver_after, deliver_at, now)
        if isinstance(times, list) and len(times) != len(checked):
            raise IncorrectParameterError(f"there are {len(times)} times for {len(checked)} messages")
        entries: Iterable[bytes] = encode_messages(
            checked,
            publish_time=now,
            deliver_at=times,
            properties=properties,
            compression=self.config.compression,
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
        """Many messages in one entry, as Pulsar's producers batch them: they are delivered, acknowledged and counted
        one by one, and come again together. Properties are those of each."""
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
            # Also where an interruption ends the waiting: it may be there.
            self._notify_subscriptions()

    def _notify_subscriptions(self) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.notifier.notify()

    # -- reading -----------------------------------------------------------------------------------------------------

    def cursor(self, name: str, config: CursorConfig | None = None, **options: Any) -> Cursor:
        """The cursor of that name, opened or made; ``options`` are those of :meth:`Cursor.open`.

        While it is open, later calls return the same object. A ``config`` given then replaces its settings, as
        :meth:`Cursor.change_config` does, and None leaves them as they are. ``initial``, ``properties`` and
        ``cursor_properties`` are those of a new cursor, and do not change one that exists.
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
        """Open a cursor again that was interrupted in a change. For its subscription, whose lock is held, and which may
        be waited for with the topic's."""
        interrupted.close()
        cursor = Cursor.open(self.ledger, interrupted.name, config, create=False)
        self._cursors[interrupted.name] = cursor
        return cursor

    def _check_same_cursor(self, cursor: Cursor, options: Mapping[str, Any]) -> None:
        """Reject options that ask for another cursor than the one that is open."""
        for name, present in (("at_marker", cursor.at_marker), ("read_only", cursor.read_only)):
            asked = options.get(name) or present
            if asked != present:
                raise IllegalOperationError(
                    f"cursor {cursor.name!r} of topic {self.name} is open with {name}={present!r}, not {asked!r}; "
                    "close it first, or use Cursor.open, which opens another beside it"
                )

    def subscription(
        self, name: str, config: SubscriptionConfig | None = None, initial: str = "earliest"
    ) -> Subscription:
        """The subscription of that name, opened or made.

        A new one begins with the ``"earliest"`` message, or the ``"latest"``: the next to be published. ``initial``
        does not move a subscription that exists.

        While it is open, later calls return the same object. A ``config`` given then replaces its settings, as
        :meth:`Subscription.change_config` does, and None leaves them as they are.
        """
        if config is not None and not isinstance(config, SubscriptionConfig):
            raise IncorrectParameterError(f"config must be a SubscriptionConfig, not {config!r}")
        if initial not in ("earliest", "latest"):
            raise IncorrectParameterError(f"initial must be 'earliest' or 'latest', not {initial!r}")
        self._check_name(name)
        with self._lock:
            if self.ledger.client.read_only:
                raise WriteOnReadOnlyError(f"topic {self.name}: a store opened read-only has cursors, no subscriptions")
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
            raise IncorrectParameterError(f"a subscription has a name, not {name!r}")
        if name == BUILDER:
            raise IncorrectParameterError(f"{name!r} is the name of the index of delayed messages")

    def subscriptions(self) -> list[str]:
        """The subscriptions that are stored, open or not."""
        return [name for name in self.ledger.cursor_names() if name != BUILDER]

    def unsubscribe(self, name: str) -> None:
        """Delete a subscription with everything that is stored for it, readable or not.
        :class:`NoSuchNodeError` if there is none of that name."""
        self._check_name(name)
        with self._lock:
            subscription = self._subscriptions.pop(name, None)
            if subscription is not None:
                subscription.stop()
            nacks = log.nack_name(self.name, name)
            cursor = self._cursors.pop(name, None)
            if cursor is not None and cursor.usable:
                log.forget(self.store, nacks)
                cursor.delete()
            else:
                self.ledger.check_owned()
                log.forget(self.store, nacks)
                Cursor.discard(self.ledger, name)
        self.schedule_trim()

    # -- retention ---------------------------------------------------------------------------------------------------

    def trim(self) -> list[int]:
        """Delete the ledgers that nobody needs: neither a cursor nor an index of delayed messages, nor what is to come
        again; returns their ids. As long as a subscription that is stored is not open, none are deleted."""
        with self._lock:
            for cursor in self._cursors.values():
                if cursor.usable and not cursor.read_only:
                    cursor.flush()
            if self._index is not None:
                self._index.trim()
            return self.ledger.trim_consumed()

    def schedule_trim(self) -> None:
        """Ledgers may have become free: look after them by and by, if that is to be done."""
        if self._trim_alarm is None and self.config.trim_consumed:
            self._trim_alarm = self.timer.arm(self._clock.now() + _TRIM_AFTER_MILLIS, self._trim_in_background)

    def _trim_in_background(self, _: Alarm) -> None:
        self._trim_alarm = None
        try:
            self.trim()
        except BookstandError as error:
            logger().warning("topic %s: consumed ledgers could not be deleted: %s", self.name, error)

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether it can still be used: it was neither closed nor deleted, nor taken over by another."""
        return self.ledger.usable

    def close(self) -> None:
        """Write what is acknowledged, and close subscriptions and cursors, the index and the last ledger."""
        with self._lock:
            self.timer.close()
            closing: list[Callable[[], object]] = [one.stop for one in self._subscriptions.values()]
            if self._index is not None:
                closing.append(self._index.close)
            closing += [cursor.close for cursor in self._cursors.values()]
            _run_all([*closing, self.ledger.close])

    def delete(self) -> None:
        """Delete the topic with all subscriptions."""
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
    """All of them, whichever fails; the first failure is raised."""
    failure: BookstandError | None = None
    for action in actions:
        try:
            action()
        except BookstandError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _metadata(more: dict[str, Any]) -> dict[str, Any]:
    """Users say ``key`` where the metadata has ``partition_key``. What is not said is not there."""
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
        raise IncorrectParameterError("messages are delivered after a while or at a time, not both")
    return delivery_time(deliver_after, deliver_at, now)
