"""One flipped bit in the records that a small store has of its subscriptions, bit by bit.

A store has one topic. The flips are made below bookstand, in the data file of the closed store, in every record apart
from the topic's own and its messages: entries of cursor ledgers, of bucket snapshots, of rescheduled messages and of
negative acknowledgments, the nodes that name these ledgers, and the metadata and the state of the ledgers. After each
flip the topic and its subscriptions open, every message that was not acknowledged is delivered, none counts as
acknowledged, and the damage is reported; the same holds after a restart. On every ``THOROUGH``-th flip the command
line has to give the same answer, and the store has to be usable: acknowledging, rolling over, trimming, unsubscribing,
subscribing again and deleting the topic work and leave nothing behind. ``SPARK`` compares what Spark reads.

A case is one flip, or two at once.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import record
from bookstand.cursor.format.checkpoint import decode_marker, node_loader
from bookstand.cursor.format.page_index import PageIndex
from bookstand.delivery.subscription.subscription import Subscription
from bookstand.delivery.topic import Topic
from bookstand.delivery.topic_config import SubscriptionConfig, TopicConfig
from bookstand.disk.topics.cursors import cursors as cursors_on_disk
from bookstand.disk.topics.delayed import DelayedIndex
from bookstand.disk.topics.topics import topic as topic_on_disk
from bookstand.errors import BookstandError
from bookstand.managed_ledger.topic_name import node_of
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source
from bookstand.storage.format.position import Position
from bookstand.store import Store
from bookstand.testing import VirtualClock
from bookstand.tools.cli.exit_codes import DAMAGE
from tests.kit import raw
from tests.soak.kinds import Done, Kind, KindUnavailableError
from tests.tools.kit import run

TOPIC = "persistent://public/default/t"
BUILDER = "bookstand.delayed-index"
START = 1_700_000_000_000
OPENED = 10_000
"""Milliseconds from START at which damaged stores are opened; delayed messages are due later."""
ALL_DUE = 1_000_000
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
THOROUGH = 199
SHOWN = 20

_NEVER = 1e9
PAGES = CursorConfig(flush_interval=_NEVER)
OLD_FORM = CursorConfig(flush_interval=_NEVER, enable_lru_cache_max_unacked_ranges=False)
TOPICS = TopicConfig(
    max_entries_per_ledger=5,
    trim_consumed=False,
    delayed_delivery_tick_time_millis=1,
    is_delayed_delivery_deliver_at_time_strict=True,
)
BUCKETS = replace(
    TOPICS,
    delayed_delivery_tracker="bucket",
    delayed_delivery_min_index_count_per_bucket=3,
    delayed_delivery_max_indexes_per_bucket_snapshot_segment=2,
)
SHARED = replace(BUCKETS, delayed_delivery_shared_index_enabled=True)


# -- what was written ------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """A stored value: its place in the data file, whether the newest state refers to it, and whether it is among what
    the tables of cursors and delayed messages are read from."""

    database: bytes
    key: bytes
    offset: int
    size: int
    referenced: bool
    tabled: bool

    def __str__(self) -> str:
        if self.database == b"nodes":
            return f"node {self.key.decode()}"
        if self.database == b"entries":
            return "entry {}:{}".format(*struct.unpack(">QQ", self.key))
        return f"{self.database.decode()} of ledger {int.from_bytes(self.key, 'big')}"


@dataclass
class Sample:
    """A closed store, and what was published and acknowledged in it."""

    form: str
    topic: TopicConfig
    subs: dict[str, SubscriptionConfig]
    image: bytes = b""
    places: dict[bytes, Position] = field(default_factory=dict)
    """Payloads; those of a batch have the same position."""
    acked: dict[str, set[bytes]] = field(default_factory=dict)
    delays: bool = False
    """True if any message is delivered later than it is read."""
    records: list[Record] = field(default_factory=list)

    def unacked(self, name: str) -> set[bytes]:
        return set(self.places) - self.acked[name]

    @property
    def bits(self) -> int:
        return 8 * sum(one.size for one in self.records)


class _Maker:
    """Publishes and acknowledges at random, and notes it."""

    def __init__(self, sample: Sample, folder: Path, rng: random.Random) -> None:
        self.sample = sample
        self.rng = rng
        self.clock = VirtualClock(START)
        self.store = bookstand.open(folder, clock=self.clock, durability="none")
        self.topic = self.store.topic(TOPIC, sample.topic)
        self.subs = {name: self.topic.subscription(name, config) for name, config in sample.subs.items()}
        self.out: dict[str, dict[bytes, Any]] = {name: {} for name in sample.subs}
        sample.acked = {name: set() for name in sample.subs}

    def publish(self, count: int, batches: int = 0) -> None:
        sample = self.sample
        for _ in range(count):
            payload = b"m%d" % len(sample.places)
            sample.places[payload] = self.topic.publish(payload)
        for _ in range(batches):
            members = [b"m%d" % (len(sample.places) + number) for number in range(3)]
            sample.places.update(dict.fromkeys(members, self.topic.publish_batch(members)))

    def publish_delayed(self, count: int, spread: int = 500_000) -> None:
        for _ in range(count):
            payload = b"m%d" % len(self.sample.places)
            time = START + 2 * OPENED + self.rng.randrange(spread)
            self.sample.places[payload] = self.topic.publish(payload, deliver_at=time)
            self.sample.delays = True

    def receive(self) -> None:
        for name, sub in self.subs.items():
            self.out[name].update({message.payload: message for message in sub.receive(1000, 0)})

    def ack(self, share: float, flush: bool = True) -> None:
        """Some of what was received, by each subscription."""
        for name, sub in self.subs.items():
            chosen = [one for one in sorted(self.out[name]) if self.rng.random() < share]
            sub.ack_many([self.out[name].pop(one) for one in chosen])
            self.sample.acked[name].update(chosen)
            if flush:
                sub.cursor.flush()

    def ack_first(self, count: int) -> None:
        for name, sub in self.subs.items():
            places = self.sample.places
            chosen = sorted(self.out[name], key=lambda one: places[one])[:count]
            # Whole batches only.
            last = max((places[one] for one in chosen), default=None)
            chosen = [one for one in self.out[name] if last is not None and places[one] <= last]
            sub.ack_many([self.out[name].pop(one) for one in chosen])
            self.sample.acked[name].update(chosen)
            sub.cursor.flush()


def _pages(make: _Maker) -> None:
    make.publish(make.rng.randrange(8, 16), batches=make.rng.randrange(3))
    make.receive()
    make.ack_first(make.rng.randrange(1, 4))
    for _ in range(2):
        make.ack(0.3)


def _rollover(make: _Maker) -> None:
    make.publish(make.rng.randrange(8, 14), batches=1)
    make.receive()
    for _ in range(make.rng.randrange(3, 6)):
        make.ack(0.2)


def _in_record(make: _Maker) -> None:
    _pages(make)


def _buckets(make: _Maker) -> None:
    make.publish(make.rng.randrange(2, 5))
    make.publish_delayed(make.rng.randrange(8, 12))
    make.receive()
    make.ack(0.5)
    for sub in make.subs.values():
        waiting = sub.peek_delayed()
        if waiting and sub is not next(iter(make.subs.values())):
            continue
        for _, position in make.rng.sample(waiting, min(2, len(waiting))):
            sub.reschedule(position, deliver_at=START + ALL_DUE // 2)


def _nacks(make: _Maker) -> None:
    make.publish(make.rng.randrange(6, 12))
    make.receive()
    make.ack(0.4)
    for name, sub in make.subs.items():
        for payload in sorted(make.out[name])[:4]:
            make.sample.delays = True
            sub.nack(make.out[name][payload], delay=make.rng.randrange(20_000, 90_000))


_SHORT = replace(PAGES, max_entries_per_cursor_ledger=6)
_DURABLE = SubscriptionConfig(cursor=PAGES, durable_nacks=True)
FORMS: dict[str, tuple[Callable[[_Maker], None], TopicConfig, dict[str, SubscriptionConfig]]] = {
    "pages": (_pages, TOPICS, {"sub": SubscriptionConfig(cursor=PAGES)}),
    "pages, exclusive": (_pages, TOPICS, {"sub": SubscriptionConfig(cursor=PAGES, type="exclusive")}),
    "pages after a rollover": (_rollover, TOPICS, {"sub": SubscriptionConfig(cursor=_SHORT)}),
    "former ledgers": (
        _rollover,
        TOPICS,
        {"sub": SubscriptionConfig(cursor=replace(_SHORT, retained_cursor_ledgers=1))},
    ),
    "snapshots": (
        _pages,
        TOPICS,
        {"sub": SubscriptionConfig(cursor=replace(OLD_FORM, max_unacked_ranges_in_metadata_store=0))},
    ),
    "record": (_in_record, TOPICS, {"sub": SubscriptionConfig(cursor=OLD_FORM)}),
    "buckets": (_buckets, BUCKETS, {"sub": SubscriptionConfig(cursor=PAGES)}),
    "shared index": (
        _buckets,
        SHARED,
        {"sub": SubscriptionConfig(cursor=PAGES), "other": SubscriptionConfig(cursor=PAGES)},
    ),
    "negative acknowledgments": (_nacks, TOPICS, {"sub": _DURABLE}),
}
"""Contents and settings of a sample's store."""


def sample_of(seed: int, form: str | None = None, crashed: bool | None = None) -> Sample:
    """The store that a seed stands for; seeds that follow one another have different forms."""
    form = form or list(FORMS)[seed % len(FORMS)]
    crashed = seed // len(FORMS) % 2 == 1 if crashed is None else crashed
    fill, topic, subs = FORMS[form]
    sample = Sample(f"{form}, not closed" if crashed else form, topic, dict(subs))
    folder = Path(tempfile.mkdtemp(prefix="bookstand-flips-", dir=MEMORY))
    try:
        make = _Maker(sample, folder / "store", random.Random(seed))
        fill(make)
        path = folder / ("copy" if crashed else "store")
        if crashed:
            # The state after a crash: ledgers are open, and were not recovered.
            make.store.backup(path)
        make.store.close()
        sample.image = (path / "data.mdb").read_bytes()
        sample.records = _records(path, sample.image)
        return sample
    finally:
        shutil.rmtree(folder)


_ids = struct.Struct(">QQ")


def _records(store: Path, image: bytes) -> list[Record]:
    """A record to damage."""
    with bookstand.open(store, read_only=True) as opened_store:
        managed = opened_store.managed_ledger(TOPIC)
        own = {info.ledger_id for info in managed.ledgers}
        referenced = _referenced(opened_store, managed)
        in_use = {ledger_id for ledger_id, _ in referenced}
        existing = set(opened_store.list_ledgers())
        components = {
            ledger_id: opened_store.ledger_metadata(ledger_id).custom_metadata["component"] for ledger_id in existing
        }
    found: list[Record] = []
    with raw(store) as database:
        for name in (b"nodes", b"entries", b"ledgers", b"state"):
            for key, value in database(name).items():
                ledger_id = int.from_bytes(key[:8], "big")
                if name == b"nodes":
                    is_referenced, tabled = True, key.startswith(node_of(TOPIC).encode())
                    wanted = key.decode() != node_of(TOPIC)
                else:
                    wanted = ledger_id not in own and ledger_id in existing
                    tabled = components.get(ledger_id) in (b"managed-ledger", b"delayed-index-bucket")
                    is_referenced = ledger_id in in_use if name != b"entries" else _ids.unpack(key) in referenced
                if wanted and value:
                    found.append(Record(name, key, -1, len(value), is_referenced, tabled))
    return [one._replace(offset=_place(store, image, one)) for one in found]


def _place(store: Path, image: bytes, one: Record) -> int:
    """Offsets of the value in the data file; unused pages may have copies of it."""
    with raw(store) as database:
        value = database(one.database)[one.key]
    at = image.find(value)
    while at >= 0:
        (store / "data.mdb").write_bytes(_flipped(image, 8 * at))
        try:
            with raw(store) as database:
                changed = database(one.database)[one.key] != value
        finally:
            (store / "data.mdb").write_bytes(image)
        if changed:
            return at
        at = image.find(value, at + 1)
    raise AssertionError(f"{one} is not in the file")


def _flipped(image: bytes, *bits: int) -> bytes:
    data = bytearray(image)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def _referenced(store: Store, managed: Any) -> set[tuple[int, int]]:
    """The entries that the newest states consist of."""
    found: set[tuple[int, int]] = set()
    own = {info.ledger_id for info in managed.ledgers}
    for name in managed.cursor_names():
        cursor = Cursor.open(managed, name, create=False, read_only=True)
        ledger_id, last = cursor.recovered_from.ledger_id, cursor.recovered_from.entry
        if ledger_id >= 0:
            found |= {(ledger_id, entry) for entry in _closure(store, name, ledger_id, last)}
        cursor.close()
    for ledger_id in store.list_ledgers():
        labels = store.ledger_metadata(ledger_id).custom_metadata
        if ledger_id in own or "pulsar/cursor" in labels:
            continue
        last = store.ledger_metadata(ledger_id).last_entry_id
        state = store.storage.state(ledger_id)
        assert state is not None
        found |= {(ledger_id, entry) for entry in range(max(last, state.last_entry) + 1)}
    return found


def _closure(store: Store, cursor: str, ledger_id: int, last: int) -> set[int]:
    reader = store.open_ledger(ledger_id, recovery=False, password=b"")
    read: set[int] = {last}

    def load(entry_id: int) -> bytes:
        read.add(entry_id)
        return bytes(reader.read_unconfirmed(entry_id, entry_id)[0].data)

    stored = load(last)
    if not record.is_ours(stored):
        return read
    marker = decode_marker(cursor, last, stored)
    for _, ref in PageIndex.read(marker.root, node_loader(cursor, load), cursor=cursor).items():
        read.update(range(ref.entry_id, ref.entry_id + ref.parts))
    return read


# -- what was damaged ------------------------------------------------------------------------------------------------


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@contextmanager
def warnings() -> Iterator[list[str]]:
    """Logged warnings."""
    handler = _Warnings()
    logger = logging.getLogger("bookstand")
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class State(NamedTuple):
    """Observed state of a subscription."""

    acked: frozenset[bytes]
    delivered: frozenset[bytes]


class Bench:
    """A folder in which one sample's store is put with one damage after the other."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._flips = 1
        self._folder = Path(tempfile.mkdtemp(prefix="bookstand-flips-", dir=MEMORY))
        self.path = self._folder / "store"

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)

    def put(self, *bits: int) -> None:
        """The store with these bits of its data file flipped."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        (self.path / "data.mdb").write_bytes(_flipped(self.sample.image, *bits))

    @contextmanager
    def topic(self, at: int = OPENED) -> Iterator[tuple[Store, Topic, VirtualClock]]:
        clock = VirtualClock(START)
        clock.advance(at / 1000)
        with bookstand.open(self.path, clock=clock, durability="none") as store:
            yield store, store.topic(TOPIC, self.sample.topic), clock

    # -- one flip ------------------------------------------------------------------------------------------------------

    def check(self, records: Iterable[Record], bits: Iterable[int], thorough: bool) -> list[str]:
        """Flip one bit in each of the records, and return the problems found."""
        damaged, bits = list(records), list(bits)
        self._flips = len(bits)
        name = " and ".join(f"bit {bit} of {one}" for one, bit in zip(damaged, bits, strict=True))
        places = [8 * one.offset + bit for one, bit in zip(damaged, bits, strict=True)]
        problems: list[str] = []
        steps: list[Callable[[], Iterable[str]]] = [
            lambda: self._check_open(any(one.referenced for one in damaged), thorough)
        ]
        if thorough:
            steps += [self._check_use, self._check_unsubscribe, self._check_delete, self._check_own_indexes]
        for step in steps:
            self.put(*places)
            try:
                problems += step()
            except BookstandError as error:
                problems.append(f"unopenable: {type(error).__name__}: {error}")
        return [f"{name}: {problem}" for problem in problems]

    def _check_open(self, referenced: bool, thorough: bool) -> Iterator[str]:
        seen = self._on_disk() if thorough else None
        before: dict[str, State] = {}
        reported: list[str] = []
        with warnings() as logged, self.topic() as (_, topic, clock):
            subs = {name: topic.subscription(name, config) for name, config in self.sample.subs.items()}
            if seen is not None:
                yield from self._compare(seen, subs)
            for name, state in self._states(subs, clock).items():
                before[name] = state
                yield from self._wrong(name, subs[name], state)
            for sub in subs.values():
                reported += sub.damage
            reported += logged
        if referenced and not reported:
            yield "silent"
        with warnings(), self.topic(ALL_DUE) as (_, topic, clock):
            subs = {name: topic.subscription(name, config) for name, config in self.sample.subs.items()}
            for name, state in self._states(subs, clock).items():
                yield from (f"after a restart: {problem}" for problem in self._wrong(name, subs[name], state))
                if before[name].acked - state.acked:
                    yield f"{name}: acknowledgments are lost with the restart: {before[name].acked - state.acked}"

    def _states(self, subs: dict[str, Subscription], clock: VirtualClock) -> dict[str, State]:
        """Acknowledged messages of each subscription, and its deliveries until everything is due."""
        delivered: dict[str, set[bytes]] = {name: set() for name in subs}
        for step in (0, *[ALL_DUE // 8] * 8, ALL_DUE) if self.sample.delays else (0,):
            clock.advance(step / 1000)
            for name, sub in subs.items():
                while messages := sub.receive(1000, 0):
                    delivered[name].update(message.payload for message in messages)
        places = self.sample.places
        return {
            name: State(
                frozenset(one for one, at in places.items() if sub.cursor.is_acked(at)), frozenset(delivered[name])
            )
            for name, sub in subs.items()
        }

    def _wrong(self, name: str, sub: Subscription, state: State) -> Iterator[str]:
        unacked = self.sample.unacked(name)
        if unacked & state.acked:
            yield f"{name}: invented acknowledgments of {sorted(unacked & state.acked)}"
        if unacked - state.delivered:
            yield f"{name}: withheld {sorted(unacked - state.delivered)}"
        entries = set(self.sample.places.values())
        open_entries = [one for one in entries if not sub.cursor.is_acked(one)]
        if sub.backlog != len(open_entries):
            yield f"{name}: the backlog is {sub.backlog}, but {len(open_entries)} entries are not acknowledged"

    # -- the neighbors -------------------------------------------------------------------------------------------------

    def _check_use(self) -> Iterator[str]:
        """Acknowledging goes on, through a rollover and a trim, and survives a restart."""
        configs = {
            name: replace(config, cursor=replace(config.cursor, max_entries_per_cursor_ledger=3))
            for name, config in self.sample.subs.items()
        }
        with warnings(), self.topic(ALL_DUE) as (_, topic, clock):
            for number in range(6):
                topic.publish(b"new %d" % number)
            for name, config in configs.items():
                sub = topic.subscription(name, config)
                got: set[bytes] = set()
                for step in (0, ALL_DUE):
                    clock.advance(step / 1000)
                    while messages := sub.receive(5, 0):
                        got.update(message.payload for message in messages)
                        sub.ack_many(messages)
                        sub.cursor.flush()
                wanted = {*self.sample.unacked(name), *(b"new %d" % number for number in range(6))}
                if wanted - got:
                    yield f"{name}: acknowledging on: withheld {sorted(wanted - got)}"
            topic.trim()
            left = len(topic.ledger.ledgers)
            if left > 2:
                yield f"after a trim of what all have acknowledged there are {left} ledgers"
        with warnings(), self.topic(2 * ALL_DUE) as (_, topic, clock):
            for name, config in configs.items():
                sub = topic.subscription(name, config)
                clock.advance(ALL_DUE / 1000)
                if (again := sub.receive(1000, 0)) or sub.backlog:
                    yield f"{name}: acknowledged and delivered again: {[one.payload for one in again]}, {sub.backlog}"

    def _check_unsubscribe(self) -> Iterator[str]:
        """Nothing is left, and a subscription of the same name begins anew."""
        with warnings(), self.topic() as (store, topic, clock):
            for name in self.sample.subs:
                topic.unsubscribe(name)
            yield from self._left_over(store, topic)
            (name, config), *_ = self.sample.subs.items()
            sub = topic.subscription(name, config)
            (state,) = self._states({name: sub}, clock).values()
            if state.acked or set(self.sample.places) - state.delivered:
                yield f"subscribed anew: withheld {sorted(set(self.sample.places) - state.delivered)}"
            if damage := sub.cursor.recovered_from.damage:
                yield f"subscribed anew: damage is reported: {damage}"

    def _check_delete(self) -> Iterator[str]:
        with warnings(), self.topic() as (store, topic, _):
            topic.delete()
            store.storage.collect_deleted(START * 2)
            unknown = set(self._unreadable(store))
            left = [*(set(store.list_ledgers()) - unknown), *store.storage.node_paths("/")]
            if left:
                yield f"the deleted topic leaves {left}"
            if not unknown and not (report := store.verify()).ok:
                yield f"the deleted topic leaves damage: {report}"

    def _unreadable(self, store: Store) -> Iterator[int]:
        """Ledgers with damaged metadata. If the node that names one is damaged as well, nothing says whose it is."""
        for ledger_id in store.list_ledgers() if self._flips > 1 else ():
            try:
                store.ledger_metadata(ledger_id)
            except BookstandError:
                yield ledger_id

    def _check_own_indexes(self) -> Iterator[str]:
        """Of a shared index nothing is left when the subscriptions have indexes of their own."""
        if not self.sample.topic.delayed_delivery_shared_index_enabled:
            return
        self.sample.topic = replace(self.sample.topic, delayed_delivery_shared_index_enabled=False)
        try:
            with warnings(), self.topic() as (store, topic, clock):
                subs = {name: topic.subscription(name, config) for name, config in self.sample.subs.items()}
                for name, state in self._states(subs, clock).items():
                    yield from (f"without shared index: {one}" for one in self._wrong(name, subs[name], state))
                for name in subs:
                    topic.unsubscribe(name)
                yield from self._left_over(store, topic)
        finally:
            self.sample.topic = replace(self.sample.topic, delayed_delivery_shared_index_enabled=True)

    def _left_over(self, store: Store, topic: Topic) -> Iterator[str]:
        """Ledgers and nodes that belong to nothing once there are no subscriptions."""
        known = {info.ledger_id for info in topic.ledger.ledgers}
        nodes = {topic.ledger.path}
        index = topic.shared_index
        if index is not None:
            cursor = index._cursor
            nodes.add(cursor._log.path)
            known |= {cursor._log.info.cursor_ledger_id, *map(int, cursor.cursor_properties.values())}
            known |= set(cursor._log._all_ledgers())
        if ledgers := set(store.list_ledgers()).difference(known, self._unreadable(store)):
            yield f"ledgers {sorted(ledgers)} are left over"
        if paths := set(store.storage.node_paths("/")) - nodes:
            yield f"nodes {sorted(paths)} are left over"

    # -- the command line ----------------------------------------------------------------------------------------------

    def _on_disk(self) -> dict[str, Any]:
        """Answers of the command line, and of the readers that it shares with Spark, by subscription."""
        found: dict[str, Any] = {}
        listed = run("cursors", self.path, "--json")
        waiting = run("delayed", self.path, "--at", START + OPENED, "--json")
        self.exit_codes = {listed.code, waiting.code, run("verify", self.path, "--json").code}
        rows = {row["cursor"]: row for row in listed.json["cursors"]}
        delayed = {row["subscription"]: row["messages"] for row in waiting.json["subscriptions"]}
        with open_source(DataSource(STORE, (str(self.path),))) as disks:
            for cursor in cursors_on_disk(topic_on_disk(disks, TOPIC)):
                if cursor.name != BUILDER:
                    places = self.sample.places
                    acked = frozenset(one for one, at in places.items() if cursor.is_acked(at))
                    index = DelayedIndex(cursor, START + OPENED).positions()
                    row = rows[cursor.name]
                    assert (row["backlog"], delayed[cursor.name]) == (cursor.backlog, sum(map(len, index.values())))
                    found[cursor.name] = acked, cursor.backlog, cursor.state.batches, index
        return found

    def _compare(self, seen: dict[str, Any], subs: dict[str, Subscription]) -> Iterator[str]:
        if missing := set(subs) - set(seen):
            yield f"the command line does not list {sorted(missing)}"
        for name in set(subs) & set(seen):
            acked, backlog, batches, waiting = seen[name]
            cursor = subs[name].cursor
            now = frozenset(one for one, at in self.sample.places.items() if cursor.is_acked(at))
            if (acked, backlog) != (now, cursor.backlog):
                yield f"{name}: the command line has backlog {backlog}, not {cursor.backlog}: {sorted(acked ^ now)}"
            partial = {at: [n for n in range(bits.bit_length()) if bits >> n & 1] for at, bits in batches.items()}
            if partial != cursor.partial_batches():
                yield f"{name}: the command line has the batches {partial}, not {cursor.partial_batches()}"
            delayed = {(at.ledger_id, at.entry_id) for _, at in subs[name].peek_delayed()}
            listed = {(ledger_id, entry) for ledger_id, entries in waiting.items() for entry in entries}
            if delayed != {one for one in listed if not cursor.is_acked(Position(*one))}:
                yield f"{name}: the command line has {len(listed)} delayed, not {len(delayed)}"
        if DAMAGE not in self.exit_codes:
            yield "silent on the command line"


# -- Spark -----------------------------------------------------------------------------------------------------------


def spark_problems(spark: Any, flips: Sequence[tuple[Sample, Record, int]], folder: Path) -> list[str]:
    """Differences between the tables that Spark reads from all damaged stores at once, and the opened stores."""
    paths = [folder / f"{number:03}" for number in range(len(flips))]
    for path, (sample, one, bit) in zip(paths, flips, strict=True):
        path.mkdir()
        (path / "data.mdb").write_bytes(_flipped(sample.image, 8 * one.offset + bit))

    def table(name: str, **options: object) -> dict[tuple[str, str], list[Any]]:
        reader = spark.read.format("bookstand").option("table", name).options(**options)
        found: dict[tuple[str, str], list[Any]] = {}
        for row in reader.load([str(path) for path in paths]).collect():
            found.setdefault((row["place"], row["cursor"]), []).append(row)
        return found

    cursors, acks = table("cursors"), table("acks")
    delayed = table("delayed_index", unsealed="true", now_ms=str(START + OPENED))
    problems = []
    for path, (sample, one, bit) in zip(paths, flips, strict=True):
        clock = VirtualClock(START)
        clock.advance(OPENED / 1000)
        with warnings(), bookstand.open(path, clock=clock, durability="none") as store:
            topic = store.topic(TOPIC, sample.topic)
            for name, config in sample.subs.items():
                sub, key = topic.subscription(name, config), (str(path), name)
                rows = acks.get(key, [])
                runs = {
                    Position(row["ledger_id"], entry)
                    for row in rows
                    if row["ledger_id"] is not None and row["unacked_indexes"] is None
                    for entry in range(row["first_entry_id"], row["last_entry_id"] + 1)
                }
                read = (
                    [row["backlog"] for row in cursors.get(key, [])],
                    {at for at in sample.places.values() if at in runs and at > sub.cursor.mark_delete_position},
                    {
                        Position(row["ledger_id"], row["first_entry_id"]): list(row["unacked_indexes"])
                        for row in rows
                        if row["unacked_indexes"]
                    },
                    {
                        at
                        for row in delayed.get(key, [])
                        if row["ledger_id"] is not None
                        and not sub.cursor.is_acked(at := Position(row["ledger_id"], row["entry_id"]))
                    },
                )
                expected = (
                    [sub.backlog],
                    {
                        at
                        for at in sample.places.values()
                        if sub.cursor.is_acked(at) and at > sub.cursor.mark_delete_position
                    },
                    sub.cursor.partial_batches(),
                    {at for _, at in sub.peek_delayed()},
                )
                if read != expected:
                    problems.append(f"{sample.form}: bit {bit} of {one}: {name}: Spark has {read}, not {expected}")
        if (
            one.referenced
            and one.tabled
            and not any(
                row["error"]
                for rows in (cursors, acks, delayed)
                for (place, _), some in rows.items()
                if place == str(path)
                for row in some
            )
        ):
            problems.append(f"{sample.form}: bit {bit} of {one}: silent in Spark")
    return problems


def flips_for_spark(seeds: Iterable[int], each: int) -> list[tuple[Sample, Record, int]]:
    """So many flips of the stores that the seeds stand for."""
    found = []
    for seed in seeds:
        sample, rng = sample_of(seed), random.Random(seed)
        found += [(sample, *one) for one in rng.sample(chosen_bits(sample, each, rng), each)]
    return found


# -- rounds ----------------------------------------------------------------------------------------------------------


def chosen_bits(sample: Sample, most: int | None, rng: random.Random) -> list[tuple[Record, int]]:
    """All bits of all records; or so many, of every record some."""
    every = [(one, bit) for one in sample.records for bit in range(8 * one.size)]
    if most is None or len(every) <= most:
        return every
    first = [(one, rng.randrange(8 * one.size)) for one in sample.records]
    return [*first, *rng.sample(every, max(0, most - len(first)))]


def flip(sample: Sample, most: int | None, seed: int, thorough: int = THOROUGH) -> Done:
    """Flip the bits of a sample one by one, and then some pairs of them."""
    rng = random.Random(seed)
    problems: list[str] = []
    flips = chosen_bits(sample, most, rng)
    with Bench(sample) as bench:
        for number, (one, bit) in enumerate(flips):
            problems += bench.check([one], [bit], thorough=number % thorough == 0)
        pairs = len(flips) // 50
        for number in range(pairs):
            (one, bit), (other, second) = rng.choice(flips), rng.choice(flips)
            if one != other:
                problems += bench.check([one, other], [bit, second], thorough=number % 4 == 0)
    return Done(len(flips) + pairs, [f"{sample.form}: {problem}" for problem in problems])


def one_round(seed: int) -> Done:
    sample = sample_of(seed)
    done = flip(sample, None, seed)
    return done._replace(problems=done.problems[:SHOWN])


def one_spark_round(seed: int) -> Done:
    """200 damaged stores in one read."""
    try:
        from bookstand.pipeline.spark.session import QUICK, session

        spark = session("flips", "local[2]", QUICK)
    except BookstandError as error:
        raise KindUnavailableError(str(error)) from error
    folder = Path(tempfile.mkdtemp(prefix="bookstand-flips-", dir=MEMORY))
    try:
        flips = flips_for_spark(range(20 * seed, 20 * seed + 20), 10)
        return Done(len(flips), spark_problems(spark, flips, folder)[:SHOWN])
    finally:
        shutil.rmtree(folder)


KIND = Kind(one_round)
SPARK = Kind(one_spark_round)
