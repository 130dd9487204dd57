"""How users say which message they mean."""

from __future__ import annotations

from bookstand.delivery.message.message_id import MessageId
from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.tracker.protocol import check_position
from bookstand.storage.format.position import Position

MessageRef = ReceivedMessage | tuple[int, int]
"""A message that was received, or a position."""


def resolve_id(message: MessageRef) -> MessageId:
    return message.id if isinstance(message, ReceivedMessage) else resolve_position(message)


def resolve_position(message: MessageRef) -> Position:
    """Of its entry."""
    if isinstance(message, ReceivedMessage):
        return message.position
    return Position(*check_position(message))
