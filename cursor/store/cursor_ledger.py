"""A cursor's record in the metadata store, and the cursor ledgers that it references.

One commit creates a cursor ledger and records it as *pending*, so that a crash leaves no orphaned ledger. A second
commit makes the record point at it. The previous ledger is retained as a *former* ledger until the new one contains two
states, so that recovery can always fall back to an older state. A reset starts a new ledger, and the record stores that
ledger as the oldest one that recovery may use (``since``): no older state can restore the revoked acknowledgments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple, NoReturn, Protocol, TypeVar

from bookstand.cursor.format.ack_page import PageRef
from bookstand.cursor.format.chunked_snapshot import CODEC_PROPERTY
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.store.property_ledgers import property_ledgers
from bookstand.cursor.store.recovery import (
    DAMAGED,
    CursorLedgerEntries,
    DamagedPage,
    Source,
    damage_report,
    drop_consumed,
    replacements,
)
from bookstand.errors import (
    BookstandError,
    LedgerError,
    LedgerFencedError,
    LedgerRecoveryError,
    MalformedRecordError,
    MetadataSerializationError,
    MetadataVersionError,
    NoSuchLedgerError,
    NoSuchNodeError,
    ReadError,
    StoreDamagedError,
)
from bookstand.ledger.client import Client
from bookstand.ledger.handles.handle import LedgerHandle
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.ledger.transaction import Transaction
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.records import CursorInfo, decode_cursor_info, encode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of, is_ledger_of, ledger_labels, property_of
from bookstand.proto import wire_format
from bookstand.storage.commit.futures import Pending
from bookstand.storage.commit.node_operations import NodeVersionError
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger
from bookstand.storage.metadata_store import Nodes

_T = TypeVar("_T")
# Label of a cursor ledger: ``since`` of the record when the ledger was created; empty if a reset created it.
_SINCE_LABEL = "bookstand/since"
NO_LEDGER = -1
_PENDING, _FORMER, _SINCE = 1000, 1001, 1002
_PENDING_TAG, _FORMER_TAG, _SINCE_TAG = (
    wire_format.tag(field, wire_format.VARINT) for field in (_PENDING, _FORMER, _SINCE)
)


STATES_BEFORE_DELETION = 2
"""Number of states in the current cursor ledger at which former ledgers are deleted."""


class CursorFencedError(LedgerFencedError):
    """Another owner has opened the cursor; this one can no longer write."""


class RecordExtensions(NamedTuple):
    """Fields of the record that only bookstand uses: the pending ledger, the retained former ledgers, ascending, and
    the first ledger after the last reset (None in records of earlier versions)."""

    pending: int | None
    former: tuple[int, ...]
    unknown_fields: bytes
    since: int | None = None


def extensions_of(info: CursorInfo) -> RecordExtensions:
    pending = since = None
    former = []
    unknown_fields = bytearray()
    for tag, number, chunk in wire_format.fields(info.unknown):
        if tag == _PENDING_TAG:
            pending = number
        elif tag == _FORMER_TAG:
            former.append(number)
        elif tag == _SINCE_TAG:
            since = number
        else:
            _write_field(unknown_fields, tag, number, chunk)
    return RecordExtensions(pending, tuple(former), bytes(unknown_fields), since)


def encode_extensions(extensions: RecordExtensions) -> bytes:
    out = bytearray(extensions.unknown_fields)
    if extensions.pending is not None:
        wire_format.write_varint_field(out, _PENDING, extensions.pending)
    for ledger_id in extensions.former:
        wire_format.write_varint_field(out, _FORMER, ledger_id)
    if extensions.since is not None:
        wire_format.write_varint_field(out, _SINCE, extensions.since)
    return bytes(out)


def source_of(info: CursorInfo, open_ledger: Callable[[int], CursorLedgerEntries], newest: int | None = None) -> Source:
    """Return the ledgers to search for the state of a cursor, optionally from the ledger ``newest`` backwards."""
    extensions = extensions_of(info)
    newest = info.cursor_ledger_id if newest is None else newest
    since = extensions.since
    former = [one for one in reversed(extensions.former) if since is not None and since <= one < newest]
    ledger_ids = [] if newest < 0 else [newest, *former]
    return Source(ledger_ids, open_ledger, since, info.mark_delete, info.properties)


def _write_field(out: bytearray, tag: int, number: int, chunk: bytes) -> None:
    kind = tag & 7
    wire_format.write_varint(out, tag)
    if kind == wire_format.BYTES:
        wire_format.write_varint(out, len(chunk))
        out += chunk
    elif kind == wire_format.FIXED64:
        out += number.to_bytes(8, "little")
    elif kind == wire_format.FIXED32:
        out += number.to_bytes(4, "little")
    else:
        wire_format.write_varint(out, number)


def info_from_labels(ledgers: Iterable[tuple[int, Mapping[str, bytes] | None]], topic: str, cursor: str) -> CursorInfo:
    """Reconstruct the unreadable record of a cursor from the labels of ``ledgers``, ascending. Labels are None if they
    are unreadable, too.

    The newest ledger of the cursor becomes the current one, and the others become former ones. The mark-delete position
    is unknown: without a readable ledger the cursor starts at the first entry of its topic. It also does so if a newer
    ledger has unreadable labels, because a reset of this cursor may have created that ledger.
    """
    newest, since = NO_LEDGER, None
    unreadable = NO_LEDGER
    former: list[int] = []
    properties: dict[str, str] = {}
    for ledger_id, labels in ledgers:
        if labels is None:
            unreadable = ledger_id
            continue
        name = property_of(labels, topic, cursor)
        if name is not None:
            properties[name] = str(ledger_id)
        elif is_ledger_of(labels, topic, cursor):
            former += [] if newest == NO_LEDGER else [newest]
            newest, since = ledger_id, since_of(ledger_id, labels)
    if unreadable > newest != NO_LEDGER:
        former.append(newest)
        newest, since = NO_LEDGER, None
    unknown = encode_extensions(RecordExtensions(None, tuple(former), b"", since))
    return CursorInfo(newest, cursor_properties=tuple(properties.items()), unknown=unknown)


def since_of(ledger_id: int, labels: Mapping[str, bytes]) -> int | None:
    """Return the first ledger after the last reset, according to the labels of a cursor ledger."""
    label = labels.get(_SINCE_LABEL)
    if label is None or not (label.isdigit() or not label):
        return None
    return int(label or ledger_id)


class CursorLedger:
    """The record and the ledgers of one cursor. Not thread-safe, except :attr:`handle`; callers hold the flush lock."""

    def __init__(self, topic: ManagedLedger, cursor: str, codec: str | None, threshold: int) -> None:
        self.client: Client = topic.client
        self.topic = topic.name
        self._topic = topic
        self.cursor = cursor
        self.path = cursor_node_of(topic.name, cursor)
        # Name under which the cursor is registered with the topic, which retains the ledgers that it needs.
        self.hold_name = self.path.rpartition("/")[2]
        self._codec = codec
        self._threshold = threshold
        self._nodes = Nodes(self.client.storage, self.client.check_usable, self.client.check_writable)
        # None if the record is unreadable: any version is replaced.
        self._version: int | None = -1
        self.damage: str | None = None
        self.info: CursorInfo | None = None
        self.writer: LedgerWriter | None = None
        # The ledger that the record points to, from which pages are read.
        self.handle: LedgerHandle | None = None
        self.created_at = 0
        # Number of states in the current ledger.
        self.states = 0
        # Number of entries that were copied into the current ledger when it was created.
        self._copied = 0

    def change_compression(self, codec: str | None, threshold: int) -> None:
        self._codec, self._threshold = codec, threshold

    # -- the record --------------------------------------------------------------------------------------------------

    def load(self) -> CursorInfo | None:
        """Load the record; None if the cursor does not exist. An unreadable record is reconstructed from the labels of
        the cursor's ledgers, and :attr:`damage` is set."""
        self._version = None
        try:
            stored, self._version = self._nodes.get(self.path)
            self.info = decode_cursor_info(stored, f"node {self.path}", self.client.expansion_limits)
        except NoSuchNodeError:
            self._version = -1
            return None
        except (StoreDamagedError, MalformedRecordError) as error:
            self.damage = f"{error}; the labels of its ledgers are used instead"
            self.info = info_from_labels(self._labels(), self.topic, self.cursor)
        return self.info

    def _labels(self) -> Iterator[tuple[int, Mapping[str, bytes] | None]]:
        """Yield the labels of all ledgers; None for unreadable metadata."""
        for ledger_id in self.client.storage.ledger_ids():
            with suppress(NoSuchLedgerError):
                try:
                    labels = self.client.read_metadata(ledger_id).custom_metadata
                except (StoreDamagedError, MetadataSerializationError):
                    yield ledger_id, None
                else:
                    yield ledger_id, labels

    def put(self, info: CursorInfo) -> None:
        """Replace the record; fails if another owner has replaced it."""
        self._store(lambda _: info)

    def put_properties(self, change: Callable[[Transaction, dict[str, str]], object]) -> None:
        """Let ``change`` modify the cursor properties, and commit them together with its changes to the transaction."""
        assert self.info is not None
        info = self.info

        def make(transaction: Transaction) -> CursorInfo:
            properties = dict(info.cursor_properties)
            change(transaction, properties)
            return info._replace(cursor_properties=tuple(properties.items()))

        self._store(make)

    def _store(self, make: Callable[[Transaction], CursorInfo], obsolete: Iterable[int] = ()) -> None:
        """Write the record that ``make`` returns, and delete ledgers, in one commit; fails if another owner has written
        the record."""

        def fill(transaction: Transaction) -> tuple[CursorInfo, Pending]:
            self._delete_ledgers(transaction, obsolete)
            info = make(transaction)
            stored = encode_cursor_info(info, self._codec, self._threshold)
            return info, transaction.put_node(self.path, stored, self._version)

        try:
            info, version = self._commit(fill)
        except MetadataVersionError as error:
            self._check_fenced(error)
        except StoreDamagedError:
            if self._is_readable():
                raise
            # The stored record is damaged: overwrite any version. _commit() still checks the ownership of the topic.
            self._version = None
            info, version = self._commit(fill)
        self.info, self._version = info, version.result()

    def _is_readable(self) -> bool:
        """Return True if reading the record finds no damage."""
        try:
            self._nodes.get(self.path)
        except NoSuchNodeError:
            pass
        except StoreDamagedError:
            return False
        return True

    def _commit(self, fill: Callable[[Transaction], _T]) -> _T:
        """Commit the changes that ``fill`` makes, provided that the topic is still owned. The version of the cursor's
        record is not sufficient: another owner may have deleted and recreated the cursor."""
        while True:
            try:
                with Transaction(self.client) as transaction:
                    transaction.require_node(self._topic.path, self._topic.version)
                    return fill(transaction)
            except NodeVersionError:
                # This process may itself have changed the topic's node, by a rollover.
                try:
                    self._topic.check_owned()
                except LedgerError as error:
                    raise self._fenced(error) from error

    def _check_fenced(self, error: MetadataVersionError) -> NoReturn:
        """Raise :class:`CursorFencedError` if another owner has written the record; otherwise raise ``error``, as a
        retry may succeed."""
        try:
            changed = self._nodes.get(self.path)[1] != self._version
        except NoSuchNodeError:
            changed = True
        raise self._fenced(error) if changed else error

    def delete(self) -> None:
        """Delete the record and all ledgers that it references, including those in properties, in one commit."""
        try:
            self._delete_all(self._version)
        except (MetadataVersionError, NoSuchNodeError) as error:
            raise self._fenced(error) from error

    def discard(self) -> None:
        """Delete the cursor even if its record or its ledgers are unreadable, regardless of the owner."""
        if self.load() is None:
            raise NoSuchNodeError(f"topic {self.topic} has no cursor {self.cursor!r}")
        self._delete_all(None)

    def _delete_all(self, version: int | None) -> None:
        assert self.info is not None
        from_properties = property_ledgers(self.client, self.topic, self.cursor, self.info.cursor_properties)

        def fill(transaction: Transaction) -> None:
            self._delete_ledgers(transaction, [*from_properties, *self._all_ledgers()])
            transaction.delete_node(self.path, version)

        self._commit(fill)

    def _all_ledgers(self) -> list[int]:
        assert self.info is not None
        extensions = extensions_of(self.info)
        pending = [] if extensions.pending is None else [extensions.pending]
        return [self.info.cursor_ledger_id, *extensions.former, *pending]

    def _fenced(self, error: BookstandError) -> CursorFencedError:
        return CursorFencedError(f"cursor {self.cursor!r} of topic {self.topic} was opened by another owner: {error}")

    def _delete_ledgers(self, transaction: Transaction, ledgers: Iterable[int]) -> None:
        for ledger_id in ledgers:
            if self._has_ledger(ledger_id):
                transaction.delete_ledger(ledger_id)

    # -- ledgers -----------------------------------------------------------------------------------------------------

    def entries_of(self, ledger_id: int, recovery: bool) -> CursorLedgerEntries:
        """Open one of the cursor's ledgers; ``recovery`` also closes it, unless it is damaged."""
        handle: LedgerHandle
        damage = None
        try:
            handle = self.client.open(ledger_id, recovery, b"", None)
            # Reads need the state, so its damage must be detected here.
            state = self.client.storage.state(ledger_id)
            if handle.metadata.state == CLOSED:
                last = handle.last_add_confirmed
            else:
                # Stored entries are durable even if they are unconfirmed.
                last = -1 if state is None else state.last_entry
        except NoSuchLedgerError:
            raise
        except (LedgerRecoveryError, ReadError, *DAMAGED) as error:
            if not isinstance(error, DAMAGED) and not isinstance(error.__cause__, DAMAGED):
                raise
            handle = damaged = self.client.open_damaged(ledger_id)
            last = damaged.last_stored
            # A damaged last entry prevents closing the ledger; reading that entry reports it.
            if isinstance(error, DAMAGED):
                damage = f"ledger {ledger_id} is damaged, but its entries are read anyway: {error}"
        codec = handle.metadata.custom_metadata.get(CODEC_PROPERTY)
        return CursorLedgerEntries(
            handle,
            last,
            None if codec is None else codec.decode(errors="replace"),
            damage,
            self.client.expansion_limits,
        )

    def source(self, recovery: bool, newest: int | None = None) -> Source:
        """Return the ledgers to search for the state. ``recovery`` closes the ledger that the record points to."""
        assert self.info is not None
        current = self.info.cursor_ledger_id
        return source_of(self.info, lambda one: self.entries_of(one, recovery and one == current), newest)

    def replacement(
        self, handle: LedgerHandle, ledger_id: int, ref: PageRef, error: BookstandError, mark_delete: Position
    ) -> tuple[LedgerAcks, DamagedPage]:
        """Return the replacement of a damaged page in the ledger ``handle``, empty if no older page is intact, and the
        damage report."""
        source = self.source(recovery=False)
        entries = CursorLedgerEntries(handle, ref.entry_id - 1, None)
        topic_entries = {ledger.ledger_id: ledger.entries for ledger in self._topic.ledgers}
        found = replacements(self.cursor, source.older(entries, ref.entry_id), {ledger_id}, topic_entries).get(
            ledger_id
        )
        if found is not None:
            drop_consumed(found.page, mark_delete)
        page = LedgerAcks(ledger_id) if found is None else found.page
        return page, damage_report(handle.id, ledger_id, ref, str(error), found)

    @cached_property
    def entry_limit(self) -> int:
        """Maximum size of an entry of the cursor ledger, in bytes."""
        return self.client.max_entry_bytes - HEADER_BYTES - digest_for(self.client.defaults.digest, b"").size

    def append(self, entries: Sequence[bytes], commit_bytes: int) -> None:
        """Append to the current ledger. Raises :class:`NoSuchLedgerError` if it was deleted: a deleted ledger accepts
        entries until it is garbage-collected, but they are lost."""
        assert self.writer is not None
        append(self.writer, entries, commit_bytes)
        if self.is_ledger_deleted():
            raise NoSuchLedgerError(f"ledger {self.writer.id} of cursor {self.cursor!r} was deleted")

    def is_ledger_deleted(self) -> bool:
        return self.writer is not None and not self._has_ledger(self.writer.id)

    def _has_ledger(self, ledger_id: int) -> bool:
        """Return True if the ledger has metadata, even if they are unreadable."""
        return self.client.storage.has_ledger(ledger_id)

    @property
    def next_entry(self) -> int:
        assert self.writer is not None
        return self.writer.last_add_pushed + 1

    def is_writable(self, max_entries: int, max_age_millis: float) -> bool:
        """Return True if the next flush can append to the current ledger.

        A ledger that began with many copied entries may grow to twice that number, even beyond ``max_entries``:
        otherwise a state that fills a ledger would be copied with each flush.
        """
        writer = self.writer
        return (
            writer is not None
            and not writer.is_closed()
            and writer.last_add_pushed + 1 < max(max_entries, 2 * self._copied)
            and self.client.clock.now() - self.created_at < max_age_millis
        )

    @contextmanager
    def new_ledger(self, was_reset: bool) -> Iterator[LedgerWriter]:
        """Create a pending ledger to fill and to :meth:`switch` to; it is deleted on failure. ``was_reset``: recovery
        must not use older ledgers."""
        writer = self._create_pending(was_reset)
        try:
            yield writer
        except CursorFencedError:
            raise
        except BookstandError:
            self._delete_pending(writer)
            raise

    def _create_pending(self, was_reset: bool) -> LedgerWriter:
        """Create a pending ledger, and delete the previous pending one."""
        assert self.info is not None
        info = self.info
        extensions = extensions_of(info)
        since = b"" if was_reset or extensions.since is None else str(extensions.since).encode()
        labels = {**ledger_labels(self.topic, self.cursor), _SINCE_LABEL: since}
        created: list[LedgerWriter] = []

        def make(transaction: Transaction) -> CursorInfo:
            created.append(transaction.create_ledger(custom_metadata=labels))
            return info._replace(unknown=encode_extensions(extensions._replace(pending=created[0].id)))

        self._store(make, [] if extensions.pending is None else [extensions.pending])
        return created[0]

    def switch(
        self, writer: LedgerWriter, info: CursorInfo, retained: int, copied: int = 0, was_reset: bool = False
    ) -> None:
        """Make the pending ledger, which begins with ``copied`` entries, the current one. Former ledgers are retained
        from the one with the previous state on, unless the cursor ``was_reset``, and at least the last ``retained``;
        older ones are deleted. The caller replaces ``handle`` together with the references to pages."""
        assert self.info is not None
        extensions = extensions_of(self.info)
        since = writer.id if was_reset or extensions.since is None else extensions.since
        former = [one for one in (*extensions.former, self.info.cursor_ledger_id) if self._has_ledger(one)]
        # The ledger with the previous state, which is not the last one if that was damaged.
        stored = former.index(self.handle.id) if self.handle is not None and self.handle.id in former else len(former)
        first = min(stored if since != writer.id else len(former), max(0, len(former) - retained))
        obsolete, former = former[:first], former[first:]
        unknown = encode_extensions(RecordExtensions(None, tuple(former), extensions.unknown_fields, since))
        previous = self.writer
        self._store(lambda _: info._replace(cursor_ledger_id=writer.id, unknown=unknown), obsolete)
        if previous is not None and previous.id in former:
            previous.close()
        self.writer = writer
        self.created_at = self.client.clock.now()
        self._copied = copied
        self.states = 1

    def on_state_appended(self, retained: int) -> None:
        """Count a state in the current ledger. With the second state, former ledgers except the last ``retained`` are
        deleted; if that fails, the next flush retries."""
        assert self.info is not None
        self.states += 1
        extensions = extensions_of(self.info)
        first = max(0, len(extensions.former) - retained)
        if self.states < STATES_BEFORE_DELETION or not first:
            return
        info = self.info._replace(unknown=encode_extensions(extensions._replace(former=extensions.former[first:])))
        try:
            self._store(lambda _: info, extensions.former[:first])
        except BookstandError as error:
            logger().warning(
                "topic %s, cursor %s: former ledgers could not be deleted: %s", self.topic, self.cursor, error
            )

    def _delete_pending(self, writer: LedgerWriter) -> None:
        assert self.info is not None
        info = self.info._replace(unknown=encode_extensions(extensions_of(self.info)._replace(pending=None)))
        self._store(lambda _: info, [writer.id])

    def inline(self, info: CursorInfo) -> None:
        """Put the whole state into the record, and delete the ledgers."""
        assert self.info is not None
        unknown_fields = extensions_of(self.info).unknown_fields
        self._store(lambda _: info._replace(cursor_ledger_id=NO_LEDGER, unknown=unknown_fields), self._all_ledgers())
        self.writer = None


class EntrySink(Protocol):
    """Destination of encoded entries."""

    def append(self, data: bytes) -> object: ...
    def append_many(self, data: list[bytes]) -> object: ...


class DiscardingWriter:
    """Sink of a dry run."""

    def append(self, data: bytes) -> None: ...
    def append_many(self, data: list[bytes]) -> None: ...


def append(writer: EntrySink, entries: Sequence[bytes], commit_bytes: int) -> None:
    """Append in commits of at most ``commit_bytes``; the last entry is in the last commit."""
    if len(entries) == 1:
        writer.append(entries[0])
        return
    for part in _commits(entries, commit_bytes):
        writer.append_many(part)


def _commits(entries: Sequence[bytes], commit_bytes: int) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for entry in entries:
        if part and size + len(entry) > commit_bytes:
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry)
    if part:
        yield part
