"""One of those who take messages from a subscription."""

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
    from bookstand.delivery.message.references import MessageRef
    from bookstand.delivery.subscription.subscription import Subscription
    from bookstand.delivery.time_arguments import Span
    from bookstand.storage.commit.futures import Pending

# For so long, in seconds, nobody waits without looking whether somebody else has taken the topic over.
_OWNERSHIP_CHECK_SECONDS = 1.0


class Consumer(ProcessBound):
    """Use ``subscription.consumer()``. Safe between threads, which share then what it holds."""

    def __init__(self, subscription: Subscription, name: str) -> None:
        self._subscription = subscription
        self.closed = False
        # Members of batches that were more than the caller had asked for.
        self._overflow: deque[tuple[Delivery, ReceivedMessage]] = deque()
        self.name = name

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, max: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Up to ``max`` messages, and at least one, unless ``timeout`` seconds pass without any."""
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
        """The same for a task. What is there is read in the loop's thread, from the mapped file."""
        import asyncio

        until = _until(max, timeout)
        notifier = self._subscription.notifier
        while True:
            seen = notifier.generation
            messages, again = self._subscription.dispatch(self, max)
            if messages:
                return messages
            if again and (until is None or timeout == 0 or monotonic() < until):
                # Others' tasks go on meanwhile.
                await asyncio.sleep(0)
                continue
            self._subscription.check_owned()
            rest = _OWNERSHIP_CHECK_SECONDS if until is None else min(_OWNERSHIP_CHECK_SECONDS, until - monotonic())
            if rest <= 0:
                return []
            await notifier.wait_async(seen, rest)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """One message after the other, until the consumer or its subscription is closed."""
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

    # -- for the subscription, whose lock is held --------------------------------------------------------------------

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosedError(f"consumer {self.name!r} of subscription {self._subscription.name!r} is closed")

    def buffer_overflow(self, messages: Sequence[ReceivedMessage], delivery: Delivery) -> None:
        self._overflow.extend((delivery, message) for message in messages)

    def take_overflow(self, limit: int, unacked: UnackedMessages) -> list[ReceivedMessage]:
        """Those that were not given back meanwhile, with the rest of their batch."""
        found: list[ReceivedMessage] = []
        while self._overflow and len(found) < limit:
            delivery, message = self._overflow.popleft()
            if unacked.is_from(message.id, delivery):
                found.append(message)
        return found

    def drop_overflow(self, unacked: UnackedMessages) -> None:
        """Nobody has seen them: they are in flight no more."""
        for message in self.undelivered(unacked):
            unacked.remove(message)
        self._overflow.clear()

    def undelivered(self, unacked: UnackedMessages) -> set[MessageId]:
        """What is out with the consumer, and nobody has seen."""
        return {message.id for delivery, message in self._overflow if unacked.is_from(message.id, delivery)}

    # -- what becomes of them ----------------------------------------------------------------------------------------

    def ack(self, message: MessageRef) -> Pending:
        """See :meth:`Subscription.ack`."""
        return self._subscription.ack(message)

    def ack_many(self, messages: Iterable[MessageRef]) -> Pending:
        """See :meth:`Subscription.ack_many`."""
        return self._subscription.ack_many(messages)

    def ack_cumulative(self, message: MessageRef) -> Pending:
        """See :meth:`Subscription.ack_cumulative`."""
        return self._subscription.ack_cumulative(message)

    def nack(self, message: MessageRef, delay: Span | None = None) -> None:
        """See :meth:`Subscription.nack`."""
        self._subscription.nack(message, delay)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """What it holds is delivered again at once, to whoever is there."""
        self._subscription.on_consumer_closed(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self._subscription!r}{', closed' if self.closed else ''}>"


def _until(limit: object, timeout: object) -> float | None:
    if type(limit) is not int or limit < 1:
        raise IncorrectParameterError(f"max is a number from 1 up, not {limit!r}")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise IncorrectParameterError(f"a timeout is a number of seconds from 0 up or None, not {timeout!r}")
    return monotonic() + timeout
