"""Acknowledgments of one ledger of a topic. No I/O.

Two opposite conventions are used, as in Pulsar's records: ``acked`` holds the acknowledged entries, but for a partially
acknowledged entry ``partial`` holds the *unacknowledged* indexes of its batch, as the bits of a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

from pyroaring import BitMap64

from bookstand.errors import IncorrectParameterError
from bookstand.proto.expansion import MAX_BATCH_MESSAGES

# Heap bytes as malloc counts them: a page with an empty bitmap and its slots in the cache's tables; a bitmap container
# without its contents; the entry id of a batch and the allocation of its bits.
_PAGE_BYTES = 800
_CONTAINER_BYTES = 200
_BATCH_BYTES = 64
_CONTAINER_ENTRIES = 1 << 16
_LARGEST_CONTAINER = 8192
# Adding an entry can split a run, which takes 4 bytes, and CRoaring converts run containers only on request.
_ADDED_TO_RUNS = 512


class LedgerAcks:
    """Acknowledgments of one user ledger.

    Entries may be added to ``acked`` directly unless ``may_have_runs`` is set: then use :meth:`ack`, which bounds the
    memory of run containers. ``partial`` must not be changed directly. ``changes`` counts all other changes than direct
    additions to ``acked``; see :attr:`version`.
    """

    __slots__ = ("_partial_bytes", "_until_check", "acked", "changes", "ledger_id", "limit", "may_have_runs", "partial")

    def __init__(self, ledger_id: int, acked: BitMap64 | None = None, partial: dict[int, int] | None = None) -> None:
        self.ledger_id = ledger_id
        self.may_have_runs = acked is not None
        self._until_check = 0
        self.acked = BitMap64() if acked is None else acked
        self.partial = {} if partial is None else partial
        self._partial_bytes = sum(map(getsizeof, self.partial.values()))
        # Number of entries of the ledger when its page was last looked up; lower entries can be acknowledged.
        self.limit = 0
        self.changes = 0

    def __repr__(self) -> str:
        return f"<LedgerAcks of {self.ledger_id}: {len(self.acked)} entries, {len(self.partial)} in part>"

    def __bool__(self) -> bool:
        return bool(self.acked) or bool(self.partial)

    def copy(self) -> LedgerAcks:
        copied = LedgerAcks(self.ledger_id, self.acked.copy(), dict(self.partial))
        copied.changes = self.changes
        return copied

    @property
    def memory(self) -> int:
        """Measured heap bytes."""
        statistics = self.acked.get_statistics()
        containers = (
            statistics["n_bytes_array_containers"]
            + statistics["n_bytes_run_containers"]
            + statistics["n_bytes_bitset_containers"]
        )
        return int(_PAGE_BYTES + containers + _CONTAINER_BYTES * statistics["n_containers"]) + self._partial_memory

    @property
    def max_memory(self) -> int:
        """Upper bound of the heap bytes, for the largest bitmap that the ledger's entries can fill."""
        containers = self.limit // _CONTAINER_ENTRIES + 1
        return _PAGE_BYTES + containers * (_CONTAINER_BYTES + _LARGEST_CONTAINER) + self._partial_memory

    @property
    def _partial_memory(self) -> int:
        partial = self.partial
        return getsizeof(partial) + _BATCH_BYTES * len(partial) + self._partial_bytes if partial else 0

    @property
    def version(self) -> tuple[int, int]:
        """Value that differs after every change, including direct additions to ``acked``."""
        return self.changes, len(self.acked)

    # -- changes -------------------------------------------------------------------------------------------------------

    def ack(self, entry_id: int) -> None:
        self.acked.add(entry_id)
        self.changes += 1
        if self.partial:
            self._drop_partial((entry_id,))
        if self.may_have_runs:
            self._bound_runs()

    def ack_all(self, entry_ids: Iterable[int]) -> None:
        self.acked.update(entry_ids)
        self.changes += 1
        self.may_have_runs, self._until_check = True, 0
        if self.partial:
            self._drop_partial([one for one in self.partial if one in self.acked])

    def ack_part(self, entry_id: int, not_acked: int) -> bool:
        """Acknowledge the batch indexes that are not set in ``not_acked``. Returns True if the entry is complete."""
        if entry_id in self.acked:
            return True
        self.changes += 1
        before = self.partial.get(entry_id)
        remaining = not_acked if before is None else before & not_acked
        if remaining:
            self._partial_bytes += getsizeof(remaining) - (0 if before is None else getsizeof(before))
            self.partial[entry_id] = remaining
            return False
        self.ack(entry_id)
        return True

    def ack_part_up_to(self, entry_id: int, not_acked: int) -> bool:
        """Acknowledge cumulatively inside a batch: all indexes below the lowest one in ``not_acked``. Returns True if
        the entry is complete."""
        first = (not_acked & -not_acked).bit_length() - 1
        return self.ack_part(entry_id, not_acked >> first << first if not_acked else 0)

    def drop_up_to(self, entry_id: int) -> None:
        if self.covers_up_to(entry_id):
            self.changes += 1
            self.acked.remove_range(0, entry_id + 1)
            self._drop_partial([one for one in self.partial if one <= entry_id])

    def drop_from(self, entry_id: int) -> None:
        if self.acked and self.acked.max() >= entry_id:
            self.changes += 1
            self.acked.remove_range(entry_id, self.acked.max() + 1)
        self._drop_partial([one for one in self.partial if one >= entry_id])

    def _drop_partial(self, entry_ids: Iterable[int]) -> None:
        for entry_id in entry_ids:
            bits = self.partial.pop(entry_id, None)
            if bits is not None:
                self._partial_bytes -= getsizeof(bits)

    def _bound_runs(self) -> None:
        """Convert run containers that single entries have split into more bytes than another container type takes."""
        self._until_check -= 1
        if self._until_check < 0:
            self._until_check = _ADDED_TO_RUNS
            self.acked.run_optimize()
            self.may_have_runs = self.acked.get_statistics()["n_run_containers"] > 0

    def compact(self) -> None:
        """Release memory that the bitmap reserved for growing."""
        self.acked.shrink_to_fit()

    def covers_up_to(self, entry_id: int) -> bool:
        """Return True if there are acknowledgments up to and including the entry."""
        return bool(self.acked and self.acked.min() <= entry_id) or any(one <= entry_id for one in self.partial)

    # -- queries -------------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """Highest entry that is acknowledged at least partially; -1 if none is."""
        return max(int(self.acked.max()) if self.acked else -1, max(self.partial, default=-1))

    def run_end(self, entry_id: int) -> int:
        """Return the last entry of the acknowledged run that contains ``entry_id``."""
        acked = self.acked
        before = acked.rank(entry_id) - 1
        # Exponential search for an upper bound, then binary search.
        step = 1
        while acked.rank(entry_id + step) - before == step + 1:
            step *= 2
        low, high = step // 2, step
        while high - low > 1:
            middle = (low + high) // 2
            if acked.rank(entry_id + middle) - before == middle + 1:
                low = middle
            else:
                high = middle
        return entry_id + low

    def next_unacked(self, entry_id: int) -> int:
        """Return the first unacknowledged entry from ``entry_id`` on."""
        return self.run_end(entry_id) + 1 if entry_id in self.acked else entry_id

    def unacked_run_end(self, entry_id: int, last: int) -> int:
        """Return the last entry, at most ``last``, of the unacknowledged run that contains ``entry_id``."""
        before = self.acked.rank(entry_id)
        return last if before == len(self.acked) else min(last, int(self.acked[before]) - 1)

    def nth_unacked(self, first: int, number: int) -> int:
        """Return the ``number``-th unacknowledged entry from ``first`` on; ``acked`` has no entry before ``first``."""
        low, high = first + number - 1, first + number - 1 + len(self.acked)
        while low < high:
            middle = (low + high) // 2
            if middle - first + 1 - self.acked.rank(middle) < number:
                low = middle + 1
            else:
                high = middle
        return low


def bits_of(indexes: Iterable[int], batch_size: int) -> int:
    """Return the bits of the messages of a batch that are not among ``indexes``."""
    if type(batch_size) is not int or not 0 < batch_size <= MAX_BATCH_MESSAGES:
        raise IncorrectParameterError(
            f"batch_size must be an integer from 1 to {MAX_BATCH_MESSAGES}, not {batch_size!r}"
        )
    acked = 0
    for index in indexes:
        if type(index) is not int or not 0 <= index < batch_size:
            raise IncorrectParameterError(f"a batch of {batch_size} messages has no index {index!r}")
        acked |= 1 << index
    return ((1 << batch_size) - 1) & ~acked


def indexes_of(bits: int) -> list[int]:
    # Formatting takes one pass; shifting a large number bit by bit would take quadratic time.
    return [index for index, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
