"""Faults that somebody puts into a server while it runs: the rules of the test kit, one line each.

Rules are about what happens to ledgers and entries, by whatever protocol it was asked for: an ``append`` is an add over
the wire as well, a ``read`` any answer that has an entry, ``fence``, ``force`` and ``read_lac`` what they say. What an
error is answered with, ``bookie/codes.py`` says. An answer that is lost (``fail+after@append=OutcomeUnknownError``) is
not sent at all. A crash ends the store, and closes all connections without an answer. A rule may name the bookie that
it is about: ``fail@append(4:17)@bookie2=-105``.

As long as there is no rule, nothing is slower for it, and the test kit is not loaded.
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
    """The rules of one store's server, which has so many ``bookies``. All methods may be called from any thread."""

    def __init__(self, storage: Storage, seed: int = 0, bookies: int = MAX_BOOKIES) -> None:
        self._storage = storage
        self._bookies = bookies
        self._seed = seed
        # Whoever opened the store with faults keeps them.
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
        """The rule that is written like this, such as ``delay@read(4:17)=0.5``; it holds from now on."""
        from bookstand.testing.faults.rules import parse_rule

        bookie = parse_rule(line).bookie
        if bookie is not None:
            check_bookie(self._storage.path, bookie, self._bookies)
        rule = self._faults.add(line)
        self._storage.use_hooks(self._faults)
        return rule

    def remove(self, line: str) -> None:
        """The oldest rule that is written like this, or in other words that say the same; what it holds up goes on."""
        from bookstand.testing.faults.rules import parse_rule

        written = str(parse_rule(line))
        rule = next((rule for rule in self._faults.rules if str(rule) == written), None)
        if rule is None:
            raise IncorrectParameterError(f"there is no rule {line!r}")
        self._faults.remove(rule)
        self._rest()

    def clear(self) -> None:
        """No rule is left, and nothing is held up any more."""
        for rule in list(self._faults.rules):
            self._faults.remove(rule)
        self._faults.free_space()
        self._rest()

    def release(self) -> None:
        """Let go of what is stalled."""
        self._faults.release()

    def as_json(self) -> list[dict[str, Any]]:
        """Each rule, how many operations it met, and to how many it happened."""
        return [{"rule": str(rule), "met": rule.seen, "fired": rule.fired} for rule in self._faults.rules]

    def _rest(self) -> None:
        if not self._faults.rules and self._given is None:
            self._storage.use_hooks(None)
