"""A plain model of ZooKeeper's tree: what each write does, and who is told of it. No I/O, no store."""

from __future__ import annotations

from bookstand.server.zookeeper.protocol.protocol import Code, CreateMode, EventType, Op

Change = tuple[EventType, str]
EPHEMERAL = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)
SEQUENTIAL = (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)


class Node:
    """``recorded``: the store has a node of the path; else it is there for what is below it."""

    def __init__(self, zxid: int, data: bytes | None = b"", owner: int = 0, recorded: bool = True) -> None:
        self.data = data
        self.version = 0
        self.creates = 0
        self.children: set[str] = set()
        self.owner = owner
        self.recorded = recorded
        self.czxid = self.mzxid = self.pzxid = zxid

    @property
    def stat(self) -> tuple[int, ...]:
        """czxid, mzxid, pzxid, version, cversion, owner, length, children."""
        cversion = 2 * self.creates - len(self.children)
        counts = self.version, cversion, self.owner, len(self.data or b""), len(self.children)
        return self.czxid, self.mzxid, self.pzxid, *counts


class Refused(Exception):  # noqa: N818
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Model:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(0, recorded=False)}
        self.nodes["/"].children.add("zookeeper")
        self.changes: list[Change] = []

    # -- the tree ----------------------------------------------------------------------------------------------------

    def create(self, zxid: int, path: str, data: bytes | None, mode: int, session: int) -> str:
        if mode in SEQUENTIAL:
            parent = self._get(above(path))
            path += f"{parent.creates:010d}"
        parent = self._get(above(path))
        if path in self.nodes:
            raise Refused(Code.NODE_EXISTS)
        if parent.owner:
            raise Refused(Code.NO_CHILDREN_FOR_EPHEMERALS)
        self._link(path, Node(zxid, data, session if mode in EPHEMERAL else 0))
        return path

    def delete(self, zxid: int, path: str, version: int) -> None:
        node = self._check(path, version)
        if node.children:
            raise Refused(Code.NOT_EMPTY)
        self._unlink(zxid, path)

    def set(self, zxid: int, path: str, data: bytes | None, version: int) -> None:
        node = self._check(path, version)
        node.data, node.version, node.mzxid, node.recorded = data, node.version + 1, zxid, True
        self.changes.append((EventType.DATA_CHANGED, path))

    def check(self, zxid: int, path: str, version: int) -> None:
        self._check(path, version)

    def _get(self, path: str) -> Node:
        if path not in self.nodes:
            raise Refused(Code.NO_NODE)
        return self.nodes[path]

    def _check(self, path: str, version: int) -> Node:
        node = self._get(path)
        if version not in (-1, node.version):
            raise Refused(Code.BAD_VERSION)
        return node

    def _link(self, path: str, node: Node) -> None:
        if above(path) not in self.nodes:
            self._link(above(path), Node(node.czxid, recorded=False))
        parent = self.nodes[above(path)]
        parent.children.add(path.rpartition("/")[2])
        parent.creates += 1
        parent.pzxid = node.czxid
        self.nodes[path] = node
        self.changes.append((EventType.CREATED, path))

    def _unlink(self, zxid: int, path: str) -> None:
        del self.nodes[path]
        parent = self.nodes[above(path)]
        parent.children.remove(path.rpartition("/")[2])
        parent.pzxid = zxid
        self.changes.append((EventType.DELETED, path))

    def end_session(self, zxid: int, session: int) -> None:
        for path in sorted(path for path, node in self.nodes.items() if node.owner == session):
            self._unlink(zxid, path)

    # -- what users of the store's own API do ------------------------------------------------------------------------

    def put_by_others(self, zxid: int, path: str, data: bytes) -> None:
        node = self.nodes.get(path)
        if node is None:
            self._link(path, Node(zxid, data))
            return
        # A node's version begins with the node.
        version = node.version + 1 if node.recorded else 0
        node.data, node.version, node.mzxid, node.recorded = data, version, zxid, True
        self.changes.append((EventType.DATA_CHANGED, path))

    def delete_by_others(self, zxid: int, path: str) -> None:
        node = self.nodes[path]
        if not node.children:
            self._unlink(zxid, path)
            return
        node.data, node.version, node.mzxid, node.recorded = b"", 0, zxid, False
        self.changes.append((EventType.DATA_CHANGED, path))

    # -- multi -------------------------------------------------------------------------------------------------------

    def multi(self, zxid: int, operations: list[tuple[Op, tuple[object, ...]]], session: int) -> list[object]:
        """Results, or the codes of a multi that is refused."""
        import copy

        before = copy.deepcopy(self.nodes), list(self.changes)
        results: list[object] = []
        for number, (op, arguments) in enumerate(operations):
            try:
                if op is Op.CREATE:
                    results.append(self.create(zxid, *arguments, session))  # type: ignore[arg-type]
                else:
                    {Op.DELETE: self.delete, Op.SET_DATA: self.set, Op.CHECK: self.check}[op](zxid, *arguments)  # type: ignore[operator]
                    results.append(None)
            except Refused as refused:
                self.nodes, self.changes = before
                rest = len(operations) - number - 1
                return [0] * number + [refused.code] + [Code.RUNTIME_INCONSISTENCY] * rest
        return results


class Watcher:
    """What one connection watches, and what it must have been told."""

    def __init__(self) -> None:
        self.data: set[str] = set()
        self.children: set[str] = set()
        self.persistent: set[str] = set()
        self.recursive: set[str] = set()
        self.told: list[Change] = []

    def see(self, change: Change) -> None:
        kind, path = change
        told = path in self.data or path in self.persistent
        self.data.discard(path)
        if kind is EventType.DELETED:
            told = told or path in self.children
            self.children.discard(path)
        up = path
        while not told:
            told = up in self.recursive
            if up == "/":
                break
            up = above(up)
        if told:
            self.told.append(change)
        if kind is not EventType.DATA_CHANGED:
            parent = above(path)
            if parent in self.children or parent in self.persistent:
                self.told.append((EventType.CHILDREN_CHANGED, parent))
            self.children.discard(parent)
