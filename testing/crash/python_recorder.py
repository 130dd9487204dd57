"""Recorder of a workload's file operations in this process, in pure Python.

The store's own file operations are observed directly: during the recording, the functions of ``os`` that change files
are wrapped. LMDB's operations are inferred: after each commit the data file is compared with its previous contents. The
changed pages are assumed to be written in LMDB's order: all data pages, then ``fdatasync``, then the changed header
through ``O_DSYNC``. The recorder below the process (``syscall_recorder.py``) sees the real operations; a test checks
that both agree.

Child processes are not recorded. Output of ``open(...).write`` is detected with the next operation, and assumed to be
unsynced.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from contextlib import contextmanager
from threading import RLock, get_ident

from bookstand.errors import IllegalOperationError
from bookstand.storage.hooks import Hooks
from bookstand.storage.lmdb.environment import DATA_FILE, LOCK_FILE
from bookstand.testing.crash import recording as kinds
from bookstand.testing.crash.open_hook import watched_openings
from bookstand.testing.crash.recording import PAGE, Operation, Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, Self

# LMDB 0.9 writes its header from the map size through the transaction id, which is last.
_META_START, _META_END = 32, 152
_TRANSACTION = struct.Struct("<144xQ")
_META_PAGES = 2

_WRAPPED = (
    "open",
    "write",
    "pwrite",
    "fsync",
    "fdatasync",
    "truncate",
    "ftruncate",
    "posix_fallocate",
    "rename",
    "replace",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
)


class _Known:
    """A known file: its number, name and last contents."""

    __slots__ = ("content", "number", "path")

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.content = b""


class _Watch(Hooks):
    """Notifies the recorder of every commit. Entry hooks are off, because they would change the path of entries."""

    sees_entries = False

    def __init__(self, recorder: PageRecorder) -> None:
        self._recorder = recorder

    def point(self, name: str) -> None:
        self._recorder.passed(name)


class PageRecorder:
    """Records operations below the directory within ``with PageRecorder(folder, "store") as recorder``."""

    _recording_now = False

    def __init__(self, folder: str, store: str) -> None:
        self._root = os.path.realpath(folder)
        self.recording = Recording(store, "pages")
        self._lock = RLock()
        self._files: dict[int, _Known] = {}
        self._folders: dict[int, str] = {}
        self._real: dict[str, Callable[..., Any]] = {}
        self._watch = _Watch(self)
        self._volatile: set[str] = set()
        self._points: list[tuple[Hooks, Callable[[str], None]]] = []
        # The thread that is recording now; its own file operations are not recorded.
        self._inside = 0
        self._numbers = 0

    # -- beginning and end -----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if PageRecorder._recording_now:
            raise IllegalOperationError("a recording is being made in this process already")
        PageRecorder._recording_now = True
        for name in filter(_offered, _WRAPPED):
            self._real[name] = getattr(os, name)
            setattr(os, name, self._wrapper(name))
        self._openings = watched_openings(self._root, self._opening)
        self._openings.__enter__()
        self.look()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look()
        for name, real in self._real.items():
            setattr(os, name, real)
        self._openings.__exit__(None, None, None)
        for hooks, point in self._points:
            setattr(hooks, "point", point)  # noqa: B010 - only this one of them
        PageRecorder._recording_now = False

    def acknowledge(self, value: Any) -> None:
        with self._lock:
            self.look()
            self.recording.acknowledge(value)

    # -- commits ---------------------------------------------------------------------------------------------------

    def _opening(self, folder: str, options: dict[str, Any]) -> None:
        hooks = options.get("hooks")
        if hooks is None:
            options["hooks"] = self._watch
        elif isinstance(hooks, Hooks):
            self._listen(hooks)
        if options.get("durability") == "none":
            self._volatile.add(os.path.join(folder, DATA_FILE))

    def _listen(self, hooks: Hooks) -> None:
        """Wrap the workload's own hooks to be notified of commits."""
        point = hooks.point
        if any(known is hooks for known, _ in self._points):
            return

        def passed(name: str) -> None:
            self.passed(name)
            point(name)

        self._points.append((hooks, point))
        setattr(hooks, "point", passed)  # noqa: B010 - only this one of them

    def passed(self, point: str) -> None:
        if point == "commit.after_sync":
            self.look()

    # -- detecting changes -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Detect changes in all files."""
        with self._by_itself():
            self._look_around()

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        with self._lock:
            before, self._inside = self._inside, get_ident()
            try:
                yield
            finally:
                self._inside = before

    def _look_around(self) -> None:
        seen: set[int] = set()
        self._scan(self._root, "", seen)
        for inode in self._files.keys() - seen:
            gone = self._files.pop(inode)
            self._note(kinds.UNLINK, gone.path)
        for known in list(self._files.values()):
            if known.path.rpartition("/")[2] != LOCK_FILE:
                self._compare(known)

    def _scan(self, folder: str, name: str, seen: set[int]) -> None:
        self._folders[os.stat(folder).st_ino] = name
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = f"{name}/{entry.name}" if name else entry.name
            if entry.is_dir(follow_symlinks=False):
                if not self._knows_folder(path):
                    self._note(kinds.MKDIR, path)
                self._scan(entry.path, path, seen)
                continue
            inode = entry.inode()
            seen.add(inode)
            known = self._files.get(inode)
            if known is None:
                self._created(inode, path)
            elif known.path != path:
                self._note(kinds.RENAME, known.path, known.number, target=path)
                known.path = path

    def _knows_folder(self, path: str) -> bool:
        return path in self._folders.values()

    def _created(self, inode: int, path: str) -> _Known:
        known = self._files[inode] = _Known(self._next_number(), path)
        self._note(kinds.CREATE, path, known.number)
        return known

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _compare(self, known: _Known) -> None:
        full = os.path.join(self._root, known.path)
        before, now = known.content, _content(full)
        if now == before:
            return
        known.content = now
        changed = [
            start for start in range(0, len(now), PAGE) if now[start : start + PAGE] != before[start : start + PAGE]
        ]
        if before and known.path.rpartition("/")[2] == DATA_FILE:
            self._committed(known, changed, before, now, durable=full not in self._volatile)
            return
        for start in changed:
            self._write(known, start, now[start : start + PAGE])
        if len(now) < len(before):
            self._note(kinds.TRUNCATE, known.path, known.number, len(now))

    def _committed(self, known: _Known, changed: list[int], before: bytes, now: bytes, durable: bool) -> None:
        """Record the changed pages in the order of LMDB's commit."""
        metas = [start for start in changed if start < _META_PAGES * PAGE]
        for start in changed[len(metas) :]:
            self._write(known, start, now[start : start + PAGE])
        if len(now) < len(before):
            self._note(kinds.TRUNCATE, known.path, known.number, len(now))
        for start in sorted(metas, key=lambda start: _TRANSACTION.unpack_from(now, start)):
            if durable:
                self._note(kinds.SYNC, known.path, known.number)
            old, new = before[start : start + PAGE], now[start : start + PAGE]
            whole = old[:_META_START] != new[:_META_START] or old[_META_END:] != new[_META_END:]
            first, last = (0, PAGE) if whole else (_META_START, _META_END)
            self._write(known, start + first, new[first:last], durable)

    def _write(self, known: _Known, offset: int, data: bytes, synchronous: bool = False) -> None:
        self.recording.add(Operation(kinds.WRITE, known.path, known.number, offset, data, synchronous))

    def _note(self, kind: str, path: str, file: int = 0, offset: int = 0, target: str = "") -> None:
        self.recording.add(Operation(kind, path, file, offset, target=target))

    # -- the functions of os ---------------------------------------------------------------------------------------

    def _wrapper(self, name: str) -> Callable[..., Any]:
        real = self._real[name]
        after = getattr(self, f"_after_{name}")

        def watched(*arguments: Any, **options: Any) -> Any:
            if self._inside == get_ident() or not self._concerns(name, arguments, options):
                return real(*arguments, **options)
            with self._by_itself():
                self._look_around()
                result = real(*arguments, **options)
                after(arguments, options, result)
                return result

        return watched

    def _concerns(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        try:
            if name == "open" and not (arguments[1] if len(arguments) > 1 else options["flags"]) & _CHANGES:
                return False
            where = arguments[0] if arguments else options.get("path", options.get("fd", options.get("src")))
            if isinstance(where, int):
                status = os.fstat(where)
                if stat.S_ISDIR(status.st_mode):
                    return status.st_ino in self._folders
                return self._below_by_inode(status)
            folder_file = options.get("dir_fd", options.get("src_dir_fd"))
            return self._name(self._path(where, folder_file)) is not None
        except (OSError, TypeError, ValueError, KeyError):
            return False

    def _below_by_inode(self, status: os.stat_result) -> bool:
        with self._lock:
            if status.st_ino not in self._files:
                # LMDB may have created it since.
                self.look()
            return status.st_ino in self._files

    def _path(self, path: Any, folder_file: int | None) -> str:
        name = os.fsdecode(os.fspath(path))
        if folder_file is not None and not os.path.isabs(name):
            below = self._folders.get(os.fstat(folder_file).st_ino)
            return os.path.join(self._root, below, name) if below is not None else name
        folder, last = os.path.split(os.path.abspath(name))
        return os.path.join(os.path.realpath(folder), last)

    def _name(self, full: str) -> str | None:
        """Return the name relative to the recorded directory, or None outside of it."""
        if full == self._root:
            return ""
        return full[len(self._root) + 1 :] if full.startswith(self._root + os.sep) else None

    def _file(self, descriptor: int) -> _Known | None:
        return self._files.get(os.fstat(descriptor).st_ino)

    def _after_open(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        # Detects created and truncated files.
        self._look_around()

    def _after_write(self, arguments: tuple[Any, ...], options: dict[str, Any], written: int) -> None:
        end = os.lseek(arguments[0], 0, os.SEEK_CUR)
        self._written(arguments[0], end - written, bytes(arguments[1][:written]))

    def _after_pwrite(self, arguments: tuple[Any, ...], options: dict[str, Any], written: int) -> None:
        self._written(arguments[0], arguments[2], bytes(arguments[1][:written]))

    def _written(self, descriptor: int, offset: int, data: bytes) -> None:
        known = self._file(descriptor)
        if known is not None:
            synchronous = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DSYNC)
            self._write(known, offset, data, synchronous)
            known.content = _content(os.path.join(self._root, known.path))

    def _after_fsync(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        status = os.fstat(arguments[0])
        if stat.S_ISDIR(status.st_mode):
            self._note(kinds.SYNC_FOLDER, self._folders[status.st_ino])
        else:
            known = self._files[status.st_ino]
            self._note(kinds.SYNC, known.path, known.number)

    _after_fdatasync = _after_fsync

    def _after_truncate(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        where, size = arguments
        if not isinstance(where, int):
            where = os.stat(where).st_ino
        else:
            where = os.fstat(where).st_ino
        known = self._files[where]
        self._note(kinds.TRUNCATE, known.path, known.number, size)
        known.content = _content(os.path.join(self._root, known.path))

    _after_ftruncate = _after_truncate

    def _after_posix_fallocate(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        descriptor, start, size = arguments
        known = self._files[os.fstat(descriptor).st_ino]
        if start + size > len(known.content):
            self._note(kinds.TRUNCATE, known.path, known.number, start + size)
            known.content = _content(os.path.join(self._root, known.path))

    def _after_rename(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        source = self._name(self._path(arguments[0], options.get("src_dir_fd")))
        target = self._name(self._path(arguments[1], options.get("dst_dir_fd")))
        known = next((one for one in self._files.values() if one.path == source), None)
        replaced = next((inode for inode, one in self._files.items() if one.path == target), None)
        if replaced is not None:
            del self._files[replaced]
        if known is not None and source is not None and target is not None:
            self._note(kinds.RENAME, source, known.number, target=target)
            known.path = target

    _after_replace = _after_rename

    def _after_unlink(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        self._removed(kinds.UNLINK, arguments, options)

    _after_remove = _after_unlink

    def _after_mkdir(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        self._look_around()

    def _after_rmdir(self, arguments: tuple[Any, ...], options: dict[str, Any], result: object) -> None:
        self._removed(kinds.RMDIR, arguments, options)

    def _removed(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        path = self._name(self._path(arguments[0], options.get("dir_fd")))
        if path is None:
            return
        self._note(kind, path)
        self._files = {inode: known for inode, known in self._files.items() if known.path != path}
        self._folders = {inode: name for inode, name in self._folders.items() if name != path}


_CHANGES = os.O_CREAT | os.O_TRUNC


def _offered(name: str) -> bool:
    """Return True if this platform has the function."""
    return hasattr(os, name)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
