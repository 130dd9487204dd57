"""What a subscription hands out: one message, be it an entry of its own or one of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from bookstand.delivery.message_id import Member, MessageId
from bookstand.errors import MalformedError, MalformedMessageError
from bookstand.ledger.compression import NAMES, unpack
from bookstand.ledger.framing import Message, Single, open_messages
from bookstand.ledger.managed import TopicEntry
from bookstand.ledger.message import MessageMetadata, SingleMessageMetadata
from bookstand.storage.log import logger
from bookstand.storage.position import Position

Known = dict[bytes, MessageMetadata]


class OpenedEntry:
    """An entry of a topic with what its metadata says; ``metadata`` is None where the entry is no message of Pulsar's,
    and then the whole of it is the payload."""

    __slots__ = ("data", "metadata", "payload_at", "position")

    def __init__(self, position: Position, data: bytes, metadata: MessageMetadata | None, payload_at: int) -> None:
        self.position = position
        self.data = data
        self.metadata = metadata
        self.payload_at = payload_at

    @property
    def deliver_at(self) -> int | None:
        return None if self.metadata is None else self.metadata.deliver_at_time

    def expires_at(self, time_to_live: int, given_time: int | None) -> int | None:
        """Counted from when it was to be delivered, by what it says or by a time that it was given instead; None for
        what says nothing of times."""
        metadata = self.metadata
        if metadata is None:
            return None
        deliver_at = given_time if given_time is not None else metadata.deliver_at_time or 0
        return max(metadata.publish_time, deliver_at) + time_to_live

    @property
    def batch_size(self) -> int:
        """How many messages the entry has; 0 for one that is no batch."""
        return 0 if self.metadata is None else self.metadata.num_messages_in_batch or 0

    def members(self) -> list[Single]:
        """The messages of a batch."""
        return list(Message(self.data).messages())


def opened(entry: TopicEntry, known: Known) -> OpenedEntry:
    return opened_all([entry], known)[0]


def opened_all(entries: Sequence[TopicEntry], known: Known) -> list[OpenedEntry]:
    heads = open_messages([entry.data for entry in entries], known)
    return [
        OpenedEntry(entry.position, entry.data, metadata, payload_at)
        for entry, (metadata, payload_at) in zip(entries, heads, strict=True)
    ]


class Portion:
    """Of an entry what is to be handed out: of a batch some members, else the one message that it is."""

    __slots__ = ("batch_indexes", "entry")

    def __init__(self, entry: OpenedEntry, batch_indexes: list[int] | None = None) -> None:
        self.entry = entry
        self.batch_indexes = batch_indexes

    def ids(self) -> list[MessageId]:
        position = self.entry.position
        if self.batch_indexes is None:
            return [position]
        return [Member(*position, index) for index in self.batch_indexes]

    def messages(self) -> list[ReceivedMessage]:
        """A batch that cannot be read is one message: what to do with it is for whoever receives it to say."""
        entry = self.entry
        if self.batch_indexes is None:
            return [ReceivedMessage(entry)]
        try:
            members = entry.members()
        except MalformedMessageError as error:
            logger().warning("entry %s is handed out as one message: %s", entry.position, error)
            return [ReceivedMessage(entry)]
        return [ReceivedMessage(entry, index, members[index]) for index in self.batch_indexes]


class ReceivedMessage:
    """A message that is out: it comes again unless it is acknowledged. Times are in milliseconds since 1970."""

    __slots__ = ("_entry", "_member", "batch_index", "position", "redelivery_count")

    def __init__(self, entry: OpenedEntry, batch_index: int = -1, member: Single | None = None) -> None:
        self._entry = entry
        self._member = member
        self.position = entry.position
        """Of its entry."""
        self.redelivery_count = 0
        """How often it was delivered before, as far as this opening of the subscription knows."""
        self.batch_index = batch_index
        """Which of its batch; -1: it is no part of one."""

    @property
    def id(self) -> MessageId:
        """What it goes by."""
        return self.position if self._member is None else Member(*self.position, self.batch_index)

    @property
    def batch_size(self) -> int:
        return self._entry.batch_size if self._member is not None else 0

    @property
    def data(self) -> bytes:
        """The bytes of the entry that it is in."""
        return self._entry.data

    @property
    def metadata(self) -> MessageMetadata | None:
        """The entry's; None if it is no message of Pulsar's."""
        return self._entry.metadata

    @property
    def payload(self) -> bytes:
        """:class:`~bookstand.errors.MalformedMessageError` where it is compressed, and damaged."""
        if self._member is not None:
            return self._member.payload
        entry = self._entry
        stored = entry.data[entry.payload_at :]
        codec = None if entry.metadata is None else entry.metadata.compression
        if not codec:
            return stored
        if codec not in NAMES:
            raise MalformedMessageError(f"entry {self.position} is compressed with codec {codec}, which nobody knows")
        assert entry.metadata is not None
        try:
            return unpack(NAMES[codec], stored, entry.metadata.uncompressed_size or 0)
        except MalformedError as error:
            raise MalformedMessageError(f"the payload of entry {self.position} is broken: {error}") from None

    @property
    def _own(self) -> MessageMetadata | SingleMessageMetadata | None:
        return self._entry.metadata if self._member is None else self._member.metadata

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._own.properties) if self._own is not None else {}

    @property
    def key(self) -> str | None:
        return None if self._own is None else self._own.partition_key

    @property
    def event_time(self) -> int | None:
        return None if self._own is None else self._own.event_time

    @property
    def sequence_id(self) -> int | None:
        return None if self._own is None else self._own.sequence_id

    @property
    def publish_time(self) -> int | None:
        return None if self.metadata is None else self.metadata.publish_time

    @property
    def deliver_at(self) -> int | None:
        """When it asked to be delivered; None: at once."""
        return self._entry.deliver_at

    @property
    def producer_name(self) -> str | None:
        return None if self.metadata is None else self.metadata.producer_name

    def __repr__(self) -> str:
        member = "" if self.batch_index < 0 else f"[{self.batch_index}]"
        return f"<ReceivedMessage {self.position}{member}>"
