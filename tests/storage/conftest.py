"""What tests of the storage use besides: a shim between a program and its files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage import shim

MEMORY = "/dev/shm"


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = shim.build(tmp_path_factory.mktemp("shim"))
    if library is None:
        pytest.skip("failing file operations needs a C compiler")
    return library


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a thing: a process that is killed leaves the same there as on a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="bookstand-test-", dir=MEMORY) as folder:
        yield Path(folder)
