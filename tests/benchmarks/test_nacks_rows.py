"""What the rows about nacked messages are measured with, on few of them; no test here judges a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import nacks, rows
from benchmarks.nacks_worker import KINDS, nack_all


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_is_nacked_and_has_been_redelivered(tmp_path: Path, kind: str) -> None:
    answer = nack_all(kind, 3_000, tmp_path / "store")
    assert answer["nacked"] == 3_000
    assert answer["cpu"] > 0


def test_each_row_has_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def ask(kind: str, messages: int) -> dict[str, Any]:
        asked.append((kind, messages))
        return {"bytes": 0.25, "cpu": 5e-6, "nacked": messages}

    monkeypatch.setattr(nacks, "ask", ask)
    bench = type("Bench", (), {"rounds": staticmethod(lambda quick, full: quick)})()
    chosen = [rows.BY_NAME["P26"], rows.BY_NAME["P26r"]]
    found = list(nacks.measure(chosen, bench))
    assert [one.value for one in found] == [0.25, 0.25]
    assert asked == [("ordered", nacks.QUICK_MESSAGES), ("random", nacks.QUICK_MESSAGES)]


def test_fewer_messages_than_were_nacked_are_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        returncode, stdout, stderr = 0, '{"bytes": 1, "cpu": 1, "nacked": 9}', ""

    monkeypatch.setattr(nacks.subprocess, "run", lambda *_, **__: Done)
    with pytest.raises(RuntimeError, match="9 messages are nacked, not 10"):
        nacks.ask("ordered", 10)
