"""What the rows about delayed messages on buckets are measured with, and that they can be; nothing judges a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import delayed_recovery, delayed_sealing, delayed_workload, rows
from benchmarks.baselines.snapshot_messages import SnapshotMessages
from benchmarks.delayed_buckets import (
    FIRST_DELAY,
    HOUR,
    NOW,
    fixture,
    in_order,
    original,
    settings,
    spread_over_an_hour,
)
from benchmarks.delayed_merging import write
from benchmarks.measure import Sample, Series
from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.managed_ledger.message.format import Message
from bookstand.proto.delayed_bucket_metadata_pb2 import SnapshotMetadata


@pytest.mark.parametrize("ledgers", [1, 10])
def test_delays_are_spread_over_an_hour(ledgers: int) -> None:
    found = spread_over_an_hour(np.random.default_rng(1), 5_000, 7, ledgers)
    assert len({(ledger, entry) for _, ledger, entry in found.indexes}) == 5_000
    assert sorted(set(found.ledger_ids.tolist())) == list(range(7, 7 + ledgers))
    assert NOW + FIRST_DELAY <= found.timestamps.min() < NOW + HOUR // 100
    assert NOW + HOUR * 0.99 < found.timestamps.max() <= NOW + HOUR
    in_turn = in_order(5_000, 7, ledgers)
    assert (np.diff(in_turn.timestamps) > 0).all()
    assert all((one == other).all() for one, other in zip(found[1:], in_turn[1:], strict=True))


@pytest.mark.parametrize("shape", [*delayed_sealing.RANDOM, *delayed_sealing.IN_ORDER])
def test_protobuf_encodes_the_same_snapshot(shape: delayed_sealing.Shape) -> None:
    snapshot = seal(shape.indexes(3_000, 5), 300_000, 200)
    messages = SnapshotMessages(snapshot)
    # Segments are of different sizes, and the messages are used again.
    for _ in range(2):
        first, *segments = messages.encode()
        assert segments == snapshot.entries[1:]
        assert SnapshotMetadata.FromString(first) == SnapshotMetadata.FromString(snapshot.entries[0])
    assert messages.encode_segments() == messages.serialize_made() == snapshot.entries[1:]


@pytest.mark.long
def test_seals_of_any_size_are_measured(tmp_path: Path) -> None:
    measured = delayed_sealing.seals(tmp_path, 500, rounds=1)
    for row in ("P8", "P8p", "P8j"):
        (figure,) = [delayed_sealing._WRITTEN[row](rows.BY_NAME[row], measured, "here")]
        assert figure.value is not None
        assert figure.value == pytest.approx(figure.baseline / figure.ours)


def test_a_seal_that_did_not_happen_is_no_figure(tmp_path: Path) -> None:
    with fixture(tmp_path / "store", settings(delayed_delivery_min_index_count_per_bucket=501)) as at:
        sealer = delayed_sealing.Sealer(at, delayed_sealing.RANDOM[0], 500)
        with pytest.raises((RuntimeError, ValueError)):
            sealer.round()


def test_the_worse_shape_is_the_figure_and_the_best_round_of_each_counts() -> None:
    costs = {"random 1": (4, 2, 3), "random 10": (9, 5, 7), "in_order 1": (1, 1, 1), "in_order 10": (1, 1, 1)}
    measured = {f"ours {shape}": Series([Sample(one / 1e3, 1) for one in cost]) for shape, cost in costs.items()}
    measured |= {f"upb {shape}": Series([Sample(0.012, 1), Sample(0.01, 1)]) for shape in ("random 1", "random 10")}
    measured["upb serialize random 1"] = Series([Sample(0.001, 1)])
    figure = delayed_sealing._against_upb(rows.BY_NAME["P8"], measured, "here")
    assert (figure.ours, figure.baseline, figure.value) == (pytest.approx(5), pytest.approx(10), pytest.approx(2))
    figure = delayed_sealing._against_original(rows.BY_NAME["P8j"], measured, "here")
    recorded = original("bucket_seal_50000", "seal_ms_random_10_ledgers")
    assert (figure.ours, figure.baseline) == (pytest.approx(5), recorded)
    assert figure.value == pytest.approx(recorded / 5)


def test_the_recording_is_there() -> None:
    assert 42 < original("bucket_seal_50000", "seal_ms_random_1_ledgers") < 44
    assert original("bucket_seal_50000", "seal_ms_random_1_ledgers", "median") > 43
    assert original("bucket_seal_50000", "seal_ms_random_1_ledgers", later_tree=True) < 43


def test_planted_messages_are_those_of_a_producer() -> None:
    times = NOW + np.array([5, HOUR, 7])
    for data, time in zip(delayed_recovery.messages_due(times), times.tolist(), strict=True):
        message = Message(data)
        message.check()
        assert message.metadata.deliver_at_time == time
        assert message.stored_payload == b"."


def test_a_topic_is_recovered_and_read(tmp_path: Path) -> None:
    messages = delayed_recovery.plant(tmp_path / "store", 3, 200)
    with fixture(tmp_path / "store", settings(), durability="none") as at:
        assert delayed_recovery.recover(at, messages).cpu > 0
        assert delayed_recovery.read_times(at, messages).cpu > 0
        with pytest.raises(RuntimeError, match="came back"):
            delayed_recovery.recover(at, messages + 1)
    figure = delayed_recovery._memory(rows.BY_NAME["P11m"], tmp_path / "store", messages, 1)
    assert figure.value is not None


def test_what_is_written_is_counted(tmp_path: Path) -> None:
    """Nothing is merged below the limit; above it, what is merged is written again."""
    once = write(tmp_path / "once", LEAST_WRITES, seals=5, buckets=5, per_seal=200)
    assert (once.amplification, once.snapshots) == (1, 5)
    ours = write(tmp_path / "ours", LEAST_WRITES, seals=20, buckets=3, per_seal=200)
    other = write(tmp_path / "other", TWO_SMALLEST, seals=20, buckets=3, per_seal=200)
    assert 1 < ours.amplification < other.amplification
    assert ours.alone == other.alone


def test_the_workload_of_the_original_runs(tmp_path: Path) -> None:
    tiny = delayed_workload.Repeats(asked=50, polled=5)
    lines = [
        *delayed_workload.jmh_shape(tmp_path / "jmh", 1_000, writes=100, repeats=tiny),
        *delayed_workload.a_million(tmp_path / "million", buckets=3, per_seal=1_000),
    ]
    assert all(line.ours > 0 for line in lines)
    assert all(line.released and line.unreleased for line in lines)
    assert len(list(delayed_workload.table(iter(lines)))) == len(lines) + 2
