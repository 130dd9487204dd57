"""A seeded mixture of everything that writes to a store, which tells what it is about to do and what it was promised.

``python -m tests.soak --kind crash_states`` cuts the power everywhere in it. What is told is a list each time, and the
words ending in ``ing`` say what may have happened from then on, the others what is promised:

``creating``, ``created id kind``                 kind: plain, adv, deferred
``adding id first last``, ``added id first last``  of a deferred ledger the latter is no promise; ``forced id last`` is
``closing id``, ``closed id lac``                 also by recovery
``deleting id``, ``deleted id``
``creating again id``, ``created again id``       another ledger with the id of one that was deleted
``putting path value``, ``put path value``        value None: removed
``joining number members``, ``joined number``     a transaction that appends one entry to each member (ledger, entry)
``explicit id lac``                               an explicit last-add-confirmed
``backed up name ledgers``                        ledgers: id -> last entry that must be in it
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

import bookstand
from bookstand import errors
from bookstand.testing.crash.open_hook import watched_openings

JOINED = "/joined"


@cache
def payload(ledger_id: int, entry_id: int) -> bytes:
    """What every entry holds: nothing else is ever right. Every seventh one is large."""
    size = 5000 if entry_id % 7 == 3 else entry_id * 13 % 90
    return b"%d:%d|" % (ledger_id, entry_id) + bytes(((ledger_id * 7 + entry_id) % 251,)) * size


class Mixture:
    """``Mixture(seed)`` is a workload: the same steps each time."""

    def __init__(self, seed: int, steps: int = 10, only: str | None = None, witness: bool | None = None) -> None:
        self.seed = seed
        self.steps = steps
        self.only = only
        self.witness = random.Random(seed).random() < 0.25 if witness is None else witness

    def __call__(self, path: str, acknowledge: Any) -> None:
        _Working(self, path, acknowledge).run()


class _Working:
    def __init__(self, mixture: Mixture, path: str, acknowledge: Any) -> None:
        self.mixture = mixture
        self.path = path
        self.random = random.Random(mixture.seed)
        self.tell = lambda *told: acknowledge(list(told))
        self.plain: list[Any] = []
        self.adv: Any = None
        self.deferred: Any = None
        self.number = 0
        self.backups = 0
        self.deleted: list[int] = []
        self.nodes: list[str] = []

    def run(self) -> None:
        weights = {name: 1 if name in RARE else 3 for name in STEPS}
        names = [name for name, weight in weights.items() for _ in range(weight)]
        with ExitStack() as stack:
            if self.mixture.only == "grow" or self.random.random() < 0.15:
                # A map that has to grow soon; the file is as large as it needs to be either way.
                folder = os.path.dirname(self.path)
                stack.enter_context(watched_openings(folder, lambda path, options: options.update(map_size=128 << 10)))
            self.store = self.open()
            stack.callback(lambda: self.store.close())
            for _ in range(self.mixture.steps):
                step = self.mixture.only or self.random.choice(names)
                STEPS[step](self)

    def open(self) -> Any:
        return bookstand.open(self.path, witness=self.mixture.witness)

    def reopen(self) -> None:
        self.store.close()
        self.plain, self.adv, self.deferred = [], None, None
        self.store = self.open()

    # -- ledgers ---------------------------------------------------------------------------------------------------

    def writer(self) -> Any:
        if len(self.plain) < 2:
            self.tell("creating")
            created = self.store.create_ledger(digest=self.random.choice(["crc32c", "crc32", "hmac", "dummy"]))
            self.tell("created", created.id, "plain")
            self.plain.append(created)
        return self.random.choice(self.plain)

    def append(self) -> None:
        writer = self.writer()
        for _ in range(self.random.randint(1, 3)):
            entry_id = writer.last_add_pushed + 1
            self.tell("adding", writer.id, entry_id, entry_id)
            assert writer.append(payload(writer.id, entry_id)) == entry_id
            self.tell("added", writer.id, entry_id, entry_id)

    def append_many(self) -> None:
        writer = self.writer()
        first, count = writer.last_add_pushed + 1, self.random.randint(2, 40)
        self.tell("adding", writer.id, first, first + count - 1)
        added = writer.append_many([payload(writer.id, first + n) for n in range(count)])
        self.tell("added", writer.id, added[0], added[-1])

    def append_async(self) -> None:
        writer = self.writer()
        first, count = writer.last_add_pushed + 1, self.random.randint(2, 12)
        self.tell("adding", writer.id, first, first + count - 1)
        pendings = [writer.append_async(payload(writer.id, first + n)) for n in range(count)]
        for pending in pendings:
            entry_id = pending.result()
            self.tell("added", writer.id, entry_id, entry_id)

    def out_of_order(self) -> None:
        if self.adv is None:
            self.tell("creating")
            self.adv = self.store.create_ledger_adv()
            self.tell("created", self.adv.id, "adv")
        first = self.adv.last_add_confirmed + 1
        ids = list(range(first, first + self.random.randint(2, 6)))
        self.tell("adding", self.adv.id, ids[0], ids[-1])
        self.random.shuffle(ids)
        pendings = [self.adv.write_async(entry_id, payload(self.adv.id, entry_id)) for entry_id in ids]
        for pending in pendings:
            pending.result()
        self.tell("added", self.adv.id, min(ids), max(ids))

    def defer_and_force(self) -> None:
        if self.deferred is None:
            self.tell("creating")
            self.deferred = self.store.create_ledger(deferred_sync=True)
            self.tell("created", self.deferred.id, "deferred")
        first, count = self.deferred.last_add_pushed + 1, self.random.randint(1, 5)
        self.tell("adding", self.deferred.id, first, first + count - 1)
        for n in range(count):
            assert self.deferred.append(payload(self.deferred.id, first + n)) == first + n
        self.tell("added", self.deferred.id, first, first + count - 1)
        if self.random.random() < 0.8:
            self.deferred.force()
            self.tell("forced", self.deferred.id, first + count - 1)

    def explicit_lac(self) -> None:
        writer = self.writer()
        entry_id = writer.last_add_pushed + 1
        self.tell("adding", writer.id, entry_id, entry_id)
        lac = writer.append(payload(writer.id, entry_id))
        self.tell("added", writer.id, entry_id, entry_id)
        # It is told once it has stood still from one call to the next.
        writer.send_explicit_lac()
        writer.send_explicit_lac()
        self.tell("explicit", writer.id, lac)

    def close_ledger(self) -> None:
        writer = self.writer()
        self.plain.remove(writer)
        self.tell("closing", writer.id)
        writer.close()
        self.tell("closed", writer.id, writer.last_add_confirmed)

    def recover(self) -> None:
        writer = self.writer()
        self.plain.remove(writer)
        self.tell("closing", writer.id)
        with bookstand.open(self.path, witness=self.mixture.witness) as other:
            reader = other.open_ledger(writer.id)
            self.tell("closed", writer.id, reader.last_add_confirmed)
        try:
            writer.append(b"too late")
        except bookstand.errors.LedgerFencedError:
            return
        raise AssertionError("the fence did not hold")

    def delete(self) -> None:
        writer = self.writer()
        self.plain.remove(writer)
        self.tell("deleting", writer.id)
        self.store.delete_ledger(writer.id)
        self.tell("deleted", writer.id)
        self.deleted.append(writer.id)

    def collect(self) -> None:
        if not self.deleted:
            self.delete()
        self.store.storage.collect(self.deleted.pop())

    def create_again(self) -> None:
        """Another ledger gets the id of a deleted one, whose writer goes on."""
        if self.adv is None or self.adv.last_add_confirmed < 0:
            self.out_of_order()
        earlier = self.adv
        earlier.send_explicit_lac()
        self.tell("deleting", earlier.id)
        self.store.delete_ledger(earlier.id)
        self.tell("deleted", earlier.id)
        self.tell("creating again", earlier.id)
        self.adv = self.store.create_ledger_adv(earlier.id)
        self.tell("created again", earlier.id)
        entry_id = earlier.last_add_confirmed + 1
        # Nothing of it may come to the ledger that is there now, whatever it is answered.
        for late in (
            earlier.send_explicit_lac,
            lambda: earlier.write(entry_id, payload(earlier.id, entry_id)),
            earlier.close,
        ):
            with suppress(errors.LedgerError):
                late()

    # -- nodes and transactions ------------------------------------------------------------------------------------

    def put_node(self) -> None:
        path = self.random.choice(["/a", "/a/b", "/c"])
        value = str(self.random.randrange(1000)) * self.random.choice([1, 30, 700])
        self.tell("putting", path, value)
        self.store.nodes.put(path, value.encode())
        self.tell("put", path, value)
        self.nodes = [*{*self.nodes, path}]

    def delete_node(self) -> None:
        if not self.nodes:
            self.put_node()
        path = self.nodes.pop(self.nodes.index(min(self.nodes)))
        self.tell("putting", path, None)
        self.store.nodes.delete(path)
        self.tell("put", path, None)

    def transaction(self) -> None:
        self.writer()
        self.writer()
        self.number += 1
        members = [[writer.id, writer.last_add_pushed + 1] for writer in self.plain]
        doomed = self.random.random() < 0.3
        self.tell("creating")
        self.tell("joining", self.number, members)
        with self.store.transaction() as together:
            for writer, (_, entry_id) in zip(self.plain, members, strict=True):
                assert together.append(writer, payload(writer.id, entry_id)) == entry_id
            together.put_node(JOINED, b"%d" % self.number)
            created = together.create_ledger()
            if doomed:
                together.delete_ledger(created.id)
        self.tell("joined", self.number)

    # -- the store as a whole --------------------------------------------------------------------------------------

    def backup(self) -> None:
        self.backups += 1
        name = f"backup-{self.backups}"
        ledgers = {str(writer.id): writer.last_add_confirmed for writer in self.plain}
        self.store.backup(os.path.join(os.path.dirname(self.path), name))
        self.tell("backed up", name, ledgers)

    def compact(self) -> None:
        if self.random.random() < 0.5:
            self.append_many()
            self.delete()
        self.store.compact()

    def grow(self) -> None:
        writer = self.writer()
        first = writer.last_add_pushed + 1
        self.tell("adding", writer.id, first, first + 29)
        writer.append_many([payload(writer.id, first + n) for n in range(30)])
        self.tell("added", writer.id, first, first + 29)


STEPS = {
    "append": _Working.append,
    "append_many": _Working.append_many,
    "append_async": _Working.append_async,
    "out_of_order": _Working.out_of_order,
    "defer_and_force": _Working.defer_and_force,
    "explicit_lac": _Working.explicit_lac,
    "close_ledger": _Working.close_ledger,
    "recover": _Working.recover,
    "delete": _Working.delete,
    "collect": _Working.collect,
    "create_again": _Working.create_again,
    "put_node": _Working.put_node,
    "delete_node": _Working.delete_node,
    "transaction": _Working.transaction,
    "backup": _Working.backup,
    "compact": _Working.compact,
    "grow": _Working.grow,
    "reopen": _Working.reopen,
}
RARE = ("create_again", "backup", "compact", "grow", "reopen")
