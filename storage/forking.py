"""What becomes of open stores when the process forks.

A child must not use its parent's LMDB environment: a transaction that it commits really commits, and closing the
environment frees reader slots of the parent. So a fork waits until no transaction is open anywhere in the process; the
child closes what it inherited while the parent still holds everything still, and refuses every use of it. It may then
open the same store for itself.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from threading import Lock
    from typing import Protocol

    class Forkable(Protocol):
        def still(self) -> AbstractContextManager[None]:
            """No transaction is open, and none begins, inside the block."""

        def forked(self) -> None:
            """In the child: let go of everything."""


class ForkGuard:
    """Call ``install`` once. ``opened`` gives what is open at the moment.

    No other thread may hold a lock when the child gets its copy of it: ``first`` guards what is open, ``last`` is held
    for moments by those who hold any other, so it is taken after these.
    """

    def __init__(self, opened: Callable[[], Iterable[Forkable]], first: Lock, last: Lock) -> None:
        self._opened = opened
        self._first = first
        self._last = last
        self._stack = ExitStack()
        self._pipe: tuple[int, int] | None = None

    def install(self) -> None:
        os.register_at_fork(
            before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def _before(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._first)
            for store in list(self._opened()):
                stack.enter_context(store.still())
                if self._pipe is None:
                    self._pipe = os.pipe()
            stack.enter_context(self._last)
            # Only now, so that an error above lets go of everything: Python forks all the same.
            self._stack = stack.pop_all()

    def _after_in_parent(self) -> None:
        stack, self._stack = self._stack, ExitStack()
        if self._pipe is not None:
            done, told = self._pipe
            self._pipe = None
            os.close(told)
            # Returns once the child has let go, or is gone: then its end of the pipe is closed.
            os.read(done, 1)
            os.close(done)
        stack.close()

    def _after_in_child(self) -> None:
        stack, self._stack = self._stack, ExitStack()
        stack.close()
        for store in list(self._opened()):
            store.forked()
        if self._pipe is not None:
            done, told = self._pipe
            self._pipe = None
            os.close(done)
            os.close(told)
