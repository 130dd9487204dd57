"""Jobs and runs that die where they are told to: by SIGKILL, so that nothing of theirs runs any more."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookstand.pipeline.execution.unit import Result, Unit
from bookstand.pipeline.jobs.export import Export


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def first_time(mark: Path) -> bool:
    """Whether nobody was here before, in whatever process."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class DyingExport(Export):
    """Its first attempt at any unit leaves half of what it makes, and its process dies."""

    marks: str = ""

    def do(self, unit: Unit, folder: Path) -> Result:
        result = super().do(unit, folder)
        if first_time(Path(self.marks) / unit.fingerprint):
            for file in folder.rglob("*.parquet"):
                file.write_bytes(file.read_bytes()[:100])
            die()
        return result


@dataclass(frozen=True)
class SlowExport(Export):
    """The first attempt at the first unit takes long, and says when it is at work and when it is done."""

    marks: str = ""
    slow: str = ""

    def do(self, unit: Unit, folder: Path) -> Result:
        result = super().do(unit, folder)
        (Path(self.marks) / f"{unit.fingerprint}.{folder.name}").write_text(str(os.getpid()))
        if unit.name == self.slow and first_time(Path(self.marks) / "slow"):
            time.sleep(20)
        return result


def dying_at(number: int, call: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """Wrap a call that kills this process before or after the given one of its calls. Children are not killed."""
    calls = 0
    process = os.getpid()

    def instead(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        if os.getpid() != process:
            return call(*arguments, **named)
        calls += 1
        if calls == number and before:
            die()
        result = call(*arguments, **named)
        if calls == number:
            die()
        return result

    return instead
