"""Fifty kills of writing processes; ``make soak`` goes on for as long as is asked for."""

from __future__ import annotations

import pytest

import bookstand
from tests.soak import random_kills


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_kills_lose_nothing_that_was_acknowledged(seed):
    done = random_kills.one_round(seed, kills=25)
    assert done.cases == 25
    assert not done.problems, "\n".join(done.problems)


def test_the_check_notices_what_is_missing(tmp_path):
    """The campaign is worth nothing if it cannot fail."""
    with bookstand.open(tmp_path / "store") as store:
        writer = store.create_ledger()
        writer.append_many([random_kills.payload(writer.id, n) for n in range(10)])
        other = store.create_ledger()
        other.append(b"something else")
    promises = random_kills.Promises()
    promises.hear(["acked", writer.id, 0, 9])
    assert random_kills.check(tmp_path / "store", promises) == []
    promises.hear(["acked", writer.id, 10, 10])
    promises.hear(["acked", other.id, 0, 0])
    promises.hear(["recovered", other.id, 3])
    promises.hear(["begin", "/node", 1, [writer.id], [9]])
    promises.hear(["commit", "/node", 1])
    problems = "\n".join(random_kills.check(tmp_path / "store", promises))
    for expected in (
        "10 was acknowledged",
        "wrong bytes in entries [0]",
        "was closed at 3",
        "transaction 1 was confirmed",
    ):
        assert expected in problems


@pytest.mark.parametrize("confirmed", [[], [2]])
def test_the_check_notices_what_a_transaction_left_that_did_not_happen(tmp_path, confirmed):
    """One that was cut short, and one that was refused before another one happened."""
    with bookstand.open(tmp_path / "store") as store:
        writers = [store.create_ledger() for _ in range(2)]
        for writer in writers:
            writer.append_many([random_kills.payload(writer.id, n) for n in range(10)])
        for number in confirmed:
            store.nodes.put("/node", b"%d" % number)

    def check(entries):
        promises = random_kills.Promises()
        promises.hear(["begin", "/node", 1, [writer.id for writer in writers], entries])
        for number in confirmed:
            promises.hear(["begin", "/node", number, [writers[0].id], [9]])
            promises.hear(["commit", "/node", number])
        return random_kills.check(tmp_path / "store", promises)

    assert check([10, 10]) == []
    left = f"['{writers[1].id}:9'], but did not happen"
    assert check([10, 9]) == [f"transaction 1 of /node left {left}"]


def test_the_check_notices_what_is_missing_of_a_transaction(tmp_path):
    with bookstand.open(tmp_path / "store") as store:
        writer = store.create_ledger()
        writer.append(random_kills.payload(writer.id, 0))
        store.nodes.put("/node", b"3")
    promises = random_kills.Promises()
    promises.hear(["begin", "/node", 2, [writer.id], [1]])
    promises.hear(["commit", "/node", 2])
    promises.hear(["begin", "/node", 3, [writer.id], [0]])
    missing = f"transaction 2 of /node happened, but ['{writer.id}:1'] are missing"
    assert random_kills.check(tmp_path / "store", promises) == [missing]
