"""One Spark for all tests of this folder, and recorded disks with the stores that they were imported into."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.pipeline.tables.sources import BOOKIE, DataSource, bookies, stores
from tests.disk.recordings import dump_path, unpacked
from tests.kit import ROOT

__all__ = ["imported", "place", "spark", "unpacked"]


@pytest.fixture(scope="session")
def imported(unpacked: Callable[[str], Path]) -> Callable[[str], Path]:
    """``imported(name)`` is a store with all of a recording. All tests of a run share it: do not write to it."""

    @cache
    def one(name: str) -> Path:
        folder = unpacked(name)
        store = folder.with_name(f"store-{name}")
        with open(folder.with_name(f"store-{name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not store.exists():
                growing = folder.with_name(f"store-{name}.growing")
                with (
                    Disks.open([folder], dump_path(name)) as disks,
                    bookstand.open(growing, durability="none") as made,
                ):
                    import_disks(disks, made)
                growing.rename(store)
        return store

    return one


@pytest.fixture(scope="session")
def place(unpacked: Callable[[str], Path], imported: Callable[[str], Path]) -> Callable[[str, str], DataSource]:
    """``place(name, kind)``: a recording as the bookies left it, or as a store."""

    def one(name: str, kind: str) -> DataSource:
        if kind == BOOKIE:
            return bookies(unpacked(name), str(dump_path(name)))
        (found,) = stores(imported(name))
        return found

    return one


def connect_server() -> dict[str, str]:
    """Settings by which a session is a server for Spark Connect besides: a real one, without another JVM."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Small, quick to start, and repeats a task whose process died."""
    from bookstand.pipeline.spark.session import QUICK, session

    before = dict(os.environ)
    # The JVM gives it to workers. Other tests' processes are not to find what is not installed.
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        made = session("tests", "local[2,3]", {**QUICK, **connect_server()}, tmp_path_factory.mktemp("spark"))
    finally:
        os.environ.clear()
        os.environ.update(before)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
