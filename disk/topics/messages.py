"""Messages of a topic: entries are decoded as far as they are intact, and chunks are reassembled.

Malformed entries never raise. Damage is reported with topic and entry, and also recorded in the message, so that a
damaged entry is still an entry of its topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from bookstand.disk.damage import Damage, Report
from bookstand.errors import MalformedMessageError, MissingExtraError
from bookstand.managed_ledger.message.compression import NAMES
from bookstand.managed_ledger.message.format import Message
from bookstand.managed_ledger.message.metadata import BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata
from bookstand.proto.expansion import DEFAULT, MESSAGE_BYTES, ExpansionLimits
from bookstand.storage.format.position import Position

if TYPE_CHECKING:
    from bookstand.disk.disks import StoredEntry

NO_PLACE = -1
"""Offset of damage that has no position in a file."""

MAX_PENDING = 64 << 20
"""Maximum size of incomplete messages in memory, in bytes, including 512 bytes for each chunk."""


class Value(NamedTuple):
    """A decompressed message. Only a message in a batch has its own metadata."""

    payload: bytes
    metadata: SingleMessageMetadata | None = None


class DiskMessage:
    """An entry of a topic. ``metadata`` is None if it is unreadable; ``wrong`` describes the damage found so far."""

    __slots__ = ("_limits", "_message", "_report", "entry_id", "ledger_id", "metadata", "topic", "wrong")

    def __init__(
        self, topic: str, position: Position, data: bytes, report: Report, limits: ExpansionLimits = DEFAULT
    ) -> None:
        self.topic = topic
        self._limits = limits
        self.ledger_id, self.entry_id = position
        self.metadata: MessageMetadata | None = None
        self.wrong: tuple[str, ...] = ()
        self._message = Message(data)
        self._report = report
        try:
            self._message.check()
        except MalformedMessageError as error:
            self._note(str(error))
        try:
            # Metadata may be readable even if the checksum is wrong.
            self.metadata = self._message.metadata
        except MalformedMessageError as error:
            self._note(str(error))

    def _note(self, what: str) -> None:
        if what not in self.wrong:
            self.wrong = (*self.wrong, what)
            self._report(Damage(self.topic, NO_PLACE, what, self.ledger_id, self.entry_id))

    def __repr__(self) -> str:
        return f"<DiskMessage {self.topic} {self.position}, {len(self.data)} bytes>"

    @property
    def position(self) -> Position:
        """Position of the entry."""
        return Position(self.ledger_id, self.entry_id)

    @property
    def data(self) -> bytes:
        """The entry as it was stored."""
        return self._message.data

    @property
    def broker_metadata(self) -> BrokerEntryMetadata | None:
        """Metadata that the broker added, or None."""
        try:
            return self._message.broker_metadata
        except MalformedMessageError:
            return None

    @property
    def has_checksum(self) -> bool:
        """True if the message has a checksum."""
        try:
            return self._message.has_checksum
        except MalformedMessageError:
            return False

    @property
    def checksum(self) -> int | None:
        """Checksum that is stored in the message."""
        try:
            return self._message.stored_checksum if self.has_checksum else None
        except MalformedMessageError:
            return None

    @property
    def stored_payload(self) -> bytes | None:
        """Payload as stored, possibly compressed and encrypted."""
        return None if self.metadata is None else self._message.stored_payload

    @property
    def payload_offset(self) -> int | None:
        """Offset of the payload in ``data``."""
        return None if self.metadata is None else self._message.payload_offset

    @property
    def compression(self) -> str:
        """Name of the codec, or its number if the codec is unknown."""
        number = 0 if self.metadata is None else self.metadata.compression or 0
        return NAMES.get(number, str(number))

    @property
    def count(self) -> int:
        """Number of messages according to the metadata."""
        if self.metadata is None:
            return 0
        number = self.metadata.num_messages_in_batch
        return 1 if number is None else max(number, 0)

    @property
    def is_encrypted(self) -> bool:
        """True if the payload cannot be read without a key."""
        return self.metadata is not None and bool(self.metadata.encryption_keys)

    @property
    def is_chunk(self) -> bool:
        """True for a part of a larger message."""
        return self.metadata is not None and (self.metadata.num_chunks_from_msg or 1) > 1

    def values(self) -> Iterator[Value]:
        """Yield the decompressed messages, up to the first unreadable one. A chunk is a part of the compressed payload
        and is yielded unchanged, as is an encrypted payload."""
        metadata = self.metadata
        if metadata is None:
            return
        if self.is_chunk or self.is_encrypted:
            yield Value(self._message.stored_payload)
            return
        try:
            if self._message.is_batch:
                for single in self._message.messages(self._limits):
                    yield Value(single.payload, single.metadata)
            else:
                yield Value(self._message.payload(self._limits))
        except (MalformedMessageError, MissingExtraError) as error:
            self._note(str(error))


def read(topic: str, entry: StoredEntry, report: Report, limits: ExpansionLimits = DEFAULT) -> DiskMessage:
    return DiskMessage(topic, Position(entry.ledger_id, entry.entry_id), entry.payload, report, limits)


# -- chunks ----------------------------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """A message with the positions of its entries; a chunked message has several. ``message`` has the payload of all
    chunks and the metadata of the first."""

    message: DiskMessage
    positions: tuple[Position, ...]


class _Pending:
    def __init__(self, first: DiskMessage) -> None:
        self.first = first
        self.positions = [first.position]
        self.parts = [first.data]
        self.size = len(first.data) + MESSAGE_BYTES

    def add(self, chunk: DiskMessage) -> int:
        """Add a chunk and return its size in memory."""
        part = chunk.stored_payload or b""
        self.positions.append(chunk.position)
        self.parts.append(part)
        size = len(part) + MESSAGE_BYTES
        self.size += size
        return size


def joined(messages: Iterable[DiskMessage], report: Report, max_pending: int = MAX_PENDING) -> Iterator[Whole]:
    """Yield the messages with chunks reassembled, each at its last chunk. Incomplete messages are reported, including
    messages that were dropped because of ``max_pending``."""
    pending: dict[str, _Pending] = {}
    waiting = 0

    def give_up(uuid: str, why: str) -> int:
        lost = pending.pop(uuid)
        metadata = lost.first.metadata
        count = None if metadata is None else metadata.num_chunks_from_msg
        report(
            Damage(
                lost.first.topic,
                NO_PLACE,
                f"of {count} chunks of message {uuid!r} there are the first {len(lost.parts)}: {why}",
                *lost.first.position,
            )
        )
        return lost.size

    for message in messages:
        metadata = message.metadata
        if metadata is None or not message.is_chunk:
            yield Whole(message, (message.position,))
            continue
        uuid, number = metadata.uuid or "", metadata.chunk_id or 0
        if number == 0:
            if uuid in pending:
                waiting -= give_up(uuid, "it begins again")
            pending[uuid] = _Pending(message)
            waiting += pending[uuid].size
        elif uuid in pending and number == len(pending[uuid].parts):
            waiting += pending[uuid].add(message)
        elif uuid in pending and number < len(pending[uuid].parts):
            continue  # a duplicate
        else:
            if uuid in pending:
                waiting -= give_up(uuid, f"chunk {number} comes next")
            what = f"chunk {number} of message {uuid!r} comes without those before it"
            report(Damage(message.topic, NO_PLACE, what, *message.position))
            continue
        if number + 1 == metadata.num_chunks_from_msg:
            found = pending.pop(uuid)
            waiting -= found.size
            yield Whole(_put_together(found, report), tuple(found.positions))
        while waiting > max_pending:
            waiting -= give_up(next(iter(pending)), f"more than {max_pending} bytes of chunks wait for others")
    for uuid in list(pending):
        give_up(uuid, "the topic ends")


def _put_together(found: _Pending, report: Report) -> DiskMessage:
    return _Joined(found.first, b"".join(found.parts[1:]), report)


class _Joined(DiskMessage):
    """The first chunk followed by the payloads of the others. Its checksum covers the first chunk only."""

    __slots__ = ()

    def __init__(self, first: DiskMessage, rest: bytes, report: Report) -> None:
        self.topic = first.topic
        self.ledger_id, self.entry_id = first.position
        self.metadata = first.metadata
        self.wrong = first.wrong
        self._limits = first._limits
        self._message = Message(first.data + rest)
        self._report = report

    @property
    def is_chunk(self) -> bool:
        return False
