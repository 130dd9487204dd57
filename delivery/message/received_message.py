"""What a subscription hands out: one message, be it an entry of its own or one of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, TypeGuard

from bookstand.delivery.message.message_id import BatchMessageId, MessageId
from bookstand.delivery.tracker.protocol import check_position
from bookstand.errors import MalformedError, MalformedMessageError
from bookstand.managed_ledger.message.batch_members import LEAST_MEMBER_BYTES, Bounds, member_offsets, metadata_of
from bookstand.managed_ledger.message.format import decode_runs, take_batch, unpacked_payload
from bookstand.managed_ledger.message.metadata import MessageMetadata, SingleMessageMetadata
from bookstand.managed_ledger.topic_entries import EntryRun, TopicEntry
from bookstand.proto.expansion import DEFAULT, FREE_BYTES, MESSAGE_BYTES, UNLIMITED, ExpansionLimits
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger

Known = dict[bytes, MessageMetadata]


class ReceivedMessage:
    """A message that is out: it comes again unless it is acknowledged. Times are in milliseconds since 1970.

    As long as it is not out it stands for its entry, be that a message or a batch of them.
    """

    __slots__ = ("_payload_at", "data", "metadata", "position", "redelivery_count")

    batch_index: int = -1
    """Which of its batch; -1: it is no part of one."""

    def __init__(self, position: Position, data: bytes, metadata: MessageMetadata | None, payload_at: int) -> None:
        self.position = position
        """Of its entry."""
        self.data = data
        """The bytes of the entry that it is in."""
        self.metadata = metadata
        """The entry's; None if it is no message of Pulsar's, and then the whole of it is the payload."""
        self._payload_at = payload_at
        self.redelivery_count = 0
        """Number of earlier deliveries since the subscription was opened; with ``durable_nacks`` a recorded nack keeps
        it over a restart."""

    @property
    def id(self) -> MessageId:
        """What it goes by."""
        return self.position

    @property
    def batch_size(self) -> int:
        """How many messages its batch has; 0: it is no part of one."""
        return 0

    @property
    def payload(self) -> bytes:
        """The payload, unpacked; :class:`~bookstand.errors.MalformedMessageError` if it is compressed and damaged, or
        if the entry expands to more than the store's ``ExpansionLimits`` allow."""
        stored = self.data[self._payload_at :]
        metadata = self.metadata
        if metadata is None or not metadata.compression:
            return stored
        try:
            # The store's limits were checked when the entry was opened.
            return unpacked_payload(metadata, stored, UNLIMITED.of(len(self.data)))
        except MalformedMessageError as error:
            raise MalformedMessageError(f"entry {self.position}: {error}") from None

    @property
    def _own(self) -> MessageMetadata | SingleMessageMetadata | None:
        return self.metadata

    @property
    def properties(self) -> dict[str, str]:
        """What its publisher gave it."""
        return dict(self._own.properties) if self._own is not None else {}

    @property
    def key(self) -> str | None:
        """Its key; None: it has none."""
        return None if self._own is None else self._own.partition_key

    @property
    def event_time(self) -> int | None:
        """The time that its publisher gave it, in milliseconds; None: none."""
        return None if self._own is None else self._own.event_time

    @property
    def sequence_id(self) -> int | None:
        """Its publisher's number for it; None: it has none."""
        return None if self._own is None else self._own.sequence_id

    @property
    def publish_time(self) -> int | None:
        """When it was published, in milliseconds; None: it is no message of Pulsar's."""
        return None if self.metadata is None else self.metadata.publish_time

    @property
    def deliver_at(self) -> int | None:
        """When it asked to be delivered; None: at once."""
        return None if self.metadata is None else self.metadata.deliver_at_time

    @property
    def producer_name(self) -> str | None:
        """Who published it; None: it does not say."""
        return None if self.metadata is None else self.metadata.producer_name

    def __repr__(self) -> str:
        member = "" if self.batch_index < 0 else f"[{self.batch_index}]"
        return f"<ReceivedMessage {self.position}{member}>"


class OversizedEntry(ReceivedMessage):
    """An entry that expands to more than the limits allow, as one message. Its ``data`` can be read, and it can be
    acknowledged."""

    __slots__ = ("_reason",)

    def __init__(self, entry: ReceivedMessage, reason: str) -> None:
        super().__init__(entry.position, entry.data, entry.metadata, entry._payload_at)
        self._reason = reason

    @property
    def payload(self) -> bytes:
        raise MalformedMessageError(self._reason)


class ReceivedMember(ReceivedMessage):
    """One of a batch."""

    __slots__ = ("_body", "_bounds", "batch_index", "id")

    id: BatchMessageId

    def __init__(self, entry: ReceivedMessage, member: BatchMessageId, body: bytes, bounds: Bounds) -> None:
        # Not by the base's, which takes as long as all the rest.
        self.position = entry.position
        self.data = entry.data
        self.metadata = entry.metadata
        self.redelivery_count = 0
        self.batch_index = member[2]
        self.id = member
        # What it lies in, and where in that.
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
    def _own(self) -> MessageMetadata | SingleMessageMetadata | None:
        start, stop, _ = self._bounds
        return metadata_of(self._body[start:stop])


# -- entries that were read ------------------------------------------------------------------------------------------


class DecodedEntries(NamedTuple):
    """Entries with what their metadata says. Of ``plain`` ones none is delayed, and none a batch."""

    entries: list[ReceivedMessage]
    plain: bool


def decode_entry(entry: TopicEntry, known: Known, limits: ExpansionLimits = DEFAULT) -> ReceivedMessage:
    return decode_entries([entry], known, limits).entries[0]


def decode_entries(entries: Sequence[TopicEntry], known: Known, limits: ExpansionLimits = DEFAULT) -> DecodedEntries:
    return _decode([entry.position for entry in entries], [entry.data for entry in entries], known, limits)


def decode_entry_runs(runs: Iterable[EntryRun], known: Known, limits: ExpansionLimits = DEFAULT) -> DecodedEntries:
    found: list[ReceivedMessage] = []
    plain = True
    for run in runs:
        some = _decode(run.positions(), run.data, known, limits)
        found += some.entries
        plain = plain and some.plain
    return DecodedEntries(found, plain)


def _decode(
    positions: Iterable[Position], data: Sequence[bytes], known: Known, limits: ExpansionLimits
) -> DecodedEntries:
    all_metadata: list[MessageMetadata | None] = []
    starts: list[int] = []
    plain = True
    expanding = False
    for (metadata, payload_at), count in decode_runs(data, known):
        all_metadata += repeat(metadata, count)
        starts += repeat(payload_at, count)
        if metadata is not None:
            plain = plain and metadata.deliver_at_time is None and not metadata.num_messages_in_batch
            expanding = expanding or bool(metadata.num_messages_in_batch or metadata.compression)
    entries = list(map(ReceivedMessage, positions, data, all_metadata, starts))
    return DecodedEntries([_within(limits, entry) for entry in entries] if expanding else entries, plain)


def _within(limits: ExpansionLimits, entry: ReceivedMessage) -> ReceivedMessage:
    """The entry itself, or as an :class:`OversizedEntry`."""
    metadata = entry.metadata
    if metadata is None or not (metadata.num_messages_in_batch or metadata.compression):
        return entry
    size = len(entry.data) - entry._payload_at
    unpacked = (metadata.uncompressed_size or 0) if metadata.compression else size
    count = max(metadata.num_messages_in_batch or 0, 0)
    if unpacked + min(count, unpacked // LEAST_MEMBER_BYTES) * MESSAGE_BYTES <= FREE_BYTES <= limits.max_expanded_bytes:
        # Most of them.
        return entry
    expansion = limits.of(len(entry.data))
    try:
        if metadata.compression:
            expansion.take(unpacked, "the payload")
        take_batch(count, unpacked, expansion)
    except MalformedError as error:
        reason = f"entry {entry.position}: {error}"
        logger().warning("%s; it is delivered as one message", reason)
        return OversizedEntry(entry, reason)
    return entry


def size_of_batch(entry: ReceivedMessage) -> int:
    """Number of messages in a batch; 0 for an entry that is no batch, for one with a higher number than its size
    allows, and for one beyond the limits."""
    metadata = entry.metadata
    count = None if metadata is None else metadata.num_messages_in_batch
    if metadata is None or not count or isinstance(entry, OversizedEntry):
        return 0
    room = metadata.uncompressed_size or 0 if metadata.compression else len(entry.data) - entry._payload_at
    return count if 0 < count * LEAST_MEMBER_BYTES <= room else 0


def expires_at(entry: ReceivedMessage, time_to_live: int, given_time: int | None) -> int | None:
    """Counted from when it was to be delivered, by what it says or by a time that it was given instead; None for what
    says nothing of times."""
    metadata = entry.metadata
    if metadata is None:
        return None
    deliver_at = given_time if given_time is not None else metadata.deliver_at_time or 0
    return max(metadata.publish_time, deliver_at) + time_to_live


# -- what is to be handed out of them --------------------------------------------------------------------------------


class PartialBatch:
    """Some messages of a batch."""

    __slots__ = ("entry", "members")

    def __init__(self, entry: ReceivedMessage, members: Sequence[BatchMessageId]) -> None:
        self.entry = entry
        self.members = members


Deliverable = ReceivedMessage | PartialBatch
"""An entry as one message, or some of a batch."""


class SingleMessageEntries(list[Deliverable]):
    """Entries each of which is one message, so that nobody has to look at every one of them for that."""

    __slots__ = ()


def are_single_messages(deliverables: Iterable[Deliverable]) -> TypeGuard[list[ReceivedMessage]]:
    return type(deliverables) is SingleMessageEntries or PartialBatch not in set(map(type, deliverables))


def message_count(deliverables: Sequence[Deliverable]) -> int:
    if are_single_messages(deliverables):
        return len(deliverables)
    return sum(
        [len(deliverable.members) if isinstance(deliverable, PartialBatch) else 1 for deliverable in deliverables]
    )


def ids_of(deliverable: Deliverable) -> list[MessageId]:
    return list(deliverable.members) if isinstance(deliverable, PartialBatch) else [deliverable.position]


def messages_of(deliverable: Deliverable) -> Sequence[ReceivedMessage]:
    """A batch that cannot be read is one message: what to do with it is for whoever receives it to say."""
    if not isinstance(deliverable, PartialBatch):
        return [deliverable]
    entry = deliverable.entry
    size = size_of_batch(entry)
    packed = entry.metadata is not None and entry.metadata.compression
    try:
        body, at = (entry.payload, 0) if packed else (entry.data, entry._payload_at)
        bounds = list(member_offsets(body, at, size))
    except MalformedMessageError as error:
        logger().warning("entry %s is handed out as one message: %s", entry.position, error)
        return [entry]
    if len(deliverable.members) < size:
        bounds = [bounds[member[2]] for member in deliverable.members]
    if packed:
        # Whoever keeps one of them is not to keep all that was unpacked.
        own = [(body[start:end], (0, stop - start, end - start)) for start, stop, end in bounds]
        return [ReceivedMember(entry, member, *one) for member, one in zip(deliverable.members, own, strict=True)]
    return list(map(ReceivedMember, repeat(entry), deliverable.members, repeat(body), bounds))


MessageRef = ReceivedMessage | tuple[int, int]
"""A message that was received, or a position."""


def resolve_id(message: MessageRef) -> MessageId:
    return message.id if isinstance(message, ReceivedMessage) else resolve_position(message)


def resolve_position(message: MessageRef) -> Position:
    """Of its entry."""
    if isinstance(message, ReceivedMessage):
        return message.position
    return Position(*check_position(message))
