"""Many entries whose writer finds the store idle are committed by it alone, and are refused and answered as ever."""

from __future__ import annotations

import pytest

from bookstand import errors
from bookstand.storage.commit.executor import CommitExecutor
from tests.kit import PATIENCE

MANY = [b"%d" % number for number in range(5)]


def test_many_are_one_commit(store):
    writer = store.create_ledger()
    before = writer.client.storage._environment.last_commit
    assert writer.append_many(MANY) == range(5)
    assert writer.client.storage._environment.last_commit == before + 1
    assert [entry.data for entry in writer.read(0, 4)] == MANY
    assert (writer.last_add_confirmed, writer.length) == (4, 5)


def test_many_come_behind_what_is_queued_and_before_what_follows(store):
    writer = store.create_ledger()
    queued = [writer.append_async(b"queued") for _ in range(3)]
    assert writer.append_many(MANY) == range(3, 8)
    following = writer.append_async(b"following")
    assert [answer.result(PATIENCE) for answer in [*queued, following]] == [0, 1, 2, 8]
    assert writer.append_many(MANY) == range(9, 14)


@pytest.mark.parametrize("payloads", [[b"x"], MANY])
def test_an_interrupted_commit_ends_the_writer_and_nothing_else(store, monkeypatch, payloads):
    writer, other = store.create_ledger(), store.create_ledger()
    with monkeypatch.context() as patches:

        def sync(*_):
            raise KeyboardInterrupt

        patches.setattr(CommitExecutor, "_sync", sync)
        with pytest.raises(KeyboardInterrupt):
            writer.append_many(payloads)
    with pytest.raises(errors.LedgerClosedError):
        writer.append_many(payloads)
    assert other.append_many(MANY) == range(5)
    with store.open_ledger(writer.id) as reader:
        assert list(reader) == []


def test_many_of_a_fenced_ledger_are_refused_whole(store, open_store):
    writer = store.create_ledger()
    assert writer.append_many(MANY) == range(5)
    with open_store().open_ledger(writer.id) as reader:
        with pytest.raises(errors.LedgerFencedError):
            writer.append_many(MANY)
        assert [entry.data for entry in reader] == MANY
