"""A Pulsar broker on ``bookstand serve``: its clients publish, consume and acknowledge in all ways, the server is
killed in the middle and started again, and at the end the store says of everything what the broker and its clients
said. Another broker opens what the server left when it was killed, and finds there what the store says is there.

What is configured is what docs/how-to/pulsar-on-bookstand.md says, with settings that make ledgers and buckets small.
"""

from __future__ import annotations

import random
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from bookstand.delivery.topic_config import TopicConfig
from tests.interop import broker_page as page
from tests.interop.broker_compare import ended
from tests.interop.broker_seen import SeenStore
from tests.interop.broker_told import Step, Told
from tests.interop.java import BUILD

SMALL = {
    # For so long BookKeeper's client waits before it tries again what it asked a server that has died.
    "metadataStoreSessionTimeoutMillis": 10_000,
    "managedLedgerMaxEntriesPerLedger": 50,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerCacheSizeMB": 32,
    "delayedDeliveryMinIndexCountPerBucket": 20,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 10,
    "delayedDeliveryMaxNumBuckets": 4,
    "delayedDeliveryTickTimeMillis": 100,
}
"""Beside what the page says: so that little is enough to see ledgers end, and buckets sealed and merged."""

TOPIC_SETTINGS = TopicConfig(
    delayed_delivery_tracker="bucket",
    delayed_delivery_min_index_count_per_bucket=20,
    delayed_delivery_max_indexes_per_bucket_snapshot_segment=10,
    delayed_delivery_max_num_buckets=4,
    delayed_delivery_tick_time_millis=100,
)
"""The same for bookstand's topics."""

KEPT, TRIMMED = "acme/kept", "acme/trimmed"
HOUR = 3_600_000


def topic(namespace: str, name: str) -> str:
    return f"persistent://{namespace}/{name}"


SINGLE, BATCHED, IN_ORDER, KEYED, DELAYED, UNDER_WAY, LATE = (
    topic(KEPT, name) for name in ("single", "batched", "in-order", "keyed", "delayed", "under-way", "late")
)
CONSUMED = topic(TRIMMED, "consumed")
AT_LAST = (SINGLE, BATCHED, IN_ORDER, KEYED, DELAYED, UNDER_WAY, LATE, CONSUMED)
"""The topics that are there at the end."""

SUB = "all"
SHARED, EXCLUSIVE, KEY_SHARED = "Shared", "Exclusive", "Key_Shared"


def exercise(told: Told, part: str, cursors_in_ledgers: bool) -> None:
    """Everything that clients do, and an operator."""
    for one, kind, consumers, options in (
        (SINGLE, SHARED, 1, {}),
        (BATCHED, SHARED, 1, {"batch": 10}),
        (IN_ORDER, EXCLUSIVE, 1, {}),
        (KEYED, KEY_SHARED, 2, {"keys": 10}),
    ):
        told.subscribe(one, SUB, kind, consumers)
        names = told.publish(one, f"{short(one)}-{part}", 120, **options)
        told.receive(one, SUB)
        ACKS[one](told, names)
        told.leave(one, SUB)
        told.unload(one)
        if not cursors_in_ledgers:
            told.forget_parts(one, SUB)
        told.subscribe(one, SUB, kind, consumers)
        told.receive(one, SUB)
        told.leave(one, SUB)
    delayed(told, part)
    trimmed(told, part)


def some(told: Told, names: list[str]) -> None:
    told.nack(SINGLE, SUB, names[5:15])
    told.receive(SINGLE, SUB, names[5:15])
    told.ack(SINGLE, SUB, [*names[::3], *names[50:60]])


def of_batches(told: Told, names: list[str]) -> None:
    """A whole batch, one message after the other, and parts of others."""
    told.ack(BATCHED, SUB, [*names[10:20], *parts(names)])


def parts(names: list[str]) -> list[str]:
    return [*names[30:33], names[45], names[119]]


def up_to(told: Told, names: list[str]) -> None:
    told.ack(IN_ORDER, SUB, [names[70]], cumulative=True)


def of_some_keys(told: Told, names: list[str]) -> None:
    told.ack(KEYED, SUB, [*names[0::10], *names[3::10]])


ACKS: dict[str, Callable[[Told, list[str]], None]] = {
    SINGLE: some,
    BATCHED: of_batches,
    IN_ORDER: up_to,
    KEYED: of_some_keys,
}


def delayed(told: Told, part: str) -> None:
    told.subscribe(DELAYED, SUB, SHARED)
    soon = told.publish(DELAYED, f"soon-{part}", 60, delay=1500, step=10)
    told.publish(DELAYED, f"far-{part}", 200, delay=HOUR, step=60_000, later=True)
    told.receive(DELAYED, SUB)
    told.ack(DELAYED, SUB, soon[:40])
    told.leave(DELAYED, SUB)
    told.unload(DELAYED)
    told.subscribe(DELAYED, SUB, SHARED)
    told.receive(DELAYED, SUB)
    told.leave(DELAYED, SUB)


def trimmed(told: Told, part: str) -> None:
    """Ledgers that nobody needs any more, subscriptions and topics that are deleted."""
    told.subscribe(CONSUMED, SUB, EXCLUSIVE)
    told.subscribe(CONSUMED, "gone", SHARED)
    names = told.publish(CONSUMED, f"consumed-{part}", 170)
    told.receive(CONSUMED, SUB)
    told.ack(CONSUMED, SUB, [names[-5]], cumulative=True)
    for name in (SUB, "gone"):
        told.leave(CONSUMED, name)
    told.delete(CONSUMED, "gone")
    deleted = topic(TRIMMED, f"deleted-{part}")
    told.subscribe(deleted, SUB, SHARED)
    told.publish(deleted, f"deleted-{part}", 60)
    told.receive(deleted, SUB)
    told.leave(deleted, SUB)
    told.delete(deleted)


def short(name: str) -> str:
    return name.rpartition("/")[2]


def die(told: Told, server: Server, part: str, how: str) -> None:
    """While messages are under way, and acknowledgments."""
    for one in (UNDER_WAY, LATE):
        told.subscribe(one, SUB, SHARED)
    told.work(UNDER_WAY, SUB, each=2)
    late, under_way = f"late-{part}", f"under-way-{part}"
    told.send(LATE, late, 1000, delay=HOUR, later=True)
    told.send(UNDER_WAY, under_way, 3000)
    told.await_confirmed(LATE, late, 210)
    # Neither of these numbers fills ledgers.
    told.await_confirmed(UNDER_WAY, under_way, 815)
    server.kill(told, part, how)
    server.serve(told, server.store)
    told.await_confirmed(LATE, late, 1000)
    told.await_confirmed(UNDER_WAY, under_way, 3000)
    told.await_worked(UNDER_WAY, SUB, 3000)
    for one in (UNDER_WAY, LATE):
        told.leave(one, SUB)


class Server:
    """Stores that are served one after the other, always at the same ports; and the settings of their broker."""

    def __init__(self, name: str, bookies: int, more: Mapping[str, object]) -> None:
        self.folder = BUILD / "broker" / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.store = self.folder / "store"
        self.zookeeper, broker, web, *self._bookies = free_ports(3 + bookies)
        self.settings = self.folder / "broker.conf"
        ports = {"brokerServicePort": broker, "webServicePort": web}
        settings = {**page.settings(self.zookeeper), **SMALL, **ports, **more}
        self.settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def serve(self, told: Told, store: Path) -> None:
        ports = ",".join(map(str, self._bookies))
        options = f"--zookeeper {self.zookeeper} --bookie-ports {ports} --admin 0 --json"
        told.ask("serve", command=f"{sys.executable} -m bookstand.tools.main serve {store} {options}")

    def kill(self, told: Told, part: str, how: str) -> None:
        left = SeenStore(self.left(part), TOPIC_SETTINGS)
        copies = f"{self.left(part)},{self.reopened(part)}"
        told.ask("kill", how, lambda answer: told.survived(left), how=how, store=self.store, copies=copies)

    def left(self, part: str) -> Path:
        """What it left when it was killed."""
        return self.folder / f"left-{part}"

    def reopened(self, part: str) -> Path:
        """The same, for others to go on with."""
        return self.folder / f"reopened-{part}"


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def whole_life(name: str, bookies: int, more: Mapping[str, object], cursors_in_ledgers: bool = False) -> Iterator[Step]:
    told, server = Told(name), Server(name, bookies, more)
    server.serve(told, server.store)
    told.ask("initialize", arguments=page.initializing(server.zookeeper))
    told.ask("start", settings=server.settings)
    told.ask("namespace", name=KEPT, kept=True)
    told.ask("namespace", name=TRIMMED, kept=False)
    exercise(told, "before", cursors_in_ledgers)
    die(told, server, "first", "signal")
    die(told, server, "second", "admin")
    exercise(told, "after", cursors_in_ledgers)
    seen = SeenStore(server.store, TOPIC_SETTINGS)
    at_last(told, seen)
    told.ask("stop")
    told.ask("end", check=lambda answer: told.at_rest(answer["exit"], seen, CONSUMED))
    server.serve(told, server.reopened("second"))
    told.ask("start", settings=server.settings)
    reopened(told, SeenStore(server.left("second"), TOPIC_SETTINGS))
    told.ask("stop")
    again = SeenStore(server.reopened("second"), TOPIC_SETTINGS)
    told.ask("end", check=lambda answer: ended(answer["exit"], again))
    yield from told.steps


def at_last(told: Told, seen: SeenStore) -> None:
    """Topics are loaded anew, and asked about."""
    for one in AT_LAST:
        told.unload(one)
        # Nothing was acknowledged since it was loaded, and so nothing was written to a cursor's ledger.
        told.forget_parts(one, SUB)
    told.subscribe(BATCHED, SUB, SHARED)
    told.receive(BATCHED, SUB)
    told.ack(BATCHED, SUB, parts(told.waiting(BATCHED, SUB)))
    told.leave(BATCHED, SUB)
    for one in (DELAYED, LATE):
        told.subscribe(one, SUB, SHARED)
    for one in AT_LAST:
        told.compare(one, seen, delayed=[SUB] if one in (DELAYED, LATE) else ())


def reopened(told: Told, left: SeenStore) -> None:
    """By another broker, as if the machine had lost its power when the server was killed."""
    for one in (DELAYED, LATE):
        told.subscribe(one, SUB, SHARED)
    for one in AT_LAST:
        told.compare_recovered(one, left, {DELAYED: {SUB: 200}, LATE: {SUB: 1210}}.get(one, {}))


def one_bookie(rng: random.Random) -> Iterator[Step]:
    yield from whole_life("one-bookie", 1, {})


def three_bookies(rng: random.Random) -> Iterator[Step]:
    """With what is acknowledged in the cursors' ledgers, however little it is."""
    quorums = {
        "managedLedgerDefaultEnsembleSize": 3,
        "managedLedgerDefaultWriteQuorum": 2,
        "managedLedgerDefaultAckQuorum": 2,
    }
    in_ledgers = {"managedLedgerMaxUnackedRangesToPersistInMetadataStore": 0}
    yield from whole_life("three-bookies", 3, quorums | in_ledgers, cursors_in_ledgers=True)


def standalone(rng: random.Random) -> Iterator[Step]:
    """It makes its cluster by itself."""
    told, server = Told("standalone"), Server("standalone", 1, {"clusterName": "standalone"})
    orders = topic("public/default", "orders")
    server.serve(told, server.store)
    told.ask("standalone", arguments=page.standalone(), settings=server.settings)
    told.subscribe(orders, SUB, SHARED)
    names = told.publish(orders, "order", 120)
    told.receive(orders, SUB)
    told.ack(orders, SUB, names[1::2])
    told.leave(orders, SUB)
    told.unload(orders)
    seen = SeenStore(server.store, TOPIC_SETTINGS)
    told.compare(orders, seen)
    told.ask("stop")
    told.ask("end", check=lambda answer: ended(answer["exit"], seen))
    yield from told.steps


GROUPS: dict[str, Callable[[random.Random], Iterator[Step]]] = {
    "a broker on a served store": one_bookie,
    "a broker on three bookies of a served store": three_bookies,
    "a standalone broker on a served store": standalone,
}
