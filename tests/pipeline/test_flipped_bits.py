"""Spark reads damaged stores as opening them does; the soak kind ``flipped_bits_spark`` has 200 of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.soak.flipped_bits import flips_for_spark, spark_problems

pytestmark = pytest.mark.xdist_group("spark")

SEEDS = (0, 4, 6, 7)
"""Pages, snapshots, buckets, a shared index."""


def test_spark_gives_the_same_answer_on_damaged_stores(spark: Any, tmp_path: Path) -> None:
    flips = flips_for_spark(SEEDS, 1)
    problems = spark_problems(spark, flips, tmp_path)
    assert not problems, "\n".join(problems)
