"""A test of code that talks to BookKeeper, with bookstand in its place.

The code under test writes decisions to a ledger. Whoever becomes the leader opens the ledger with recovery, by which
the leader before it is fenced: that one has to notice, and to step down. In production the client talks to bookies;
here it is a bookstand store, which gives the same answers, error codes included, in milliseconds and without a server.

Needs ``bookstand[test]``. ``python bookkeeper_stand_in.py`` runs the tests, and so does ``pytest`` when told the file.
"""

from __future__ import annotations

import os
import sys

import pytest

# -- what is tested: it knows the calls and the codes of BookKeeper, and nothing of bookstand --------------------------

LEDGER_FENCED, NOT_ENOUGH_BOOKIES = -101, -6


class Leader:
    """Decisions are kept in ledgers; the node ``/decisions`` has the id of the one that is written to."""

    def __init__(self, client):
        self.client = client
        self.leads = True
        self.decisions = self._take_over()
        self.ledger = client.create_ledger()
        for decision in self.decisions:
            self.ledger.append(decision)
        client.nodes.put("/decisions", b"%d" % self.ledger.id)

    def _take_over(self):
        if "decisions" not in self.client.nodes.children("/"):
            return []
        ledger_id, _ = self.client.nodes.get("/decisions")
        # With recovery: the leader before this one cannot write any more, whatever it believes.
        return [entry.data for entry in self.client.open_ledger(int(ledger_id), recovery=True)]

    def decide(self, decision):
        """Whether it was decided. One that does not lead any more decides nothing."""
        if not self.leads:
            return False
        try:
            self.ledger.append(decision)
        except Exception as error:
            if getattr(error, "code", None) not in (LEDGER_FENCED, NOT_ENOUGH_BOOKIES):
                raise
            self.leads = False
            return False
        self.decisions.append(decision)
        return True


# -- the tests: the fixtures come with bookstand[test] ---------------------------------------------------------------


def test_the_leader_before_is_fenced_and_steps_down(bookstand_store):
    old = Leader(bookstand_store)
    assert old.decide(b"build a bridge")

    new = Leader(bookstand_store)
    assert new.decisions == [b"build a bridge"]
    assert not old.decide(b"tear it down")
    assert not old.leads
    assert new.decide(b"paint it")
    assert Leader(bookstand_store).decisions == [b"build a bridge", b"paint it"]


def test_a_leader_without_bookies_steps_down(bookstand_store, bookstand_faults):
    leader = Leader(bookstand_store)
    bookstand_faults.fail("append", NOT_ENOUGH_BOOKIES)
    assert not leader.decide(b"build a bridge")
    assert not leader.leads


def test_what_was_decided_survives_a_crash(bookstand_store, bookstand_open_store, bookstand_faults):
    from bookstand.testing import SimulatedCrash

    leader = Leader(bookstand_store)
    assert leader.decide(b"build a bridge")
    bookstand_faults.crash("append.before_store")
    with pytest.raises(SimulatedCrash):
        leader.decide(b"tear it down")
    assert Leader(bookstand_open_store()).decisions == [b"build a bridge"]


if __name__ == "__main__":
    # Without the configuration of a project that this file may lie in.
    here = ["-c", os.devnull, "--rootdir", os.path.dirname(os.path.abspath(__file__))]
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *here, __file__]))
