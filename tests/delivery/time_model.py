"""What a time index is: a sorted set of (bucket, ledger, entry)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import strategies as st

Triple = tuple[int, int, int]

MAX = (1 << 63) - 1


class TimeModel:
    def __init__(self, key: Callable[[int], int]) -> None:
        self.key = key
        self.triples: set[Triple] = set()

    def add(self, rows: Iterable[Triple]) -> None:
        self.triples.update((self.key(time), ledger, entry) for time, ledger, entry in rows)

    def pop(self, now: int, limit: int | None) -> list[Triple]:
        due = self.peek(None, now, limit)
        self.triples.difference_update(due)
        return due

    def peek(self, first: int | None, last: int | None, limit: int | None) -> list[Triple]:
        found = sorted(
            triple
            for triple in self.triples
            if (first is None or triple[0] >= first) and (last is None or triple[0] <= last)
        )
        return found if limit is None else found[:limit]

    def discard(self, keys: Iterable[int], ledger: int, entry: int) -> bool:
        found = {(key, ledger, entry) for key in keys} & self.triples
        self.triples -= found
        return bool(found)


# Few enough values to meet again, at the edges of what there may be, of pages and of containers.
times = st.one_of(st.integers(0, 80), st.integers(-MAX - 1, MAX), st.sampled_from([-MAX - 1, -1, MAX - 1, MAX]))
ledgers = st.one_of(st.integers(0, 4), st.sampled_from([1 << 40, MAX]))
entries = st.one_of(
    st.integers(0, 40),
    st.sampled_from([(1 << 16) - 1, 1 << 16, (1 << 20) - 1, 1 << 20, 1 << 45, MAX - 1, MAX]),
    st.integers(0, MAX),
)
near = st.integers(0, 80)
batches = st.one_of(
    st.lists(st.tuples(near, st.integers(0, 4), st.integers(0, 40)), max_size=60),
    st.lists(st.tuples(times, ledgers, entries), max_size=12),
)
