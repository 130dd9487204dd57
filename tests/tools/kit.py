"""Running the command line inside the test's process, and what is looked at: stores of every condition."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import bookstand
from bookstand import SubscriptionConfig, TopicConfig
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.storage.format.position import Position
from bookstand.storage.format.schema import META_STORE_ID
from bookstand.storage.format.sealed_record import seal
from bookstand.storage.lmdb.environment import DATA_FILE
from bookstand.testing.clock import VirtualClock
from bookstand.tools.main import application
from tests import kit
from tests.tools import child

START = 1_800_000_000_000
"""2027-01-15T08:00:00Z"""
ORDERS = "persistent://acme/shop/orders"
LONG = "persistent://acme/shop/a-topic-whose-name-is-so-long-that-it-has-to-be-cut-in-the-middle-of-all-tables"
PASSWORD = b"secret"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @cached_property
    def json(self) -> Any:
        return json.loads(self.out)

    @cached_property
    def lines(self) -> list[Any]:
        """Of output that is a line of JSON each."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: object, columns: int | None = None) -> Result:
    """As a command line of its own would run, with its output in a pipe. Whatever it says besides is on lines of its
    own, and what it prints with ``--json`` is JSON, however it ends."""
    environment = {"COLUMNS": "" if columns is None else str(columns)}
    words = list(map(str, arguments))
    if words[:1] == ["serve"] and not {"--help", "-h"} & set(words):
        return _stopped_once_it_serves(words, columns)
    result = CliRunner().invoke(application(), words, env=environment, prog_name="bookstand")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    found = Result(result.exit_code, result.stdout, result.stderr)
    if words and not found.err.startswith("Usage: "):
        assert [line for line in found.err.splitlines() if not line.startswith("bookstand: ")] == []
    if "--json" in words:
        assert (found.lines if "cat" in words or "--records" in words else [found.json]) != [] or not found.out
    return found


def _stopped_once_it_serves(words: list[str], columns: int | None) -> Result:
    """What does not end by itself runs in a child, which is told to stop when it has said where it is."""
    running = child.start(*words, columns=columns, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out = ""
    with running:
        try:
            for line in running.stdout:
                out += line
                if line.startswith(("no authentication", '{"kind":"serve"')):
                    running.terminate()
                    break
            code, rest, err = child.finished(running)
        except BaseException:
            running.kill()
            raise
    return Result(code, out + rest, err)


def fill(path: Path) -> None:
    """A store with something of everything; the same each time."""
    clock = VirtualClock(START)
    with bookstand.open(path, clock=clock) as store:
        with store.create_ledger(
            ensemble=3, write_quorum=2, ack_quorum=2, digest="hmac", password=PASSWORD, custom_metadata={"who": b"me"}
        ) as plain:
            plain.append_many([b"x" * length for length in range(200)])
        clock.advance(60)
        left_open = store.create_ledger()
        left_open.append_many([b"one", b"two", b"\x00\xff\x1b[31m"])
        config = TopicConfig(
            delayed_delivery_tracker="bucket",
            delayed_delivery_min_index_count_per_bucket=10,
            max_entries_per_ledger=100,
        )
        topic = store.topic(ORDERS, config)
        billing = topic.subscription("billing", SubscriptionConfig())
        topic.publish_many([f"order {number}".encode() for number in range(50)], properties={"kind": "order"})
        clock.advance(60)
        times = [clock.now() + 60_000 * (number + 1) for number in range(120)]
        topic.publish_many([f"later {number}".encode() for number in range(120)], deliver_at=times)
        billing.ack_many(billing.receive(max=50, timeout=0))
        topic.publish_batch([b"a", b"b", b"c"])
        billing.receive(max=10, timeout=0)
        audit = topic.cursor("audit")
        first = topic.ledger.ledgers[0].ledger_id
        batch = topic.ledger.last_confirmed
        audit.ack_many(first, [1, 2, 3, 7, 9, 20])
        audit.flush()
        clock.advance(60)
        audit.ack_batch(batch, [0], 3)
        audit.ack(Position(first, 30))
        audit.flush()
        clock.advance(60)
        audit.mark_delete(Position(first, 3)).result()
        with store.topic(LONG, TopicConfig()) as other:
            other.publish(b"alone")
        store.delete_ledger(store.create_ledger().id)
        store.nodes.put("/notes/today", "grün".encode())
    _the_same_each_time(path)


def fill_old(path: Path) -> None:
    """A store with ledgers and a cursor in older forms."""
    with bookstand.open(path, metadata_format=2, clock=VirtualClock(START)) as store:
        topic = store.managed_ledger(ORDERS)
        topic.append(b"one")
        with Cursor.open(topic, "billing", CursorConfig(enable_lru_cache_max_unacked_ranges=False)) as cursor:
            cursor.flush()


def _the_same_each_time(path: Path) -> None:
    """But for this, what is printed of a store depends on chance and on the time of the day."""
    with kit.raw(path, write=True) as database:
        database(b"meta")[META_STORE_ID] = seal(META_STORE_ID, bytes(range(16)))
    os.utime(kit.data_file(path), (START / 1000, START / 1000))


def damage_entry(path: Path, ledger_id: int, entry_id: int) -> None:
    kit.change_entry(path, ledger_id, entry_id, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))


def lose_entry(path: Path, ledger_id: int, entry_id: int) -> None:
    kit.change_entry(path, ledger_id, entry_id, lambda stored: None)


def make_newer(path: Path) -> None:
    """As a later version would leave it."""
    with kit.raw(path, write=True) as database:
        meta = database(b"meta")
        meta[b"format"] = (int.from_bytes(meta[b"format"], "big") + 1).to_bytes(4, "big")


def cut_file(path: Path) -> None:
    file = kit.data_file(path)
    with open(file, "r+b") as data:
        data.truncate(file.stat().st_size // 2)


def copied(source: Path, destination: Path) -> Path:
    """A store of one's own."""
    shutil.copytree(source, destination)
    return destination


def lay_out(bench: Path, folder: Path) -> None:
    """What examples name, in a folder of one's own: stores as copies, for some are written to, the rest as links."""
    for one in bench.iterdir():
        if (one / DATA_FILE).exists():
            copied(one, folder / one.name)
        else:
            (folder / one.name).symlink_to(one)
