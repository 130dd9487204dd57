"""Rules on one line and back, and what is said of arguments and lines that make no sense."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookstand
from bookstand import errors
from bookstand.testing.faults.failpoints import OPERATIONS, POINTS
from bookstand.testing.faults.faults import Faults
from bookstand.testing.faults.rules import TIMES, Rule, parse_rule
from tests.kit import code_of, own_environment, refused


def some_faults() -> Faults:
    faults = Faults(seed=7)
    faults.crash("commit.before_sync", nth=3)
    faults.crash("recovery.fenced", mode="kill")
    faults.fail("append", -6, ledger=4, entry=17)
    faults.fail("read", error=errors.DigestMismatchError, ledger=4, times=None, probability=0.25)
    faults.fail("read", -5, entry=3)
    faults.fail("nodes.put", path="/topics/a b;c(1)", nth=2, times=3)
    faults.lose_ack()
    faults.delay("append", 0.5, after=True, times=1)
    faults.delay("read", (0.001, 2))
    faults.stall("close", ledger=0)
    faults.conflict()
    faults.disk_full(after=12)
    faults.disk_full()
    faults.flip(4, 17)
    faults.flip(4, 18, 5, times=1)
    faults.return_empty_ledger_after(2)
    faults.fail("append", -105, ledger=4, bookie=2, times=None)
    faults.stall("fence", bookie=3)
    faults.flip(4, 17, bookie=1)
    faults.crash("append.stored", bookie=2)
    return faults


def test_one_line_says_it_all() -> None:
    faults = some_faults()
    assert faults.replay == (
        "v1:seed=7;crash@commit.before_sync#3;crash@recovery.fenced=kill;fail@append(4:17)=-6;"
        "fail@read(4)*inf%0.25=DigestMismatchError;fail@read(:3)=-5;fail@nodes.put(/topics/a%20b%3Bc%281%29)#2*3=-6;"
        "fail+after@append=OutcomeUnknownError;delay+after@append*1=0.5;delay@read=0.001~2;stall@close(0);"
        "conflict@close;full@commit=12;full@commit;flip@read(4:17);flip@read(4:18)*1=5;empty+after@open#3;"
        "fail@append(4)@bookie2*inf=-105;stall@fence@bookie3;flip@read(4:17)@bookie1;crash@append.stored@bookie2"
    )
    assert faults.replay_line == f'BOOKSTAND_FAULTS="{faults.replay}"'


def test_what_is_parsed_is_the_same() -> None:
    faults = some_faults()
    again = Faults.parse(faults.replay)
    assert again.replay == faults.replay
    assert [vars(rule) | {"action": None} for rule in again.rules] == [
        vars(rule) | {"action": None} for rule in faults.rules
    ]
    assert len(again.stalls) == 2
    assert Faults.parse("v1:seed=-3").seed == -3
    assert Faults.parse(" ; ".join(faults.replay.split(";"))).replay == faults.replay


NUMBERS = st.none() | st.integers(0, 1 << 62)


@given(
    kind=st.sampled_from(sorted(TIMES)),
    operation=st.sampled_from([*OPERATIONS, *POINTS]),
    ledger=NUMBERS,
    entry=NUMBERS,
    path=st.none() | st.text(max_size=20).map(lambda text: "/" + text),
    nth=NUMBERS,
    times=NUMBERS,
    probability=st.none() | st.floats(0, 1, exclude_min=True),
    after=st.booleans(),
    value=st.sampled_from(["", "-6", "0.5~1", "kill"]),
    bookie=NUMBERS,
)
def test_every_rule_is_read_as_it_was_written(**fields: Any) -> None:
    if fields["path"] is not None:
        fields["ledger"] = fields["entry"] = None
    rule = Rule(**fields)
    try:
        text = str(rule)
    except UnicodeEncodeError:
        return
    assert ";" not in text
    assert vars(parse_rule(text)) == vars(rule)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seed=7",
        "v2:seed=7",
        "v1:",
        "v1:seed=",
        "v1:seed=x",
        "v1:crash@commit.before_sync",
        "v1:seed=7;",
        "v1:seed=7;nonsense",
        "v1:seed=7;explode@append",
        "v1:seed=7;fail@append",
        "v1:seed=7;fail@append=6",
        "v1:seed=7;fail@append=-1234",
        "v1:seed=7;fail@append=Exception",
        "v1:seed=7;fail@append=by_code",
        "v1:seed=7;fail@nothing=-6",
        "v1:seed=7;fail@append(4:17=-6",
        "v1:seed=7;fail@append(a)=-6",
        "v1:seed=7;fail@append#0=-6",
        "v1:seed=7;fail@append*0=-6",
        "v1:seed=7;fail@append%2=-6",
        "v1:seed=7;fail@append%e-=-6",
        "v1:seed=7;fail+after@read=-6",
        "v1:seed=7;fail@commit(4)=-6",
        "v1:seed=7;fail@close(4:1)=-6",
        "v1:seed=7;fail@close(/a)=-6",
        "v1:seed=7;delay@append",
        "v1:seed=7;delay@append=2~1",
        "v1:seed=7;delay@append=nan",
        "v1:seed=7;delay@append=inf",
        "v1:seed=7;stall@append=3",
        "v1:seed=7;conflict@append",
        "v1:seed=7;conflict+after@close",
        "v1:seed=7;crash@append",
        "v1:seed=7;crash@commit.before_sync=softly",
        "v1:seed=7;crash@commit.before_sync*2",
        "v1:seed=7;crash@append.stored(/a)",
        "v1:seed=7;crash@create.before(4:1)",
        "v1:seed=7;crash@commit.before_sync(4)",
        "v1:seed=7;crash@commit.before_sync@bookie1",
        "v1:seed=7;fail@append@bookie0=-6",
        "v1:seed=7;fail@append@bookie=-6",
        "v1:seed=7;fail@append@bookie65535=-6",
        "v1:seed=7;fail@append@bookie1(4)=-6",
        "v1:seed=7;fail@nodes.put@bookie1=-6",
        "v1:seed=7;full@commit@bookie1",
        "v1:seed=7;full@append",
        "v1:seed=7;full@commit=-1",
        "v1:seed=7;flip@commit",
        "v1:seed=7;flip@read=a",
        "v1:seed=7;empty@open",
        # Numbers that Python does not turn into text again.
        f"v1:seed={'9' * 5000}",
        f"v1:seed=7;fail@append({'9' * 5000})=-6",
        f"v1:seed=7;fail@append(4:{'9' * 5000})=-6",
        f"v1:seed=7;fail@append#{'9' * 5000}=-6",
        f"v1:seed=7;fail@append*{'9' * 5000}=-6",
        f"v1:seed=7;fail@append=-{'9' * 5000}",
        f"v1:seed=7;delay@append={'9' * 5000}",
        f"v1:seed=7;flip@read={'9' * 5000}",
        f"v1:seed=7;full@commit={'9' * 5000}",
    ],
    ids=lambda text: text[:60],
)
def test_lines_that_make_no_sense(text: str) -> None:
    if text == "v1:seed=7;":
        assert Faults.parse(text).rules == []
        return
    with refused(-14):
        Faults.parse(text)


@pytest.mark.parametrize(
    "call",
    [
        lambda faults: Faults("7"),
        lambda faults: Faults(True),
        lambda faults: Faults(clock=0),
        lambda faults: Faults.parse(None),
        lambda faults: faults.fail("nothing"),
        lambda faults: faults.fail(None),
        lambda faults: faults.fail("append", "-6"),
        lambda faults: faults.fail("append", 0),
        lambda faults: faults.fail("append", -12345),
        lambda faults: faults.fail("append", error=OSError()),
        lambda faults: faults.fail("append", error=OSError),
        lambda faults: faults.fail("append", error="-6"),
        lambda faults: faults.fail("append", nth=0),
        lambda faults: faults.fail("append", nth=1.5),
        lambda faults: faults.fail("append", times=0),
        lambda faults: faults.fail("append", times=True),
        lambda faults: faults.fail("append", ledger=-1),
        lambda faults: faults.fail("append", entry="0"),
        lambda faults: faults.fail("append", probability=0),
        lambda faults: faults.fail("append", probability=1.1),
        lambda faults: faults.fail("append", path="/a"),
        lambda faults: faults.fail("nodes.put", path="a"),
        lambda faults: faults.fail("nodes.put", path=1),
        lambda faults: faults.fail("nodes.put", ledger=1),
        lambda faults: faults.fail("read", after=True),
        lambda faults: faults.delay("append", -1),
        lambda faults: faults.delay("append", "1"),
        lambda faults: faults.delay("append", None),
        lambda faults: faults.delay("append", (1, 0)),
        lambda faults: faults.delay("append", (1, 2, 3)),
        lambda faults: faults.delay("append", float("nan")),
        lambda faults: faults.stall("nothing"),
        lambda faults: faults.stall("append").release(OSError()),
        lambda faults: faults.conflict("append"),
        lambda faults: faults.disk_full(-1),
        lambda faults: faults.disk_full(True),
        lambda faults: faults.disk_full_until(True),
        lambda faults: faults.flip(4, 17, -1),
        lambda faults: faults.flip(4, 17, "all"),
        lambda faults: faults.flip(None, 17, 1.5),
        lambda faults: faults.crash("nowhere"),
        lambda faults: faults.crash(None),
        lambda faults: faults.crash("commit.before_sync", nth=0),
        lambda faults: faults.crash("commit.before_sync", mode="softly"),
        lambda faults: faults.fail_after(-1, -6),
        lambda faults: faults.promise_after(None),
        lambda faults: faults.intercept_reads(1),
        lambda faults: faults.set_default_add_delay(-1),
    ],
)
def test_arguments_that_make_no_sense(call: Callable[[Any], Any]) -> None:
    faults = Faults()
    with refused(-14):
        call(faults)
    assert [rule.kind for rule in faults.rules] in ([], ["stall"])


def test_nothing_in_the_environment_is_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BOOKSTAND_FAULTS", raising=False)
    assert Faults.from_environment() is None
    monkeypatch.setenv("BOOKSTAND_FAULTS", "")
    assert Faults.from_environment() is None
    monkeypatch.setenv("BOOKSTAND_FAULTS", "v1:seed=1;fail@nodes.put=-9")
    with bookstand.open(tmp_path / "store", hooks=Faults.from_environment()) as store:
        with refused(-9):
            store.nodes.put("/a", b"")
        store.nodes.put("/a", b"")


def run_of(faults: Faults, path: Path) -> list[Any]:
    """Codes and results of the same operations each time."""
    with bookstand.open(path, hooks=faults) as store:
        answers: list[Any] = []
        for _ in range(20):
            writer = store.create_ledger()
            answers.append([code_of(lambda writer=writer: writer.append(b"x")) for _ in range(5)])
            answers.append(code_of(lambda writer=writer: writer.read(0, 0)))
            answers.append(code_of(lambda: store.nodes.put("/a", b"")))
        return answers


def test_a_replay_does_the_same(tmp_path: Path) -> None:
    faults = Faults(seed=11)
    faults.fail("append", -6, probability=0.1, times=None)
    faults.fail("append", -8, probability=0.1, times=None, after=True)
    faults.fail("read", -5, probability=0.2, times=3)
    faults.fail("nodes.put", -9, nth=5, times=4)
    first = run_of(faults, tmp_path / "a")
    again = Faults.parse(faults.replay)
    assert run_of(again, tmp_path / "b") == first
    assert again.log == faults.log
    faults.check()


def test_faults_need_neither_pytest_nor_hypothesis() -> None:
    program = "import sys, bookstand.testing.faults.faults; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=own_environment()
    )
    assert not {"pytest", "hypothesis"} & set(done.stdout.split())
