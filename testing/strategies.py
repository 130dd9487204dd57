"""Hypothesis strategies for inputs of programs that use bookstand: positions, acknowledgments, delays, operations.

They draw plain data of ``bookstand.testing.workloads``, and shrink to small cases. Troublesome shapes are drawn often:
long runs and single holes, ties, the far future, an empty ledger in the middle of a topic, an operation after a
restart.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookstand.errors import IncorrectParameterError, MissingExtraError
from bookstand.storage.format.position import Position
from bookstand.testing.workloads import (
    Acknowledgment,
    Append,
    BatchIndexes,
    Close,
    Compact,
    Create,
    Cumulative,
    Delayed,
    Delete,
    DeleteNode,
    Force,
    Individual,
    Operation,
    PutNode,
    Recover,
    Reopen,
)

try:
    import hypothesis.strategies as st
    from hypothesis.strategies import DrawFn, SearchStrategy
except ImportError as missing:
    raise MissingExtraError("bookstand.testing.strategies needs Hypothesis: pip install 'bookstand[test]'") from missing

__all__ = ["acknowledgments", "delayed_workloads", "operations", "payloads", "positions", "topics"]

MAX_ID = (1 << 63) - 1
DIGESTS = ("crc32c", "crc32", "hmac", "dummy")
PATTERNS = ("sparse", "holes", "runs", "everything", "nothing")
DELAYS = ("constant", "ties", "spread", "mixed")
FAR_FUTURE = 1 << 42
"""About 140 years in milliseconds: beyond 32 bits of seconds and any plausible clock."""


def payloads(max_size: int = 64) -> SearchStrategy[bytes]:
    """Payloads of entries: mostly small, sometimes empty or larger than a page."""
    little = st.binary(max_size=max_size)
    return st.one_of(little, little, little, st.sampled_from([b"", b"\0", b"m" * 300, b"p" * 4100]))


@st.composite
def topics(
    draw: DrawFn, min_ledgers: int = 1, max_ledgers: int = 4, max_entries: int = 200
) -> tuple[tuple[int, int], ...]:
    """Topics: ids and numbers of entries of their ledgers. Ids ascend, with gaps for the ledgers of other topics.
    Ledgers may be empty, but not all of them."""
    if not 1 <= min_ledgers <= max_ledgers or max_entries < 1:
        raise IncorrectParameterError("a topic has a ledger and an entry at least, and no fewer at most than at least")
    number = draw(st.integers(min_ledgers, max_ledgers))
    first = draw(st.sampled_from([0, 1, 17, 1 << 31, 1 << 40]))
    steps = draw(st.lists(st.sampled_from([1, 1, 2, 7]), min_size=number, max_size=number))
    sizes = draw(
        st.lists(
            st.one_of(st.integers(0, min(10, max_entries)), st.integers(0, max_entries)),
            min_size=number,
            max_size=number,
        )
    )
    if not any(sizes):
        sizes[draw(st.integers(0, number - 1))] = draw(st.integers(1, max_entries))
    ledger_id = first - steps[0]
    topic = []
    for step, size in zip(steps, sizes, strict=True):
        ledger_id += step
        topic.append((ledger_id, size))
    return tuple(topic)


def positions(topic: Sequence[tuple[int, int]] | None = None) -> SearchStrategy[Position]:
    """Positions of a topic's entries. Without a topic, any valid position, often at the limits."""
    if topic is None:
        ids = st.one_of(
            st.integers(0, 100), st.sampled_from([0, 1, (1 << 31) - 1, 1 << 32, MAX_ID]), st.integers(0, MAX_ID)
        )
        return st.builds(Position, ids, ids)
    return st.sampled_from(_entries(topic))


def _entries(topic: Sequence[tuple[int, int]]) -> list[Position]:
    entries = [Position(ledger_id, entry_id) for ledger_id, size in topic for entry_id in range(size)]
    if not entries:
        raise IncorrectParameterError("the topic has no entries")
    return entries


# -- acknowledgments -------------------------------------------------------------------------------------------------


@st.composite
def acknowledgments(
    draw: DrawFn,
    topic: Sequence[tuple[int, int]],
    pattern: str | None = None,
    cumulative: bool = True,
    batches: bool = True,
) -> list[Acknowledgment]:
    """Acknowledgments of a subscription, in order.

    ``pattern`` selects the individually acknowledged entries; by default it is drawn for each ledger. ``"sparse"`` is a
    few entries. ``"holes"`` is all but a few, as with stuck consumers. ``"runs"`` alternates long acknowledged and
    unacknowledged stretches, as with several consumers. The others are ``"everything"`` and ``"nothing"``. The order is
    that of the topic, its reverse, or slightly shuffled. ``cumulative`` adds cumulative acknowledgments in between.
    ``batches`` adds acknowledgments of messages in an entry, which may also be acknowledged as a whole.
    """
    if pattern is not None and pattern not in PATTERNS:
        raise IncorrectParameterError(f"pattern must be one of {PATTERNS}, not {pattern!r}")
    chosen = []
    for ledger_id, size in topic:
        kind = pattern or draw(st.sampled_from(PATTERNS))
        chosen += [Position(ledger_id, entry_id) for entry_id in sorted(_chosen(draw, kind, size))]
    order = draw(st.sampled_from(["ascending", "descending", "mixed"]))
    if order == "descending":
        chosen.reverse()
    elif order == "mixed":
        # Shuffle within a window, as consumers with prefetching do.
        window = draw(st.integers(2, 20))
        for start in range(0, len(chosen), window):
            part = draw(st.permutations(chosen[start : start + window]))
            chosen[start : start + window] = part
    acks: list[Acknowledgment] = [Individual(position) for position in chosen]
    entries = _entries(topic)
    if batches:
        for _ in range(draw(st.integers(0, 4))):
            acks.insert(draw(st.integers(0, len(acks))), draw(_batch_acknowledgments(entries)))
    if cumulative:
        for _ in range(draw(st.integers(0, 2))):
            acks.insert(draw(st.integers(0, len(acks))), Cumulative(draw(st.sampled_from(entries))))
    return acks


def _chosen(draw: DrawFn, kind: str, size: int) -> set[int]:
    everything = set(range(size))
    if kind == "nothing" or not size:
        return set()
    if kind == "everything":
        return everything
    few = st.sets(st.integers(0, size - 1), max_size=max(1, min(8, size // 4)))
    if kind == "sparse":
        return draw(few)
    if kind == "holes":
        return everything - draw(few)
    chosen: set[int] = set()
    entry_id, acknowledged = 0, draw(st.booleans())
    while entry_id < size:
        length = draw(st.integers(1, max(1, size // 3)))
        if acknowledged:
            chosen.update(range(entry_id, min(size, entry_id + length)))
        entry_id, acknowledged = entry_id + length, not acknowledged
    return chosen


@st.composite
def _batch_acknowledgments(draw: DrawFn, entries: Sequence[Position]) -> BatchIndexes:
    size = draw(st.one_of(st.integers(2, 10), st.sampled_from([63, 64, 65, 1000])))
    indexes = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=min(size, 12)))
    if draw(st.booleans()):
        # All indexes except these, up to the last one missing.
        indexes = set(range(size)) - indexes or {0}
    return BatchIndexes(draw(st.sampled_from(entries)), tuple(sorted(indexes)), size)


# -- delays ----------------------------------------------------------------------------------------------------------


@st.composite
def delayed_workloads(
    draw: DrawFn, topic: Sequence[tuple[int, int]], now: int = 1_700_000_000_000, kind: str | None = None
) -> list[Delayed]:
    """Delayed messages of a topic in the order of publishing, which is the order of their positions.

    ``kind``: ``"constant"``, the same delay for messages published at regular intervals; ``"ties"``, many due at the
    same few times; ``"spread"``, anywhere within some days; ``"mixed"``, all of these, with times in the past, equal to
    ``now``, at the epoch and in the far future. ``now`` is in milliseconds. Not every message is delayed.
    """
    if kind is not None and kind not in DELAYS:
        raise IncorrectParameterError(f"kind must be one of {DELAYS}, not {kind!r}")
    kind = kind or draw(st.sampled_from(DELAYS))
    entries = _entries(topic)
    if len(entries) > 1 and draw(st.booleans()):
        few = draw(st.sets(st.integers(0, len(entries) - 1), min_size=1, max_size=20))
        entries = [entries[number] for number in sorted(few)]
    day = 86_400_000
    spread = st.integers(now - day // 24, now + 3 * day)
    if kind == "constant":
        step, delay = draw(st.integers(0, 1000)), draw(st.integers(1, day))
        return [Delayed(position, now + delay + number * step) for number, position in enumerate(entries)]
    if kind == "ties":
        times = st.sampled_from(draw(st.lists(spread, min_size=1, max_size=3)))
    elif kind == "spread":
        times = spread
    else:
        odd = st.sampled_from([0, 1, now - day, now - 1, now, now + 1, now + FAR_FUTURE])
        times = st.one_of(odd, odd, spread)
    return [Delayed(position, draw(times)) for position in entries]


# -- operations ------------------------------------------------------------------------------------------------------


class _Ledger:
    def __init__(self, writable: bool) -> None:
        self.writable = writable


@st.composite
def operations(
    draw: DrawFn, min_size: int = 1, max_size: int = 20, max_ledgers: int = 4, max_entries: int = 5
) -> list[Operation]:
    """Sequences of operations on ledgers and nodes that all succeed. None appends to a ledger that is closed or has
    lost its writer, and none deletes missing objects. ``workloads.perform`` runs them."""
    if not 1 <= min_size <= max_size:
        raise IncorrectParameterError("a sequence has an operation at least, and no fewer at most than at least")
    ledgers: dict[int, _Ledger] = {}
    nodes: set[str] = set()
    created = 0
    sequence: list[Operation] = []
    while len(sequence) < max_size and (len(sequence) < min_size or draw(st.integers(0, 14))):
        writable = [number for number, ledger in ledgers.items() if ledger.writable]
        # Hypothesis shrinks towards the first alternatives.
        kinds = ["append"] * 9 if writable else []
        kinds += ["create"] * 3 if len(ledgers) < max_ledgers else []
        kinds += ["force", "close"] if writable else []
        kinds += ["node", "compact", "reopen"]
        kinds += ["recover", "delete"] if ledgers else []
        kinds += ["delete node"] if nodes else []
        kind = draw(st.sampled_from(kinds))
        if kind == "create":
            digest, password = draw(st.sampled_from(DIGESTS)), draw(st.sampled_from([b"", b"secret"]))
            sequence.append(Create(created, digest, password, draw(st.booleans())))
            ledgers[created] = _Ledger(True)
            created += 1
        elif kind == "append":
            entries = draw(st.lists(payloads(16), min_size=1, max_size=max_entries))
            how = draw(st.sampled_from(["one", "async", "many"]))
            sequence.append(Append(draw(st.sampled_from(writable)), tuple(entries), how))
        elif kind in ("force", "close"):
            number = draw(st.sampled_from(writable))
            ledgers[number].writable = kind == "force"
            sequence.append(Force(number) if kind == "force" else Close(number))
        elif kind in ("recover", "delete"):
            number = draw(st.sampled_from(sorted(ledgers)))
            ledgers[number].writable = False
            sequence.append(Recover(number) if kind == "recover" else Delete(number))
            if kind == "delete":
                del ledgers[number]
        elif kind == "node":
            path = draw(st.sampled_from(["/a", "/a/b", "/c"]))
            nodes.add(path)
            sequence.append(PutNode(path, draw(payloads(8))))
        elif kind == "delete node":
            path = draw(st.sampled_from(sorted(nodes)))
            nodes.remove(path)
            sequence.append(DeleteNode(path))
        elif kind == "compact":
            sequence.append(Compact())
        else:
            for ledger in ledgers.values():
                ledger.writable = False
            sequence.append(Reopen())
    return sequence
