"""The stand-in for the metadata service: values with versions under paths, changed by compare-and-set."""

from __future__ import annotations

from bookstand.errors import IncorrectParameterError, NoSuchNodeError
from bookstand.storage.commit.node_operations import DeleteNode, PutNode
from bookstand.storage.commit.operations import ANY_VERSION, MUST_NOT_EXIST, WriteBatch
from bookstand.storage.format import schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bookstand.storage.storage import Storage

# What LMDB takes for a key.
LONGEST_PATH = 511


class Nodes:
    """``expected_version`` is None for any version, -1 where the node must not exist yet."""

    def __init__(self, storage: Storage, check_usable: Callable[[], None], check_writable: Callable[[], None]) -> None:
        self._storage = storage
        self._check_usable = check_usable
        self._check_writable = check_writable

    def get(self, path: str) -> tuple[bytes, int]:
        """(value, version); :class:`NoSuchNodeError` if there is none."""
        path = check_path(path)
        self._check_usable()
        self._storage.flush_if_queued()
        found = self._storage.node(path)
        if found is None:
            raise NoSuchNodeError(f"there is no node {path!r}")
        return found

    def put(self, path: str, value: bytes, expected_version: int | None = ANY_VERSION) -> int:
        """Write it, and return its new version: 0 for a new node, one more with each write."""
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
        """Remove it; nodes below it stay."""
        self._check_writable()
        operation = DeleteNode(check_path(path), check_version(expected_version))
        storage = self._storage
        if storage.hooks is not None:
            storage.point("nodes.delete.before", path)
        storage.apply(WriteBatch(operation))
        if storage.hooks is not None:
            storage.point("nodes.delete.after", path)

    def children(self, path: str) -> list[str]:
        """Names of the next level below the path, in order; also of those that have only nodes below them."""
        path = check_path(path)
        self._check_usable()
        self._storage.flush_if_queued()
        return self._storage.names_below(schema.NODES, path)


def check_path(path: object) -> str:
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise IncorrectParameterError(f"a node's path is a string that begins with '/', not {path!r}")
    try:
        size = len(path.encode())
    except UnicodeEncodeError as error:
        raise IncorrectParameterError(f"the path {path!r} cannot be stored: {error}") from None
    if size > LONGEST_PATH:
        raise IncorrectParameterError(f"a node's path has at most {LONGEST_PATH} bytes, not {size}: {path[:60]!r}…")
    return path


def check_value(value: object) -> bytes:
    try:
        return memoryview(value).tobytes()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise IncorrectParameterError(f"a node's value is bytes, not {type(value).__name__}") from None


def check_version(version: object) -> int | None:
    if version is None or (isinstance(version, int) and not isinstance(version, bool) and version >= MUST_NOT_EXIST):
        return version
    raise IncorrectParameterError(f"a version is None, -1 or from 0 up, not {version!r}")
