"""Operations on nodes."""

from __future__ import annotations

from bookstand.errors import MetadataVersionError, NoSuchNodeError, StoreDamagedError
from bookstand.storage.commit.operations import ANY_VERSION, MUST_NOT_EXIST, ConsumesSpace, version_conflict
from bookstand.storage.format import schema, sealed_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.commit.operations import WriteSet


# Version assumed for a damaged record: higher than any true version can be.
_BEYOND = 1 << 30


class PutNode(ConsumesSpace):
    """Write a node; the result is its new version. ``expected_version``: None accepts any version, -1 requires that the
    node does not exist. If any version is accepted, the replaced record need not be readable; the new version is then
    far above the earlier ones."""

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
    """An asserted node has another version, or does not exist."""


class AssertNodeVersion:
    """Refuse the batch unless a node has this version: another writer that changed it has taken over."""

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
    """Delete a node if it has the expected version. If any version is accepted, the record need not be readable."""

    __slots__ = ("expected_version", "path")

    def __init__(self, path: str, expected_version: int | None) -> None:
        self.path = path
        self.expected_version = expected_version

    def apply(self, staging: WriteSet) -> None:
        key = self.path.encode()
        if staging.get(schema.NODES, key) is None:
            raise NoSuchNodeError(f"node {self.path!r} does not exist")
        if self.expected_version is not ANY_VERSION:
            found = staging.versioned(schema.NODES, key)
            if found is not None and self.expected_version != found[1]:
                raise version_conflict(f"node {self.path!r}", found[1], self.expected_version)
        staging.put(schema.NODES, key, None)
