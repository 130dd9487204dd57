"""The messages of a topic: each entry taken apart as far as it is whole, chunks put together again.

Nothing here raises for what an entry holds. What is wrong is reported with the topic and the entry, and kept in the
message too, so that a damaged entry is still an entry of its topic.
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
"""The offset of a damage that is in no place of a file."""

MAX_PENDING = 64 << 20
"""Bytes of chunks that wait for others of their message, together, with 512 bytes for each chunk."""


class Value(NamedTuple):
    """What was sent, unpacked. Only in a batch a message has metadata of its own."""

    payload: bytes
    metadata: SingleMessageMetadata | None = None


class DiskMessage:
    """An entry of a topic. ``metadata`` is None where it cannot be read; ``wrong`` says what has been found so far that
    is wrong with the entry."""

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
            # What a checksum does not fit may still be readable.
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
        """Where it is."""
        return Position(self.ledger_id, self.entry_id)

    @property
    def data(self) -> bytes:
        """The entry as it was stored."""
        return self._message.data

    @property
    def broker_metadata(self) -> BrokerEntryMetadata | None:
        """What the broker noted of it; None: nothing."""
        try:
            return self._message.broker_metadata
        except MalformedMessageError:
            return None

    @property
    def has_checksum(self) -> bool:
        """Whether it has one to be checked by."""
        try:
            return self._message.has_checksum
        except MalformedMessageError:
            return False

    @property
    def checksum(self) -> int | None:
        """What the message says its checksum is."""
        try:
            return self._message.stored_checksum if self.has_checksum else None
        except MalformedMessageError:
            return None

    @property
    def stored_payload(self) -> bytes | None:
        """As it lies there, compressed and encrypted perhaps."""
        return None if self.metadata is None else self._message.stored_payload

    @property
    def payload_offset(self) -> int | None:
        """Where in ``data`` the payload begins."""
        return None if self.metadata is None else self._message.payload_offset

    @property
    def compression(self) -> str:
        """The codec's name, or its number if nobody knows it."""
        number = 0 if self.metadata is None else self.metadata.compression or 0
        return NAMES.get(number, str(number))

    @property
    def count(self) -> int:
        """How many messages it says that it holds."""
        if self.metadata is None:
            return 0
        number = self.metadata.num_messages_in_batch
        return 1 if number is None else max(number, 0)

    @property
    def is_encrypted(self) -> bool:
        """Then nobody without the key can read its payload."""
        return self.metadata is not None and bool(self.metadata.encryption_keys)

    @property
    def is_chunk(self) -> bool:
        """Whether it is a part of a larger message."""
        return self.metadata is not None and (self.metadata.num_chunks_from_msg or 1) > 1

    def values(self) -> Iterator[Value]:
        """The messages, unpacked, up to the first that cannot be read. A chunk is a piece of the packed payload, and is
        given as that; so is what is encrypted."""
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
    """A message with the entries that it lies in: several, if it was sent in chunks. ``message`` has the payload of all
    of them, and the first one's metadata."""

    message: DiskMessage
    positions: tuple[Position, ...]


class _Pending:
    def __init__(self, first: DiskMessage) -> None:
        self.first = first
        self.positions = [first.position]
        self.parts = [first.data]
        self.size = len(first.data) + MESSAGE_BYTES

    def add(self, chunk: DiskMessage) -> int:
        """How many bytes that is."""
        part = chunk.stored_payload or b""
        self.positions.append(chunk.position)
        self.parts.append(part)
        size = len(part) + MESSAGE_BYTES
        self.size += size
        return size


def joined(messages: Iterable[DiskMessage], report: Report, max_pending: int = MAX_PENDING) -> Iterator[Whole]:
    """The messages with chunks put together, each where its last chunk is. Chunks that lack others are reported, and
    so are those that were given up because too many bytes waited."""
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
            continue  # sent again
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
    """All chunks' payload behind the first one's head, whose checksum was of the first alone."""

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
