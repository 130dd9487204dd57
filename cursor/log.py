"""A cursor's record in the metadata store, and the ledger that the record points to.

Creating a ledger and noting it in the record is one commit, and so is pointing the record at it and deleting the one
before. Between the two the new ledger is *pending*: a field of the record that no other reader knows names it, so that
a crash leaves no ledger that nobody knows of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple, NoReturn, Protocol, TypeVar

from bookstand.cursor.chunks import CODEC_PROPERTY
from bookstand.cursor.property_ledgers import property_ledgers
from bookstand.cursor.recovery import Entries
from bookstand.errors import (
    BookstandError,
    LedgerError,
    LedgerFencedError,
    MetadataVersionError,
    NoSuchNodeError,
)
from bookstand.ledger.client import Client
from bookstand.ledger.handle import LedgerHandle
from bookstand.ledger.managed import ManagedLedger
from bookstand.ledger.records import CursorInfo, decode_cursor_info, encode_cursor_info
from bookstand.ledger.topic_name import cursor_node_of, ledger_labels
from bookstand.ledger.transaction import Transaction
from bookstand.ledger.writer import LedgerWriter
from bookstand.proto import wire
from bookstand.storage.digest import digest_for
from bookstand.storage.entry import HEADER_BYTES
from bookstand.storage.node_changes import NodeMovedError
from bookstand.storage.nodes import Nodes
from bookstand.storage.pending import Pending

_T = TypeVar("_T")
NO_LEDGER = -1
_PENDING, _FORMER = 1000, 1001
_PENDING_TAG, _FORMER_TAG = wire.tag(_PENDING, wire.VARINT), wire.tag(_FORMER, wire.VARINT)


class CursorFencedError(LedgerFencedError):
    """The cursor was opened by another; this one writes no more."""


class Known(NamedTuple):
    """What the record's own fields say: the ledger that is being made, and former ones that are kept."""

    pending: int | None
    former: tuple[int, ...]
    others: bytes


def known_of(info: CursorInfo) -> Known:
    pending = None
    former = []
    others = bytearray()
    for tag, number, chunk in wire.fields(info.unknown):
        if tag == _PENDING_TAG:
            pending = number
        elif tag == _FORMER_TAG:
            former.append(number)
        else:
            _write_field(others, tag, number, chunk)
    return Known(pending, tuple(former), bytes(others))


def unknown_of(known: Known) -> bytes:
    out = bytearray(known.others)
    if known.pending is not None:
        wire.write_number(out, _PENDING, known.pending)
    for ledger_id in known.former:
        wire.write_number(out, _FORMER, ledger_id)
    return bytes(out)


def _write_field(out: bytearray, tag: int, number: int, chunk: bytes) -> None:
    kind = tag & 7
    wire.write_varint(out, tag)
    if kind == wire.BYTES:
        wire.write_varint(out, len(chunk))
        out += chunk
    elif kind == wire.FIXED64:
        out += number.to_bytes(8, "little")
    elif kind == wire.FIXED32:
        out += number.to_bytes(4, "little")
    else:
        wire.write_varint(out, number)


class CursorLog:
    """Not safe between threads but for :attr:`handle`: one flush at a time uses it."""

    def __init__(self, topic: ManagedLedger, cursor: str, codec: str | None, threshold: int) -> None:
        self.client: Client = topic.client
        self.topic = topic.name
        self._topic = topic
        self.cursor = cursor
        self.path = cursor_node_of(topic.name, cursor)
        self._codec = codec
        self._threshold = threshold
        self._nodes = Nodes(self.client.storage, self.client.check_usable, self.client.check_writable)
        self._version = -1
        self.info: CursorInfo | None = None
        self.writer: LedgerWriter | None = None
        # What pages are read from: the ledger that the record points to, or None.
        self.handle: LedgerHandle | None = None
        self.began = 0
        # How many entries of its ledger were copied from the one before.
        self._copied = 0

    # -- the record --------------------------------------------------------------------------------------------------

    def load(self) -> CursorInfo | None:
        """The record; None where there is no such cursor."""
        try:
            stored, self._version = self._nodes.get(self.path)
        except NoSuchNodeError:
            return None
        self.info = decode_cursor_info(stored, f"node {self.path}")
        return self.info

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
        self.info, self._version = info, version.result()

    def _commit(self, fill: Callable[[Transaction], _T]) -> _T:
        """One commit, unless the topic is another's by then: the version of the cursor's own record does not tell where
        another has deleted the cursor and begun it anew."""
        while True:
            try:
                with Transaction(self.client) as transaction:
                    transaction.require_node(self._topic.path, self._topic.version)
                    return fill(transaction)
            except NodeMovedError:
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

    def _all_ledgers(self) -> list[int]:
        assert self.info is not None
        known = known_of(self.info)
        return [self.info.cursor_ledger_id, *known.former, *([] if known.pending is None else [known.pending])]

    def _fenced(self, error: BookstandError) -> CursorFencedError:
        return CursorFencedError(f"cursor {self.cursor!r} of topic {self.topic} was opened by another: {error}")

    def _delete_ledgers(self, transaction: Transaction, ledgers: Iterable[int]) -> None:
        for ledger_id in ledgers:
            if ledger_id >= 0 and self.client.storage.metadata(ledger_id) is not None:
                transaction.delete_ledger(ledger_id)

    # -- its ledger --------------------------------------------------------------------------------------------------

    def entries_of(self, ledger_id: int, recovery: bool) -> Entries:
        """One of the cursor's ledgers; with ``recovery`` it is closed from now on."""
        handle = self.client.open(ledger_id, recovery, b"", None)
        codec = handle.metadata.custom_metadata.get(CODEC_PROPERTY)
        if self.info is not None and ledger_id == self.info.cursor_ledger_id and self.handle is None:
            self.handle = handle
        if recovery:
            last = handle.last_add_confirmed
        else:
            # Whatever is stored is durable, whether its writer has told anybody or not.
            state = self.client.storage.state(ledger_id)
            last = -1 if state is None else state.last_entry
        return Entries(handle, last, None if codec is None else codec.decode(errors="replace"))

    @cached_property
    def entry_limit(self) -> int:
        """How many bytes an entry of the cursor's ledger may have."""
        return self.client.max_entry_bytes - HEADER_BYTES - digest_for(self.client.defaults.digest, b"").size

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
    def new_ledger(self) -> Iterator[LedgerWriter]:
        """A ledger to fill and to :meth:`switch` to. Where that fails it is deleted, and all is as before."""
        writer = self._begin()
        try:
            yield writer
        except CursorFencedError:
            raise
        except BookstandError:
            self._drop(writer)
            raise

    def _begin(self) -> LedgerWriter:
        """A new ledger, pending; one that was pending before is deleted."""
        assert self.info is not None
        info = self.info
        known = known_of(info)
        created: list[LedgerWriter] = []

        def make(transaction: Transaction) -> CursorInfo:
            created.append(transaction.create_ledger(custom_metadata=ledger_labels(self.topic, self.cursor)))
            return info._replace(unknown=unknown_of(known._replace(pending=created[0].id)))

        self._store(make, [] if known.pending is None else [known.pending])
        return created[0]

    def switch(self, writer: LedgerWriter, info: CursorInfo, kept: int, copied: int = 0) -> None:
        """Point the record at the pending ledger, which begins with so many ``copied`` entries. Former ledgers are
        kept, so many of them, the rest deleted. From ``handle`` the old pages can be read until who holds their
        references changes both together."""
        assert self.info is not None
        known = known_of(self.info)
        former = [*known.former, *([self.info.cursor_ledger_id] if self.info.cursor_ledger_id >= 0 else [])]
        doomed, former = (former[:-kept], former[-kept:]) if kept else (former, [])
        unknown = unknown_of(Known(None, tuple(former), known.others))
        previous = self.writer
        self._store(lambda _: info._replace(cursor_ledger_id=writer.id, unknown=unknown), doomed)
        if previous is not None and previous.id in former:
            previous.close()
        self.writer = writer
        self.began = self.client.clock.now()
        self._copied = copied

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


class Appends(Protocol):
    """Where entries go: a ledger, or nowhere."""

    def append(self, data: bytes) -> object: ...
    def append_many(self, data: list[bytes]) -> object: ...


class Nowhere:
    """For what would be written, and is not."""

    def append(self, data: bytes) -> None: ...
    def append_many(self, data: list[bytes]) -> None: ...


def append(writer: Appends, entries: Sequence[bytes], commit_bytes: int) -> None:
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
