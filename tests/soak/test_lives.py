"""What is found after a life is held against what was told: every kind of broken promise is noticed."""

from __future__ import annotations

import random

import pytest

import bookstand
from tests.soak import io_faults, lives, promises
from tests.soak.promises import ALL_OR_NOTHING, IN_PART, NEEDED, NEW_LEDGER
from tests.soak.victims import Case

TRANSACTION = {"ledger 1": True, "entry 1:0": "74", "node /t": ["74", 0]}


def told(answer, effects, kind=ALL_OR_NOTHING, step="a step"):
    return {"step": step, "kind": kind, "answer": answer, "effects": effects}


def problems(found, *steps):
    return promises.judge([list(steps)], found)


def test_what_was_confirmed_has_to_be_there():
    assert problems(TRANSACTION, told("ok", TRANSACTION)) == []
    for key in TRANSACTION:
        assert len(problems(TRANSACTION | {key: "something else"}, told("ok", TRANSACTION))) == 1
        assert problems({other: TRANSACTION[other] for other in TRANSACTION if other != key}, told("ok", TRANSACTION))


def test_what_was_refused_must_not_be_there():
    refused = told("refused: WriteError", TRANSACTION)
    assert problems({}, refused) == []
    for key, value in TRANSACTION.items():
        assert len(problems({key: value}, refused)) == 1


@pytest.mark.parametrize("answer", ["unknown", None])
def test_an_unknown_outcome_is_all_or_nothing(answer):
    step = told(answer, TRANSACTION)
    assert problems({}, step) == []
    assert problems(TRANSACTION, step) == []
    for key in TRANSACTION:
        part = {other: value for other, value in TRANSACTION.items() if other != key}
        assert len(problems(part, step)) == 1


def test_entries_that_are_sent_together():
    window = {"entry 1:0": "30", "entry 1:1": "31", "entry 1:2": "32"}
    there = {"ledger 1": True}
    sent = told(None, window, IN_PART)
    created = told("ok", there)
    first = told("ok", {"entry 1:0": "30"}, IN_PART, "part")
    failed = told("refused: WriteError", window, IN_PART)
    for steps in ([created, sent, first], [created, sent, first, failed]):
        assert problems(there | {"entry 1:0": "30"}, *steps) == []
        assert problems(there | window, *steps) == []
        assert problems(there, *steps) == ["entry 1:0 should be '30', but is None"]
        assert problems(there | window | {"entry 1:1": "99"}, *steps) == ["entry 1:1 should not be there, but is '99'"]


def test_a_ledger_without_a_known_id():
    assert problems({"ledger 7": True}, told("unknown", {NEW_LEDGER: True})) == []
    assert problems({"ledger 7": True}, told(None, {NEW_LEDGER: True})) == []
    assert problems({}, told("unknown", {NEW_LEDGER: True})) == []
    assert problems({"ledger 7": True, "ledger 8": True}, told("unknown", {NEW_LEDGER: True}))
    assert problems({"ledger 7": True}, told("refused: WriteError", {NEW_LEDGER: True}))
    # What the answer told goes before what was intended.
    created = told("ok", {"ledger 7": True})
    assert problems({"ledger 7": True, "ledger 8": True}, told(None, {NEW_LEDGER: True}), created)


def test_a_deleted_ledger():
    steps = [told("ok", {"ledger 1": True}), told("ok", {"entry 1:0": "30"})]
    found = {"ledger 1": True, "entry 1:0": "30"}
    for answer in ("ok", "unknown", "refused: WriteError"):
        deleted = told(answer, {"ledger 1": None})
        assert bool(problems({}, *steps, deleted)) == answer.startswith("refused")
        assert bool(problems(found, *steps, deleted)) == (answer == "ok")


def test_errors_that_are_not_ours_and_a_store_that_cannot_be_used_again():
    assert problems({}, told("leaked: OSError()", {}))
    assert problems({}, told("refused: WriteError", {})) == []
    assert problems({}, told("refused: WriteError", {}, NEEDED))


def test_a_life_without_faults_keeps_what_it_told(tmp_path):
    for number, (name, (before, live)) in enumerate(lives.LIVES.items()):
        said = []
        path = str(tmp_path / str(number) / "store")
        if before is lives.some_ledgers_left_by_a_kill:
            # There was no kill: the store is still open here.
            continue
        for part in (before, live):
            life = lives.Life(path, 5, said.append, lambda: None)
            part(life)
        life.use_again()
        assert {one["answer"] for one in said} <= {"ok", None}, (name, said)
        with bookstand.open(path) as store:
            found = promises.observe(store)
        assert promises.judge([said], found) == []
        entry = random.Random(1).choice(sorted(key for key in found if key.startswith("entry")))
        assert promises.judge([said], {key: value for key, value in found.items() if key != entry})


def test_every_call_meets_a_fault_before_any_meets_two():
    cases = [Case("commits", 1, "*", when, answer) for when in range(1, 21) for answer in range(5)]
    chosen = io_faults.choose(cases, 3, 30)
    assert len(set(chosen)) == 30
    assert {case.when for case in chosen[:20]} == set(range(1, 21))
    assert io_faults.choose(cases, 3, 30) == chosen
    assert io_faults.choose(cases, 4, 30) != chosen
