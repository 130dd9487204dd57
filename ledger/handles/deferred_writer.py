"""Writer of ledgers with deferred sync: adds are acknowledged when accepted; ``force`` makes them durable.

Accepted entries remain in memory until the next commit: by ``force``, by a read in this process or by the background
thread. A fenced ledger is detected before an entry is accepted, or by the next force if it is fenced after that.
"""

from __future__ import annotations

from bookstand.errors import BookstandError
from bookstand.ledger.handles.writer import LedgerWriter, parts_of
from bookstand.storage.commit.futures import Pending, completed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Accepted bytes after which append() commits itself: backpressure for callers that never call force().
_ACCEPTED_BYTES = 4 << 20


class DeferredLedgerWriter(LedgerWriter):
    """Writer whose appends do not wait for a commit. Only :meth:`force` advances ``last_add_confirmed``."""

    _committed_length = 0

    def append(self, data: bytes) -> int:
        """Accept an entry, and return its id. :meth:`force` makes it durable."""
        data = self._checked(data)
        return self._accept([data], len(data))

    def append_async(self, data: bytes) -> Pending:
        """Accept an entry. The returned Pending is already done; its result is the entry id."""
        data = self._checked(data)
        try:
            return completed(self._accept([data], len(data)))
        except BookstandError as error:
            return completed(error=error)

    def append_many(self, payloads: Iterable[bytes]) -> range:
        """Accept many entries, and return their ids."""
        with self._append_lock:
            return self._exclusive(self._accept_many, payloads)

    def _accept_many(self, payloads: Iterable[bytes]) -> range:
        first = self._lap + 1
        count = 0
        for part, sizes in parts_of(payloads):
            self._check_sizes(part, sizes)
            self._accept(part, sizes.total)
            count += len(part)
        return range(first, first + count)

    def _accept(self, payloads: list[bytes], size: int) -> int:
        fenced = self._fenced_error()
        refusal = fenced
        with self._append_lock, self._lock:
            refusal = self._refusal() or fenced
            if refusal is None:
                add = self._joinable_batch()
                if add is None:
                    add = self._start_batch()
                    # Already acknowledged. The next force reports the outcome of the commit.
                    del self._adds[add.entries.first_entry]
                add.payloads += payloads
                self._lap += len(payloads)
                self._last_acknowledged = last = self._lap
                self._length += size
                waiting = self._length - self._committed_length
        if refusal is not None:
            if refusal is fenced:
                self._fail(refusal)
            rejected, _ = self._reject(refusal)
            assert rejected.error is not None
            raise rejected.error.with_traceback(None)
        if waiting >= _ACCEPTED_BYTES:
            self._committed_length = self._length
            self._storage.flush()
        else:
            self.committer.schedule_background()
        return last
