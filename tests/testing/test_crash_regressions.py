"""What power cuts have brought to light once, each by the workload that did."""

from __future__ import annotations

import os

import bookstand
from bookstand.testing.crash.lab import every_crash


def witnessed(path, acknowledge):
    with bookstand.open(path, witness=True) as store:
        acknowledge(store.create_ledger().append(b"entry"))


def test_a_power_cut_while_the_witness_is_made():
    """A witness file of which not all had arrived refused the store for ever."""

    def check(store, acknowledged):
        for entry_id in acknowledged:
            assert store.open_ledger(0, recovery=False).read_unconfirmed(entry_id, entry_id)[0].data == b"entry"

    every_crash(witnessed, check, open_options={"witness": True})


def backed_up(path, acknowledge):
    with bookstand.open(path) as store:
        store.create_ledger().append(b"entry")
        store.backup(os.path.join(os.path.dirname(path), "copy"))
        acknowledge("copy")


def test_a_power_cut_after_a_backup():
    """The copy was whole, but the name of its folder was not synced."""

    def check(store, acknowledged):
        for name in acknowledged:
            copied = os.path.join(os.path.dirname(store.path), name)
            assert os.path.isdir(copied), "the backup is gone"
            with bookstand.open(copied, create=False) as copy:
                reader = copy.open_ledger(0, recovery=False)
                assert [entry.data for entry in reader.read_unconfirmed(0, 0)] == [b"entry"]

    every_crash(backed_up, check)
