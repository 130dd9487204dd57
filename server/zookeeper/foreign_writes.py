"""What others than the server's clients write, on its way into the tree: through the store's API, in any process."""

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
    """Their changes are numbered by the store. ``heard`` is up to which the server knows of them, ``adopted`` up to
    which they are part of the tree."""

    def __init__(self, storage: Storage, tree: Tree) -> None:
        self._storage = storage
        self._tree = tree
        self.heard = self.adopted = -1

    @property
    def total(self) -> int:
        return self._storage.change_count()

    def have_written(self) -> bool:
        """Whether there is something that was not heard of."""
        return self.total != self.heard

    def hear(self) -> list[str] | None:
        """The paths where they have written, in that order; None: only a look at everything can tell."""
        total = self.total
        changed = self._storage.changes_since(self.heard, total)
        if changed is None:
            return None
        self.heard = total
        paths = (path for path, _ in znodes_of((database, key, None) for database, key in changed))
        return list(filter(self._is_strange, paths))

    def _is_strange(self, path: str) -> bool:
        """Clients may have come across it already."""
        try:
            self._tree.find(path)
        except ForeignZnodeError:
            return True
        except StoreDamagedError as damage:
            # Whoever asks for it is told.
            logger().error("a znode cannot be served: %s", damage)
        return False

    def seen(self, total: int) -> None:
        """There was a look at everything, which began when there were so many."""
        self.heard = total

    def taken_in(self) -> None:
        """All that was heard of is part of the tree."""
        self.adopted = self.heard

    def forget(self) -> None:
        """What was heard of could not be taken in: it is to be heard of again."""
        self.heard = self.adopted
