"""The handle for ledgers with deferred sync: entries are answered when they are accepted, and promised by ``force``.

What was accepted waits in memory until somebody commits: the next force, a read in this process, the background. That
a ledger was fenced is noticed before an entry is accepted, or, where the fence comes between, by the next force.
"""

from __future__ import annotations

from bookstand.errors import BookstandError
from bookstand.ledger.handles.writer import LedgerWriter, parts_of
from bookstand.storage.commit.futures import Pending, completed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Accepted bytes after which the submitter commits, so that a caller who never forces is held back.
_ACCEPTED_BYTES = 4 << 20


class DeferredLedgerWriter(LedgerWriter):
    """Appends that wait for nothing; ``last_add_confirmed`` moves with :meth:`force` only."""

    _committed_length = 0

    def append(self, data: bytes) -> int:
        """Add an entry, and return its id once it is accepted; :meth:`force` makes it durable."""
        data = self._checked(data)
        return self._accept([data], len(data))

    def append_async(self, data: bytes) -> Pending:
        """The same; done when it returns."""
        data = self._checked(data)
        try:
            return completed(self._accept([data], len(data)))
        except BookstandError as error:
            return completed(error=error)

    def append_many(self, payloads: Iterable[bytes]) -> range:
        """The same for many entries."""
        with self._turn:
            return self._to_itself(self._accept_many, payloads)

    def _accept_many(self, payloads: Iterable[bytes]) -> range:
        first = self._lap + 1
        count = 0
        for part, sizes in parts_of(payloads):
            self._check_sizes(part, sizes)
            self._accept(part, sizes.total)
            count += len(part)
        return range(first, first + count)

    def _accept(self, payloads: list[bytes], size: int) -> int:
        foreseen = self._foreseen_refusal()
        refusal = foreseen
        with self._turn, self._lock:
            refusal = self._refusal() or foreseen
            if refusal is None:
                add = self._open_gathering()
                if add is None:
                    add = self._begin_gathering()
                    # Answered already: nobody waits for it, and what becomes of it shows with the next force.
                    del self._adds[add.entries.first_entry]
                add.payloads += payloads
                self._lap += len(payloads)
                self._head = last = self._lap
                self._length += size
                waiting = self._length - self._committed_length
        if refusal is not None:
            if refusal is foreseen:
                self._fail(refusal)
            answer, _ = self._refused(refusal)
            assert answer.error is not None
            raise answer.error.with_traceback(None)
        if waiting >= _ACCEPTED_BYTES:
            self._committed_length = self._length
            self._storage.flush()
        else:
            self.committer.schedule_background()
        return last
