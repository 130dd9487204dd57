"""Stores in a temporary directory, closed and verified after every test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bookstand
from tests import counts, kit

# The machine may be busy.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(counts)
    config.addinivalue_line("markers", "damaged: the test damages its store, which verify() need not find clean")
    config.addinivalue_line("markers", "slow: takes about a second or more; `make test-fast` leaves it out")
    config.addinivalue_line("markers", "long: a campaign, or takes several seconds; `make test` leaves it out")


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_store(request: pytest.FixtureRequest, store_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens clients of the test's store (or of ``path=``): each is what BookKeeper calls a client of its own."""
    opened: list[tuple[Path, Any]] = []

    def open_client(*, path: Path | None = None, **options: Any) -> Any:
        where = store_path if path is None else path
        client = bookstand.open(where, **options)
        opened.append((where, client))
        return client

    yield open_client
    for _, client in reversed(opened):
        client.close()
    if request.node.get_closest_marker("damaged") is not None:
        return
    for path in dict.fromkeys(path for path, _ in opened):
        with bookstand.open(path, create=False) as client:
            report = client.verify()
        assert report.ok, report.problems


@pytest.fixture
def store(open_store: Callable[..., Any]) -> Any:
    """One client of the test's store."""
    return open_store()


@pytest.fixture(params=["v3", "v2"])
def wire(request: pytest.FixtureRequest) -> str:
    """What a reader learns on the way differs between the two protocols."""
    return str(request.param)


@pytest.fixture
def child(store_path: Path) -> Iterator[Callable[..., kit.Child]]:
    """Starts processes with the test's store open as ``store``; none outlives the test."""
    children: list[kit.Child] = []

    def start(options: str = "") -> kit.Child:
        process = kit.Child(store_path)
        children.append(process)
        process.run(f"store = bookstand.open(path, {options})")
        return process

    yield start
    for process in children:
        process.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three mebibytes, to be filled."""
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(mount_point)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)
