"""A folder with stores, a bookie's disk and its metadata, made once a run. Nobody writes to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bookstand
from tests.disk.recordings import dump_path, unpacked
from tests.tools import kit

__all__ = ["unpacked"]


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, unpacked: Callable[[str], Path]) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    kit.fill(folder / "my-store")
    kit.copied(folder / "my-store", folder / "damaged-store")
    kit.damage_entry(folder / "damaged-store", 2, 7)
    kit.lose_entry(folder / "damaged-store", 3, 5)
    kit.copied(folder / "my-store", folder / "damaged-states")
    kit.damage_entry(folder / "damaged-states", 4, 1)
    kit.damage_entry(folder / "damaged-states", 5, 6)
    bookstand.open(folder / "empty").close()
    kit.fill_old(folder / "old-store")
    (folder / "bookie").symlink_to(unpacked("a") / "bookie-0")
    (folder / "metadata.jsonl.gz").symlink_to(dump_path("a"))
    (folder / "damaged-bookie").symlink_to(unpacked("damaged") / "entrylog" / "bit-flip-payload")
    (folder / "something").mkdir()
    (folder / "something" / "else.txt").write_text("neither a store nor a bookie\n")
    return folder


@pytest.fixture
def here(bench: Path) -> Iterator[Path]:
    """The folder, as the current one: paths in output are short and the same everywhere."""
    before = os.getcwd()
    os.chdir(bench)
    yield bench
    os.chdir(before)


@pytest.fixture
def own(bench: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder of one's own, as the current one, with a copy of the store to be damaged."""
    kit.copied(bench / "my-store", tmp_path / "my-store")
    before = os.getcwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


@pytest.fixture
def folder(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One to write to, as the current one, with all that there is to look at."""
    kit.lay_out(bench, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
