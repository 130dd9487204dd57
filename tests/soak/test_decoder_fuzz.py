"""The fuzz of all decoders runs without its engine and with it, and notices what it looks for."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookstand.errors import BookstandError
from tests.counts import Counts
from tests.soak import decoder_fuzz, decoder_mutations
from tests.soak.decoder import Decoder

CASES = 1_000


@pytest.mark.parametrize(
    "engine",
    [
        decoder_fuzz.PLAIN,
        pytest.param(
            decoder_fuzz.GUIDED,
            marks=pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed"),
        ),
    ],
)
def test_every_decoder_stands_the_fuzz(engine: str, counts: Counts) -> None:
    done = decoder_fuzz.one_round(7, CASES, engine)
    counts.add("decoder_fuzz", done.cases, len(done.problems), [7] if done.problems else [])
    assert not done.problems, "\n".join(done.problems)
    assert done.cases >= CASES


# Earlier tests of this process may have used more memory than it uses now.
earlier_peak = [0]


def devours(data: bytes) -> Any:
    return len(bytearray(earlier_peak[0] + decoder_fuzz.CASE_MEMORY + (64 << 20)))


def leaks(data: bytes) -> Any:
    raise KeyError("a key")


def hangs(data: bytes) -> Any:
    while True:
        pass


def refuses(data: bytes) -> Any:
    raise BookstandError("no")


@pytest.mark.parametrize(
    ("decode", "why"),
    [(leaks, "KeyError"), (hangs, "TooLongError"), (devours, "it took"), (refuses, None), (len, None)],
)
def test_the_fuzz_notices(
    decode: Callable[[bytes], Any], why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_peak[0] = decoder_fuzz._peak_memory()
    monkeypatch.setattr(decoder_mutations, "SECONDS", 10.0 if decode is devours else 0.2)
    monkeypatch.setattr(decoder_mutations, "decoders", lambda seed, folder: {"one": Decoder([b"good"], decode)})
    monkeypatch.setattr("tests.soak.expanding_decoders.all_of_them", lambda rng, folder: {})
    before = signal.signal(signal.SIGPROF, decoder_mutations._too_long)
    try:
        cases = decoder_fuzz.Cases(tmp_path, tmp_path / "found", tmp_path / "problems")
        for data in (b"", b"\0", b"\0\0bad", b"\1\2bad", b"\0\0worse"):
            cases.run(data)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert cases.count == 3
    if why is None:
        assert not (tmp_path / "problems").exists()
        return
    # Each kind of problem once, with the input that showed it.
    (problem,) = map(json.loads, (tmp_path / "problems").read_text().splitlines())
    assert problem.startswith(f"one: {why}")
    (found,) = (tmp_path / "found").iterdir()
    assert found.read_bytes() == b"bad"


def test_a_child_that_dies_is_a_problem(tmp_path: Path) -> None:
    ran = decoder_fuzz.in_a_child(1, 1, tmp_path / "corpus", "no engine")
    assert ran.cases == 0
    assert "the child ended with" in ran.problems[0]
