"""The index against a plain dict, whatever is written, lost and read again."""

from __future__ import annotations

import random
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bookstand import errors
from bookstand.cursor.errors import CursorDamagedError
from bookstand.cursor.format import page_index as module
from bookstand.cursor.format.ack_page import PageRef
from bookstand.cursor.format.index_node import (
    INNER_ITEMS,
    LEAF_ITEMS,
    NodeRef,
    decode_inner,
    decode_leaf,
    encode_inner,
    encode_leaf,
    find_in_leaf,
)
from bookstand.cursor.format.page_index import PageIndex, PreparedIndex
from bookstand.proto import wire_format
from tests.cursor.damage import damaged

Stored = dict[int, list[bytes]]

# The sums over all pages fit into 64 bits.
sizes = st.integers(0, 300) | st.integers(0, 2**48 - 1)
refs = st.builds(PageRef, sizes, st.integers(1, 2**32 - 1), sizes, sizes, sizes, sizes, st.integers(0, 2**32 - 1))
# Few enough to meet again, some of them far away.
ledger_ids = st.integers(0, 400) | st.sampled_from([2**32, 2**62, 2**63 - 1])


def ref_for(number: int) -> PageRef:
    return PageRef(number * 3, 1, number // 7, 100, number % 2, 260, number * 2_654_435_761 % 2**32)


def filled(count: int) -> PageIndex:
    index = PageIndex()
    for number in range(count):
        index.set(number * 5, ref_for(number))
    return index


def keep(stored: Stored, prepared: PreparedIndex) -> None:
    for at, nodes in enumerate(prepared.nodes):
        stored[prepared.entry_id + at] = nodes


def write(index: PageIndex, entry_id: int, stored: Stored, room: int | None = None) -> PreparedIndex:
    prepared = index.prepare(entry_id, room)
    keep(stored, prepared)
    index.commit()
    return prepared


def read(root: bytes, stored: Stored) -> PageIndex:
    def load(entry_id: int, slot: int) -> bytes:
        try:
            return stored[entry_id][slot]
        except LookupError:
            raise CursorDamagedError("nothing there") from None

    return PageIndex.read(root, load, cursor="sub")


def nodes_of(index: PageIndex) -> list[Any]:
    nodes: list[Any] = [index._root]
    for node in nodes:
        nodes += getattr(node, "children", [])
    return nodes


def stored_nodes(index: PageIndex) -> set[int]:
    return {node.ref.entry_id for node in nodes_of(index) if node.ref is not None}


def leaf_count(index: PageIndex) -> int:
    return sum(1 for node in nodes_of(index) if not node.level)


class Machine(RuleBasedStateMachine):
    leaf_items = LEAF_ITEMS
    inner_items = INNER_ITEMS

    def __init__(self) -> None:
        super().__init__()
        module._Leaf.capacity, module._Inner.capacity = self.leaf_items, self.inner_items
        self.index = PageIndex()
        self.model: dict[int, PageRef] = {}
        self.stored: Stored = {}
        self.next_entry = 0
        self.changed = False
        self.prepared: PreparedIndex | None = None
        self.prepared_model: dict[int, PageRef] = {}
        self.durable: list[tuple[bytes, dict[int, PageRef]]] = []

    def teardown(self) -> None:
        module._Leaf.capacity, module._Inner.capacity = LEAF_ITEMS, INNER_ITEMS

    @rule(ledger_id=ledger_ids, ref=refs)
    def set(self, ledger_id: int, ref: PageRef) -> None:
        self.index.set(ledger_id, ref)
        self.model[ledger_id] = ref
        self.changed = True

    @rule(start=st.integers(0, 400), count=st.integers(1, 300), step=st.sampled_from([1, 2, -1, 3]))
    def set_many(self, start: int, count: int, step: int) -> None:
        for number in range(start, max(start + step * count, 0), step):
            self.set(number, ref_for(number))

    @rule(seed=st.integers(0, 99), share=st.sampled_from([0.1, 0.5, 0.9, 1.0]))
    def remove_many(self, seed: int, share: float) -> None:
        chance = random.Random(seed)
        self.changed = True
        for ledger_id in chance.sample(sorted(self.model), int(len(self.model) * share)):
            assert self.index.remove(ledger_id) == self.model.pop(ledger_id)

    @rule(ledger_id=ledger_ids)
    def remove(self, ledger_id: int) -> None:
        self.changed |= ledger_id in self.model
        assert self.index.remove(ledger_id) == self.model.pop(ledger_id, None)

    @rule(ledger_id=ledger_ids)
    def remove_below(self, ledger_id: int) -> None:
        gone = [one for one in self.model if one < ledger_id]
        self.changed |= bool(gone)
        assert self.index.remove_below(ledger_id) == len(gone)
        for one in gone:
            del self.model[one]

    @rule(ledger_id=ledger_ids)
    def get(self, ledger_id: int) -> None:
        assert self.index.get(ledger_id) == self.model.get(ledger_id)
        assert (ledger_id in self.index) == (ledger_id in self.model)

    @precondition(lambda self: self.prepared is None)
    @rule(entries=st.sampled_from([None, 1, 3]))
    def prepare(self, entries: int | None) -> None:
        # The largest node has eight columns of eight bytes.
        room = None if entries is None else entries * (self.leaf_items * 64 + 100)
        self.prepared = self.index.prepare(self.next_entry, room)
        self.prepared_model = dict(self.model)
        self.changed = False
        for nodes in self.prepared.nodes:
            assert room is None or sum(map(len, nodes)) <= room

    @precondition(lambda self: self.prepared is not None)
    @rule()
    def commit(self) -> None:
        assert self.prepared is not None
        keep(self.stored, self.prepared)
        self.next_entry = self.prepared.marker_entry_id + 1
        self.index.commit()
        self.durable.append((self.prepared.root, self.prepared_model))
        stored = read(self.prepared.root, self.stored)
        assert dict(stored.items()) == self.prepared_model
        places = [node.ref for node in nodes_of(stored) if node.ref is not None]
        assert self.prepared.node_bytes == sum(len(self.stored[ref.entry_id][ref.slot]) for ref in places)
        if not self.changed:
            again = self.index.prepare(self.next_entry)
            assert again == self.prepared._replace(entry_id=self.next_entry, nodes=[[]])
            self.index.abort()
        self.prepared = None

    @precondition(lambda self: self.prepared is not None)
    @rule(used=st.booleans())
    def abort(self, used: bool) -> None:
        assert self.prepared is not None
        if used:
            # It stands there, but nothing refers to it.
            keep(self.stored, self.prepared)
            self.next_entry = self.prepared.marker_entry_id + 1
        self.index.abort()
        self.prepared = None

    @precondition(lambda self: self.durable)
    @rule(at=st.integers(0, 1_000), go_on=st.booleans())
    def reread(self, at: int, go_on: bool) -> None:
        """Any of the markers; and the last one as after a crash."""
        root, model = self.durable[-1] if go_on else self.durable[at % len(self.durable)]
        index = read(root, self.stored)
        assert dict(index.items()) == model
        if go_on:
            self.index, self.model, self.prepared = index, dict(model), None

    @precondition(lambda self: self.durable and self.prepared is None)
    @rule()
    def roll_over(self) -> None:
        self.model = {one: ref._replace(entry_id=ref.entry_id // 2) for one, ref in self.model.items()}
        self.index = PageIndex.build(sorted(self.model.items()))
        self.stored, self.durable, self.next_entry = {}, [], 0
        assert stored_nodes(self.index) == set()

    @invariant()
    def same(self) -> None:
        assert list(self.index.items()) == sorted(self.model.items())
        assert len(self.index) == len(self.model)
        found = self.model.values()
        assert self.index.acked == sum(ref.acked for ref in found)
        assert self.index.partial == sum(ref.partial for ref in found)
        assert self.index.page_bytes == sum(ref.size for ref in found)

    @invariant()
    def sound(self) -> None:
        for node in nodes_of(self.index):
            assert len(node) or not self.model
            assert len(node) <= node.capacity
            if node.level:
                assert [child.first for child in node.children] == node.firsts
                assert {child.level for child in node.children} == {node.level - 1}
                assert node.ref is None or all(child.ref is not None for child in node.children)


class SmallNodes(Machine):
    """The same with nodes that are divided and joined all the time."""

    leaf_items = 8
    inner_items = 8


TestIndex = Machine.TestCase
TestIndex.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSmallNodes = SmallNodes.TestCase
TestSmallNodes.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


# -- what a flush costs ----------------------------------------------------------------------------------------------


def flush_of_one(count: int) -> tuple[int, int]:
    """The nodes of one changed user ledger out of ``count``, and their bytes."""
    index, stored = filled(count), {}
    write(index, count, stored)
    index.set(count // 2 * 5, ref_for(7))
    nodes = write(index, count + 1, stored).nodes[0]
    return len(nodes), sum(map(len, nodes))


def test_a_flush_writes_a_path():
    assert flush_of_one(50)[0] == 1
    assert flush_of_one(400)[0] == 2
    assert flush_of_one(3_000)[0] == 3
    nodes, size = flush_of_one(60_000)
    assert nodes == 5
    assert size < 2 * flush_of_one(400)[1]


def test_nothing_is_written_twice():
    index, stored = filled(1_000), {}
    first = write(index, 0, stored)
    second = write(index, 1, stored)
    assert second.nodes == [[]]
    assert second.root == first.root


def test_what_did_not_become_durable_is_written_again():
    index = filled(1_000)
    first = index.prepare(0)
    index.abort()
    assert index.prepare(0) == first


def test_ledgers_in_order_fill_their_leaves():
    assert leaf_count(filled(LEAF_ITEMS * 100)) == 100


@pytest.mark.parametrize("order", ["front", "back", "random", "every tenth stays"])
def test_removal_does_not_leave_thin_nodes(order):
    count = 20_000
    index, stored = filled(count), {}
    write(index, 0, stored)
    going = list(range(count))
    if order == "back":
        going.reverse()
    elif order == "random":
        random.Random(1).shuffle(going)
    elif order == "every tenth stays":
        going.sort(key=lambda number: (number % 10 == 0, number))
    for done, number in enumerate(going):
        index.remove(number * 5)
        if done % 1_000 == 0:
            assert leaf_count(index) <= len(index) / (LEAF_ITEMS / 4) + 2
    assert len(index) == 0
    assert leaf_count(index) == 1


def test_trimming_from_the_front_keeps_the_tree_low():
    index = filled(20_000)
    for number in range(0, 20_000, 7):
        index.remove_below(number * 5)
        assert len(index) == 20_000 - number
        assert leaf_count(index) <= len(index) / LEAF_ITEMS + 2
    assert len(nodes_of(index)) == 1


@pytest.mark.slow
def test_trimming_leaves_no_thin_nodes_at_the_front():
    items = list(filled(3_000).items())
    for number in range(0, 2_900, 11):
        index = PageIndex.build(items)
        index.remove_below(items[number][0])
        assert list(index.items()) == items[number:]
        node = index._root
        while isinstance(node, module._Inner):
            node = node.children[0]
            assert len(node) > node.capacity // 4


def test_what_is_still_of_use():
    index, stored = filled(200), {}
    write(index, 1_000, stored)
    index.set(0, PageRef(1_001, 2, 8, 1, 0, 300, 5))
    write(index, 1_003, stored)
    assert stored_nodes(index) == {1_000, 1_003}


def test_a_node_that_fits_nowhere():
    index = filled(3)
    with pytest.raises(errors.EntryTooLargeError):
        index.prepare(0, 20)
    assert len(index.prepare(0, 200).nodes) == 1


def test_prepared_once_at_a_time():
    index = filled(3)
    for call in (index.commit, index.abort):
        with pytest.raises(errors.IllegalOperationError):
            call()
    index.prepare(0)
    with pytest.raises(errors.IllegalOperationError):
        index.prepare(0)


# -- damage ----------------------------------------------------------------------------------------------------------

INDEX = filled(1_500)
STORED: Stored = {}
ROOT = write(INDEX, 0, STORED, room=4_000).root
ITEMS = list(INDEX.items())


@settings(deadline=None)
@given(st.data())
def test_no_other_nodes_are_accepted(data):
    entry_id = data.draw(st.sampled_from(sorted(STORED)))
    slot = data.draw(st.integers(0, len(STORED[entry_id]) - 1))
    changed = {key: list(nodes) for key, nodes in STORED.items()}
    changed[entry_id][slot] = data.draw(
        damaged(STORED[entry_id][slot]) | st.sampled_from([node for nodes in STORED.values() for node in nodes])
    )
    if changed == STORED:
        return
    with pytest.raises(CursorDamagedError, match=f"'sub': slot {slot} of entry {entry_id} "):
        read(ROOT, changed)


@settings(deadline=None)
@given(damaged(ROOT) | st.binary(max_size=30))
def test_another_root_is_refused(root):
    try:
        index = read(root, STORED)
    except CursorDamagedError:
        return
    # Nothing is lost in it; an empty index has no node that could tell, and the marker's checksum does.
    assert not len(index) or list(index.items()) == ITEMS


def root_of(*numbers: int) -> bytes:
    out = bytearray()
    for number in numbers:
        wire_format.write_varint(out, number)
    return bytes(out)


def test_a_root_has_to_amount_to_its_index():
    raw = encode_leaf([5, 9], [ref_for(1), ref_for(2)])
    numbers = [2, 200, 1, 520, 3, 0, google_crc32c.value(raw)]
    assert len(read(root_of(*numbers), {3: [raw]})) == 2
    for at in range(len(numbers)):
        changed = [number + (place == at) for place, number in enumerate(numbers)]
        with pytest.raises(CursorDamagedError):
            read(root_of(*changed), {3: [raw]})
    for some in (numbers[:4], numbers[:6], [*numbers, 1], [0, 1, 0, 0], []):
        with pytest.raises(CursorDamagedError):
            read(root_of(*some), {3: [raw]})
    assert len(read(root_of(0, 0, 0, 0), {})) == 0


@pytest.mark.parametrize("firsts", [(5, 9), (5, 12), (6, 11)])
def test_nodes_do_not_overlap(firsts):
    leaves = [encode_leaf(keys, [ref_for(1), ref_for(1)]) for keys in ([5, 9], [11, 13])]
    inner = encode_inner(1, firsts, [NodeRef(3, slot, google_crc32c.value(raw)) for slot, raw in enumerate(leaves)])
    with pytest.raises(CursorDamagedError, match="other nodes"):
        read(root_of(4, 400, 4, 1_040, 3, 2, google_crc32c.value(inner)), {3: [*leaves, inner]})


@given(damaged(STORED[0][0]) | st.binary(max_size=200))
def test_a_leaf_is_decoded_or_refused(raw):
    try:
        ledger_ids_, found = decode_leaf(raw)
    except ValueError:
        return
    assert len(ledger_ids_) == len(found) <= LEAF_ITEMS
    assert [find_in_leaf(raw, ledger_id) for ledger_id in ledger_ids_] == found


@given(st.binary(max_size=200))
def test_an_inner_node_is_decoded_or_refused(raw):
    try:
        decode_inner(b"\x01" + raw, 1)
    except ValueError:
        pass
