"""The command that runs campaigns: which kinds it knows, what it reports, and how a failure is repeated."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.soak import __main__ as soak
from tests.soak.kinds import Done, Kind, KindUnavailableError


def unavailable(seed):
    raise KindUnavailableError("needs a blue moon")


COUNTING = Kind(lambda seed: Done(1, [], Counter({"seen": seed, "lost": 0})))
ODD_SEEDS = Kind(lambda seed: Done(3, ["odd"] if seed % 2 else []))
UNAVAILABLE = Kind(unavailable)


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Gives what the last run wrote."""
    monkeypatch.chdir(tmp_path)
    kinds = {
        "counting": f"{__name__}:COUNTING",
        "odd_seeds": f"{__name__}:ODD_SEEDS",
        "unavailable": f"{__name__}:UNAVAILABLE",
    }
    monkeypatch.setattr(soak, "KINDS", kinds)
    return lambda: json.loads((tmp_path / "build/soak.json").read_text())


def test_failures_are_reported_with_their_seeds(report, capsys):
    assert soak.main(["--cases", "12", "--seed", "4", "--kind", "odd_seeds"]) == 1
    written = report()["odd_seeds"]
    assert (written["cases"], written["failures"], written["seeds"]) == (12, 2, [5, 7])
    assert "--replay 5" in capsys.readouterr().out
    assert soak.main(["--replay", "4", "--kind", "odd_seeds"]) == 0
    assert soak.main(["--replay", "5", "--kind", "odd_seeds"]) == 1
    assert soak.main(["--seconds", "0.01", "--seed", "4"]) in (0, 1)


def test_what_cannot_be_run_here_is_skipped_with_a_reason(report, capsys):
    assert soak.main(["--cases", "3", "--seed", "4"]) == 0
    assert report()["unavailable"]["skipped"] == "needs a blue moon"
    assert (report()["odd_seeds"]["cases"], report()["unavailable"]["cases"]) == (3, 0)
    assert "needs a blue moon" in capsys.readouterr().out


def test_counts_are_added_up_over_the_rounds(report):
    soak.main(["--cases", "3", "--seed", "4", "--kind", "counting"])
    assert report()["counting"]["figures"] == {"seen": 4 + 5 + 6, "lost": 0}


def test_one_kind_leaves_the_report_on_the_others(report):
    soak.main(["--cases", "3", "--seed", "4"])
    soak.main(["--cases", "3", "--seed", "5", "--kind", "odd_seeds"])
    assert report()["odd_seeds"]["seeds"] == [5]
    assert report()["unavailable"]["skipped"]


def test_only_what_is_run_is_imported(report, monkeypatch):
    monkeypatch.setitem(soak.KINDS, "broken", f"{__name__}:NO_SUCH_NAME")
    assert soak.main(["--cases", "3", "--seed", "4", "--kind", "odd_seeds"]) == 0
    with pytest.raises(AttributeError):
        soak.main(["--cases", "3", "--kind", "broken"])


def test_every_kind_is_there():
    assert all(isinstance(soak.find(name), Kind) for name in soak.KINDS)


def test_bad_arguments(report, capsys):
    with pytest.raises(SystemExit):
        soak.main(["--kind", "no such kind"])
    assert "odd_seeds" in capsys.readouterr().err
