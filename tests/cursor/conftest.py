"""Topics with a cursor on them, in memory, verified after every test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cursor.desk import FORMS, OLD_FORMS, Desk

MEMORY = "/dev/shm"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a thing."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="bookstand-test-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def desk(memory: Path) -> Iterator[Callable[..., Desk]]:
    """Opens a store with a topic and a cursor on it."""
    desks: list[Desk] = []

    def make(*arguments: Any, **options: Any) -> Desk:
        made = Desk(memory / str(len(desks)), *arguments, **options)
        desks.append(made)
        return made

    yield make
    for made in desks:
        made.end()


@pytest.fixture(params=list(FORMS))
def form(request: pytest.FixtureRequest) -> str:
    """In which form the cursor is stored."""
    return str(request.param)


@pytest.fixture(params=OLD_FORMS)
def old_form(request: pytest.FixtureRequest) -> str:
    return str(request.param)
