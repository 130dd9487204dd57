"""Messages that consumers receive, and the entries that contain them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, TypeGuard

from bookstand.delivery.message.message_id import BatchMessageId, MessageId
from bookstand.delivery.tracker.protocol import check_position
from bookstand.errors import MalformedError, MalformedMessageError
from bookstand.managed_ledger.message.batch_members import MIN_MEMBER_BYTES, Offsets, member_offsets, metadata_of
from bookstand.managed_ledger.message.format import charge_batch, decode_runs, unpacked_payload
from bookstand.managed_ledger.message.metadata import MessageMetadata, SingleMessageMetadata
from bookstand.managed_ledger.topic_entries import EntryRun, TopicEntry
from bookstand.proto.expansion import DEFAULT, FREE_BYTES, MESSAGE_BYTES, UNLIMITED, ExpansionLimits
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger

MetadataCache = dict[bytes, MessageMetadata]


class ReceivedMessage:
    """A message that is redelivered unless it is acknowledged. Times are in milliseconds since 1970.

    Before dispatch, an object represents an entry, which may be a batch.
    """

    __slots__ = ("_payload_at", "data", "metadata", "position", "redelivery_count")

    batch_index: int = -1
    """Index in the batch; -1 if the message is not part of one."""

    def __init__(self, position: Position, data: bytes, metadata: MessageMetadata | None, payload_at: int) -> None:
        self.position = position
        """Position of the entry."""
        self.data = data
        """Data of the entry."""
        self.metadata = metadata
        """Metadata of the entry; None if it is not a Pulsar message, in which case the payload is the whole entry."""
        self._payload_at = payload_at
        self.redelivery_count = 0
        """Number of earlier deliveries since the subscription was opened; preserved across restarts for recorded
        nacks."""

    @property
    def id(self) -> MessageId:
        """Position, with the batch index for a message of a batch."""
        return self.position

    @property
    def batch_size(self) -> int:
        """Number of messages in the batch; 0 if the message is not part of one."""
        return 0

    @property
    def payload(self) -> bytes:
        """The decompressed payload. :class:`~bookstand.errors.MalformedMessageError` if it is compressed and damaged,
        or if the entry exceeds the store's ``ExpansionLimits``."""
        stored = self.data[self._payload_at :]
        metadata = self.metadata
        if metadata is None or not metadata.compression:
            return stored
        try:
            # The store's limits were checked when the entry was decoded.
            return unpacked_payload(metadata, stored, UNLIMITED.of(len(self.data)))
        except MalformedMessageError as error:
            raise MalformedMessageError(f"entry {self.position}: {error}") from None

    @property
    def _own_metadata(self) -> MessageMetadata | SingleMessageMetadata | None:
        return self.metadata

    @property
    def properties(self) -> dict[str, str]:
        """Properties set by the producer."""
        return dict(self._own_metadata.properties) if self._own_metadata is not None else {}

    @property
    def key(self) -> str | None:
        """Partition key, or None."""
        return None if self._own_metadata is None else self._own_metadata.partition_key

    @property
    def event_time(self) -> int | None:
        """Event time set by the producer, in milliseconds, or None."""
        return None if self._own_metadata is None else self._own_metadata.event_time

    @property
    def sequence_id(self) -> int | None:
        """Sequence id of the producer, or None."""
        return None if self._own_metadata is None else self._own_metadata.sequence_id

    @property
    def publish_time(self) -> int | None:
        """Publish time in milliseconds; None if this is not a Pulsar message."""
        return None if self.metadata is None else self.metadata.publish_time

    @property
    def deliver_at(self) -> int | None:
        """Requested delivery time in milliseconds; None for immediate delivery."""
        return None if self.metadata is None else self.metadata.deliver_at_time

    @property
    def producer_name(self) -> str | None:
        """Name of the producer, or None."""
        return None if self.metadata is None else self.metadata.producer_name

    def __repr__(self) -> str:
        member = "" if self.batch_index < 0 else f"[{self.batch_index}]"
        return f"<ReceivedMessage {self.position}{member}>"


class OversizedEntry(ReceivedMessage):
    """An entry that exceeds the expansion limits. It is one message, with ``data`` but without a payload."""

    __slots__ = ("_reason",)

    def __init__(self, entry: ReceivedMessage, reason: str) -> None:
        super().__init__(entry.position, entry.data, entry.metadata, entry._payload_at)
        self._reason = reason

    @property
    def payload(self) -> bytes:
        raise MalformedMessageError(self._reason)


class ReceivedMember(ReceivedMessage):
    """A message of a batch."""

    __slots__ = ("_body", "_bounds", "batch_index", "id")

    id: BatchMessageId

    def __init__(self, entry: ReceivedMessage, member: BatchMessageId, body: bytes, bounds: Offsets) -> None:
        # Calling the base class would double the cost.
        self.position = entry.position
        self.data = entry.data
        self.metadata = entry.metadata
        self.redelivery_count = 0
        self.batch_index = member[2]
        self.id = member
        # Decompressed batch, and the offsets of the message in it.
        self._body = body
        self._bounds = bounds

    @property
    def batch_size(self) -> int:
        assert self.metadata is not None
        return self.metadata.num_messages_in_batch or 0

    @property
    def payload(self) -> bytes:
        _, start, end = self._bounds
        return self._body[start:end]

    @property
    def _own_metadata(self) -> MessageMetadata | SingleMessageMetadata | None:
        start, stop, _ = self._bounds
        return metadata_of(self._body[start:stop])


class DecodedEntries(NamedTuple):
    """Entries with their metadata. If ``plain``, none of them is delayed or a batch."""

    entries: list[ReceivedMessage]
    plain: bool


def decode_entry(entry: TopicEntry, cache: MetadataCache, limits: ExpansionLimits = DEFAULT) -> ReceivedMessage:
    return decode_entries([entry], cache, limits).entries[0]


def decode_entries(
    entries: Sequence[TopicEntry], cache: MetadataCache, limits: ExpansionLimits = DEFAULT
) -> DecodedEntries:
    return _decode([entry.position for entry in entries], [entry.data for entry in entries], cache, limits)


def decode_entry_runs(
    runs: Iterable[EntryRun], cache: MetadataCache, limits: ExpansionLimits = DEFAULT
) -> DecodedEntries:
    found: list[ReceivedMessage] = []
    plain = True
    for run in runs:
        some = _decode(run.positions(), run.data, cache, limits)
        found += some.entries
        plain = plain and some.plain
    return DecodedEntries(found, plain)


def _decode(
    positions: Iterable[Position], data: Sequence[bytes], cache: MetadataCache, limits: ExpansionLimits
) -> DecodedEntries:
    all_metadata: list[MessageMetadata | None] = []
    starts: list[int] = []
    plain = True
    expanding = False
    for (metadata, payload_at), count in decode_runs(data, cache):
        all_metadata += repeat(metadata, count)
        starts += repeat(payload_at, count)
        if metadata is not None:
            plain = plain and metadata.deliver_at_time is None and not metadata.num_messages_in_batch
            expanding = expanding or bool(metadata.num_messages_in_batch or metadata.compression)
    entries = list(map(ReceivedMessage, positions, data, all_metadata, starts))
    return DecodedEntries([_within(limits, entry) for entry in entries] if expanding else entries, plain)


def _within(limits: ExpansionLimits, entry: ReceivedMessage) -> ReceivedMessage:
    """Return the entry, as an :class:`OversizedEntry` if it exceeds the limits."""
    metadata = entry.metadata
    if metadata is None or not (metadata.num_messages_in_batch or metadata.compression):
        return entry
    size = len(entry.data) - entry._payload_at
    unpacked = (metadata.uncompressed_size or 0) if metadata.compression else size
    count = max(metadata.num_messages_in_batch or 0, 0)
    if unpacked + min(count, unpacked // MIN_MEMBER_BYTES) * MESSAGE_BYTES <= FREE_BYTES <= limits.max_expanded_bytes:
        return entry
    expansion = limits.of(len(entry.data))
    try:
        if metadata.compression:
            expansion.take(unpacked, "the payload")
        charge_batch(count, unpacked, expansion)
    except MalformedError as error:
        reason = f"entry {entry.position}: {error}"
        logger().warning("%s; it is delivered as one message", reason)
        return OversizedEntry(entry, reason)
    return entry


def size_of_batch(entry: ReceivedMessage) -> int:
    """Number of messages in a valid batch; 0 for other entries and for batches that exceed the expansion limits."""
    metadata = entry.metadata
    count = None if metadata is None else metadata.num_messages_in_batch
    if metadata is None or not count or isinstance(entry, OversizedEntry):
        return 0
    room = metadata.uncompressed_size or 0 if metadata.compression else len(entry.data) - entry._payload_at
    return count if 0 < count * MIN_MEMBER_BYTES <= room else 0


def expires_at(entry: ReceivedMessage, time_to_live: int, rescheduled_time: int | None) -> int | None:
    """End of the time to live, which starts at the publish or a later delivery time; None without metadata."""
    metadata = entry.metadata
    if metadata is None:
        return None
    deliver_at = rescheduled_time if rescheduled_time is not None else metadata.deliver_at_time or 0
    return max(metadata.publish_time, deliver_at) + time_to_live


class PartialBatch:
    """Some messages of a batch."""

    __slots__ = ("entry", "members")

    def __init__(self, entry: ReceivedMessage, members: Sequence[BatchMessageId]) -> None:
        self.entry = entry
        self.members = members


Deliverable = ReceivedMessage | PartialBatch
"""An entry as one message, or some messages of a batch."""


class SingleMessageEntries(list[Deliverable]):
    """Entries that are one message each; the type saves a check of each entry."""

    __slots__ = ()


def are_single_messages(deliverables: Iterable[Deliverable]) -> TypeGuard[list[ReceivedMessage]]:
    return type(deliverables) is SingleMessageEntries or PartialBatch not in set(map(type, deliverables))


def message_count(deliverables: Sequence[Deliverable]) -> int:
    if are_single_messages(deliverables):
        return len(deliverables)
    return sum([len(item.members) if isinstance(item, PartialBatch) else 1 for item in deliverables])


def ids_of(item: Deliverable) -> list[MessageId]:
    return list(item.members) if isinstance(item, PartialBatch) else [item.position]


def messages_of(item: Deliverable) -> Sequence[ReceivedMessage]:
    """Decode the messages of a deliverable. A malformed batch is delivered as one message."""
    if not isinstance(item, PartialBatch):
        return [item]
    entry = item.entry
    size = size_of_batch(entry)
    packed = entry.metadata is not None and entry.metadata.compression
    try:
        body, at = (entry.payload, 0) if packed else (entry.data, entry._payload_at)
        bounds = list(member_offsets(body, at, size))
    except MalformedMessageError as error:
        logger().warning("entry %s is delivered as one message: %s", entry.position, error)
        return [entry]
    if len(item.members) < size:
        bounds = [bounds[member[2]] for member in item.members]
    if packed:
        # A copy, so that a retained message does not retain the whole batch.
        own = [(body[start:end], (0, stop - start, end - start)) for start, stop, end in bounds]
        return [ReceivedMember(entry, member, *one) for member, one in zip(item.members, own, strict=True)]
    return list(map(ReceivedMember, repeat(entry), item.members, repeat(body), bounds))


MessageRef = ReceivedMessage | tuple[int, int]
"""A received message, or a position."""


def resolve_id(message: MessageRef) -> MessageId:
    return message.id if isinstance(message, ReceivedMessage) else resolve_position(message)


def resolve_position(message: MessageRef) -> Position:
    """Position of the message's entry."""
    if isinstance(message, ReceivedMessage):
        return message.position
    return Position(*check_position(message))
