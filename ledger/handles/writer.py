"""Writer that assigns entry ids itself."""

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
from bookstand.ledger.handles.add_batch import ENTRY_OVERHEAD
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

# Limits of one commit of append_many: large enough to amortize the commit, small enough to fit the CPU cache.
_MANY_ENTRIES = 10_000
_MANY_BYTES = 8 << 20


class LedgerWriter(BaseWriter):
    """Writer that assigns consecutive entry ids from 0."""

    def append(self, data: bytes) -> int:
        """Add an entry, and return its id after it is durable (with deferred sync: accepted)."""
        if self.open_batch is not None:
            # Entries of the open batch precede this one.
            return self.append_async(data).result()  # type: ignore[no-any-return]
        entry_id = self.try_append_solo(data)
        return entry_id if entry_id >= 0 else self.enqueue_append(data).result()

    def try_append_solo(self, data: bytes, max_entries: int | None = None) -> int:
        """Commit an entry in this thread and return its id, or -1 if that is not possible now. It is not possible while
        another thread adds or commits, or if the ledger has ``max_entries`` entries."""
        if type(data) is not bytes or len(data) > self._largest_payload or self._unbatched:
            return -1
        return self._try_append_solo([data], len(data), max_entries=max_entries) if self._can_commit_solo() else -1

    def enqueue_append(self, data: bytes) -> Pending:
        """Queue an entry without waking the background committer: the caller waits for the result itself."""
        if self.open_batch is not None:
            return self.append_async(data)
        return self._join_batch(data)

    def _can_commit_solo(self) -> bool:
        """Return False if hooks are set: only the leader of a batch can reject store calls from within a hook."""
        return self._storage.hooks is None

    def _try_append_solo(
        self, payloads: list[bytes], total: int, sizes: PayloadSizes | None = None, max_entries: int | None = None
    ) -> int:
        """Commit entries in this thread unless another one commits, and return the first id, or -1. ``total`` is the
        number of payload bytes."""
        added = self.committer.run_exclusive(self._commit_solo, payloads, total, sizes, max_entries)
        if added is None:
            return -1
        first, error, interruption = added
        if error is not None:
            self._fail(error)
            raise interruption or error.with_traceback(None)
        if interruption is not None:
            raise interruption
        return first

    def _commit_solo(
        self, payloads: list[bytes], total: int, sizes: PayloadSizes | None, max_entries: int | None
    ) -> tuple[int, BookstandError | None, BaseException | None] | None:
        """Commit entries in this thread, which leads the commit. Returns the first id, the error that fails the handle,
        and the interruption to raise in its place."""
        first = -1
        try:
            with self._lock:
                if self._adds or self._reserved or self._adding_many or self._refusal() is not None:
                    return None
                next_entry = self._lap + 1
                last = self._lap + len(payloads)
                if max_entries is not None and last >= max_entries:
                    return None
                entries = self._entries(next_entry, payloads, self._lac, True)
                entries.sizes = sizes
                # The assignments contain no call, so an interruption cannot separate them.
                first, self._lap, self._solo_bytes = next_entry, last, total
                self._length += total
            error = self._storage.commit_entries(entries)
            with self._lock:
                if self.open_batch is not None:
                    # Entries submitted from now on carry the new LAC.
                    self.seal_batch()
                dropped, self._solo_bytes = self._solo_bytes is None, None
                if error is not None:
                    self._length -= 0 if dropped else total
                elif not dropped:
                    self._last_acknowledged = self._lac = last
        except BaseException as interruption:
            if first < 0:
                raise
            unknown = OutcomeUnknownError(f"adding {self._name(first, last)} was interrupted by {interruption!r}")
            return first, unknown, interruption
        if dropped and error is None:
            name = self._name(first, last)
            return first, None, LedgerClosedError(f"ledger {self._id} was closed before {name} was acknowledged")
        return first, error, None

    def _name(self, first: int, last: int) -> str:
        return f"entry {self._id}:{first}" + (f" to {self._id}:{last}" if last > first else "")

    def append_async(self, data: bytes) -> Pending:
        """Add an entry; the result of the returned Pending is its id. It blocks only to commit a full batch, and raises
        only for invalid arguments."""
        if type(data) is bytes and (size := len(data)) <= self._largest_payload:
            # Fast path: join the open batch without a lock.
            add = self.open_batch
            if add is not None:
                pending = Pending()
                pending._completion = add
                pending._value = data
                add.joined.append(pending)
                if not add.sealed or self._joined_in_time(add, pending):
                    space_left = add.space_left = add.space_left - size - ENTRY_OVERHEAD
                    if space_left < 0:
                        self.committer.drive(add)
                    return pending
        pending = self._join_batch(data)
        if not pending.done():
            self.committer.schedule_background()
        return pending

    def _joined_in_time(self, add: OpenAddBatch, pending: Pending) -> bool:
        with self._lock:
            return add.accepted(pending)

    def _join_batch(self, data: bytes) -> Pending:
        """Queue an entry, starting a batch if none is open."""
        data = self._checked(data)
        if self._unbatched:
            return pending_for(*self._submit_single(data, None))
        with self._append_lock, self._lock:
            refusal = self._refusal()
            if refusal is None:
                # The batch cannot be sealed while this thread holds the lock.
                add = self._joinable_batch() or self._start_batch()
                pending = pending_for(add, data)
                add.joined.append(pending)
                return pending
        return pending_for(*self._reject(refusal))

    def _checked(self, data: bytes) -> bytes:
        if type(data) is not bytes:
            data = as_payload(data)
        if len(data) > self._largest_payload:
            self.check_size(self.last_add_pushed + 1, data)
        return data

    def _update_lac_after_read(self) -> None:
        """Skip this while the ledger is open: until then no stored entry carries a higher LAC than this writer's."""
        if self._metadata.state == CLOSED:
            super()._update_lac_after_read()

    def _check_sizes(self, part: list[bytes], sizes: PayloadSizes) -> None:
        if sizes.largest > self._largest_payload:
            for number, data in enumerate(part, self.last_add_pushed + 1):
                self.check_size(number, data)

    def append_many(self, payloads: Iterable[bytes]) -> range:
        """Add many entries, and return their ids after all are durable. Much faster than repeated :meth:`append`.

        Up to 10,000 entries are committed at a time. Each commit is atomic, so after an error the entries of earlier
        commits have been added. All entries of a commit carry the last-add-confirmed from before the commit.
        """
        parts = parts_of(payloads, None if self._unbatched else self._digest)
        leading = list(islice(parts, 2))
        if len(leading) > 1 or self._unbatched:
            with self._append_lock:
                return self._exclusive(self._append_parts, chain(leading, parts))
        for part, sizes in leading:
            self._check_sizes(part, sizes)
            if self._can_commit_solo():
                first = self._try_append_solo(part, sizes.total, sizes)
                if first >= 0:
                    return range(first, first + len(part))
        return self._append_parts(leading)

    def _append_parts(self, parts: Iterable[tuple[list[bytes], PayloadSizes]]) -> range:
        first = self.last_add_pushed + 1
        count = 0
        for part, sizes in parts:
            self._check_sizes(part, sizes)
            submitted = self._submit_each(part) if self._unbatched else [self._submit_part(part, sizes)]
            if not count:
                first = submitted[0][1]
            for add, _ in submitted:
                add.wait()
                if add.error is not None:
                    raise add.error.with_traceback(None)
            count += len(part)
        return range(first, first + count)

    def _submit_part(self, part: list[bytes], sizes: PayloadSizes) -> tuple[Completion, int]:
        with self._append_lock, self._lock:
            refusal = self._refusal()
            if refusal is None:
                # The entries of a part form a batch of their own, after those already queued.
                self.seal_batch()
                add = self._start_batch(sealed=True)
                add.payloads += part
                add.entries.sizes = sizes
                self.seal_batch()
                return add, add.entries.first_entry
        return self._reject(refusal)

    def _submit_each(self, part: list[bytes]) -> list[tuple[Completion, int]]:
        lac = self._lac
        return [self._submit_single(data, None, lac) for data in part]

    def _reject(self, refusal: BookstandError) -> tuple[Completion, int]:
        if isinstance(refusal, ClientClosedError):
            # BookKeeper's client also consumes the entry id in this case.
            self._lap += 1
        return super()._reject(refusal)


def parts_of(payloads: Iterable[bytes], digest: Digest | None = None) -> Iterator[tuple[list[bytes], PayloadSizes]]:
    """Convert payloads to bytes, and split them into parts of one commit each, with their sizes. With the ledger's
    ``digest``, a single part is also encoded as far as possible without entry ids."""
    if isinstance(payloads, list | tuple) and 0 < len(payloads) <= _MANY_ENTRIES:
        part, sizes = _measured(list(payloads), digest)
        if sizes.total <= _MANY_BYTES:
            yield part, sizes
            return
    try:
        source = iter(payloads)
    except TypeError:
        raise IncorrectParameterError(f"payloads must be an iterable, not {payloads!r}") from None
    part, lengths, size = [], [], 0
    for data in source:
        if type(data) is not bytes:
            # Copied before the next one is read: the source may reuse one buffer.
            data = as_payload(data)
        part.append(data)
        lengths.append(len(data))
        size += len(data)
        if size >= _MANY_BYTES or len(part) >= _MANY_ENTRIES:
            yield part, PayloadSizes(lengths)
            part, lengths, size = [], [], 0
    if part:
        yield part, PayloadSizes(lengths)


def _measured(part: list[Any], digest: Digest | None) -> tuple[list[bytes], PayloadSizes]:
    try:
        sizes = PayloadSizes(list(map(len, part)))
        if digest is not None and sizes.total <= _MANY_BYTES and sizes.pack(digest, part):
            return part, sizes
        if all_bytes(part):
            return part, sizes
    except (TypeError, ValueError, struct.error):
        # Some payloads are not bytes; as_payload() converts them or raises.
        pass
    part = list(map(as_payload, part))
    return part, PayloadSizes(list(map(len, part)))
