"""Metadata store: versioned values under paths, changed by compare-and-set. It stands in for ZooKeeper."""

from __future__ import annotations

from bookstand.errors import IncorrectParameterError, NoSuchNodeError
from bookstand.storage.commit.node_operations import DeleteNode, PutNode
from bookstand.storage.commit.operations import ANY_VERSION, MUST_NOT_EXIST, WriteBatch
from bookstand.storage.format import schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bookstand.storage.storage import Storage

# LMDB's maximum key size.
LONGEST_PATH = 511


class Nodes:
    """The store's nodes. ``expected_version``: None accepts any version, -1 requires that the node does not exist."""

    def __init__(self, storage: Storage, check_usable: Callable[[], None], check_writable: Callable[[], None]) -> None:
        self._storage = storage
        self._check_usable = check_usable
        self._check_writable = check_writable

    def get(self, path: str) -> tuple[bytes, int]:
        """Return (value, version) of a node; raise :class:`NoSuchNodeError` if it does not exist."""
        path = check_path(path)
        self._check_usable()
        self._storage.flush_if_queued()
        found = self._storage.node(path)
        if found is None:
            raise NoSuchNodeError(f"node {path!r} does not exist")
        return found

    def put(self, path: str, value: bytes, expected_version: int | None = ANY_VERSION) -> int:
        """Write a node and return its new version: 0 for a new node, incremented by each write."""
        self._check_writable()
        operation = PutNode(check_path(path), check_value(value), check_version(expected_version))
        storage = self._storage
        if storage.hooks is not None:
            storage.point("nodes.put.before", path)
        (version,) = storage.apply(WriteBatch(operation))
        if storage.hooks is not None:
            storage.point("nodes.put.after", path)
        return version  # type: ignore[no-any-return]

    def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Delete a node. Nodes below it remain."""
        self._check_writable()
        operation = DeleteNode(check_path(path), check_version(expected_version))
        storage = self._storage
        if storage.hooks is not None:
            storage.point("nodes.delete.before", path)
        storage.apply(WriteBatch(operation))
        if storage.hooks is not None:
            storage.point("nodes.delete.after", path)

    def children(self, path: str) -> list[str]:
        """Names of the node's children in order, including those that exist only as a prefix of deeper paths."""
        path = check_path(path)
        self._check_usable()
        self._storage.flush_if_queued()
        return self._storage.child_names(schema.NODES, path)


def check_path(path: object) -> str:
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise IncorrectParameterError(f"a node's path must be a string that begins with '/', not {path!r}")
    try:
        size = len(path.encode())
    except UnicodeEncodeError as error:
        raise IncorrectParameterError(f"the path {path!r} cannot be stored: {error}") from None
    if size > LONGEST_PATH:
        raise IncorrectParameterError(f"a node's path must not exceed {LONGEST_PATH} bytes, not {size}: {path[:60]!r}…")
    return path


def check_value(value: object) -> bytes:
    try:
        return memoryview(value).tobytes()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise IncorrectParameterError(f"a node's value must be bytes, not {type(value).__name__}") from None


def check_version(version: object) -> int | None:
    if version is None or (isinstance(version, int) and not isinstance(version, bool) and version >= MUST_NOT_EXIST):
        return version
    raise IncorrectParameterError(f"a version must be None, -1 or a non-negative integer, not {version!r}")
