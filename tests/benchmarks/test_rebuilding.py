"""What is measured side by side leaves the same, and the page on a fleet can be made anew; no test judges a time."""

from __future__ import annotations

from pathlib import Path

import pytest

import bookstand
from benchmarks import fleet, rebuilding
from benchmarks.baselines.rebuilding import one_process
from bookstand.pipeline.execution.local_runner import LocalRunner

pytest.importorskip("pyarrow")


def buckets(path: Path) -> list[tuple[str, str, list[bytes]]]:
    with bookstand.open(path, read_only=True) as store:
        found = []
        for one in store.bucket_snapshots():
            assert not one.orphaned
            entries = [entry.data for entry in store.open_ledger(one.ledger_id, recovery=False)]
            found.append((one.topic, one.key, entries))
    return found


def test_job_and_baseline_leave_the_same(tmp_path: Path) -> None:
    files = rebuilding.write_table(tmp_path / "table", 2)
    stores = [rebuilding.write_store(tmp_path / name, 2) for name in ("ours", "theirs")]
    rebuilding.ours(stores[0], files, LocalRunner(), tmp_path / "work")
    one_process(stores[1], files, "sub")
    assert buckets(stores[0]) == buckets(stores[1])
    assert len(buckets(stores[0])) == 2 * rebuilding.BUCKETS
    rebuilding.check(stores[0], 2)


def test_processes_that_have_ended_count() -> None:
    before = rebuilding.tree_cpu()
    sum(number * number for number in range(3_000_000))
    assert rebuilding.tree_cpu() > before


def test_a_page_on_a_fleet(tmp_path: Path) -> None:
    found = fleet.count(tmp_path / "stores", 2, 60, 2_000, 1)
    fleet.write_page(found, tmp_path / "fleet.md")
    text = (tmp_path / "fleet.md").read_text()
    assert "2 stores with 8 topics" in text
    pictures = sorted(file.name for file in tmp_path.glob("*.svg"))
    assert pictures == ["fleet-due.svg", "fleet-stores.svg", "fleet-subscriptions.svg"]
    assert all(name in text for name in pictures)
    assert sum(found["fleet"]["due"].values()) == found["counts"]["delayed"]
