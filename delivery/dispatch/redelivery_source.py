"""Redeliveries: messages of the replay queue."""

from __future__ import annotations

from bookstand.cursor.dispatch_pause import Admission
from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.message_id import MessageId, position_of
from bookstand.delivery.message.received_message import Deliverable, message_count
from bookstand.delivery.subscription.dead_letters import DeadLetterRouter
from bookstand.delivery.subscription.expiry import ExpiringReader
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger


class RedeliverySource:
    """A :class:`~bookstand.delivery.dispatch.dispatcher.MessageSource`."""

    def __init__(
        self,
        topic: str,
        name: str,
        states: MessageStates,
        reader: ExpiringReader,
        batch_filter: BatchFilter,
        dead_letter_router: DeadLetterRouter,
    ) -> None:
        self._topic = topic
        self._name = name
        self._states = states
        self._reader = reader
        self._batch_filter = batch_filter
        self._dead_letter_router = dead_letter_router

    @property
    def may_have_messages(self) -> bool:
        return bool(self._states.replay_queue)

    def take(self, limit: int, admission: Admission | None = None, upto: Position | None = None) -> list[Deliverable]:
        """Take redeliveries up to ``upto``; during a pause only the ones that ``admission`` admits."""
        found: list[Deliverable] = []
        count = 0
        while count < limit and (ids := self._states.replay_queue.take(limit - count, admission, upto)):
            try:
                some = self._portions_of(ids)
            except BookstandError as error:
                some = self._readable(ids)
                if not found and not some:
                    raise
                found += some
                logger().warning("topic %s, subscription %s: %s", self._topic, self._name, error)
                break
            found += some
            count += message_count(some)
        return found

    def _portions_of(self, ids: list[MessageId]) -> list[Deliverable]:
        entries = self._reader.read_positions(sorted(set(map(position_of, ids))))
        return self._dead_letter_router.route(self._batch_filter.select(entries, ids))

    def _readable(self, ids: list[MessageId]) -> list[Deliverable]:
        """Handle messages one by one. Messages that cannot be read or dead-lettered return to the replay queue."""
        found: list[Deliverable] = []
        for message in ids:
            try:
                found += self._portions_of([message])
            except BookstandError:
                self._states.replay_queue.add([message])
        return found
