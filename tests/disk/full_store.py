"""A store with something of everything: topics and cursors of all kinds, delayed messages, ledgers of all kinds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

from bookstand import Store
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.topic import Topic
from bookstand.delivery.topic_config import SubscriptionConfig, TopicConfig
from bookstand.managed_ledger.records import decode_ledger_info, encode_ledger_info
from bookstand.managed_ledger.topic_name import node_of
from bookstand.storage.commit.entry_operations import Fence, SetExplicitLac
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format.digest import DIGEST_NAMES, master_key
from bookstand.storage.format.ledger_metadata import CLOSED, IN_RECOVERY
from bookstand.storage.format.position import Position

PLAIN = "persistent://acme/orders/plain"
ODD = "persistent://acme/orders/odd name+ü%2F:x"
DELAYED = "persistent://acme/orders/delayed"
PACKED = "persistent://acme/orders/packed"
PARTITIONED = "persistent://acme/orders/part"
BARE = "no tenant's"

PAGED = CursorConfig(flush_interval=1e9)
SNAPSHOTS = CursorConfig(
    flush_interval=1e9, enable_lru_cache_max_unacked_ranges=False, max_unacked_ranges_in_metadata_store=0
)
INLINE = CursorConfig(
    flush_interval=1e9, enable_lru_cache_max_unacked_ranges=False, compression="ZSTD", compression_threshold=0
)


class Acked(NamedTuple):
    """What a cursor has acknowledged, by its own account. ``batches``: what is not, of batches acknowledged in part."""

    mark_delete: Position
    ranges: list[tuple[int, int, int]]
    batches: dict[Position, list[int]]
    properties: dict[str, int]
    cursor_properties: dict[str, str]


def acked_of(cursor: Cursor) -> Acked:
    return Acked(
        cursor.mark_delete_position,
        [(one.lower.ledger_id, one.lower.entry_id + 1, one.upper.entry_id) for one in cursor.acked_ranges()],
        cursor.partial_batches(),
        dict(cursor.properties),
        dict(cursor.cursor_properties),
    )


class FullStore:
    """What it has beside the store itself: ``acked`` is by topic and cursor, ``rows`` the delayed messages of each
    subscription of ``DELAYED``, ``ledgers`` those of no topic."""

    def __init__(self, store: Store, rng: random.Random, scale: int = 1) -> None:
        self.store = store
        self.rng = rng
        self.acked: dict[str, dict[str, Acked]] = {}
        self.rows: dict[str, dict[Position, int]] = {}
        self.ledgers: dict[str, int] = {}
        self._plain(200 * scale)
        self._odd()
        self._delayed(30 * scale)
        self._packed()
        self._partitioned()
        self._bare()
        self._raw()
        for topic in (PLAIN, ODD, DELAYED, PACKED, BARE):
            self._note(store.topic(topic))
            store.topic(topic).close()
        self._pack_record()

    def _note(self, topic: Topic) -> None:
        cursors = {name: topic.cursor(name) for name in topic.ledger.cursor_names()}
        for cursor in cursors.values():
            cursor.flush()
        self.acked[topic.name] = {name: acked_of(cursor) for name, cursor in cursors.items()}

    def _topic(self, name: str, **options: object) -> Topic:
        return self.store.topic(name, TopicConfig(trim_consumed=False, **options))  # type: ignore[arg-type]

    def _plain(self, count: int) -> None:
        rng = self.rng
        topic = self._topic(PLAIN, max_entries_per_ledger=60, compression="NONE")
        single = topic.publish_many([rng.randbytes(rng.choice((0, 1, 40, 300))) for _ in range(count)])
        batches = [topic.publish_batch([rng.randbytes(9) for _ in range(70)]) for _ in range(count // 10)]
        for name, config in (("s-pages", PAGED), ("s-snapshots", SNAPSHOTS)):
            cursor = topic.cursor(name, config, cursor_properties={"owner": "ü"})
            cursor.ack(rng.sample(single, count // 2))
            for position in rng.sample(batches, count // 20):
                cursor.ack_batch(position, rng.sample(range(70), rng.randint(1, 69)), 70)
            cursor.flush()
            # A second flush, so that the newest state is not the only one in the ledger.
            cursor.ack(rng.sample(single, count // 4))
            cursor.flush()
        cumulative = topic.cursor("s-cum", PAGED)
        cumulative.mark_delete(single[count // 3], {"producer": 7, "other": -3})
        topic.cursor("s-idle", PAGED)
        topic.cursor("s-done", PAGED).mark_delete(topic.ledger.last_confirmed)

    def _odd(self) -> None:
        topic = self._topic(ODD)
        positions = topic.publish_many([b"%d" % number for number in range(20)])
        topic.cursor("sub/1 ü%+", PAGED).ack([positions[number] for number in (1, 2, 5, 19)])

    def _delayed(self, count: int) -> None:
        rng = self.rng
        topic = self._topic(
            DELAYED,
            max_entries_per_ledger=count // 2,
            delayed_delivery_tracker="bucket",
            delayed_delivery_min_index_count_per_bucket=5,
            delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=1000,
            delayed_delivery_max_indexes_per_bucket_snapshot_segment=4,
        )
        now = self.store._client.clock.now()
        times = [now + 3_600_000 + rng.randrange(3_600_000) for _ in range(count)]
        positions = topic.publish_many([b"later"] * count, deliver_at=times)
        for name in ("d1", "d2"):
            subscription = topic.subscription(name, SubscriptionConfig(cursor=PAGED))
            assert not subscription.receive(10, 0.0)
            self.rows[name] = dict(zip(positions, times, strict=True))

    def _packed(self) -> None:
        """Terminated, and compressed wherever that can be."""
        rng = self.rng
        topic = self._topic(PACKED, max_entries_per_ledger=20, compression="ZSTD")
        positions = topic.publish_many([b"packed" * rng.randrange(90) for _ in range(50)])
        batch = topic.publish_batch([b"one of many" * 10] * 30)
        cursor = topic.cursor("s-inline", INLINE, cursor_properties={"owner": "me"})
        cursor.ack(rng.sample(positions, 20))
        cursor.ack_batch(batch, (1, 2), 30)
        nacking = SubscriptionConfig(cursor=PAGED, durable_nacks=True, nack_delay=3_600_000)
        with topic.subscription("s-nacks", nacking) as subscription:
            (message,) = subscription.receive(1)
            subscription.nack(message)
        topic.ledger.terminate()

    def _pack_record(self) -> None:
        """Only large ones are compressed else."""
        node = node_of(PACKED)
        record, version = self.store.nodes.get(node)
        self.store.nodes.put(node, encode_ledger_info(decode_ledger_info(record), "LZ4", threshold=0), version)

    def _partitioned(self) -> None:
        nodes = self.store.nodes
        nodes.put("/admin/partitioned-topics/acme/orders/persistent/part", b'{"partitions":3}')
        nodes.put("/admin/policies/acme", json.dumps({"allowedClusters": ["here"]}).encode())
        nodes.put("/admin/policies/acme/orders", b"{}")
        nodes.put("/admin/policies/other", b"{}")
        nodes.put("/somebody/else's", b"\0\xff")
        for number in range(2):
            topic = self._topic(f"{PARTITIONED}-partition-{number}")
            topic.publish_many([b"in %d" % number] * 7)
            self._note(topic)
            topic.close()

    def _bare(self) -> None:
        self._topic(BARE).publish(b"x")

    def _raw(self) -> None:
        store, rng = self.store, self.rng
        for digest in DIGEST_NAMES:
            password = digest.encode()
            with store.create_ledger(3, 2, 2, digest=digest, password=password, custom_metadata={"k": b"\0v"}) as made:
                made.append_many([rng.randbytes(rng.choice((0, 20, 500))) for _ in range(20)])
                self.ledgers[digest] = made.id
        far = store.create_ledger_adv((1 << 40) + 5, password=b"far")
        for entry in (1, 0, 2):
            far.write_async(entry, b"%d" % entry)
        far.close()
        gap = store.create_ledger_adv(password=b"")
        for entry in (0, 1, 3):
            gap.write_async(entry, b"%d" % entry)
        opened = store.create_ledger(password=b"open")
        opened.append_many([b"a", b"b"])
        opened.append(b"c")
        told = store.create_ledger(password=b"told")
        told.append_many([b"a", b"b", b"c"])
        fenced = store.create_ledger(password=b"fenced")
        fenced.append(b"a")
        recovering = store.create_ledger(password=b"")
        recovering.append(b"a")
        with store.create_ledger(password=b"") as empty:
            pass
        untouched = store.create_ledger(password=b"")
        with store.create_ledger(password=b"") as gone:
            gone.append(b"gone")
        made = far, gap, opened, told, fenced, recovering, empty, untouched
        names = ("far", "gap", "open", "explicit-lac", "fenced", "recovering", "empty", "untouched")
        self.ledgers |= {name: one.id for name, one in zip(names, made, strict=True)}
        store.storage.flush()
        state = store.storage.state(told.id)
        assert state is not None
        key = master_key(b"told")
        store.storage.apply(WriteBatch(SetExplicitLac(told.id, state.incarnation, key, 2)))
        store.storage.apply(WriteBatch(Fence(fenced.id, master_key(b"fenced"))))
        store.write_ledger_metadata(store.ledger_metadata(recovering.id).replace(state=IN_RECOVERY))
        store.delete_ledger(gone.id)


def stored_entries(store: Store, ledger_id: int) -> Iterator[tuple[int, bytes]]:
    """Ids and bytes as they are stored, one by one, up to where a closed ledger ends."""
    state = store.storage.state(ledger_id)
    metadata = store.ledger_metadata(ledger_id)
    last = metadata.last_entry_id if metadata.state == CLOSED else -1 if state is None else state.last_entry
    for entry_id in range(last + 1):
        stored = store.storage.entry_as_stored(ledger_id, entry_id)
        if stored is not None:
            yield entry_id, stored
