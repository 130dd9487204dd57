"""Disabling of open objects in a forked child.

A child shares the locks and the LMDB environment of its parent, but not the threads: a lock that another thread of the
parent held at the fork is never released in the child, and a transaction that the child ends is the parent's. Every
object that holds a lock or a file is therefore :class:`ProcessBound`. The child replaces the class of each with one
whose methods and attributes raise :class:`ForkedStoreError`, before any lock is acquired. The fork itself waits for no
call in progress, and does not affect the parent.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import RLock
from weakref import WeakSet

from bookstand.errors import ForkedStoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, Self

    class Inherited(Protocol):
        def _forked(self) -> None:
            """Called once, in the child."""


# Attributes that identify an object. They remain readable, so that a child can open the same object for itself.
_IDENTITY = frozenset({"path", "name", "id", "_id"})
# Methods that only release resources. The child holds none.
_RELEASES = frozenset({"close", "stop"})

files_lock = RLock()
"""Held while a file that a child must close is opened or closed, so that no fork occurs in between."""

_inherited: WeakSet[Inherited] = WeakSet()
_in_child: list[Callable[[], None]] = []
_disabled_kinds: set[type] = set()
_ATTEMPTS = 100
# The forked process in which all of its parent's objects are disabled.
_disabled_in = 0


def call_in_child(action: Callable[[], None]) -> None:
    """Call a function in each forked child. Objects that it creates are not disabled."""
    _in_child.append(action)


def notify_of_forks(one: Inherited) -> None:
    """Call ``one._forked()`` in a forked child, if the object still exists."""
    _inherited.add(one)


def disconnect(descriptor: int) -> None:
    """In a forked child: close the file of a descriptor. The number remains in use, so that the object that owns it
    cannot close another file."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


class ProcessBound:
    """Base class of objects that only the process that created them can use.

    In a forked child ``close()``, ``stop()`` and the end of a ``with`` block do nothing; every other use raises
    :class:`ForkedStoreError`.
    """

    __slots__ = ()

    _close_is_durable = False
    """True if ``close()`` promises a change of the store. In a child it then raises like all other methods."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        self = super().__new__(cls)
        _inherited.add(self)
        return self

    def _store_path(self) -> str | None:
        """Path of the store, if this object is an open store."""
        return None

    def _forked(self) -> None:
        """In a forked child: dispose of inherited resources without using them."""


def _do_nothing(*_arguments: object) -> None:
    pass


def _disabled(kind: type[ProcessBound], reason: str) -> type[ProcessBound]:
    """Subclass of ``kind`` of the same layout whose methods and attributes raise."""

    def refuse(*_arguments: object, **_named: object) -> Any:
        raise ForkedStoreError(reason)

    def get(self: ProcessBound, name: str) -> Any:
        if name in _IDENTITY or name.startswith("__"):
            return object.__getattribute__(self, name)
        if name in _RELEASES and not kind._close_is_durable:
            return _do_nothing
        if callable(getattr(kind, name, None)):
            return refuse
        raise ForkedStoreError(reason)

    def describe(self: ProcessBound) -> str:
        return f"<{kind.__name__} of the parent process>"

    members = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__getattribute__": get,
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__repr__": describe,
        "__str__": describe,
    }
    return type(kind.__name__, (kind,), members)


def _reason(paths: list[str]) -> str:
    named = f"store{'s' if len(paths) > 1 else ''} {', '.join(paths)}" if paths else "this store"
    return (
        f"{named} {'were' if len(paths) > 1 else 'was'} opened before this process was forked; open stores after the "
        "fork, or start the process without forking (multiprocessing: the spawn or forkserver method)"
    )


def _after_fork_in_child() -> None:
    global _disabled_in
    process = os.getpid()
    for left in reversed(range(_ATTEMPTS)):
        if _disabled_in == process:
            return
        try:
            _disable_inherited()
            _disabled_in = process
        except BaseException:
            # A signal's handler raised it. Python only prints what a handler of a fork raises.
            if not left:
                raise


def _disable_inherited() -> None:
    """Each step can be repeated after an interruption."""
    inherited = [one for one in _inherited if type(one) not in _disabled_kinds]
    bound = [one for one in inherited if isinstance(one, ProcessBound)]
    reason = _reason(sorted({path for one in bound if (path := one._store_path()) is not None}))
    for one in inherited:
        try:
            one._forked()
        except Exception:
            # The call was interrupted, or the object is incomplete because another thread was constructing it. The
            # others must be disabled all the same.
            with suppress(Exception):
                one._forked()
    disabled: dict[type, type] = {}
    for one in bound:
        kind = type(one)
        if kind not in disabled:
            disabled[kind] = _disabled(kind, reason)
            _disabled_kinds.add(disabled[kind])
        one.__class__ = disabled[kind]
    for one in bound:
        _inherited.discard(one)
    # Last, so that what they make anew is not disabled.
    for action in _in_child:
        action()


os.register_at_fork(before=files_lock.acquire, after_in_parent=files_lock.release, after_in_child=files_lock.release)
for _ in range(2):
    # The first one may be interrupted at its entry.
    os.register_at_fork(after_in_child=_after_fork_in_child)
