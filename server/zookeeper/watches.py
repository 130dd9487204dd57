"""Watches of all connections. A watch ends with its connection; clients set their watches again after a reconnect."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from enum import Flag, auto
from typing import Generic, TypeVar

from bookstand.server.zookeeper.protocol.paths import ROOT, ancestors_of, parent_of
from bookstand.server.zookeeper.protocol.protocol import Code, EventType, WatcherType, ZooKeeperError
from bookstand.server.zookeeper.protocol.records import Acl
from bookstand.server.zookeeper.transaction import Change

W = TypeVar("W", bound=Hashable)

# Limits on the memory of the watches of one connection, and of all watches.
CONNECTION_BYTES = 64 << 20
SERVER_BYTES = 256 << 20
_WATCH_BYTES = 400


class TooManyWatchesError(ZooKeeperError):
    """The watches of a connection, or all watches, exceed their memory limit."""


def _bytes_of(path: str) -> int:
    """Estimated memory of one connection's watches on a path."""
    return _WATCH_BYTES + len(path)


class Mode(Flag):
    """Modes in which a watcher watches a path; they can be combined."""

    ONCE = auto()
    PERSISTENT = auto()
    RECURSIVE = auto()


class _Table(Generic[W]):
    """Watchers of one kind of events, by path."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[W, Mode]] = {}

    def add(self, path: str, watcher: W, mode: Mode) -> None:
        modes = self.by_path.setdefault(path, {})
        modes[watcher] = modes.get(watcher, mode) | mode

    def remove(self, path: str, watcher: W, modes: Mode) -> bool:
        """Remove modes of a watch. Return False if none of them was set."""
        watchers = self.by_path.get(path)
        if watchers is None:
            return False
        found = watchers.get(watcher)
        if found is None or not found & modes:
            return False
        rest = found & ~modes
        if rest:
            watchers[watcher] = rest
        else:
            del watchers[watcher]
            if not watchers:
                del self.by_path[path]
        return True

    def fire(self, path: str) -> Iterator[W]:
        """Yield the watchers of the path itself, and remove one-time watches."""
        for watcher, mode in list(self.by_path.get(path, {}).items()):
            if mode & Mode.ONCE:
                self.remove(path, watcher, Mode.ONCE)
            yield watcher

    def recursive_above(self, path: str) -> Iterator[W]:
        for above in ancestors_of(path):
            for watcher, mode in self.by_path.get(above, {}).items():
                if mode & Mode.RECURSIVE:
                    yield watcher


_EVERY_MODE = Mode.ONCE | Mode.PERSISTENT | Mode.RECURSIVE

# Modes that each watcher type of ``removeWatches`` removes, from data watches and from child watches.
_REMOVED: dict[WatcherType, tuple[Mode, Mode]] = {
    WatcherType.CHILDREN: (Mode(0), Mode.ONCE),
    WatcherType.DATA: (Mode.ONCE, Mode(0)),
    WatcherType.ANY: (_EVERY_MODE, _EVERY_MODE),
    WatcherType.PERSISTENT: (Mode.PERSISTENT, Mode.PERSISTENT),
    WatcherType.PERSISTENT_RECURSIVE: (Mode.RECURSIVE, Mode(0)),
}


class Watches(Generic[W]):
    """All watches of a server. Each event is sent once to a watcher, even if several of its watches match."""

    def __init__(self) -> None:
        self._data: _Table[W] = _Table()
        self._children: _Table[W] = _Table()
        # Watched paths and their memory, by watcher.
        self._paths: dict[W, dict[str, None]] = {}
        self._bytes: dict[W, int] = {}
        self.bytes = 0
        self.refused = 0
        """Number of watches refused by the memory limits."""

    def watch_data(self, path: str, watcher: W) -> None:
        self._remember(path, watcher)
        self._data.add(path, watcher, Mode.ONCE)

    def watch_children(self, path: str, watcher: W) -> None:
        self._remember(path, watcher)
        self._children.add(path, watcher, Mode.ONCE)

    def watch_persistently(self, path: str, watcher: W) -> None:
        self._remember(path, watcher)
        self._data.add(path, watcher, Mode.PERSISTENT)
        self._children.add(path, watcher, Mode.PERSISTENT)

    def watch_recursively(self, path: str, watcher: W) -> None:
        self._remember(path, watcher)
        self._data.add(path, watcher, Mode.RECURSIVE)

    def _remember(self, path: str, watcher: W) -> None:
        paths = self._paths.setdefault(watcher, {})
        if path in paths:
            return
        size = _bytes_of(path)
        of_watcher = self._bytes.get(watcher, 0) + size
        if of_watcher > CONNECTION_BYTES or self.bytes + size > SERVER_BYTES:
            self.refused += 1
            raise TooManyWatchesError(Code.THROTTLED_OP, f"{path!r} is not watched: there are too many watches")
        paths[path] = None
        self._bytes[watcher] = of_watcher
        self.bytes += size

    def _release(self, watcher: W, size: int) -> None:
        self._bytes[watcher] -= size
        self.bytes -= size

    def remove(self, path: str, watcher: W, kind: WatcherType) -> bool:
        """Remove watches of a kind. Return False if there was no match."""
        data, children = _REMOVED[kind]
        removed = [self._data.remove(path, watcher, data), self._children.remove(path, watcher, children)]
        self._forget_path(path, watcher)
        return any(removed)

    def has(self, path: str, watcher: W, kind: WatcherType) -> bool:
        data, children = _REMOVED[kind]
        none = Mode(0)
        return bool(
            self._data.by_path.get(path, {}).get(watcher, none) & data
            or self._children.by_path.get(path, {}).get(watcher, none) & children
        )

    def forget(self, watcher: W) -> None:
        """Remove all watches of a closed connection."""
        for path in self._paths.pop(watcher, ()):
            self._data.remove(path, watcher, _EVERY_MODE)
            self._children.remove(path, watcher, _EVERY_MODE)
        self.bytes -= self._bytes.pop(watcher, 0)

    def _forget_path(self, path: str, watcher: W) -> None:
        paths = self._paths.get(watcher, {})
        if path in paths and not self.has(path, watcher, WatcherType.ANY):
            del paths[path]
            self._release(watcher, _bytes_of(path))

    def fire(self, change: Change) -> Iterator[tuple[W, EventType, str, Sequence[Acl]]]:
        """Yield the events of a change in order: watcher, type, path, and the ACL of the znode at that path."""
        path = change.path
        told = dict.fromkeys(self._data.fire(path))
        if change.type is EventType.DELETED:
            told.update(dict.fromkeys(self._children.fire(path)))
        for watcher in told:
            self._forget_path(path, watcher)
        told.update(dict.fromkeys(self._data.recursive_above(path)))
        for watcher in told:
            yield watcher, change.type, path, change.acl
        if change.type is not EventType.DATA_CHANGED and path != ROOT:
            above = parent_of(path)
            for watcher in list(self._children.fire(above)):
                self._forget_path(above, watcher)
                yield watcher, EventType.CHILDREN_CHANGED, above, change.parent_acl

    # -- statistics --------------------------------------------------------------------------------------------------

    def by_path(self) -> dict[str, set[W]]:
        found: dict[str, set[W]] = {}
        for table in (self._data, self._children):
            for path, watchers in list(table.by_path.items()):
                found.setdefault(path, set()).update(watchers)
        return found

    def counts(self) -> tuple[int, int, int]:
        """Return (connections, paths, watches)."""
        paths: set[str] = set()
        watchers: set[W] = set()
        total = 0
        for table in (self._data, self._children):
            paths.update(table.by_path)
            for found in list(table.by_path.values()):
                watchers.update(found)
                total += len(found)
        return len(watchers), len(paths), total
