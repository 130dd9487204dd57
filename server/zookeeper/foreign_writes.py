"""Foreign writes: changes made through the store's API, in any process, which the server adopts into its tree."""

from __future__ import annotations

from bookstand.errors import StoreDamagedError
from bookstand.server.zookeeper.read_operations import ForeignZnodeError
from bookstand.server.zookeeper.tree_scan import znodes_of
from bookstand.storage.logger import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.read_operations import Tree
    from bookstand.storage.storage import Storage


class ForeignWrites:
    """Position in the store's change feed. ``heard``: number of changes that the server has read; ``adopted``: number
    of changes that its tree includes."""

    def __init__(self, storage: Storage, tree: Tree) -> None:
        self._storage = storage
        self._tree = tree
        self.heard = self.adopted = -1

    @property
    def total(self) -> int:
        return self._storage.change_count()

    def have_written(self) -> bool:
        """True if the feed has unread changes."""
        return self.total != self.heard

    def hear(self) -> list[str] | None:
        """Read the feed. Return the changed paths in order, or None if a full scan is required."""
        total = self.total
        changed = self._storage.changes_since(self.heard, total)
        if changed is None:
            return None
        self.heard = total
        paths = (path for path, _ in znodes_of((database, key, None) for database, key in changed))
        return list(filter(self._is_strange, paths))

    def _is_strange(self, path: str) -> bool:
        """True if the change is not adopted yet. Accesses by clients adopt changes, too."""
        try:
            self._tree.find(path)
        except ForeignZnodeError:
            return True
        except StoreDamagedError as damage:
            # A damaged znode fails its own readers only.
            logger().error("a znode cannot be served: %s", damage)
        return False

    def seen(self, total: int) -> None:
        """Record a full scan that began at this total."""
        self.heard = total

    def taken_in(self) -> None:
        """Record that the tree includes all changes read so far."""
        self.adopted = self.heard

    def forget(self) -> None:
        """Reset the position, so that changes that could not be adopted are read again."""
        self.heard = self.adopted
