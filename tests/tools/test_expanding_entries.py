"""The command line reads around entries that expand beyond the limits, and takes higher limits."""

from __future__ import annotations

from pathlib import Path

import pytest

import bookstand
from bookstand import ExpansionLimits
from bookstand.tools.cli.exit_codes import DAMAGE, FINE, WRONG_ARGUMENTS
from tests.delivery.test_expanding_entries import expanding
from tests.tools.kit import run

COUNT = 70_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with bookstand.open(tmp_path / "store") as made:
        topic = made.topic("persistent://public/default/t")
        topic.publish(b"first")
        topic.ledger.append_entry(expanding("ZSTD", COUNT))
        topic.publish(b"last")
    return tmp_path / "store"


def test_cat_prints_the_others_and_names_the_entry(store: Path) -> None:
    found = run("cat", store, "t", "--messages", "--json")
    assert found.code == DAMAGE
    *rows, damage = found.lines
    assert [row["payload"] for row in rows] == ["first", "last"]
    assert f"the batch of {COUNT} messages expands to" in damage["damage"]["what"]
    assert (damage["damage"]["ledger"], damage["damage"]["entry"]) == (0, 1)
    assert "raise max_expansion_ratio (1000) to" in damage["damage"]["what"]


def test_an_option_before_the_command_raises_the_limits(store: Path) -> None:
    found = run("--max-expansion-ratio", 1_000_000, "cat", store, "t", "--messages", "--raw")
    assert (found.code, found.out) == (FINE, "firstlast")
    lower = run("--max-expanded-bytes", 1000, "cat", store, "t", "--messages", "--json")
    assert lower.code == DAMAGE
    assert "max_expanded_bytes (1000) to" in lower.lines[-1]["damage"]["what"]


@pytest.mark.parametrize("name", ExpansionLimits._fields)
def test_a_limit_is_a_positive_integer(store: Path, name: str) -> None:
    found = run(f"--{name.replace('_', '-')}", 0, "cat", store, "t")
    assert found.code == WRONG_ARGUMENTS
    assert f"{name} must be a positive integer, not 0" in found.err
