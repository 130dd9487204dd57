"""What serves while rows about bookies are measured; no test here judges a time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import bookie_adds, bookie_startup, bookies, maven, places, rows
from bookstand import open as open_store


def test_the_first_add_of_each_start_is_stored(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for entry_id in range(2):
        sample = bookie_startup._first_add(bookies.ours, store, entry_id)
        assert sample.cpu > 0
        assert sample.wall > 0
    with open_store(store) as opened:
        found = opened.storage.entry(bookie_startup._LEDGER, 1)
        assert found is not None
        assert found.endswith(b"x")


def test_cpu_time_of_a_process_grows_with_its_work() -> None:
    this = bookies.Server(0, 0, os.getpid())
    before, until = this.cpu(), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert this.cpu() > before


def test_an_original_s_ports_are_kept(tmp_path: Path) -> None:
    first = bookies._settings(tmp_path / "bookie")
    assert first == bookies._settings(tmp_path / "bookie")
    assert len({first[0], first[1], 0}) == 3
    assert f"127.0.0.1:{first[0]}/" in first[2].read_text()


@pytest.mark.parametrize(("module", "row"), [(bookie_adds, "P25"), (bookie_startup, "P25s")])
def test_without_java_a_row_is_missing(
    module: ModuleType, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven.classpath.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    (figure,) = module.measure([rows.BY_NAME[row]], places.bench(quick=True, disk=str(tmp_path / "disk")))
    assert figure.value is None
    assert not figure.failed
    assert "missing: " in figure.note
    assert "java and mvn not installed" in figure.note
