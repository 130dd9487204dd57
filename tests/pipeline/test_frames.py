"""Frames have the rows that plain Python computes, however they are combined; the soak kind ``frames`` has more."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import PATIENCE, ROOT
from tests.pipeline import frames

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def pushdown(spark: Any) -> Iterator[Any]:
    """Spark pushes filters to sources that accept them."""
    spark.conf.set(frames.PUSHDOWN, "true")
    yield spark
    spark.conf.set(frames.PUSHDOWN, "false")


def loaded(spark: Any, folder: Path) -> Any:
    (path, _) = frames.make_stores(folder)
    return spark.read.format("bookstand").option("columns", "ledger_id,entry_id,size").load(str(path))


def test_a_filter_of_one_frame_removes_no_rows_from_another(pushdown: Any, tmp_path: Path) -> None:
    every = loaded(pushdown, tmp_path)
    first, third = every.where("ledger_id = 0"), every.where("ledger_id = 2")
    assert first.count() == 8
    assert every.count() == 32
    assert sorted(row["ledger_id"] for row in first.union(third).collect()) == [0] * 8 + [2] * 8


@pytest.mark.long
def test_programs_of_frames(spark: Any, tmp_path: Path) -> None:
    count, problems = frames.run(spark, tmp_path, 5, steps=5)
    spark.catalog.clearCache()
    assert not problems, "\n".join(problems)
    assert count > 8


@pytest.mark.long
def test_programs_of_frames_through_connect(tmp_path: Path) -> None:
    for package in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        if not found(package):
            pytest.skip(f"Spark Connect needs {package}, which is not installed")
    command, environment = frames.command("connect", tmp_path, [7], steps=3)
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert not told["problems"], "\n".join(told["problems"])
    assert told["frames"] > 4


def found(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
