"""What was answered is there after SIGKILL, wherever it strikes."""

from __future__ import annotations

from pathlib import Path

import pytest

import bookstand
from tests.server.bookie import kit
from tests.server.bookie.killing import Victim, write_and_kill


def test_what_was_answered_survives_kills(tmp_path: Path) -> None:
    confirmed, problems = write_and_kill(tmp_path / "store", seed=1, kills=2)
    assert problems == []
    assert confirmed >= 6 * 200
    with bookstand.open(tmp_path / "store", create=False) as store:
        assert store.verify().problems == []


@pytest.mark.parametrize(
    ("point", "there"), [("append.before_store", False), ("commit.before_sync", False), ("append.stored", True)]
)
def test_a_kill_at_a_point(tmp_path: Path, point: str, there: bool) -> None:
    with Victim(tmp_path / "store", 1, f"crash@{point}#2=kill") as victim, kit.Wire(victim.addresses[0]) as wire:
        assert wire.v2(kit.v2_add(kit.stored(1, 0))).code == 0
        wire.send(kit.v2_add(kit.stored(1, 1)))
        assert wire.is_closed()
        assert victim.process.wait(kit.PATIENCE) == -9
    with Victim(tmp_path / "store", 1) as victim, kit.Wire(victim.addresses[0]) as wire:
        assert wire.v2(kit.v2_read(1, 0)).body == kit.stored(1, 0)
        assert (wire.v2(kit.v2_read(1, 1)).code == 0) == there
        assert wire.v2(kit.v2_add(kit.stored(1, 1))).code == 0
