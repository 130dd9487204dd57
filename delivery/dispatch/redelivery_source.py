"""The first place that messages come from: what was negatively acknowledged, held too long, or given back."""

from __future__ import annotations

from bookstand.cursor.dispatch_pause import Admission
from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.message_id import MessageId, position_of
from bookstand.delivery.message.received_message import Deliverable, messages_in
from bookstand.delivery.subscription.dead_letter_router import DeadLetterRouter
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
        where: MessageStates,
        living: ExpiringReader,
        portions: BatchFilter,
        worn_out: DeadLetterRouter,
    ) -> None:
        self._topic = topic
        self._name = name
        self._where = where
        self._living = living
        self._portions = portions
        self._worn_out = worn_out

    @property
    def has_some(self) -> bool:
        return bool(self._where.again)

    def take(self, most: int, admission: Admission | None = None, upto: Position | None = None) -> list[Deliverable]:
        """Take redeliveries, during a pause only those that ``admission`` admits, and none behind ``upto``."""
        found: list[Deliverable] = []
        count = 0
        while count < most and (ids := self._where.again.take(most - count, admission, upto)):
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
            count += messages_in(some)
        return found

    def _portions_of(self, ids: list[MessageId]) -> list[Deliverable]:
        entries = self._living.at(sorted(set(map(position_of, ids))))
        return self._worn_out.without(self._portions.of(entries, ids))

    def _readable(self, ids: list[MessageId]) -> list[Deliverable]:
        """Where one of them cannot be read, or not be buried, the others go on; that one stays."""
        found: list[Deliverable] = []
        for message in ids:
            try:
                found += self._portions_of([message])
            except BookstandError:
                self._where.again.add([message])
        return found
