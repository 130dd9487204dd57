"""Raise an exception in the middle of a call, where the interpreter would: ``with Interruption(number): call()``.

A real signal is raised before the ``number``-th bytecode instruction of the block. CPython runs the signal's handler at
the next place where it looks for signals (the entry of a function, a backward jump, the end of a call), and the handler
raises the exception there. So the place is one at which Ctrl-C, the handler of a timeout, or a ``MemoryError`` can
arrive, and the same one each time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import CodeType, FrameType
from typing import Any

SIGNAL = signal.SIGUSR1


class _SignalNumber:
    """Of the arguments of a trace function the interpreter's function gets the signal's number alone."""

    @classmethod
    def from_param(cls, _: object) -> ctypes.c_int:
        return ctypes.c_int(SIGNAL)


# A trace function in C: no place where the interpreter looks for signals is between raising the signal and the traced
# code. In a Python function the handler would run at once.
_raise_signal = ctypes.pythonapi["PyErr_SetInterruptEx"]
_raise_signal.argtypes = [_SignalNumber, ctypes.py_object, ctypes.py_object]
_raise_signal.restype = None


class Interruption:
    """Only in the main thread. ``kind`` is what is raised; ``number`` 0 raises nothing, and counts."""

    def __init__(self, number: int, kind: type[BaseException] = KeyboardInterrupt) -> None:
        self.kind = kind
        self.instructions = 0
        """Number of instructions that ran in the block, up to the one at which the signal was raised."""
        self.place: tuple[CodeType, int] | None = None
        """Where the exception was raised; None as long as it was not."""
        self._number = number
        self._due = False

    def __enter__(self) -> Interruption:
        signal.signal(SIGNAL, self._handle)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        # A signal that was raised too late for the block meets nothing outside it.
        signal.signal(SIGNAL, signal.SIG_IGN)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code in _OWN or _is_foreign(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return _raise_signal if self._due else self._trace_instruction

    def _trace_instruction(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.instructions += 1
            if self.instructions == self._number:
                self._due = True
        return _raise_signal if self._due else self._trace_instruction

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Here the signal is ignored; the next traced instruction raises it again.
        if frame is not None and frame.f_code not in _OWN and self.place is None and not _is_foreign(frame):
            sys.settrace(None)
            self.place = frame.f_code, frame.f_lasti
            raise self.kind("raised in the middle of a call")


def _is_foreign(frame: FrameType) -> bool:
    """An event loop that is interrupted outside its tasks is no concern of the library, and an exception in a callback
    of a weak reference goes no further."""
    file = frame.f_code.co_filename
    return f"{os.sep}asyncio{os.sep}" in file or file.endswith(f"{os.sep}_weakrefset.py")


_OWN = {
    function.__code__
    for function in (
        _is_foreign,
        Interruption.__enter__,
        Interruption.__exit__,
        Interruption._trace,
        Interruption._trace_instruction,
        Interruption._handle,
        _SignalNumber.from_param.__func__,  # type: ignore[attr-defined]
    )
}
