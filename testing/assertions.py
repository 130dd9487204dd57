"""Results of calls, in a form that tests can compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bookstand.errors import BookstandError, LedgerError

PATIENCE = 60.0
"""Seconds after which a required event is considered missing. No result depends on this limit."""


def code_of(call: Callable[[], Any]) -> int | None:
    """Return the error code of a call, or None if it succeeds. Exceptions other than LedgerError are not caught."""
    try:
        call()
    except LedgerError as error:
        return error.code
    return None


def outcome(pending: Any, timeout: float = PATIENCE) -> Any:
    """Return ``("ok", value)`` of a pending operation, or its error code."""
    try:
        return "ok", pending.result(timeout)
    except LedgerError as error:
        assert pending.done(), f"there was no answer within {timeout} s"
        return error.code


@contextmanager
def refused(*codes: int) -> Iterator[None]:
    """Assert that the block raises an error with one of the codes."""
    refusal: BookstandError | None = None
    try:
        yield
    except BookstandError as error:
        refusal = error
    assert refusal is not None, f"not refused, though it had to be with one of {codes}"
    assert getattr(refusal, "code", None) in codes, f"refused with {refusal!r}, not with one of {codes}"


def eventually_readable(handle: Any, entry_id: int) -> None:
    """Wait until an entry is stored; its acknowledgment may still be pending."""
    deadline = time.monotonic() + PATIENCE
    while code_of(lambda: handle.read_unconfirmed(entry_id, entry_id)) is not None:
        assert time.monotonic() < deadline, f"entry {entry_id} was not stored within {PATIENCE} s"
        time.sleep(0.002)
