"""Fault injection into a running server: the rules of the test kit, one line each.

Rules match operations on ledgers and entries, in all protocols. ``append`` also matches an add over the wire, ``read``
any response with an entry, and ``fence``, ``force`` and ``read_lac`` the operations of these names. ``bookie/codes.py``
maps errors to response codes. A lost response (``fail+after@append=OutcomeUnknownError``) is not sent. A crash ends the
store and closes all connections without a response. A rule can be restricted to one bookie:
``fail@append(4:17)@bookie2=-105``.

Without rules there is no overhead, and the test kit is not imported.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from bookstand.errors import IllegalOperationError, IncorrectParameterError
from bookstand.server.bookie.bookie import check_bookie
from bookstand.storage.format.ledger_state import MAX_BOOKIES
from bookstand.storage.storage import Storage

if TYPE_CHECKING:
    from bookstand.testing.faults.faults import Faults
    from bookstand.testing.faults.rules import Rule


class ServerFaults:
    """The fault rules of one store's server with ``bookies`` bookies. Thread-safe."""

    def __init__(self, storage: Storage, seed: int = 0, bookies: int = MAX_BOOKIES) -> None:
        self._storage = storage
        self._bookies = bookies
        self._seed = seed
        # A store that was opened with faults keeps them.
        self._given = storage.hooks
        self._made: Faults | None = None
        self._making = Lock()
        if self._given is not None:
            self._faults  # noqa: B018 - raises where they are others

    @property
    def _faults(self) -> Faults:
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> Faults:
        from bookstand.testing.faults.faults import Faults

        if self._given is None:
            return Faults(self._seed)
        if not isinstance(self._given, Faults):
            raise IllegalOperationError(f"store {self._storage.path} is open with other hooks than faults")
        return self._given

    def add(self, line: str) -> Rule:
        """Activate the rule that ``line`` describes, such as ``delay@read(4:17)=0.5``."""
        from bookstand.testing.faults.rules import parse_rule

        bookie = parse_rule(line).bookie
        if bookie is not None:
            check_bookie(self._storage.path, bookie, self._bookies)
        rule = self._faults.add(line)
        self._storage.use_hooks(self._faults)
        return rule

    def remove(self, line: str) -> None:
        """Remove the oldest rule equivalent to ``line``, and release the operations that it holds up."""
        from bookstand.testing.faults.rules import parse_rule

        written = str(parse_rule(line))
        rule = next((rule for rule in self._faults.rules if str(rule) == written), None)
        if rule is None:
            raise IncorrectParameterError(f"there is no rule {line!r}")
        self._faults.remove(rule)
        self._rest()

    def clear(self) -> None:
        """Remove all rules, and release all operations that they hold up."""
        for rule in list(self._faults.rules):
            self._faults.remove(rule)
        self._faults.free_space()
        self._rest()

    def release(self) -> None:
        """Release stalled operations."""
        self._faults.release()

    def as_json(self) -> list[dict[str, Any]]:
        """The rules, with the number of operations that each has matched and affected."""
        return [{"rule": str(rule), "met": rule.seen, "fired": rule.fired} for rule in self._faults.rules]

    def _rest(self) -> None:
        if not self._faults.rules and self._given is None:
            self._storage.use_hooks(None)
