"""Appends of all threads travel together: each has its own id, whoever comes between, and whatever is interrupted."""

from __future__ import annotations

import linecache
import sys
from contextlib import suppress

import pytest

from bookstand import errors
from tests.kit import PATIENCE, in_threads

GATHERS = "ledger/handles/add_batch.py", "ledger/handles/writer.py", "ledger/handles/base_writer.py"
CALLS = {
    "joining": lambda writer: writer.append_async(b"interrupted"),
    "waiting": lambda writer: writer.append(b"interrupted"),
    "pushed": lambda writer: writer.last_add_pushed,
    "length": lambda writer: writer.length,
    "many": lambda writer: writer.append_many([b"interrupted"] * 3),
    "force": lambda writer: writer.force(),
}


class Meeting(list):
    """What has arrived in a gathering, and somebody who comes in the middle of an append."""

    def __init__(self, arrived, before=None, after=None):
        super().__init__(arrived)
        self.before, self.after = before, after

    def append(self, pending):
        if self.before is not None:
            self.before()
        super().append(pending)
        if self.after is not None:
            self.after()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["append_async", "append"])
def test_who_finds_the_door_shut_behind_him_is_in_once(store, when, call):
    writer = store.create_ledger()
    pending = [writer.append_async(b"0"), writer.append_async(b"1")]
    gathering = writer.open_batch
    gathering.joined = Meeting(gathering.joined, **{when: lambda: in_threads(1, lambda _: writer.append_many([b"x"]))})
    answer = getattr(writer, call)(b"late")
    last = answer if call == "append" else answer.result(PATIENCE)
    assert [one.result(PATIENCE) for one in pending] == [0, 1]
    expected = [b"0", b"1", b"late", b"x"] if when == "after" else [b"0", b"1", b"x", b"late"]
    assert [entry.data for entry in writer.read(0, 3)] == expected
    assert expected[last] == b"late"
    assert (writer.last_add_pushed, writer.last_add_confirmed, writer.length) == (3, 3, 7)


def test_ids_lengths_and_payloads_of_many_threads(store):
    writer = store.create_ledger()
    each = 300

    def work(index):
        answers = []
        for number in range(each):
            payload = b"%d:%d" % (index, number)
            if number % 50 == 7:
                answers.append((payload, writer.append(payload)))
            elif number % 50 == 21:
                answers.append((payload, writer.append_many([payload])[0]))
            else:
                answers.append((payload, writer.append_async(payload)))
            if number % 13 == index:
                assert writer.last_add_pushed <= 8 * each
            if number % 17 == index:
                assert writer.length <= 8 * 6 * each
        return [(payload, one if type(one) is int else one.result(PATIENCE)) for payload, one in answers]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        answers = in_threads(8, work)
    finally:
        sys.setswitchinterval(interval)
    assert all([entry_id for _, entry_id in mine] == sorted(entry_id for _, entry_id in mine) for mine in answers)
    by_id = {entry_id: payload for mine in answers for payload, entry_id in mine}
    assert sorted(by_id) == list(range(8 * each))
    entries = writer.read(0, 8 * each - 1)
    assert [entry.data for entry in entries] == [by_id[entry_id] for entry_id in range(8 * each)]
    assert writer.last_add_pushed == 8 * each - 1
    assert writer.length == sum(map(len, by_id.values())) == entries[-1].cumulative_length


def interrupt_at(step, call, writer):
    """Ctrl-C before the ``step``-th line of what gathers and seals, before anything is answered; True if there are so
    many.

    Lines of a ``with`` are left out, for they come again where the block is left: there no signal strikes before the
    lock is released, only a trace function does.
    """
    seen = 0

    def trace(frame, event, _argument):
        nonlocal seen
        if frame.f_code.co_name in ("_complete_all", "_try_append_solo"):
            sys.settrace(None)
        if not frame.f_code.co_filename.endswith(GATHERS):
            return None
        if event == "line" and "with " not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            seen += 1
            if seen == step:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            call(writer)
    finally:
        sys.settrace(None)
    return seen >= step


@pytest.mark.parametrize("gathering", [True, False])
@pytest.mark.parametrize("what", CALLS)
def test_an_interruption_leaves_nothing_out_of_step(open_store, what, gathering):
    store = open_store(durability="none")
    step = 0
    while True:
        step += 1
        writer = store.create_ledger()
        answers = [(b"%d" % number, writer.append_async(b"%d" % number)) for number in range(3 if gathering else 0)]
        if not interrupt_at(step, CALLS[what], writer):
            break
        try:
            answers += [(b"after%d" % number, writer.append_async(b"after%d" % number)) for number in range(2)]
            pushed, length = writer.last_add_pushed, writer.length
            told = [(payload, answer.result(PATIENCE)) for payload, answer in answers]
        except (errors.OutcomeUnknownError, errors.LedgerClosedError):
            # It struck a commit: the writer has closed itself.
            assert writer.is_closed()
            told = []
        else:
            assert (writer.last_add_pushed, writer.length) == (pushed, length)
            assert [entry_id for _, entry_id in told] == sorted({entry_id for _, entry_id in told})
            writer.close()
        with store.open_ledger(writer.id) as reader:
            stored = list(reader)
        assert all(stored[entry_id].data == payload for payload, entry_id in told)
        known = [payload for payload, _ in answers] + [b"interrupted"] * 3
        for entry in stored:
            known.remove(entry.data)
        total = sum(len(entry.data) for entry in stored)
        assert [entry.cumulative_length for entry in stored[-1:]] == [total][: len(stored)]
        if told:
            assert (length, pushed) == (total, len(stored) - 1)
    assert step > 2
