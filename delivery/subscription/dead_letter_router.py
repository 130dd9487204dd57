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
        where: MessageStates,
        portions: BatchFilter,
        acknowledging: AckHandler,
        tally: Counters,
    ) -> None:
        self._config = config
        self._origin = origin
        self._dead_letter_topic = dead_letter_topic
        self._where = where
        self._portions = portions
        self._acknowledging = acknowledging
        self._tally = tally

    def without(self, portions: list[Deliverable]) -> list[Deliverable]:
        """Those that are not worn out; the others are buried."""
        most, given_back = self._config().max_redeliveries, self._where.given_back
        if most is None or not given_back:
            return portions
        worn_out = [
            message for portion in portions for message in messages_of(portion) if given_back.of(message.id) > most
        ]
        if not worn_out:
            return portions
        publish_dead_letters(worn_out, self._origin, self._dead_letter_topic())
        self._acknowledging.ack_uncounted(worn_out).result()
        self._tally.dead_lettered += len(worn_out)
        gone = {message.id for message in worn_out}
        kept: list[Deliverable] = []
        for portion in portions:
            ids = [message.id for message in messages_of(portion) if message.id not in gone]
            entry = portion.entry if isinstance(portion, PartialBatch) else portion
            kept += self._portions.of([entry], ids) if ids else []
        return kept
