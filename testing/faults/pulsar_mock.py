"""Features of Pulsar's PulsarMockBookKeeper under their original names, so that tests can be ported line by line.

The mock has one queue of failures for all operations. Here each failure is for one operation, by default "append".
Instead of the mock's introspection, use the store: ``store.list_ledgers()``, ``store.storage.state(ledger_id).fenced``.
Its ``delay(millis)`` is ``delay(operation, seconds, times=1)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookstand.errors import IncorrectParameterError
from bookstand.testing.faults.blocking import Stall
from bookstand.testing.faults.rules import Rule


class MockBookKeeperFaults:
    """Mixin of :class:`Faults` with the mock's methods. Calls for the same operation are queued."""

    _add: Callable[[Rule], Rule]
    delay: Callable[..., Rule]
    fail: Callable[..., Rule]
    stall: Callable[..., Stall]
    remove: Callable[[Rule], None]
    _defaults: dict[str, Rule] | None = None
    _read_interceptor: Callable[[int, int, bytes | None], bytes | None] | None

    def fail_now(self, code: int, *, operation: str = "append", **which: Any) -> Rule:
        """Fail the next operation."""
        return self.fail_after(0, code, operation=operation, **which)

    def fail_after(self, n: int, code: int, *, operation: str = "append", **which: Any) -> Rule:
        """Fail the operation after the next ``n``."""
        return self.fail(operation, code, nth=_steps(n) + 1, **which)

    def add_entry_fail_after(self, n: int, code: int, **which: Any) -> Rule:
        """Fail the append after the next ``n``."""
        return self.fail_after(n, code, operation="append", **which)

    def add_delay(self, seconds: float, **which: Any) -> Rule:
        """Delay storing the next append."""
        return self.delay("append", seconds, times=1, **which)

    def response_delay(self, seconds: float, **which: Any) -> Rule:
        """Delay acknowledging the next append, which is stored without delay."""
        return self.delay("append", seconds, times=1, after=True, **which)

    def promise_after(self, n: int, *, operation: str = "append", **which: Any) -> Stall:
        """Stall the operation after the next ``n`` until the test releases it, with or without an error."""
        return self.stall(operation, nth=_steps(n) + 1, **which)

    def return_empty_ledger_after(self, n: int, *, ledger: int | None = None) -> Rule:
        """Make the ledger open after the next ``n`` appear closed and empty; the stored entries are not changed."""
        return self._add(Rule("empty", "open", ledger, nth=_steps(n) + 1, after=True))

    def intercept_reads(self, interceptor: Callable[[int, int, bytes | None], bytes | None] | None) -> None:
        """Call ``interceptor(ledger_id, entry_id, stored)`` for each entry that is read. It returns the bytes that the
        reader gets, or None for a missing entry, or raises an error."""
        if interceptor is not None and not callable(interceptor):
            raise IncorrectParameterError(f"an interceptor is called, which {interceptor!r} cannot be")
        self._read_interceptor = interceptor

    def set_default_add_delay(self, seconds: float) -> None:
        """Delay storing every append, except those with a rule of ``add_delay``; 0 removes the delay."""
        self._set_default("append", seconds)

    def set_default_read_delay(self, seconds: float) -> None:
        """Delay every read of an entry; 0 removes the delay."""
        self._set_default("read", seconds)

    def _set_default(self, operation: str, seconds: float) -> None:
        defaults = self._defaults = self._defaults or {}
        former = defaults.pop(operation, None)
        if former is not None:
            self.remove(former)
        if seconds:
            defaults[operation] = self.delay(operation, seconds)
            # Defaults are settings: tests that never run such an operation are correct.
            defaults[operation].expected = False


def _steps(n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise IncorrectParameterError(f"a number of steps is from 0 up, not {n!r}")
    return n
