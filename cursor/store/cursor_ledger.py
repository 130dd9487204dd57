"""A cursor's record in the metadata store, and the ledgers that the record names.

Creating a ledger and noting it in the record is one commit, and so is pointing the record at it. Between the two the
new ledger is *pending*: a field of the record that no other reader knows names it, so that a crash leaves no ledger
without an owner. The ledger before it stays, named as *former*, until the new one has two states: there is always a
state before the newest one. A reset begins a new ledger, and the record names that one as the first from which recovery
may take anything (``since``): no older state can bring back what the reset revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple, NoReturn, Protocol, TypeVar

from bookstand.cursor.format.chunked_snapshot import CODEC_PROPERTY
from bookstand.cursor.format.page_ref import PageRef
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.store.property_ledgers import property_ledgers
from bookstand.cursor.store.recovery import (
    DAMAGED,
    CursorLedgerEntries,
    DamagedPage,
    Source,
    drop_consumed,
    replacements,
    report_of,
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
# Of a cursor's ledger: what the record says of the last reset when the ledger begins; empty: it begins with one.
_SINCE_LABEL = "bookstand/since"
NO_LEDGER = -1
_PENDING, _FORMER, _SINCE = 1000, 1001, 1002
_PENDING_TAG, _FORMER_TAG, _SINCE_TAG = (
    wire_format.tag(field, wire_format.VARINT) for field in (_PENDING, _FORMER, _SINCE)
)


STATES_BEFORE_DELETION = 2
"""Number of states in a ledger at which the former ledger is deleted."""


class CursorFencedError(LedgerFencedError):
    """The cursor was opened by another; this one writes no more."""


class RecordExtensions(NamedTuple):
    """The record's own fields: the ledger that is being made, the former ones that are retained, ascending, and the
    first ledger behind the last reset (None: not recorded, as in records of earlier versions)."""

    pending: int | None
    former: tuple[int, ...]
    others: bytes
    since: int | None = None


def known_of(info: CursorInfo) -> RecordExtensions:
    pending = since = None
    former = []
    others = bytearray()
    for tag, number, chunk in wire_format.fields(info.unknown):
        if tag == _PENDING_TAG:
            pending = number
        elif tag == _FORMER_TAG:
            former.append(number)
        elif tag == _SINCE_TAG:
            since = number
        else:
            _write_field(others, tag, number, chunk)
    return RecordExtensions(pending, tuple(former), bytes(others), since)


def unknown_of(known: RecordExtensions) -> bytes:
    out = bytearray(known.others)
    if known.pending is not None:
        wire_format.write_varint_field(out, _PENDING, known.pending)
    for ledger_id in known.former:
        wire_format.write_varint_field(out, _FORMER, ledger_id)
    if known.since is not None:
        wire_format.write_varint_field(out, _SINCE, known.since)
    return bytes(out)


def source_of(info: CursorInfo, open_ledger: Callable[[int], CursorLedgerEntries], newest: int | None = None) -> Source:
    """The ledgers in which the state of the cursor with this record is searched for; from ``newest`` backwards, if that
    is given."""
    known = known_of(info)
    newest = info.cursor_ledger_id if newest is None else newest
    former = [one for one in reversed(known.former) if known.since is not None and known.since <= one < newest]
    ledger_ids = [] if newest < 0 else [newest, *former]
    return Source(ledger_ids, open_ledger, known.since, info.mark_delete, info.properties)


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


def info_by_labels(ledgers: Iterable[tuple[int, Mapping[str, bytes] | None]], topic: str, cursor: str) -> CursorInfo:
    """Record of a cursor as far as the labels of ledgers, ascending, tell it; in place of a record that cannot be read.
    None: labels that cannot be read either.

    The newest ledger of the cursor is taken for the current one, and the others for former ones. The mark-delete
    position is unknown: without a readable ledger the cursor begins at the first entry of its topic. So it does if a
    newer ledger has unreadable labels, because that may be the cursor's and begin with a reset.
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
    unknown = unknown_of(RecordExtensions(None, tuple(former), b"", since))
    return CursorInfo(newest, cursor_properties=tuple(properties.items()), unknown=unknown)


def since_of(ledger_id: int, labels: Mapping[str, bytes]) -> int | None:
    """The first ledger behind the last reset, as the labels of a cursor's ledger tell it."""
    label = labels.get(_SINCE_LABEL)
    if label is None or not (label.isdigit() or not label):
        return None
    return int(label or ledger_id)


class CursorLedger:
    """Not safe between threads but for :attr:`handle`: one flush at a time uses it."""

    def __init__(self, topic: ManagedLedger, cursor: str, codec: str | None, threshold: int) -> None:
        self.client: Client = topic.client
        self.topic = topic.name
        self._topic = topic
        self.cursor = cursor
        self.path = cursor_node_of(topic.name, cursor)
        # The name under which the topic keeps what the cursor needs.
        self.hold_name = self.path.rpartition("/")[2]
        self._codec = codec
        self._threshold = threshold
        self._nodes = Nodes(self.client.storage, self.client.check_usable, self.client.check_writable)
        # None: any, for the record cannot be read.
        self._version: int | None = -1
        self.damage: str | None = None
        self.info: CursorInfo | None = None
        self.writer: LedgerWriter | None = None
        # What pages are read from: the ledger that the record points to, or None.
        self.handle: LedgerHandle | None = None
        self.began = 0
        # Number of states in the ledger that is written to.
        self.states = 0
        # How many entries of its ledger were copied from the one before.
        self._copied = 0

    def change_compression(self, codec: str | None, threshold: int) -> None:
        """Compress the record this way from the next time it is written."""
        self._codec, self._threshold = codec, threshold

    # -- the record --------------------------------------------------------------------------------------------------

    def load(self) -> CursorInfo | None:
        """Load the record; return None if there is no such cursor. A record that cannot be read (see :attr:`damage`) is
        replaced by the labels of the cursor's ledgers."""
        self._version = None
        try:
            stored, self._version = self._nodes.get(self.path)
            self.info = decode_cursor_info(stored, f"node {self.path}", self.client.expansion_limits)
        except NoSuchNodeError:
            self._version = -1
            return None
        except (StoreDamagedError, MalformedRecordError) as error:
            self.damage = f"{error}; the labels of its ledgers are used instead"
            self.info = info_by_labels(self._labels(), self.topic, self.cursor)
        return self.info

    def _labels(self) -> Iterator[tuple[int, Mapping[str, bytes] | None]]:
        """Labels of all ledgers; None for unreadable metadata."""
        for ledger_id in self.client.storage.ledger_ids():
            with suppress(NoSuchLedgerError):
                try:
                    labels = self.client.read_metadata(ledger_id).custom_metadata
                except (StoreDamagedError, MetadataSerializationError):
                    yield ledger_id, None
                else:
                    yield ledger_id, labels

    def put(self, info: CursorInfo) -> None:
        """Replace the record, unless somebody else has."""
        self._store(lambda _: info)

    def put_properties(self, change: Callable[[Transaction, dict[str, str]], object]) -> None:
        """Replace the cursor's properties by what ``change`` makes of them; one commit with what it does to the
        transaction."""
        assert self.info is not None
        info = self.info

        def make(transaction: Transaction) -> CursorInfo:
            properties = dict(info.cursor_properties)
            change(transaction, properties)
            return info._replace(cursor_properties=tuple(properties.items()))

        self._store(make)

    def _store(self, make: Callable[[Transaction], CursorInfo], doomed: Iterable[int] = ()) -> None:
        """Write the record that ``make`` gives, and delete ledgers with it: one commit, unless somebody else has
        written the record."""

        def fill(transaction: Transaction) -> tuple[CursorInfo, Pending]:
            self._delete_ledgers(transaction, doomed)
            info = make(transaction)
            stored = encode_cursor_info(info, self._codec, self._threshold)
            return info, transaction.put_node(self.path, stored, self._version)

        try:
            info, version = self._commit(fill)
        except MetadataVersionError as error:
            self._look_again(error)
        except StoreDamagedError:
            if self._is_readable():
                raise
            # It is replaced by what it was, and the topic is still ours.
            self._version = None
            info, version = self._commit(fill)
        self.info, self._version = info, version.result()

    def _is_readable(self) -> bool:
        """Return True if the record, or its absence, can be read."""
        try:
            self._nodes.get(self.path)
        except NoSuchNodeError:
            pass
        except StoreDamagedError:
            return False
        return True

    def _commit(self, fill: Callable[[Transaction], _T]) -> _T:
        """One commit, unless the topic is another's by then: the version of the cursor's own record does not tell where
        another has deleted the cursor and begun it anew."""
        while True:
            try:
                with Transaction(self.client) as transaction:
                    transaction.require_node(self._topic.path, self._topic.version)
                    return fill(transaction)
            except NodeVersionError:
                # Or it was we who began the topic's next ledger meanwhile.
                try:
                    self._topic.check_owned()
                except LedgerError as error:
                    raise self._fenced(error) from error

    def _look_again(self, error: MetadataVersionError) -> NoReturn:
        """The record was refused. If it is as it was, the next attempt may do better; if somebody else has written it,
        the cursor is theirs."""
        try:
            changed = self._nodes.get(self.path)[1] != self._version
        except NoSuchNodeError:
            changed = True
        raise self._fenced(error) if changed else error

    def delete(self) -> None:
        """Delete the record and all ledgers that it names, in its properties as well: one commit. Only the record is
        read."""
        assert self.info is not None
        named = property_ledgers(self.client, self.topic, self.cursor, self.info.cursor_properties)

        def fill(transaction: Transaction) -> None:
            self._delete_ledgers(transaction, [*named, *self._all_ledgers()])
            transaction.delete_node(self.path, self._version)

        try:
            self._commit(fill)
        except (MetadataVersionError, NoSuchNodeError) as error:
            raise self._fenced(error) from error

    def discard(self) -> None:
        """Delete the cursor whatever is damaged: the record may be unreadable, and so may the ledgers."""
        if self.load() is None:
            raise NoSuchNodeError(f"topic {self.topic} has no cursor {self.cursor!r}")

        assert self.info is not None
        named = property_ledgers(self.client, self.topic, self.cursor, self.info.cursor_properties)

        def fill(transaction: Transaction) -> None:
            self._delete_ledgers(transaction, [*named, *self._all_ledgers()])
            transaction.delete_node(self.path)

        self._commit(fill)

    def _all_ledgers(self) -> list[int]:
        assert self.info is not None
        known = known_of(self.info)
        return [self.info.cursor_ledger_id, *known.former, *([] if known.pending is None else [known.pending])]

    def _fenced(self, error: BookstandError) -> CursorFencedError:
        return CursorFencedError(f"cursor {self.cursor!r} of topic {self.topic} was opened by another: {error}")

    def _delete_ledgers(self, transaction: Transaction, ledgers: Iterable[int]) -> None:
        for ledger_id in ledgers:
            if self._has_ledger(ledger_id):
                transaction.delete_ledger(ledger_id)

    # -- its ledger --------------------------------------------------------------------------------------------------

    def entries_of(self, ledger_id: int, recovery: bool) -> CursorLedgerEntries:
        """One of the cursor's ledgers; with ``recovery`` it is closed from now on, unless it is damaged."""
        handle: LedgerHandle
        damage = None
        try:
            handle = self.client.open(ledger_id, recovery, b"", None)
            # Reading takes the state as well, so that its damage has to show here.
            state = self.client.storage.state(ledger_id)
            if handle.metadata.state == CLOSED:
                last = handle.last_add_confirmed
            else:
                # Everything that is stored is durable, confirmed or not.
                last = -1 if state is None else state.last_entry
        except NoSuchLedgerError:
            raise
        except (LedgerRecoveryError, ReadError, *DAMAGED) as error:
            if not isinstance(error, DAMAGED) and not isinstance(error.__cause__, DAMAGED):
                raise
            handle = damaged = self.client.open_damaged(ledger_id)
            last = damaged.last_stored
            # A damaged last entry, which keeps the ledger from being closed, is reported when it is read.
            if isinstance(error, DAMAGED):
                damage = f"ledger {ledger_id} is damaged, and its entries are read all the same: {error}"
        codec = handle.metadata.custom_metadata.get(CODEC_PROPERTY)
        return CursorLedgerEntries(
            handle,
            last,
            None if codec is None else codec.decode(errors="replace"),
            damage,
            self.client.expansion_limits,
        )

    def source(self, recovery: bool, newest: int | None = None) -> Source:
        """Ledgers to search for the state. With ``recovery`` the ledger that the record points to is closed."""
        assert self.info is not None
        current = self.info.cursor_ledger_id
        return source_of(self.info, lambda one: self.entries_of(one, recovery and one == current), newest)

    def replacement(
        self, handle: LedgerHandle, ledger_id: int, ref: PageRef, error: BookstandError, mark_delete: Position
    ) -> tuple[LedgerAcks, DamagedPage]:
        """The page to use instead of a damaged one, empty where there is none, and the report on it. ``handle``: the
        ledger with the damaged one."""
        source = self.source(recovery=False)
        entries = CursorLedgerEntries(handle, ref.entry_id - 1, None)
        topic_entries = {ledger.ledger_id: ledger.entries for ledger in self._topic.ledgers}
        found = replacements(self.cursor, source.older(entries, ref.entry_id), {ledger_id}, topic_entries).get(
            ledger_id
        )
        if found is not None:
            drop_consumed(found.page, mark_delete)
        page = LedgerAcks(ledger_id) if found is None else found.page
        return page, report_of(handle.id, ledger_id, ref, str(error), found)

    @cached_property
    def entry_limit(self) -> int:
        """How many bytes an entry of the cursor's ledger may have."""
        return self.client.max_entry_bytes - HEADER_BYTES - digest_for(self.client.defaults.digest, b"").size

    def append(self, entries: Sequence[bytes], commit_bytes: int) -> None:
        """Append to the ledger that is written to. One that was deleted takes entries until they are collected, but
        they are never found again: :class:`NoSuchLedgerError`."""
        assert self.writer is not None
        append(self.writer, entries, commit_bytes)
        if self.is_lost():
            raise NoSuchLedgerError(f"ledger {self.writer.id} of cursor {self.cursor!r} was deleted")

    def is_lost(self) -> bool:
        """Return True if the ledger that is written to was deleted."""
        return self.writer is not None and not self._has_ledger(self.writer.id)

    def _has_ledger(self, ledger_id: int) -> bool:
        """Return True if the ledger has metadata, readable or not."""
        return self.client.storage.has_ledger(ledger_id)

    @property
    def next_entry(self) -> int:
        assert self.writer is not None
        return self.writer.last_add_pushed + 1

    def is_writable(self, max_entries: int, max_age_millis: float) -> bool:
        """Whether the next flush can go into the ledger there is.

        One that began with more than half of its entries copied may have as many again: else a state that fills a
        ledger would be copied with each flush.
        """
        writer = self.writer
        return (
            writer is not None
            and not writer.is_closed()
            and writer.last_add_pushed + 1 < max(max_entries, 2 * self._copied)
            and self.client.clock.now() - self.began < max_age_millis
        )

    @contextmanager
    def new_ledger(self, was_reset: bool) -> Iterator[LedgerWriter]:
        """A ledger to fill and to :meth:`switch` to. Where that fails it is deleted, and all is as before.
        ``was_reset``: nothing in the ledgers before it may be used any more."""
        writer = self._begin(was_reset)
        try:
            yield writer
        except CursorFencedError:
            raise
        except BookstandError:
            self._drop(writer)
            raise

    def _begin(self, was_reset: bool) -> LedgerWriter:
        """A new ledger, pending; one that was pending before is deleted."""
        assert self.info is not None
        info = self.info
        known = known_of(info)
        since = b"" if was_reset or known.since is None else str(known.since).encode()
        labels = {**ledger_labels(self.topic, self.cursor), _SINCE_LABEL: since}
        created: list[LedgerWriter] = []

        def make(transaction: Transaction) -> CursorInfo:
            created.append(transaction.create_ledger(custom_metadata=labels))
            return info._replace(unknown=unknown_of(known._replace(pending=created[0].id)))

        self._store(make, [] if known.pending is None else [known.pending])
        return created[0]

    def switch(
        self, writer: LedgerWriter, info: CursorInfo, kept: int, copied: int = 0, was_reset: bool = False
    ) -> None:
        """Point the record at the pending ledger, which begins with so many ``copied`` entries. Former ledgers are
        retained from the one on that has the state before this one, but for a cursor that ``was_reset``; and ``kept``
        in any case. The rest is deleted. From ``handle`` the old pages can be read until the owner of their references
        changes both together."""
        assert self.info is not None
        known = known_of(self.info)
        since = writer.id if was_reset or known.since is None else known.since
        former = [one for one in (*known.former, self.info.cursor_ledger_id) if self._has_ledger(one)]
        # The one that the state is in, which is not the last one where that was damaged.
        stored = former.index(self.handle.id) if self.handle is not None and self.handle.id in former else len(former)
        first = min(stored if since != writer.id else len(former), max(0, len(former) - kept))
        doomed, former = former[:first], former[first:]
        unknown = unknown_of(RecordExtensions(None, tuple(former), known.others, since))
        previous = self.writer
        self._store(lambda _: info._replace(cursor_ledger_id=writer.id, unknown=unknown), doomed)
        if previous is not None and previous.id in former:
            previous.close()
        self.writer = writer
        self.began = self.client.clock.now()
        self._copied = copied
        self.states = 1

    def appended(self, kept: int) -> None:
        """The ledger has one more state. With the second one, former ledgers are not needed any more but for the last
        ``kept``. Where deleting them fails, the next flush tries again."""
        assert self.info is not None
        self.states += 1
        known = known_of(self.info)
        first = max(0, len(known.former) - kept)
        if self.states < STATES_BEFORE_DELETION or not first:
            return
        info = self.info._replace(unknown=unknown_of(known._replace(former=known.former[first:])))
        try:
            self._store(lambda _: info, known.former[:first])
        except BookstandError as error:
            logger().warning(
                "topic %s, cursor %s: former ledgers could not be deleted: %s", self.topic, self.cursor, error
            )

    def _drop(self, writer: LedgerWriter) -> None:
        """The pending ledger did not come about."""
        assert self.info is not None
        info = self.info._replace(unknown=unknown_of(known_of(self.info)._replace(pending=None)))
        self._store(lambda _: info, [writer.id])

    def inline(self, info: CursorInfo) -> None:
        """Put the whole state into the record, and delete the ledgers."""
        assert self.info is not None
        others = known_of(self.info).others
        self._store(lambda _: info._replace(cursor_ledger_id=NO_LEDGER, unknown=others), self._all_ledgers())
        self.writer = None


class EntrySink(Protocol):
    """Where entries go: a ledger, or nowhere."""

    def append(self, data: bytes) -> object: ...
    def append_many(self, data: list[bytes]) -> object: ...


class DiscardingWriter:
    """For what would be written, and is not."""

    def append(self, data: bytes) -> None: ...
    def append_many(self, data: list[bytes]) -> None: ...


def append(writer: EntrySink, entries: Sequence[bytes], commit_bytes: int) -> None:
    """Append in as many commits as it takes; the last entry is in the last one."""
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
