"""Logs and journals with anything wrong with them: what is right is found, nothing else passes, nothing is raised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookstand.disk.damage import Damage
from bookstand.disk.format import entry_log
from bookstand.disk.format.entry_block import Digests, TryAllDigests
from bookstand.storage.format.digest import digest_for
from tests.disk import plain_reading
from tests.disk.made import entries
from tests.disk.plain_reading import KNOWN, OTHER_PASSWORD, PASSWORD, hold_against, read_journal, read_log
from tests.soak.decoder_mutations import mutated

CASES = 400
WITHOUT = TryAllDigests([PASSWORD, OTHER_PASSWORD])


@pytest.mark.long
@pytest.mark.parametrize("what", ["log", "journal"])
@pytest.mark.parametrize("digests", [KNOWN, WITHOUT], ids=["known", "tried"])
def test_mutated_files_give_what_is_right_in_them(what: str, digests: Digests, tmp_path: Path) -> None:
    read, made = (read_log, plain_reading.some_logs) if what == "log" else (read_journal, plain_reading.some_journals)
    whole = 0
    for seed in range(CASES):
        rng = random.Random(seed)
        if seed % 20 == 0:
            samples = made(rng)
        data = (
            mutated(rng, samples) if seed % 2 else plain_reading.damaged(rng, rng.choice(samples), rng.randrange(1, 4))
        )
        found, damage = read(tmp_path / what, data, digests)
        try:
            hold_against(data, found, digests)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert all(0 <= one.offset <= len(data) for one in damage)
        whole += not damage
    # Some mutations are none, or hit what nothing protects; most do damage.
    assert whole < CASES / 2


@pytest.mark.parametrize("what", ["log", "journal"])
def test_samples_are_right_as_they_are(what: str, tmp_path: Path) -> None:
    read, made = (read_log, plain_reading.some_logs) if what == "log" else (read_journal, plain_reading.some_journals)
    for number, data in enumerate(made(random.Random(5))):
        for digests in (KNOWN, WITHOUT):
            found, damage = read(tmp_path / what, data, digests)
            assert not damage, number
            hold_against(data, found, digests)
            assert len(found) > 5


def test_the_check_notices_what_is_invented_and_what_is_missing(tmp_path: Path) -> None:
    data = plain_reading.some_logs(random.Random(1))[0]
    found, _ = read_log(tmp_path / "log", data)
    hold_against(data, found)
    with pytest.raises(AssertionError, match="not found"):
        hold_against(data, found[:-1])
    with pytest.raises(AssertionError, match="is not there"):
        hold_against(data, [found[0]._replace(lac=found[0].lac + 1), *found[1:]])
    with pytest.raises(AssertionError, match="begins in"):
        hold_against(data, [found[0], found[0], *found[1:]])


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    damaged=st.integers(0, 3),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    tried=st.booleans(),
)
@example(seed=1, damaged=0, cuts=[0.0, 0.0, 1.0], tried=False)
def test_ranges_give_what_the_whole_gives(
    seed: int, damaged: int, cuts: list[float], tried: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    *logs, holding_a_log = plain_reading.some_logs(rng)
    data = plain_reading.damaged(rng, rng.choice(logs), damaged) if damaged else rng.choice([*logs, holding_a_log])
    digests = WITHOUT if tried else KNOWN
    path = tmp_path_factory.getbasetemp() / "ranges.log"
    whole, damage = read_log(path, data, digests)
    bounds = sorted(int(cut * len(data)) for cut in cuts)
    parts, reported = [], list[Damage]()
    for start, stop in zip([None, *bounds], [*bounds, None], strict=True):
        part = plain_reading.rows(entry_log.read(path, digests, reported.append, start=start, stop=stop))
        assert all((start or 0) <= row.record < (len(data) if stop is None else stop) for row in part)
        parts += part
    assert parts == whole
    assert reported == damage


def test_any_range_of_one_entry_gives_that_entry(tmp_path: Path) -> None:
    stored = entries(digest_for("crc32c", b""), 1, [bytes(size) for size in range(30)])
    data = plain_reading.full_log(stored)
    whole, _ = read_log(tmp_path / "log", data)
    assert len(whole) == 30
    for row in whole:
        for start, stop in ((row.record, row.record + 1), (row.record, row.end), (row.record - 3, row.record + 1)):
            blocks = entry_log.read(tmp_path / "log", KNOWN, pytest.fail, start=start, stop=stop)
            assert plain_reading.rows(blocks) == [row]
        assert not plain_reading.rows(
            entry_log.read(tmp_path / "log", KNOWN, pytest.fail, start=row.record + 1, stop=row.end)
        )
