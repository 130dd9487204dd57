"""A cursor goes with the ledgers that its properties name, whichever way it goes; and takes no others along."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.tracker.bucket.key import BucketLabels, bucket_key, read_properties
from bookstand.delivery.tracker.bucket.registry import CursorBucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.reschedule_log import PROPERTY
from bookstand.delivery.tracker.shared_index import BUILDER
from bookstand.errors import BookieHandleNotAvailableError, LedgerFencedError, NoSuchNodeError, WriteOnReadOnlyError
from bookstand.testing import Faults, SimulatedCrash, VirtualClock, every_crash
from tests.delivery.subscription_kit import START, SUBSCRIPTION, TOPIC, Desk, subscription_config, topic_config


def of_delayed_messages(store: Any) -> dict[int, str]:
    """Ledgers that hold snapshots or rescheduled times, by what they say that they are."""
    found = {}
    for ledger_id in store.list_ledgers():
        component = store.ledger_metadata(ledger_id).custom_metadata.get("component", b"")
        if component.startswith(b"delayed-index-"):
            found[ledger_id] = component.decode()
    return found


def fill(desk: Desk) -> None:
    """Buckets, a rescheduled message, and one that was cancelled."""
    positions = [desk.topic.publish(b"%d" % number, deliver_after=100 + number) for number in range(20)]
    assert desk.read() == []
    assert desk.sub.reschedule(positions[3], deliver_after=500)
    desk.sub.cancel(positions[4]).result()


def check_named(desk: Desk) -> None:
    cursor = desk.sub.cursor
    assert read_properties(cursor.cursor_properties.items()).buckets
    assert PROPERTY in cursor.cursor_properties
    assert set(of_delayed_messages(desk.store).values()) == {"delayed-index-bucket", "delayed-index-rescheduled"}


@pytest.mark.parametrize("reopened", [False, True])
def test_deleting_a_cursor_deletes_its_snapshots_and_rescheduled_times(store_path: Path, reopened: bool) -> None:
    with Desk(store_path, topic_config("buckets")) as desk:
        fill(desk)
        check_named(desk)
        if reopened:
            desk.topic.close()
            topic = desk.store.managed_ledger(TOPIC)
            Cursor.open(topic, SUBSCRIPTION, create=False).delete()
        else:
            desk.sub.cursor.delete()
        assert of_delayed_messages(desk.store) == {}
        if not reopened:
            assert not desk.sub.usable
            with pytest.raises(LedgerFencedError, match="deleted"):
                desk.sub.ack((0, 0))
            # A subscription of that name begins anew.
            again = desk.topic.subscription(SUBSCRIPTION, subscription_config())
            assert again is not desk.sub
            desk.go_to(1000)
            assert len(desk.read(again)) == 20


def unsubscribe(desk: Desk) -> None:
    desk.topic.unsubscribe(SUBSCRIPTION)


def unsubscribe_closed(desk: Desk) -> None:
    desk.sub.close()
    desk.topic.unsubscribe(SUBSCRIPTION)


def delete_topic(desk: Desk) -> None:
    desk.topic.delete()


def delete_cursor(desk: Desk) -> None:
    desk.sub.cursor.delete()


@pytest.mark.parametrize(
    ("before", "after", "end"),
    [
        ("buckets", "buckets", unsubscribe),
        ("buckets", "buckets", unsubscribe_closed),
        ("buckets", "shared index", delete_cursor),
        ("buckets", "shared index", delete_topic),
        ("buckets", "in memory", delete_cursor),
        ("shared index", "shared index", delete_topic),
        ("shared index", "shared index", delete_cursor),
        ("shared index", "buckets", unsubscribe),
        ("shared index", "in memory", delete_cursor),
    ],
)
def test_no_path_leaves_a_ledger_without_an_owner(
    store_path: Path, before: str, after: str, end: Callable[[Desk], None]
) -> None:
    with Desk(store_path, topic_config(before)) as desk:
        fill(desk)
        desk.restart(topic_config(after))
        end(desk)
        left = set(of_delayed_messages(desk.store))
        if end is delete_topic:
            assert list(desk.store.list_ledgers()) == []
            return
        index = desk.topic.shared_index
        named = set() if index is None else set(index.tracker._sealed.buckets)
        assert left == {bucket.bucket_id for bucket in named}
        desk.topic.delete()
        assert list(desk.store.list_ledgers()) == []


def test_deleting_the_builder_of_a_shared_index_deletes_its_snapshots(store_path: Path) -> None:
    with Desk(store_path, topic_config("shared index")) as desk:
        fill(desk)
        desk.topic.close()
        Cursor.open(desk.store.managed_ledger(TOPIC), BUILDER, create=False).delete()
        assert set(of_delayed_messages(desk.store).values()) == {"delayed-index-rescheduled"}
        desk.restart()
        desk.go_to(1000)
        assert len(desk.consume()) == 19


# -- only its own ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(store_path: Path) -> Iterator[Any]:
    with bookstand.open(store_path) as store:
        yield store


@pytest.fixture
def cursor(store: Any) -> Iterator[Cursor]:
    topic = store.managed_ledger(TOPIC)
    topic.append(b".")
    with Cursor.open(topic, "mine") as cursor:
        yield cursor
        if cursor.usable:
            cursor.delete()


def set_property(cursor: Cursor, name: str, value: object) -> None:
    cursor.change_properties(lambda _, properties: properties.__setitem__(name, str(value)))


def snapshot(cursor: Cursor, owner: str, topic: str = TOPIC, first: int = 1) -> int:
    """A ledger that says it is a snapshot, and holds nothing that could be read as one."""
    storage = BucketSnapshotStorage(cursor.topic.client)
    return storage.create([b"\xff" * 9], BucketLabels(bucket_key(first, 5), topic, owner))


def test_a_snapshot_that_cannot_be_read_is_deleted_with_its_cursor(cursor: Cursor) -> None:
    ledger_id = snapshot(cursor, "mine")
    set_property(cursor, bucket_key(1, 5), ledger_id)
    cursor.delete()
    assert ledger_id not in list(cursor.topic.client.list())


def test_a_snapshot_that_no_property_names_is_deleted_with_its_cursor(cursor: Cursor) -> None:
    named, unnamed = snapshot(cursor, "mine"), snapshot(cursor, "mine", first=2)
    set_property(cursor, bucket_key(1, 5), named)
    cursor.delete()
    assert {named, unnamed}.isdisjoint(cursor.topic.client.list())


@pytest.mark.parametrize("whose", ["a cursor's", "another topic's", "a user's", "the topic's", "missing", "no id"])
@pytest.mark.parametrize("name", [bucket_key(1, 5), PROPERTY])
def test_a_ledger_that_a_copied_property_names_stays(
    store: Any, cursor: Cursor, whose: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = cursor.topic.client
    owners: dict[str, Callable[[], object]] = {
        "a cursor's": lambda: snapshot(cursor, "other"),
        "another topic's": lambda: snapshot(cursor, "mine", TOPIC + "-1"),
        "a user's": lambda: store.create_ledger().id,
        "the topic's": lambda: cursor.topic.ledgers[0].ledger_id,
        "missing": lambda: 1 << 40,
        "no id": lambda: "x",
    }
    value = owners[whose]()
    set_property(cursor, name, value)
    before = set(client.list())
    cursor.flush()
    cursor.delete()
    if isinstance(value, int) and whose != "missing":
        assert value in before & set(client.list())
    assert name in caplog.text
    assert repr(str(value)) in caplog.text


def test_a_cursor_without_such_properties_reads_no_metadata_to_be_deleted(
    cursor: Cursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: list[object] = []
    monkeypatch.setattr(type(cursor.topic.client), "list", listings.append)
    cursor.delete()
    assert listings == []


# -- all or nothing --------------------------------------------------------------------------------------------------


def test_a_cursor_opened_read_only_deletes_nothing(store_path: Path) -> None:
    with Desk(store_path, topic_config("buckets")) as desk:
        fill(desk)
        before = of_delayed_messages(desk.store)
        with (
            Cursor.open(desk.topic.ledger, SUBSCRIPTION, create=False, read_only=True) as cursor,
            pytest.raises(WriteOnReadOnlyError),
        ):
            cursor.delete()
        assert of_delayed_messages(desk.store) == before


def test_a_cursor_that_another_has_taken_over_deletes_nothing(store_path: Path) -> None:
    with Desk(store_path, topic_config("buckets")) as desk:
        fill(desk)
        former = desk.sub.cursor
        desk.topic.ledger.check_owned()
        with Cursor.open(desk.topic.ledger, SUBSCRIPTION, create=False) as cursor:
            cursor.put_cursor_property("mine", "now")
            before = of_delayed_messages(desk.store)
            with pytest.raises(LedgerFencedError):
                former.delete()
            assert of_delayed_messages(desk.store) == before
            cursor.delete()
        assert of_delayed_messages(desk.store) == {}


def test_a_deletion_that_fails_deletes_nothing_and_can_be_repeated(store_path: Path) -> None:
    faults = Faults()
    with Desk(store_path, topic_config("buckets"), hooks=faults) as desk:
        fill(desk)
        before = of_delayed_messages(desk.store)
        failure = faults.fail("commit", error=BookieHandleNotAvailableError, times=100)
        with pytest.raises(BookieHandleNotAvailableError):
            desk.sub.cursor.delete()
        faults.remove(failure)
        assert of_delayed_messages(desk.store) == before
        desk.sub.cursor.delete()
        assert of_delayed_messages(desk.store) == {}


class Deletion:
    """Delayed messages in buckets, one of them rescheduled, and then the cursor is deleted."""

    def __init__(self, way: str, **store_options: Any) -> None:
        self.way = way
        self.store_options = store_options

    def __call__(self, path: str, acknowledge: Callable[[object], None]) -> None:
        with bookstand.open(path, clock=VirtualClock(START), **self.store_options) as store:
            topic = store.topic(TOPIC, topic_config("shared index" if self.way == "index" else "buckets"))
            subscription = topic.subscription(SUBSCRIPTION, subscription_config())
            positions = topic.publish_many([b"."] * 20, deliver_after=500)
            subscription.receive(timeout=0)
            subscription.reschedule(positions[0], deliver_after=900)
            acknowledge("filled")
            if self.way == "cursor":
                subscription.cursor.delete()
            elif self.way == "unsubscribe":
                topic.unsubscribe(SUBSCRIPTION)
            else:
                topic.delete()
            acknowledge("deleted")


def check_no_orphans(store: Any, acknowledged: list[Any]) -> None:
    named: set[str] = set()
    try:
        topic = store.managed_ledger(TOPIC, create=False)
    except NoSuchNodeError:
        names = []
    else:
        names = topic.cursor_names()
        for name in names:
            properties = CursorBucketRegistry(Cursor.open(topic, name, read_only=True)).properties()
            assert not read_properties(properties.items()).malformed
            named |= {value for key, value in properties.items() if key.startswith("#pulsar.internal.delayed.")}
    assert named == set(map(str, of_delayed_messages(store)))
    if "deleted" in acknowledged:
        assert named == set()
        assert SUBSCRIPTION not in names
    elif "filled" in acknowledged and SUBSCRIPTION in names:
        assert named


@pytest.mark.parametrize(
    ("way", "point"), [("cursor", "before_write"), ("cursor", "after_sync"), ("index", "before_sync")]
)
def test_a_crash_in_any_commit_of_a_deletion_leaves_no_orphan(store_path: Path, way: str, point: str) -> None:
    for nth in range(1, 9):
        path = store_path / str(nth)
        faults, done = Faults(), []

        def arm(value: object, faults: Faults = faults, done: list[Any] = done, nth: int = nth) -> None:
            done.append(value)
            if value == "filled":
                faults.crash(f"commit.{point}", nth)

        with contextlib.suppress(SimulatedCrash):
            Deletion(way, hooks=faults)(str(path), arm)
        with bookstand.open(path, clock=VirtualClock(START)) as store:
            check_no_orphans(store, done)
        if "deleted" in done:
            return
    pytest.fail("a deletion has fewer commits")


def test_a_power_cut_during_a_deletion_leaves_no_orphan() -> None:
    explored = every_crash(Deletion("cursor"), check_no_orphans, limit=5, seed=3)
    assert explored.states >= 4
