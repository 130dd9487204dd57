"""The handle that creating a ledger gives: it hands out the entry ids."""

from __future__ import annotations

import struct
from itertools import chain, islice

from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    IncorrectParameterError,
    LedgerClosedError,
    OutcomeUnknownError,
)
from bookstand.ledger.handles.add_batch import ENTRY_ROOM
from bookstand.ledger.handles.base_writer import BaseWriter
from bookstand.ledger.validation import all_bytes, as_payload
from bookstand.storage.commit.futures import Completion, Pending, pending_for
from bookstand.storage.format.entry_batch import PayloadSizes
from bookstand.storage.format.ledger_metadata import CLOSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from bookstand.ledger.handles.add_batch import OpenAddBatch
    from bookstand.storage.format.digest import Digest

# What append_many hands over at a time: large enough for a commit to be cheap, small enough to stay in the cache.
_MANY_ENTRIES = 10_000
_MANY_BYTES = 8 << 20


class LedgerWriter(BaseWriter):
    """Appends entries with ids 0, 1, 2, …"""

    def append(self, data: bytes) -> int:
        """Add an entry, and return its id once it is durable (with deferred sync: accepted)."""
        if self.gathering is not None:
            # Where others gather, nobody adds alone.
            return self.append_async(data).result()  # type: ignore[no-any-return]
        entry_id = self.append_now(data)
        return entry_id if entry_id >= 0 else self.append_awaited(data).result()

    def append_now(self, data: bytes, most_entries: int | None = None) -> int:
        """The same, where nobody else is adding or committing; -1: it has to travel with others, or the ledger has
        ``most_entries`` already."""
        if type(data) is bytes and len(data) <= self._largest_payload and not self._alone and self._may_lead_alone():
            return self._append_now([data], len(data), most_entries=most_entries)
        return -1

    def append_awaited(self, data: bytes) -> Pending:
        """As :meth:`append_async`, for who is about to wait for the result in this thread."""
        if self.gathering is not None:
            return self.append_async(data)
        return self._gather(data)

    def _may_lead_alone(self) -> bool:
        """Return False with hooks: they may call the store from inside a commit, which only the leader of a batch can
        refuse."""
        return self._storage.hooks is None

    def _append_now(
        self, payloads: list[bytes], total: int, sizes: PayloadSizes | None = None, most_entries: int | None = None
    ) -> int:
        """Commit entries in this thread if no other commits, and return the id of the first one; -1: they take the way
        that all others take. ``total``: the payloads' bytes."""
        added = self.committer.run_exclusive(self._add_alone, payloads, total, sizes, most_entries)
        if added is None:
            return -1
        first, error, interruption = added
        if error is not None:
            self._fail(error)
            raise interruption or error.with_traceback(None)
        if interruption is not None:
            raise interruption
        return first

    def _add_alone(
        self, payloads: list[bytes], total: int, sizes: PayloadSizes | None, most_entries: int | None
    ) -> tuple[int, BookstandError | None, BaseException | None] | None:
        """Commit entries in this thread, which leads. Returns the id of the first one, the error that ends the handle,
        and what is to be raised instead."""
        first = -1
        try:
            with self._lock:
                if self._adds or self._reserved or self._adding_many or self._refusal() is not None:
                    return None
                following = self._lap + 1
                last = self._lap + len(payloads)
                if most_entries is not None and last >= most_entries:
                    return None
                entries = self._entries(following, payloads, self._lac, True)
                entries.sizes = sizes
                # No call is between these, so that no interruption is, either.
                first, self._lap, self._lone = following, last, total
                self._length += total
            error = self._storage.commit_entries(entries)
            with self._lock:
                if self.gathering is not None:
                    # Entries submitted from now on carry the new LAC.
                    self.end_gathering()
                dropped, self._lone = self._lone is None, None
                if error is not None:
                    self._length -= 0 if dropped else total
                elif not dropped:
                    self._head = self._lac = last
        except BaseException as interruption:
            if first < 0:
                raise
            unknown = OutcomeUnknownError(f"adding {self._named(first, last)} was interrupted by {interruption!r}")
            return first, unknown, interruption
        if dropped and error is None:
            name = self._named(first, last)
            return first, None, LedgerClosedError(f"ledger {self._id} was closed before {name} was answered")
        return first, error, None

    def _named(self, first: int, last: int) -> str:
        return f"entry {self._id}:{first}" + (f" to {self._id}:{last}" if last > first else "")

    def append_async(self, data: bytes) -> Pending:
        """Add an entry; the Pending's result is its id. Never blocks for long, and raises only for bad arguments."""
        if type(data) is bytes and (size := len(data)) <= self._largest_payload:
            # By far the most frequent way: to travel with what others have begun to gather.
            add = self.gathering
            if add is not None:
                pending = Pending()
                pending._completion = add
                pending._value = data
                add.arrived.append(pending)
                if not add.sealed or self._came_in_time(add, pending):
                    room = add.room = add.room - size - ENTRY_ROOM
                    if room < 0:
                        self.committer.drive(add)
                    return pending
        pending = self._gather(data)
        if not pending.done():
            self.committer.schedule_background()
        return pending

    def _came_in_time(self, add: OpenAddBatch, pending: Pending) -> bool:
        with self._lock:
            return add.took(pending)

    def _gather(self, data: bytes) -> Pending:
        """Queue an entry for which there may be nothing yet that it could join."""
        data = self._checked(data)
        if self._alone:
            return pending_for(*self._submit_alone(data, None))
        with self._turn, self._lock:
            refusal = self._refusal()
            if refusal is None:
                # Nobody seals it as long as the lock is held.
                add = self._open_gathering() or self._begin_gathering()
                pending = pending_for(add, data)
                add.arrived.append(pending)
                return pending
        return pending_for(*self._refused(refusal))

    def _checked(self, data: bytes) -> bytes:
        if type(data) is not bytes:
            data = as_payload(data)
        if len(data) > self._largest_payload:
            self.check_size(self.last_add_pushed + 1, data)
        return data

    def _learn_from_read(self) -> None:
        """No entry carries a LAC behind the last one that was added, by whomever: as long as the handle is open, it
        knows of no lower one."""
        if self._metadata.state == CLOSED:
            super()._learn_from_read()

    def _check_sizes(self, part: list[bytes], sizes: PayloadSizes) -> None:
        if sizes.largest > self._largest_payload:
            for number, data in enumerate(part, self.last_add_pushed + 1):
                self.check_size(number, data)

    def append_many(self, payloads: Iterable[bytes]) -> range:
        """Add many entries, the fast way; returns their ids once all are durable.

        They are committed some thousand at a time, each commit whole or not at all: after an error the first of them
        may have been added. Entries of one commit all carry the last-add-confirmed from before it.
        """
        parts = parts_of(payloads, None if self._alone else self._digest)
        leading = list(islice(parts, 2))
        if len(leading) > 1 or self._alone:
            with self._turn:
                return self._to_itself(self._append_parts, chain(leading, parts))
        for part, sizes in leading:
            self._check_sizes(part, sizes)
            if self._may_lead_alone():
                first = self._append_now(part, sizes.total, sizes)
                if first >= 0:
                    return range(first, first + len(part))
        return self._append_parts(leading)

    def _append_parts(self, parts: Iterable[tuple[list[bytes], PayloadSizes]]) -> range:
        first = self.last_add_pushed + 1
        count = 0
        for part, sizes in parts:
            self._check_sizes(part, sizes)
            submitted = self._submit_each(part) if self._alone else [self._submit_part(part, sizes)]
            if not count:
                first = submitted[0][1]
            for add, _ in submitted:
                add.wait()
                if add.error is not None:
                    raise add.error.with_traceback(None)
            count += len(part)
        return range(first, first + count)

    def _submit_part(self, part: list[bytes], sizes: PayloadSizes) -> tuple[Completion, int]:
        with self._turn, self._lock:
            refusal = self._refusal()
            if refusal is None:
                # Nothing may be put in front of these entries any more, and nothing goes with them.
                self.end_gathering()
                add = self._begin_gathering(sealed=True)
                add.payloads += part
                add.entries.sizes = sizes
                self.end_gathering()
                return add, add.entries.first_entry
        return self._refused(refusal)

    def _submit_each(self, part: list[bytes]) -> list[tuple[Completion, int]]:
        lac = self._lac
        return [self._submit_alone(data, None, lac) for data in part]

    def _refused(self, refusal: BookstandError) -> tuple[Completion, int]:
        if isinstance(refusal, ClientClosedError):
            # As the original does: the id is spent, though no entry will have it.
            self._lap += 1
        return super()._refused(refusal)


def parts_of(payloads: Iterable[bytes], digest: Digest | None = None) -> Iterator[tuple[list[bytes], PayloadSizes]]:
    """The payloads as bytes, in lists that are worth a commit each, with their sizes. ``digest``: that of the ledger to
    which they will be added as they are here."""
    if isinstance(payloads, list | tuple) and 0 < len(payloads) <= _MANY_ENTRIES:
        part, sizes = _measured(list(payloads), digest)
        if sizes.total <= _MANY_BYTES:
            yield part, sizes
            return
    try:
        source = iter(payloads)
    except TypeError:
        raise IncorrectParameterError(f"payloads come in an iterable, not in {payloads!r}") from None
    part, each, size = [], [], 0
    for data in source:
        if type(data) is not bytes:
            # Copied as it comes: the source may use one buffer for all.
            data = as_payload(data)
        part.append(data)
        each.append(len(data))
        size += len(data)
        if size >= _MANY_BYTES or len(part) >= _MANY_ENTRIES:
            yield part, PayloadSizes(each)
            part, each, size = [], [], 0
    if part:
        yield part, PayloadSizes(each)


def _measured(part: list[Any], digest: Digest | None) -> tuple[list[bytes], PayloadSizes]:
    try:
        sizes = PayloadSizes(list(map(len, part)))
        if digest is not None and sizes.total <= _MANY_BYTES and sizes.pack(digest, part):
            return part, sizes
        if all_bytes(part):
            return part, sizes
    except (TypeError, ValueError, struct.error):
        # Not all are bytes; one by one it shows which cannot be made bytes.
        pass
    part = list(map(as_payload, part))
    return part, PayloadSizes(list(map(len, part)))
