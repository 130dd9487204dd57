"""A store that other processes have open, and write to all the while."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand.tools.cli.exit_codes import FINE
from tests.kit import PATIENCE
from tests.tools import kit
from tests.tools.kit import run

WRITER = """
import sys
import bookstand
from bookstand import TopicConfig

with bookstand.open(sys.argv[1]) as store:
    topic = store.topic("persistent://acme/shop/busy", TopicConfig(max_entries_per_ledger=50))
    topic.subscription("all")
    number = 0
    while True:
        for message in topic.subscription("all").receive(max=5, timeout=0):
            topic.subscription("all").ack(message)
        topic.publish_many([b"busy %d" % (number + place) for place in range(20)])
        number += 20
        print(number, flush=True)
"""


@pytest.fixture
def written(bench: Path, tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """A store, and the process that writes to it and tells after each commit how many messages it has."""
    store = kit.copied(bench / "my-store", tmp_path / "my-store")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, store], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        yield store, writer
    finally:
        writer.kill()
        writer.communicate(timeout=PATIENCE)


def test_a_store_that_another_process_writes_to(written: tuple[Path, Any]) -> None:
    store, writer = written
    for command in ("ls", "show", "stats", "verify", "cursors", "delayed"):
        result = run(command, store)
        assert (result.code, result.err) == (FINE, "")
        assert result.out.startswith(f"store {store}, open in another process\n")
        before = int(writer.stdout.readline())
        result = run(command, store, "--json")
        assert (result.code, result.err, result.json["damage"]) == (FINE, "", [])
    assert run("show", store, "--json").json["about"]["writers"] == 1
    messages = [row["payload"] for row in run("cat", store, "busy", "--messages", "--json").lines]
    # What everybody has had goes away at the front; the rest is whole.
    first = int(messages[0].removeprefix("busy "))
    assert messages == [f"busy {number}" for number in range(first, first + len(messages))]
    # What was told to be there before the command began is printed.
    assert first + len(messages) >= before


def test_a_process_that_was_killed_is_none(written: tuple[Path, Any]) -> None:
    store, writer = written
    writer.kill()
    writer.wait(PATIENCE)
    assert run("ls", store).out.startswith(f"store {store}\n")
    assert run("verify", store, "--json").json["ok"]
