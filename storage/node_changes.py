"""Operations on nodes."""

from __future__ import annotations

from bookstand.errors import MetadataVersionError, NoSuchNodeError
from bookstand.storage import keys, record
from bookstand.storage.changes import ANY_VERSION, MUST_NOT_EXIST, TakesSpace, version_conflict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.changes import Staging


class PutNode(TakesSpace):
    """Write a node; result: its new version. ``expected_version``: None any, -1 it must not exist yet."""

    __slots__ = ("expected_version", "path", "value")

    def __init__(self, path: str, value: bytes, expected_version: int | None) -> None:
        self.path = path
        self.value = value
        self.expected_version = expected_version

    def apply(self, staging: Staging) -> int:
        key = self.path.encode()
        found = staging.versioned(keys.NODES, key)
        version = MUST_NOT_EXIST if found is None else found[1]
        if self.expected_version is not ANY_VERSION and self.expected_version != version:
            raise version_conflict(f"node {self.path!r}", version, self.expected_version)
        staging.put(keys.NODES, key, record.seal_versioned(key, version + 1, self.value))
        return version + 1


class NodeMovedError(MetadataVersionError):
    """A node that was to stay as it is has another version, or is gone."""


class RequireNode:
    """Refuse everything that goes with it where a node has another version: whoever wrote that has taken over."""

    __slots__ = ("path", "version")

    def __init__(self, path: str, version: int) -> None:
        self.path = path
        self.version = version

    def apply(self, staging: Staging) -> None:
        found = staging.versioned(keys.NODES, self.path.encode())
        if found is None or found[1] != self.version:
            version = MUST_NOT_EXIST if found is None else found[1]
            raise NodeMovedError(str(version_conflict(f"node {self.path!r}", version, self.version)))


class DeleteNode:
    """Remove a node if it has the expected version."""

    __slots__ = ("expected_version", "path")

    def __init__(self, path: str, expected_version: int | None) -> None:
        self.path = path
        self.expected_version = expected_version

    def apply(self, staging: Staging) -> None:
        key = self.path.encode()
        found = staging.versioned(keys.NODES, key)
        if found is None:
            raise NoSuchNodeError(f"there is no node {self.path!r}")
        if self.expected_version is not ANY_VERSION and self.expected_version != found[1]:
            raise version_conflict(f"node {self.path!r}", found[1], self.expected_version)
        staging.put(keys.NODES, key, None)
