"""Consistency of an object after an exception interrupted one of its calls.

Ctrl-C, a timeout handler and ``MemoryError`` can end a call between any two steps. Locks are C objects acquired with
``with``, so an interrupted call leaves them free, but it may have made half of a change. An :class:`InterruptGuard`
records the call that is changing an object. The next call that finds the record of an ended call repairs the object
first.
"""

from __future__ import annotations

import sys
from threading import get_ident

from bookstand.errors import BookstandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


# Flags of generators and coroutines, whose frames leave the stack while they are suspended.
_SUSPENDABLE = 0x20 | 0x80 | 0x200


def is_interruption(error: OSError) -> bool:
    """Return whether a timeout's handler raised the error, not the operating system, whose errors have numbers."""
    return isinstance(error, TimeoutError) and error.errno is None


class Call:
    """A call in progress. It is over when its frame has left its thread's stack, even if an interruption kept it from
    recording that. Without a frame, and in a generator, only the caller knows when it is over."""

    __slots__ = ("frame", "thread")

    def __init__(self, frame: FrameType | None) -> None:
        self.thread = get_ident()
        self.frame = frame

    @property
    def is_over(self) -> bool:
        frame = self.frame
        if frame is None or frame.f_code.co_flags & _SUSPENDABLE:
            return False
        try:
            # Only a frame that has left its stack can be cleared. Walking another thread's stack would not be atomic.
            frame.clear()
        except RuntimeError:
            return False
        return True


def call_of_block(frame: FrameType) -> Call:
    """Return the call whose ``with`` statement calls ``__enter__``, given the frame of the caller of ``__enter__``. It
    has no frame if the block may outlive the caller: an ``ExitStack``, or a function that only begins the block."""
    from opcode import opmap

    # The instruction of a `with` statement that calls `__enter__`, where an interpreter has one.
    begins_here = frame.f_code.co_code[frame.f_lasti] == opmap.get("BEFORE_WITH")
    return Call(frame if begins_here else None)


class InterruptGuard:
    """Guard for ``with lock, guard:`` around code that changes, or depends on, several fields.

    The lock is the object's own; the caller may hold an RLock already. The library's own errors leave an object
    consistent. After any other exception the next block begins with ``repair()``, which holds the lock and may enter
    further blocks. If it raises or is interrupted, the next block calls it again.
    """

    __slots__ = ("_repair", "call")

    def __init__(self, repair: Callable[[], object]) -> None:
        self._repair = repair
        self.call: Call | None = None
        """The call inside the block, or the one interrupted inside."""

    @property
    def was_interrupted(self) -> bool:
        """True if the next block begins with a repair. The caller need not hold the lock."""
        call = self.call
        # A block that ends normally clears its call before the frame leaves the stack.
        return call is not None and call.is_over and self.call is call

    def interrupt(self) -> None:
        """Make the next block begin with a repair."""
        self.call = _INTERRUPTED

    def __enter__(self) -> None:
        call = self.call
        if call is not None:
            if not call.is_over:
                # This thread is inside a block already.
                return
            self.call = Call(sys._getframe())
            self._repair()
        self.call = Call(sys._getframe(1))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        call = self.call
        if (kind is None or issubclass(kind, BookstandError)) and call is not None and call.frame is sys._getframe(1):
            self.call = None


class _InterruptedCall(Call):
    @property
    def is_over(self) -> bool:
        return True


_INTERRUPTED = _InterruptedCall(None)
