"""``python -m tests.soak.writer PATH SEED``: writes to a store in all ways until it is killed, and tells what it does.

Each line on standard output is a JSON list. What is told *before* is what may have happened if the process dies now;
what is told *after* is promised.

``["created", ledger, kind]``        after; ``kind`` is ``plain`` or ``adv``
``["acked", ledger, first, last]``   after: these entries are confirmed
``["recovered", ledger, lac]``       after: the ledger is closed at this entry, for good
``["deleting", ledger]``             before: from here on it may be gone
``["begin", path, number, ledgers, entries]``  before a transaction that appends one entry to each and writes the number
                                               to the node
``["commit", path, number]``         after it
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import deque
from typing import Any

import bookstand
from bookstand import errors


def payload(ledger_id: int, entry_id: int) -> bytes:
    """What every entry of a campaign holds: nothing else is ever right."""
    return b"%d:%d|" % (ledger_id, entry_id) + bytes(
        (ledger_id * 7 + entry_id) % 251 for _ in range(entry_id * 13 % 180)
    )


def tell(*what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


class Writing:
    def __init__(self, path: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = bookstand.open(path, add_quorum_timeout=None)
        self.node = f"/writers/{os.getpid()}"
        self.number = 0
        self.writers: list[Any] = []
        self.adv: Any = None

    def run(self) -> None:
        steps = [
            (self.append, 6),
            (self.append_async, 4),
            (self.append_many, 3),
            (self.out_of_order, 2),
            (self.transaction, 2),
            (self.recover_another, 1),
            (self.delete, 1),
            (self.close_and_create, 1),
        ]
        choices = [step for step, weight in steps for _ in range(weight)]
        while True:
            try:
                self.random.choice(choices)()
            except (errors.LedgerFencedError, errors.LedgerClosedError, errors.NoSuchLedgerError):
                # Somebody recovered or deleted one of ours: take new ones.
                self.writers = []
                self.adv = None

    def writer(self) -> Any:
        while len(self.writers) < 2:
            created = self.store.create_ledger(digest=self.random.choice(["crc32c", "crc32", "hmac", "dummy"]))
            tell("created", created.id, "plain")
            self.writers.append(created)
        return self.random.choice(self.writers)

    def append(self) -> None:
        writer = self.writer()
        for _ in range(self.random.randint(1, 6)):
            entry_id = writer.last_add_pushed + 1
            assert writer.append(payload(writer.id, entry_id)) == entry_id
            tell("acked", writer.id, entry_id, entry_id)

    def append_async(self) -> None:
        writer = self.writer()
        window: deque[Any] = deque()
        for _ in range(self.random.randint(1, 120)):
            window.append(writer.append_async(payload(writer.id, writer.last_add_pushed + 1)))
            if len(window) > 30:
                self.confirm(writer, window.popleft())
        while window:
            self.confirm(writer, window.popleft())

    def confirm(self, writer: Any, pending: Any) -> None:
        entry_id = pending.result()
        tell("acked", writer.id, entry_id, entry_id)

    def append_many(self) -> None:
        writer = self.writer()
        first = writer.last_add_pushed + 1
        added = writer.append_many(payload(writer.id, first + n) for n in range(self.random.randint(1, 400)))
        tell("acked", writer.id, added[0], added[-1])

    def out_of_order(self) -> None:
        if self.adv is None:
            self.adv = self.store.create_ledger_adv()
            tell("created", self.adv.id, "adv")
        first = self.adv.last_add_confirmed + 1
        ids = list(range(first, first + self.random.randint(2, 12)))
        self.random.shuffle(ids)
        pendings = [self.adv.write_async(entry_id, payload(self.adv.id, entry_id)) for entry_id in ids]
        for pending in pendings:
            pending.result()
        tell("acked", self.adv.id, min(ids), max(ids))

    def transaction(self) -> None:
        self.writer()
        writers = list(self.writers)
        entries = [writer.last_add_pushed + 1 for writer in writers]
        self.number += 1
        tell("begin", self.node, self.number, [writer.id for writer in writers], entries)
        with self.store.transaction() as together:
            for writer, entry_id in zip(writers, entries, strict=True):
                assert together.append(writer, payload(writer.id, entry_id)) == entry_id
            together.put_node(self.node, b"%d" % self.number)
        tell("commit", self.node, self.number)

    def recover_another(self) -> None:
        ledgers = list(self.store.list_ledgers())
        if ledgers:
            chosen = self.random.choice(ledgers)
            try:
                reader = self.store.open_ledger(chosen)
            except (errors.NoSuchLedgerError, errors.LedgerRecoveryError):
                # Deleted by its writer meanwhile.
                return
            tell("recovered", chosen, reader.last_add_confirmed)

    def delete(self) -> None:
        if self.writers and self.random.random() < 0.3:
            writer = self.writers.pop()
            tell("deleting", writer.id)
            self.store.delete_ledger(writer.id, missing_ok=True)
            if self.random.random() < 0.3:
                self.store.storage.collect(writer.id)

    def close_and_create(self) -> None:
        if self.writers:
            writer = self.writers.pop()
            writer.close()
            tell("recovered", writer.id, writer.last_add_confirmed)


if __name__ == "__main__":
    Writing(sys.argv[1], int(sys.argv[2])).run()
