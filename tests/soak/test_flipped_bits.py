"""The kind ``flipped_bits``: a sample of every record of every form of store, and what it would notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.cursor.store import bootstrap
from bookstand.cursor.store import cursor_ledger as cursor_log
from bookstand.cursor.store.cursor_ledger import CursorLedger
from bookstand.cursor.store.recovery import RecoveredFrom
from bookstand.delivery.nacks.log import NackLog
from bookstand.delivery.nacks.record import Record
from bookstand.delivery.subscription.subscription import Subscription
from tests.counts import Counts
from tests.soak import flipped_bits
from tests.soak.flipped_bits import FORMS, Bench, chosen_bits, flip, sample_of

FLIPS = 6
"""Of each store, or one of each of its records if these are more."""
NOT_CLOSED = ("pages, exclusive", "former ledgers", "shared index")


@pytest.mark.parametrize("form", FORMS)
def test_a_flipped_bit_costs_no_message_and_is_reported(counts: Counts, form: str) -> None:
    done = flip(sample_of(7, form, form in NOT_CLOSED), FLIPS, seed=7, thorough=10_000)
    counts.add("flipped_bits", done.cases, len(done.problems), [form] if done.problems else [])
    assert not done.problems, "\n".join(done.problems)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1 << 32), place=st.randoms(use_true_random=False))
def test_any_bit_of_any_store(seed: int, place: Random) -> None:
    sample = sample_of(seed)
    with Bench(sample) as bench:
        problems = bench.check(*zip(place.choice(chosen_bits(sample, None, place))), thorough=False)
    assert not problems, "\n".join(problems)


def damage_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecoveredFrom, "damage", ())
    patch.setattr(Subscription, "damage", [])


def what_cannot_be_read_counts_as_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bootstrap, "_beginning", lambda topic: topic.last_confirmed)


def a_damaged_record_is_raised(patch: pytest.MonkeyPatch) -> None:
    load = CursorLedger.load

    def instead(log: CursorLedger) -> object:
        found = load(log)
        if log.damage is not None:
            raise bootstrap.IncorrectParameterError(log.damage)
        return found

    patch.setattr(CursorLedger, "load", instead)


def snapshots_stay_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cursor_log, "property_ledgers", lambda *_: [])


def nacked_messages_are_lost(patch: pytest.MonkeyPatch) -> None:
    """Their log is read, and what is in it is taken for redelivered by another."""
    read = NackLog.read

    def instead(log: NackLog) -> Iterator[list[tuple[int, Record]]]:
        for records in read(log):
            yield [
                (number, record._replace(nacks=[nacks._replace(time=1 << 60) for nacks in record.nacks]))
                for number, record in records
            ]

    patch.setattr(NackLog, "read", instead)


@pytest.mark.parametrize(
    ("defect", "form", "found"),
    [
        (damage_is_not_reported, "snapshots", "silent"),
        (what_cannot_be_read_counts_as_acknowledged, "record", "invented"),
        (a_damaged_record_is_raised, "pages", "unopenable"),
        (snapshots_stay_behind, "buckets", "left over"),
        (nacked_messages_are_lost, "negative acknowledgments", "withheld"),
    ],
)
def test_it_would_notice(
    defect: Callable[[pytest.MonkeyPatch], None], form: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = sample_of(7, form, crashed=False)
    defect(monkeypatch)
    if defect is damage_is_not_reported:
        monkeypatch.setattr(flipped_bits, "warnings", _no_warnings)
    with Bench(sample) as bench:
        assert any(
            found in problem
            for one, bit in chosen_bits(sample, FLIPS, Random(7))
            for problem in bench.check([one], [bit], thorough=found == "left over")
        )


class _no_warnings:  # noqa: N801
    def __enter__(self) -> list[str]:
        return []

    def __exit__(self, *_: object) -> None:
        pass
