"""Fifty kills of writing processes; ``make soak`` goes on for as long as is asked for."""

from __future__ import annotations

import json

import pytest

import bookstand
from tests.soak import __main__ as soak
from tests.soak import random_kills
from tests.soak.kinds import Done, Kind


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


def test_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(soak, "KINDS", {"odd_seeds": Kind(lambda seed: Done(3, ["odd"] if seed % 2 else []))})
    assert soak.main(["--cases", "12", "--seed", "4"]) == 1
    written = json.loads((tmp_path / "build/soak.json").read_text())["odd_seeds"]
    assert (written["cases"], written["failures"], written["seeds"]) == (12, 2, [5, 7])
    assert "--replay 5" in capsys.readouterr().out
    assert soak.main(["--replay", "4"]) == 0
    assert soak.main(["--seconds", "0.01", "--seed", "4"]) in (0, 1)
