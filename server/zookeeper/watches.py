"""Who watches what. Watches are a connection's: they end with it, and a client that comes back sets them again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Flag, auto
from typing import Generic, TypeVar

from bookstand.server.zookeeper.paths import ROOT, ancestors_of, parent_of
from bookstand.server.zookeeper.protocol import EventType, WatcherType
from bookstand.server.zookeeper.transaction import Change

W = TypeVar("W", bound=Hashable)


class Mode(Flag):
    """How a watcher watches a path; several at once are possible."""

    ONCE = auto()
    PERSISTENT = auto()
    RECURSIVE = auto()


class _Table(Generic[W]):
    """Watchers of one kind of events."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[W, Mode]] = {}

    def add(self, path: str, watcher: W, mode: Mode) -> None:
        modes = self.by_path.setdefault(path, {})
        modes[watcher] = modes.get(watcher, mode) | mode

    def remove(self, path: str, watcher: W, modes: Mode) -> bool:
        """Whether there was such a watch."""
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
        """Those who watch the path itself; who watched for once has watched."""
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

# Which modes a kind of ``removeWatches`` ends, of watches for data and for children.
_REMOVED: dict[WatcherType, tuple[Mode, Mode]] = {
    WatcherType.CHILDREN: (Mode(0), Mode.ONCE),
    WatcherType.DATA: (Mode.ONCE, Mode(0)),
    WatcherType.ANY: (_EVERY_MODE, _EVERY_MODE),
    WatcherType.PERSISTENT: (Mode.PERSISTENT, Mode.PERSISTENT),
    WatcherType.PERSISTENT_RECURSIVE: (Mode.RECURSIVE, Mode(0)),
}


class Watches(Generic[W]):
    """All watches of a server. A watcher is told of each event once, however many of its watches it fires."""

    def __init__(self) -> None:
        self._data: _Table[W] = _Table()
        self._children: _Table[W] = _Table()
        self._paths: dict[W, set[str]] = {}

    def watch_data(self, path: str, watcher: W) -> None:
        self._data.add(path, watcher, Mode.ONCE)
        self._remember(path, watcher)

    def watch_children(self, path: str, watcher: W) -> None:
        self._children.add(path, watcher, Mode.ONCE)
        self._remember(path, watcher)

    def watch_persistently(self, path: str, watcher: W) -> None:
        self._data.add(path, watcher, Mode.PERSISTENT)
        self._children.add(path, watcher, Mode.PERSISTENT)
        self._remember(path, watcher)

    def watch_recursively(self, path: str, watcher: W) -> None:
        self._data.add(path, watcher, Mode.RECURSIVE)
        self._remember(path, watcher)

    def _remember(self, path: str, watcher: W) -> None:
        self._paths.setdefault(watcher, set()).add(path)

    def remove(self, path: str, watcher: W, kind: WatcherType) -> bool:
        """Whether there was one to remove."""
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
        """Its connection has ended."""
        for path in self._paths.pop(watcher, ()):
            self._data.remove(path, watcher, _EVERY_MODE)
            self._children.remove(path, watcher, _EVERY_MODE)

    def _forget_path(self, path: str, watcher: W) -> None:
        if not self.has(path, watcher, WatcherType.ANY):
            self._paths.get(watcher, set()).discard(path)

    def fire(self, change: Change) -> Iterator[tuple[W, EventType, str]]:
        """Who is to be told what, in order."""
        path = change.path
        told = dict.fromkeys(self._data.fire(path))
        if change.type is EventType.DELETED:
            told.update(dict.fromkeys(self._children.fire(path)))
        for watcher in told:
            self._forget_path(path, watcher)
        told.update(dict.fromkeys(self._data.recursive_above(path)))
        for watcher in told:
            yield watcher, change.type, path
        if change.type is not EventType.DATA_CHANGED and path != ROOT:
            above = parent_of(path)
            for watcher in list(self._children.fire(above)):
                self._forget_path(above, watcher)
                yield watcher, EventType.CHILDREN_CHANGED, above

    # -- for those who look ------------------------------------------------------------------------------------------

    def by_path(self) -> dict[str, set[W]]:
        found: dict[str, set[W]] = {}
        for table in (self._data, self._children):
            for path, watchers in list(table.by_path.items()):
                found.setdefault(path, set()).update(watchers)
        return found

    def counts(self) -> tuple[int, int, int]:
        """(connections, paths, watches)."""
        paths: set[str] = set()
        watchers: set[W] = set()
        total = 0
        for table in (self._data, self._children):
            paths.update(table.by_path)
            for found in list(table.by_path.values()):
                watchers.update(found)
                total += len(found)
        return len(watchers), len(paths), total
