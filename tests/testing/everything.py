"""A short program that does everything a store can do once, and passes every point on its way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.storage.format.position import Position

PROGRAM = """
import sys
from pathlib import Path
from bookstand.testing.faults.faults import Faults
from tests.testing.everything import everything
everything(Path(sys.argv[1]), Faults.from_environment(), lambda *promise: print(*promise, flush=True))
"""


def everything(path: Path, hooks: Any, acknowledge: Callable[..., None]) -> None:
    """Tells ``acknowledge`` each promise once it was given: ("entry", ledger, entry), ("node", path, version) or
    ("acked", ledger, entry)."""
    with bookstand.open(path / "store", hooks=hooks) as store, bookstand.open(path / "store", hooks=hooks) as other:
        writer = store.create_ledger()
        for number in range(3):
            acknowledge("entry", writer.id, writer.append(b"%d" % number))
        writer.append_async(b"3").result()
        acknowledge("entry", writer.id, 3)
        writer.force()
        recovered = other.open_ledger(writer.id)
        assert [entry.data for entry in recovered] == [b"0", b"1", b"2", b"3"]
        other.write_ledger_metadata(recovered.metadata)
        closed = store.create_ledger()
        acknowledge("entry", closed.id, closed.append(b"0"))
        closed.close()
        acknowledge("node", "/a", store.nodes.put("/a", b"0"))
        store.nodes.put("/b", b"0")
        store.nodes.delete("/b")
        doomed = store.create_ledger()
        doomed.append(b"0")
        store.delete_ledger(doomed.id)
        store.backup(path / "copy")
        store.compact()
        acknowledge("node", "/a", store.nodes.put("/a", b"1"))
        _read_a_topic(store, acknowledge)


def _read_a_topic(store: Any, acknowledge: Callable[..., None]) -> None:
    topic = store.managed_ledger("topic", max_entries_per_ledger=2)
    positions = [topic.append_entry(b"%d" % (number % 2)) for number in range(5)]
    for position in positions[2:]:
        acknowledge("entry", *position)
    config = CursorConfig(flush_interval=1e9)
    with Cursor.open(topic, "cursor", config) as cursor:
        for position in positions[:3]:
            cursor.ack(position).result()
            acknowledge("acked", *position)
        topic.trim_consumed()


def check(path: Path, promises: list[tuple[Any, ...]]) -> None:
    """Every promise is kept in the store, and in its backup if that got its name."""
    with bookstand.open(path / "store") as store:
        for kind, where, number in promises:
            if kind == "acked":
                topic = store.managed_ledger("topic", max_entries_per_ledger=2)
                with Cursor.open(topic, "cursor", create=False) as cursor:
                    assert cursor.is_acked(Position(where, number))
            elif kind == "entry":
                assert store.open_ledger(where).read(number, number)[0].data == b"%d" % number
            else:
                assert store.nodes.get(where)[1] >= number
        report = store.verify()
        assert report.ok, report.problems
        writer = store.create_ledger()
        assert writer.append(b"after") == 0
    if (path / "copy" / "data.mdb").exists():
        with bookstand.open(path / "copy") as copy:
            assert copy.verify().ok
