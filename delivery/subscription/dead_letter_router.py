"""Messages that were delivered again too often: they go to the dead-letter topic, and are acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.received_message import Deliverable, PartialBatch, messages_of
from bookstand.delivery.subscription.acks import AckHandler
from bookstand.delivery.subscription.dead_letters import publish_dead_letters
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.delivery.subscription.stats import Counters
from bookstand.delivery.topic_config import SubscriptionConfig

if TYPE_CHECKING:
    from bookstand.delivery.topic import Topic


class DeadLetterRouter:
    """Not thread-safe: the caller holds the subscription's lock."""

    def __init__(
        self,
        config: Callable[[], SubscriptionConfig],
        origin: str,
        dead_letter_topic: Callable[[], Topic],
        states: MessageStates,
        batch_filter: BatchFilter,
        acks: AckHandler,
        counters: Counters,
    ) -> None:
        self._config = config
        self._origin = origin
        self._dead_letter_topic = dead_letter_topic
        self._states = states
        self._batch_filter = batch_filter
        self._acks = acks
        self._counters = counters

    def route(self, deliverables: list[Deliverable]) -> list[Deliverable]:
        """Those that are not worn out; the others are buried."""
        limit, redelivery_counts = self._config().max_redeliveries, self._states.redelivery_counts
        if limit is None or not redelivery_counts:
            return deliverables
        exhausted = [
            message
            for deliverable in deliverables
            for message in messages_of(deliverable)
            if redelivery_counts.of(message.id) > limit
        ]
        if not exhausted:
            return deliverables
        publish_dead_letters(exhausted, self._origin, self._dead_letter_topic())
        self._acks.ack_silently(exhausted).result()
        self._counters.dead_lettered += len(exhausted)
        gone = {message.id for message in exhausted}
        kept: list[Deliverable] = []
        for deliverable in deliverables:
            ids = [message.id for message in messages_of(deliverable) if message.id not in gone]
            entry = deliverable.entry if isinstance(deliverable, PartialBatch) else deliverable
            kept += self._batch_filter.select([entry], ids) if ids else []
        return kept
