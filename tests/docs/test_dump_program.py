"""The program that dumps ZooKeeper's metadata writes what the readers of disks want.

ZooKeeper itself is not here: in its place are the nodes of a recorded cluster, with kazoo's own records and errors.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from bookstand.disk.damage import Damage
from bookstand.disk.metadata.dump import DumpNode, MetadataDump
from tests.disk.recordings import dump_path
from tests.docs.steps import ROOT, blocks

PAGE = (ROOT / "docs" / "how-to" / "look-at-disks.md").read_text()


class Client:
    """As far as the program uses it. One node goes away between being listed and being read."""

    nodes: dict[str, DumpNode]
    gone = "/gone"

    def __init__(self, hosts: str) -> None:
        assert hosts == "zookeeper:2181"
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        assert self.calls == ["start"]

    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError
        # The times before the version of the value, and others behind it.
        return node.value, ZnodeStat(1, 2, node.ctime, node.mtime, node.version, 3, 4, 0, len(node.value), 5, 6)

    def get_children(self, path: str) -> list[str]:
        below = [posixpath.basename(one) for one in self.nodes if one != "/" and posixpath.dirname(one) == path]
        return [*below, posixpath.basename(self.gone)] if path == "/" else below


def program() -> SimpleNamespace:
    (text,) = [content for _, content in blocks(PAGE) if content.startswith("# dump_metadata.py\n")]
    found: dict[str, Any] = {"__name__": "dump_metadata"}
    exec(text, found)
    return SimpleNamespace(**found, names=found)


@pytest.mark.parametrize("name", ["a", "f"])
def test_what_it_writes_is_read(name: str, tmp_path: Path) -> None:
    damage: list[Damage] = []
    recorded = MetadataDump.open(dump_path(name), damage.append)
    Client.nodes = {"/": DumpNode("/", b"")}
    for path, node in recorded.nodes.items():
        # Those above a node are nodes, too.
        for end in re.finditer("/", path[1:]):
            above = path[: end.start() + 1]
            Client.nodes.setdefault(above, DumpNode(above, b""))
        Client.nodes[path] = node
    dumping = program()
    dumping.names["KazooClient"] = Client
    dumping.main("zookeeper:2181", tmp_path / "metadata.jsonl.gz")
    dumped = MetadataDump.open(tmp_path / "metadata.jsonl.gz", damage.append)
    assert dumped.nodes == Client.nodes
    assert dumped.ledgers.keys() == recorded.ledgers.keys() != set()
    assert dumped.topics == recorded.topics != []
    assert damage == []
