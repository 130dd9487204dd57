"""A consumer of a subscription."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from bookstand.delivery.message.message_id import MessageId
from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.subscription.unacked import Delivery, UnackedMessages
from bookstand.errors import ClientClosedError, IncorrectParameterError
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.delivery.message.received_message import MessageRef
    from bookstand.delivery.subscription.subscription import Subscription
    from bookstand.delivery.time_arguments import Span
    from bookstand.storage.commit.futures import Pending

# A waiting receiver checks at this interval, in seconds, that no other process has taken over the topic.
_OWNERSHIP_CHECK_SECONDS = 1.0


class Consumer(ProcessBound):
    """Use ``subscription.consumer()``. Thread-safe; all threads share the consumer's messages."""

    def __init__(self, subscription: Subscription, name: str) -> None:
        self._subscription = subscription
        self.closed = False
        # Messages of batches beyond the number that the caller asked for.
        self._overflow: deque[tuple[Delivery, ReceivedMessage]] = deque()
        self.name = name

    def receive(self, max: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Like :meth:`Subscription.receive`."""
        until = _until(max, timeout)
        notifier = self._subscription.notifier
        while True:
            seen = notifier.generation
            messages, again = self._subscription.dispatch(self, max)
            if messages:
                return messages
            if again and (until is None or timeout == 0 or monotonic() < until):
                continue
            self._subscription.check_owned()
            rest = _OWNERSHIP_CHECK_SECONDS if until is None else min(_OWNERSHIP_CHECK_SECONDS, until - monotonic())
            if rest <= 0:
                return []
            notifier.wait(seen, rest)

    async def receive_async(self, max: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Like :meth:`Subscription.receive_async`."""
        import asyncio

        until = _until(max, timeout)
        notifier = self._subscription.notifier
        while True:
            seen = notifier.generation
            messages, again = self._subscription.dispatch(self, max)
            if messages:
                return messages
            if again and (until is None or timeout == 0 or monotonic() < until):
                # Let other tasks run before the next attempt.
                await asyncio.sleep(0)
                continue
            self._subscription.check_owned()
            rest = _OWNERSHIP_CHECK_SECONDS if until is None else min(_OWNERSHIP_CHECK_SECONDS, until - monotonic())
            if rest <= 0:
                return []
            await notifier.wait_async(seen, rest)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages one by one until the consumer or its subscription is closed."""
        while True:
            try:
                messages = self.receive()
            except ClientClosedError:
                return
            yield from messages

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while True:
            try:
                messages = await self.receive_async()
            except ClientClosedError:
                return
            for message in messages:
                yield message

    # -- for the subscription; its lock is held ----------------------------------------------------------------------

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosedError(f"consumer {self.name!r} of subscription {self._subscription.name!r} is closed")

    def buffer_overflow(self, messages: Sequence[ReceivedMessage], delivery: Delivery) -> None:
        self._overflow.extend((delivery, message) for message in messages)

    def take_overflow(self, limit: int, unacked: UnackedMessages) -> list[ReceivedMessage]:
        """Remove and return up to ``limit`` messages that are still in flight."""
        found: list[ReceivedMessage] = []
        while self._overflow and len(found) < limit:
            delivery, message = self._overflow.popleft()
            if unacked.is_from(message.id, delivery):
                found.append(message)
        return found

    def drop_overflow(self, unacked: UnackedMessages) -> None:
        """Remove messages that no caller has received from those in flight."""
        for message in self.undelivered(unacked):
            unacked.remove(message)
        self._overflow.clear()

    def undelivered(self, unacked: UnackedMessages) -> set[MessageId]:
        """Messages in flight that no caller has received."""
        return {message.id for delivery, message in self._overflow if unacked.is_from(message.id, delivery)}

    def ack(self, message: MessageRef) -> Pending:
        """Like :meth:`Subscription.ack`."""
        return self._subscription.ack(message)

    def ack_many(self, messages: Iterable[MessageRef]) -> Pending:
        """Like :meth:`Subscription.ack_many`."""
        return self._subscription.ack_many(messages)

    def ack_cumulative(self, message: MessageRef) -> Pending:
        """Like :meth:`Subscription.ack_cumulative`."""
        return self._subscription.ack_cumulative(message)

    def nack(self, message: MessageRef, delay: Span | None = None) -> None:
        """Like :meth:`Subscription.nack`."""
        self._subscription.nack(message, delay)

    def close(self) -> None:
        """Redeliver the messages in flight and close."""
        self._subscription.on_consumer_closed(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self._subscription!r}{', closed' if self.closed else ''}>"


def _until(limit: object, timeout: object) -> float | None:
    if type(limit) is not int or limit < 1:
        raise IncorrectParameterError(f"max must be a positive integer, not {limit!r}")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise IncorrectParameterError(f"timeout must be a non-negative number of seconds or None, not {timeout!r}")
    return monotonic() + timeout
