"""Mutated bytes into every decoder, and that the campaign would notice what it looks for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.errors import BookstandError, StoreDamagedError
from bookstand.storage.format import schema, sealed_record
from tests import kit
from tests.counts import Counts
from tests.soak import decoder_mutations
from tests.soak.decoder_mutations import Decoder, judge

ROUNDS = 7


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
def test_mutations_give_our_errors_or_what_reads_back(seed: int, counts: Counts) -> None:
    done = decoder_mutations.one_round(seed)
    counts.add("decoder_mutations", done.cases, len(done.problems), [seed] if done.problems else [])
    assert done.cases >= 100_000 / ROUNDS
    assert not done.problems, "\n".join(done.problems)


@pytest.mark.slow
def test_every_decoder_reads_its_samples_and_refuses_something(memory_path: Path) -> None:
    ran = decoder_mutations.in_a_child(3, 6_000)
    assert not ran.problems, "\n".join(ran.problems)
    table = decoder_mutations.decoders(3, memory_path)
    assert set(ran.accepted) == set(table)
    for name, decoder in table.items():
        for sample in decoder.samples:
            value = decoder.decode(sample)
            if decoder.encode is not None:
                assert decoder.equal(decoder.decode(decoder.encode(value)), value), name
        # Whatever name a marker has, it may be one; records are looked at by many, of whom few see it; and behind the
        # newest entry of a cursor there is an older one. A damaged record of a cursor is replaced by the labels of its
        # ledgers.
        exempt = name in ("marker", "record in a store") or name.startswith(
            ("newest entry of a cursor", "stored record of a cursor")
        )
        assert ran.refused[name] or exempt, name
        assert not (decoder.digested and ran.accepted[name]), name


def test_the_same_seed_gives_the_same_cases(memory_path: Path) -> None:
    import random

    samples = [bytes(range(40)), b"another"]
    made = [[decoder_mutations.mutated(random.Random(seed), samples) for seed in range(300)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 250
    for mutation in decoder_mutations.MUTATIONS:
        for data in (b"", b"x", samples[0]):
            assert isinstance(mutation(random.Random(1), data, samples), bytes)


# -- that it would notice --------------------------------------------------------------------------------------------


def leaks(data: bytes) -> Any:
    raise KeyError(data)


def hangs(data: bytes) -> Any:
    while True:
        pass


def devours(data: bytes) -> Any:
    raise MemoryError


def refuses(data: bytes) -> Any:
    raise BookstandError("no")


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoder_mutations, "SECONDS", 0.2)
    before = signal.signal(signal.SIGPROF, decoder_mutations._too_long)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.usefixtures("little_patience")
@pytest.mark.parametrize(
    ("decoder", "why"),
    [
        (Decoder([], leaks), "KeyError"),
        (Decoder([], hangs), "TooLongError"),
        (Decoder([], devours), "MemoryError"),
        (Decoder([], bytes.decode, lambda value: value[1:].encode()), "once rewritten"),
        (Decoder([], bytes.decode, digested=True), "an altered payload passed"),
        (Decoder([], bytes.decode, str.encode), None),
        (Decoder([], refuses), None),
        (Decoder([], refuses, digested=True), None),
    ],
)
def test_the_campaign_notices(decoder: Decoder, why: str | None) -> None:
    problem, _ = judge(decoder, b"input")
    assert (why is None and problem is None) or (why is not None and why in str(problem)), problem


def test_a_good_sample_must_pass() -> None:
    assert "refused" in str(judge(Decoder([b"good"], refuses), b"good", mutated=False)[0])


# -- what it found ---------------------------------------------------------------------------------------------------

Use = Callable[[bookstand.Store], Any]


def put(path: Path, key: bytes, body: bytes) -> None:
    """A sealed record of the store about itself."""
    with kit.raw(path, write=True) as databases:
        databases(schema.META)[key] = sealed_record.seal(key, body)


@pytest.mark.damaged
@pytest.mark.parametrize("counter", [schema.META_NEXT_LEDGER, schema.META_NEXT_INCARNATION])
@pytest.mark.parametrize("body", [b"", b"\x01", b"\xff" * 8, b"\x01" * 9, b"\xff" * 12])
def test_a_counter_that_cannot_be_one(store_path: Path, counter: bytes, body: bytes) -> None:
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"x")
    put(store_path, counter, body)
    with bookstand.open(store_path) as store:
        for create in (store.create_ledger, lambda: store.create_ledger_adv(9)):
            try:
                create()
            except BookstandError:
                pass
        assert store.open_ledger(0).read(0, 0)[0].data == b"x"


@pytest.mark.damaged
@pytest.mark.parametrize("size", [0, 1, 8, 15, 17, 40])
@pytest.mark.parametrize(
    "use", [bookstand.Store.compact, lambda store: store.delete_ledger(0)], ids=["compact", "delete"]
)
def test_a_note_of_a_deletion_under_an_impossible_key(store_path: Path, use: Use, size: int) -> None:
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"x")
    put(store_path, schema.META_DELETED + bytes(size), b"")
    with bookstand.open(store_path) as store:
        try:
            use(store)
        except StoreDamagedError:
            pass
        assert list(store.nodes.children("/")) == []
