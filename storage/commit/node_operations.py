"""Operations on nodes."""

from __future__ import annotations

from bookstand.errors import MetadataVersionError, NoSuchNodeError, StoreDamagedError
from bookstand.storage.commit.operations import ANY_VERSION, MUST_NOT_EXIST, ConsumesSpace, version_conflict
from bookstand.storage.format import schema, sealed_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.commit.operations import WriteSet


# The version that a damaged record is taken to have: no writer that knows the true one can have come so far.
_BEYOND = 1 << 30


class PutNode(ConsumesSpace):
    """Write a node; result: its new version. ``expected_version``: None any, -1 it must not exist yet. With any version
    accepted, the record that is replaced need not be readable; the new version is then far beyond those before."""

    __slots__ = ("expected_version", "path", "value")

    def __init__(self, path: str, value: bytes, expected_version: int | None) -> None:
        self.path = path
        self.value = value
        self.expected_version = expected_version

    def apply(self, staging: WriteSet) -> int:
        key = self.path.encode()
        try:
            found = staging.versioned(schema.NODES, key)
            version = MUST_NOT_EXIST if found is None else found[1]
        except StoreDamagedError:
            if self.expected_version is not ANY_VERSION:
                raise
            version = _BEYOND
        if self.expected_version is not ANY_VERSION and self.expected_version != version:
            raise version_conflict(f"node {self.path!r}", version, self.expected_version)
        staging.put(schema.NODES, key, sealed_record.seal_versioned(key, version + 1, self.value))
        return version + 1


class NodeVersionError(MetadataVersionError):
    """A node that was to stay as it is has another version, or is gone."""


class AssertNodeVersion:
    """Refuse everything that goes with it where a node has another version: whoever wrote that has taken over."""

    __slots__ = ("path", "version")

    def __init__(self, path: str, version: int) -> None:
        self.path = path
        self.version = version

    def apply(self, staging: WriteSet) -> None:
        found = staging.versioned(schema.NODES, self.path.encode())
        if found is None or found[1] != self.version:
            version = MUST_NOT_EXIST if found is None else found[1]
            raise NodeVersionError(str(version_conflict(f"node {self.path!r}", version, self.version)))


class DeleteNode:
    """Remove a node if it has the expected version. With any version accepted, the record need not be readable."""

    __slots__ = ("expected_version", "path")

    def __init__(self, path: str, expected_version: int | None) -> None:
        self.path = path
        self.expected_version = expected_version

    def apply(self, staging: WriteSet) -> None:
        key = self.path.encode()
        if staging.get(schema.NODES, key) is None:
            raise NoSuchNodeError(f"there is no node {self.path!r}")
        if self.expected_version is not ANY_VERSION:
            found = staging.versioned(schema.NODES, key)
            if found is not None and self.expected_version != found[1]:
                raise version_conflict(f"node {self.path!r}", found[1], self.expected_version)
        staging.put(schema.NODES, key, None)
