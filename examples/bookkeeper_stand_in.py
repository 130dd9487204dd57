"""Test code that uses BookKeeper, with bookstand in its place.

The code under test appends decisions to a ledger. A new leader opens the previous leader's ledger with recovery, which
fences the previous leader; that one must notice it and step down. In production the client connects to bookies. Here it
is a bookstand store, which returns the same results and error codes in milliseconds and without a server.

Requires ``bookstand[test]``. Run the tests with ``python bookkeeper_stand_in.py`` or ``pytest bookkeeper_stand_in.py``.
"""

from __future__ import annotations

import os
import sys

import pytest

# -- code under test, which uses the operations and error codes of BookKeeper only -------------------------------------

LEDGER_FENCED, NOT_ENOUGH_BOOKIES = -101, -6


class Leader:
    """A leader that stores decisions in ledgers. The node ``/decisions`` has the id of the current ledger."""

    def __init__(self, client):
        self.client = client
        self.is_leader = True
        self.decisions = self._take_over()
        self.ledger = client.create_ledger()
        for decision in self.decisions:
            self.ledger.append(decision)
        client.nodes.put("/decisions", b"%d" % self.ledger.id)

    def _take_over(self):
        if "decisions" not in self.client.nodes.children("/"):
            return []
        ledger_id, _ = self.client.nodes.get("/decisions")
        # Recovery fences the previous leader, even if that one has not noticed the new leader.
        return [entry.data for entry in self.client.open_ledger(int(ledger_id), recovery=True)]

    def decide(self, decision):
        """Store a decision. Return False if this is no longer the leader."""
        if not self.is_leader:
            return False
        try:
            self.ledger.append(decision)
        except Exception as error:
            if getattr(error, "code", None) not in (LEDGER_FENCED, NOT_ENOUGH_BOOKIES):
                raise
            self.is_leader = False
            return False
        self.decisions.append(decision)
        return True


# -- tests, with the fixtures of bookstand[test] -----------------------------------------------------------------------


def test_previous_leader_is_fenced_and_steps_down(bookstand_store):
    old = Leader(bookstand_store)
    assert old.decide(b"build a bridge")

    new = Leader(bookstand_store)
    assert new.decisions == [b"build a bridge"]
    assert not old.decide(b"tear it down")
    assert not old.is_leader
    assert new.decide(b"paint it")
    assert Leader(bookstand_store).decisions == [b"build a bridge", b"paint it"]


def test_leader_without_bookies_steps_down(bookstand_store, bookstand_faults):
    leader = Leader(bookstand_store)
    bookstand_faults.fail("append", NOT_ENOUGH_BOOKIES)
    assert not leader.decide(b"build a bridge")
    assert not leader.is_leader


def test_decisions_survive_a_crash(bookstand_store, bookstand_open_store, bookstand_faults):
    from bookstand.testing import SimulatedCrash

    leader = Leader(bookstand_store)
    assert leader.decide(b"build a bridge")
    bookstand_faults.crash("append.before_store")
    with pytest.raises(SimulatedCrash):
        leader.decide(b"tear it down")
    assert Leader(bookstand_open_store()).decisions == [b"build a bridge"]


if __name__ == "__main__":
    # Ignore the pytest configuration of an enclosing project.
    here = ["-c", os.devnull, "--rootdir", os.path.dirname(os.path.abspath(__file__))]
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *here, __file__]))
