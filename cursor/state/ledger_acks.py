"""What is acknowledged of one ledger of a topic, and how acknowledgments change it. Plain values, no I/O.

Two conventions meet here, as in Pulsar's records: ``acked`` holds the entries that are acknowledged; for an entry of
which only a part is, ``partial`` holds the indexes of its batch that are *not yet*, as the bits of a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

from pyroaring import BitMap64

from bookstand.errors import IncorrectParameterError
from bookstand.proto.expansion import MAX_BATCH_MESSAGES

# Heap bytes as malloc counts them: the objects of a page and its places in the cache's tables, with an empty bitmap; a
# container of a bitmap without its contents; an entry id of a batch and the allocation of its bits.
_PAGE_BYTES = 800
_CONTAINER_BYTES = 200
_BATCH_BYTES = 64
_CONTAINER_ENTRIES = 1 << 16
_LARGEST_CONTAINER = 8192
# Adding an entry splits a run, which takes 4 bytes, and CRoaring converts a container of runs only when asked to.
_ADDED_TO_RUNS = 512


class LedgerAcks:
    """Acknowledgments of one user ledger.

    ``acked`` may be added to directly unless ``may_have_runs``: then :meth:`ack` bounds the memory of its containers.
    ``partial`` must not be changed directly. ``changes`` counts all changes but single entries: see ``stamp``.
    """

    __slots__ = ("_partial_bytes", "_until_check", "acked", "changes", "ledger_id", "limit", "may_have_runs", "partial")

    def __init__(self, ledger_id: int, acked: BitMap64 | None = None, partial: dict[int, int] | None = None) -> None:
        self.ledger_id = ledger_id
        self.may_have_runs = acked is not None
        self._until_check = 0
        self.acked = BitMap64() if acked is None else acked
        self.partial = {} if partial is None else partial
        self._partial_bytes = sum(map(getsizeof, self.partial.values()))
        # Number of entries of the ledger when its page was last looked up: entries below it can be acknowledged.
        self.limit = 0
        self.changes = 0

    def __repr__(self) -> str:
        return f"<LedgerAcks of {self.ledger_id}: {len(self.acked)} entries, {len(self.partial)} in part>"

    def __bool__(self) -> bool:
        return bool(self.acked) or bool(self.partial)

    def copy(self) -> LedgerAcks:
        """Return an independent copy."""
        copied = LedgerAcks(self.ledger_id, self.acked.copy(), dict(self.partial))
        copied.changes = self.changes
        return copied

    @property
    def memory(self) -> int:
        """Heap bytes, measured."""
        statistics = self.acked.get_statistics()
        containers = (
            statistics["n_bytes_array_containers"]
            + statistics["n_bytes_run_containers"]
            + statistics["n_bytes_bitset_containers"]
        )
        return int(_PAGE_BYTES + containers + _CONTAINER_BYTES * statistics["n_containers"]) + self._partial_memory

    @property
    def most_memory(self) -> int:
        """Heap bytes with the largest bitmap that the ledger's entries can fill, without measuring it."""
        containers = self.limit // _CONTAINER_ENTRIES + 1
        return _PAGE_BYTES + containers * (_CONTAINER_BYTES + _LARGEST_CONTAINER) + self._partial_memory

    @property
    def _partial_memory(self) -> int:
        partial = self.partial
        return getsizeof(partial) + _BATCH_BYTES * len(partial) + self._partial_bytes if partial else 0

    @property
    def stamp(self) -> tuple[int, int]:
        """Another one after every change. Adding to ``acked`` directly is a change like any other."""
        return self.changes, len(self.acked)

    # -- changes -------------------------------------------------------------------------------------------------------

    def ack(self, entry_id: int) -> None:
        """Acknowledge a whole entry."""
        self.acked.add(entry_id)
        self.changes += 1
        if self.partial:
            self._drop_partial((entry_id,))
        if self.may_have_runs:
            self._bound_runs()

    def ack_all(self, entry_ids: Iterable[int]) -> None:
        """Acknowledge many entries at once."""
        self.acked.update(entry_ids)
        self.changes += 1
        self.may_have_runs, self._until_check = True, 0
        if self.partial:
            self._drop_partial([one for one in self.partial if one in self.acked])

    def ack_part(self, entry_id: int, not_acked: int) -> bool:
        """Acknowledge the indexes of a batch that are not set in ``not_acked``. Return True if that completes the
        entry."""
        if entry_id in self.acked:
            return True
        self.changes += 1
        before = self.partial.get(entry_id)
        left = not_acked if before is None else before & not_acked
        if left:
            self._partial_bytes += getsizeof(left) - (0 if before is None else getsizeof(before))
            self.partial[entry_id] = left
            return False
        self.ack(entry_id)
        return True

    def ack_part_up_to(self, entry_id: int, not_acked: int) -> bool:
        """A cumulative acknowledgment inside a batch: every index below the first one left is acknowledged too, and
        none that was is forgotten. Returns whether the entry is complete by that."""
        first = (not_acked & -not_acked).bit_length() - 1
        return self.ack_part(entry_id, not_acked >> first << first if not_acked else 0)

    def drop_up_to(self, entry_id: int) -> None:
        """Everything up to the entry is consumed, and need not be remembered one by one."""
        if self.reaches(entry_id):
            self.changes += 1
            self.acked.remove_range(0, entry_id + 1)
            self._drop_partial([one for one in self.partial if one <= entry_id])

    def drop_from(self, entry_id: int) -> None:
        """Drop what is acknowledged from the entry on."""
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
        """Convert containers of runs that single entries have split into more bytes than another form takes."""
        self._until_check -= 1
        if self._until_check < 0:
            self._until_check = _ADDED_TO_RUNS
            self.acked.run_optimize()
            self.may_have_runs = self.acked.get_statistics()["n_run_containers"] > 0

    def compact(self) -> None:
        """Release memory that the bitmap reserved for growing."""
        self.acked.shrink_to_fit()

    def reaches(self, entry_id: int) -> bool:
        """Whether it says anything of an entry up to this one."""
        return bool(self.acked and self.acked.min() <= entry_id) or any(one <= entry_id for one in self.partial)

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The highest entry that is acknowledged, whole or in part; -1 if none is."""
        return max(int(self.acked.max()) if self.acked else -1, max(self.partial, default=-1))

    def run_end(self, entry_id: int) -> int:
        """The last entry of the unbroken run of acknowledged ones that ``entry_id`` is in."""
        acked = self.acked
        before = acked.rank(entry_id) - 1
        # How many of the run are certain, doubled until it is too many, and halved back.
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

    def next_open(self, entry_id: int) -> int:
        """The first entry from ``entry_id`` on that is not acknowledged as a whole."""
        return self.run_end(entry_id) + 1 if entry_id in self.acked else entry_id

    def open_end(self, entry_id: int, last: int) -> int:
        """The last entry of the unbroken run of open ones that ``entry_id`` is in, up to ``last``."""
        before = self.acked.rank(entry_id)
        return last if before == len(self.acked) else min(last, int(self.acked[before]) - 1)

    def nth_open(self, first: int, number: int) -> int:
        """The ``number``-th entry from ``first`` on that is not acknowledged; all that are lie from there on."""
        low, high = first + number - 1, first + number - 1 + len(self.acked)
        while low < high:
            middle = (low + high) // 2
            if middle - first + 1 - self.acked.rank(middle) < number:
                low = middle + 1
            else:
                high = middle
        return low


def bits_of(indexes: Iterable[int], batch_size: int) -> int:
    """The bits of a batch that stay unacknowledged when these indexes are acknowledged."""
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
    # Written out in one pass: shifting a large number for each of its bits would take quadratic time.
    return [index for index, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
