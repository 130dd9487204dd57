"""What Pulsar's PulsarMockBookKeeper can do, under its names, so that tests can be carried over line by line.

There one queue of failures is shared by all operations; here each is about one operation, which is "append" unless it
is named. Its introspection is the store itself: ``store.list_ledgers()``, ``store.storage.state(ledger_id).fenced``.
Its ``delay(millis)`` is ``delay(operation, seconds, times=1)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookstand.errors import IncorrectParameterError
from bookstand.testing.faults.blocking import Stall
from bookstand.testing.faults.rules import Rule


class MockBookKeeperFaults:
    """The part of :class:`Faults` that is named after the mock. Several of them for one operation queue up."""

    _add: Callable[[Rule], Rule]
    delay: Callable[..., Rule]
    fail: Callable[..., Rule]
    stall: Callable[..., Stall]
    remove: Callable[[Rule], None]
    _defaults: dict[str, Rule] | None = None
    _read_interceptor: Callable[[int, int, bytes | None], bytes | None] | None

    def fail_now(self, code: int, *, operation: str = "append", **which: Any) -> Rule:
        """The next one fails."""
        return self.fail_after(0, code, operation=operation, **which)

    def fail_after(self, n: int, code: int, *, operation: str = "append", **which: Any) -> Rule:
        """The one after ``n`` more fails."""
        return self.fail(operation, code, nth=_steps(n) + 1, **which)

    def add_entry_fail_after(self, n: int, code: int, **which: Any) -> Rule:
        """The append after ``n`` more fails."""
        return self.fail_after(n, code, operation="append", **which)

    def add_delay(self, seconds: float, **which: Any) -> Rule:
        """The next append is stored so much later."""
        return self.delay("append", seconds, times=1, **which)

    def response_delay(self, seconds: float, **which: Any) -> Rule:
        """The next append is stored, and acknowledged so much later."""
        return self.delay("append", seconds, times=1, after=True, **which)

    def promise_after(self, n: int, *, operation: str = "append", **which: Any) -> Stall:
        """The one after ``n`` more waits until the test releases it, with or without an error."""
        return self.stall(operation, nth=_steps(n) + 1, **which)

    def return_empty_ledger_after(self, n: int, *, ledger: int | None = None) -> Rule:
        """The ledger that is opened after ``n`` more looks as if it had been closed without an entry; what is in the
        store stays as it is."""
        return self._add(Rule("empty", "open", ledger, nth=_steps(n) + 1, after=True))

    def intercept_reads(self, interceptor: Callable[[int, int, bytes | None], bytes | None] | None) -> None:
        """Have ``interceptor(ledger_id, entry_id, stored)`` see every entry that is read, as it is stored, and say
        what the reader gets instead: other bytes, None for "no such entry", or an error that it raises."""
        if interceptor is not None and not callable(interceptor):
            raise IncorrectParameterError(f"an interceptor is called, which {interceptor!r} cannot be")
        self._read_interceptor = interceptor

    def set_default_add_delay(self, seconds: float) -> None:
        """Every append is stored so much later, unless ``add_delay`` says something else of it; 0: none is."""
        self._set_default("append", seconds)

    def set_default_read_delay(self, seconds: float) -> None:
        """The same for every entry that is read."""
        self._set_default("read", seconds)

    def _set_default(self, operation: str, seconds: float) -> None:
        defaults = self._defaults = self._defaults or {}
        former = defaults.pop(operation, None)
        if former is not None:
            self.remove(former)
        if seconds:
            defaults[operation] = self.delay(operation, seconds)
            # A setting: nothing is wrong with a test that does without such an operation.
            defaults[operation].expected = False


def _steps(n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise IncorrectParameterError(f"a number of steps is from 0 up, not {n!r}")
    return n
