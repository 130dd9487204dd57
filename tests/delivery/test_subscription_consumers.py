"""Several who consume: threads, tasks, consumers of one subscription, subscriptions of one topic, processes in turn."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand.delivery.subscription.subscription import ReceivedMessage
from bookstand.errors import ClientClosedError, LedgerFencedError
from bookstand.storage.format.position import Position
from tests.delivery.subscription_kit import (
    MODES,
    Desk,
    letters,
    numbered,
    positions,
    subscription_config,
    topic_config,
    words,
)
from tests.kit import PATIENCE, Faults, eventually, in_threads


@pytest.fixture
def desk(store_path: Path) -> Iterator[Desk]:
    with Desk(store_path, topic_config(max_entries_per_ledger=50), subscription_config(nack_delay=1_000)) as desk:
        yield desk


# -- consumers ---------------------------------------------------------------------------------------------------------


def test_consumers_share_the_messages(desk: Desk) -> None:
    desk.publish(*range(6))
    one, two = desk.sub.consumer("one"), desk.sub.consumer()
    assert one.name == "one"
    assert two.name != one.name
    assert words(one.receive(2, timeout=0)) == ["0", "1"]
    assert words(two.receive(3, timeout=0)) == ["2", "3", "4"]
    assert words(desk.sub.receive(3, timeout=0)) == ["5"]
    assert one.receive(timeout=0) == two.receive(timeout=0) == []


def test_a_consumer_that_goes_gives_back_what_it_has_at_once(desk: Desk) -> None:
    desk.publish(*range(6))
    with desk.sub.consumer() as one:
        two = desk.sub.consumer()
        first, second = one.receive(4, timeout=0), two.receive(1, timeout=0)
        one.ack(first[1]).result()
        one.nack(first[2])
    # Held by nobody; the nacked one waits for its time.
    assert desk.read(two) == ["0", "3", "5"]
    two.ack_many(second).result()
    desk.pass_time(1_000)
    assert desk.read(two) == ["2"]
    with pytest.raises(ClientClosedError):
        one.receive(timeout=0)
    one.close()


def test_a_consumer_that_waits_gets_what_another_gives_back(desk: Desk) -> None:
    desk.publish("a")
    one, two = desk.sub.consumer(), desk.sub.consumer()
    assert desk.read(one) == ["a"]
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(words(two.receive())))
    thread.start()
    one.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found == ["a"]


def test_a_batch_is_for_one_consumer(desk: Desk) -> None:
    desk.topic.publish_batch(letters("abcd"))
    one, two = desk.sub.consumer(), desk.sub.consumer()
    first = one.receive(3, timeout=0)
    assert words(first) == ["a", "b", "c"]
    # The rest of an entry is for who was given its beginning.
    assert two.receive(5, timeout=0) == []
    one.ack(first[1]).result()
    assert desk.read(one) == ["d"]
    one.close()
    assert desk.read(two) == ["a", "c", "d"]


def test_who_acknowledges_for_another(desk: Desk) -> None:
    desk.publish("a", "b")
    one, two = desk.sub.consumer(), desk.sub.consumer()
    (a, b) = one.receive(2, timeout=0)
    two.ack(a).result()
    desk.sub.ack(b).result()
    one.close()
    assert desk.read(two) == []
    assert desk.sub.stats.backlog == 0


def test_consumers_end_with_the_subscription(desk: Desk) -> None:
    consumer = desk.sub.consumer()
    told: list[str] = []

    def wait() -> None:
        try:
            consumer.receive()
        except ClientClosedError:
            told.append("closed")

    thread = threading.Thread(target=wait)
    thread.start()
    desk.sub.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert told == ["closed"]


def test_closing_a_consumer_wakes_who_waits_for_it(desk: Desk) -> None:
    consumer = desk.sub.consumer()
    told: list[str] = []

    def wait() -> None:
        try:
            consumer.receive()
        except ClientClosedError:
            told.append("closed")

    thread = threading.Thread(target=wait)
    thread.start()
    consumer.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert told == ["closed"]
    desk.publish("a")
    assert desk.read() == ["a"]


def test_messages_one_by_one(desk: Desk) -> None:
    desk.publish(*range(5))
    found = []
    for message in desk.sub:
        desk.sub.ack(message)
        found.append(message)
        if len(found) == 3:
            break
    assert words(found) == ["0", "1", "2"]
    # One by one: nothing has been taken that was not given.
    assert desk.read() == ["3", "4"]


def test_one_by_one_until_it_is_closed(desk: Desk) -> None:
    found: list[str] = []
    ended: list[bool] = []

    def consume() -> None:
        consumer = desk.sub.consumer()
        for message in consumer:
            found.append(message.payload.decode())
            consumer.ack(message).result()
        ended.append(True)

    thread = threading.Thread(target=consume)
    thread.start()
    desk.publish(*range(5))
    eventually(lambda: len(found) == 5)
    eventually(lambda: desk.sub.stats.backlog == 0)
    desk.sub.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert (found, ended) == ([str(number) for number in range(5)], [True])


@pytest.mark.parametrize("mode", MODES)
def test_one_acknowledges_what_another_is_about_to_pass(store_path: Path, mode: str) -> None:
    """What came again was out before the cursor came to it, and is acknowledged while another reads on: all behind it
    is acknowledged, up to what is being read."""
    faults = Faults()
    with Desk(store_path, topic_config(mode), subscription_config(durable_nacks=True), hooks=faults) as desk:
        desk.publish(*range(8))
        messages = desk.drain()
        desk.sub.ack_many(messages[1:3]).result()
        desk.sub.nack(messages[0], delay=1_000)
        desk.restart()
        desk.pass_time(1_000)
        one, two = desk.sub.consumer(), desk.sub.consumer()
        (first,) = one.receive(1, timeout=0)
        assert first.position == messages[0].position

        def while_it_is_read(ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
            if (ledger_id, entry_id) == messages[3].position:
                faults.mend()
                one.ack(first)
            return stored

        faults.on_entry = while_it_is_read
        found = words(two.receive(1, timeout=0))
        assert faults.on_entry is None
        assert found + desk.read(one) == ["3", "4", "5", "6", "7"]


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_threads_that_consume_and_threads_that_publish(store_path: Path, mode: str) -> None:
    """Each message is acknowledged once, and is never with two at a time; some fail at first."""
    producers, consumers, each = 2, 3, 60
    total = producers * each
    config = subscription_config(nack_delay=100)
    with Desk(store_path, topic_config(mode, max_entries_per_ledger=20, trim_consumed=True), config) as desk:
        lock = threading.Lock()
        held: set[Position] = set()
        done: Counter[bytes] = Counter()
        failed: set[Position] = set()
        published: list[bytes] = []
        everything = threading.Event()

        def publish(index: int) -> None:
            for number in range(each):
                payload = b"%d-%d" % (index, number)
                desk.topic.publish(payload, deliver_after=number % 7 * 10 or None)
                with lock:
                    published.append(payload)

        def consume(index: int) -> None:
            with desk.sub.consumer() as consumer:
                while not everything.is_set():
                    for message in consumer.receive(5, timeout=0.02):
                        with lock:
                            assert message.position not in held
                            held.add(message.position)
                            fails = len(failed) % 3 == 0 and message.redelivery_count == 0
                            failed.add(message.position)
                            held.discard(message.position)
                            if not fails:
                                done[message.payload] += 1
                        if fails:
                            consumer.nack(message)
                        else:
                            consumer.ack(message)

        def pass_time(index: int) -> None:
            def all_done() -> bool:
                desk.pass_time(20)
                with lock:
                    return len(done) == total

            try:
                eventually(all_done)
            finally:
                everything.set()

        roles: list[Callable[[int], None]] = [publish] * producers + [consume] * consumers + [pass_time]
        in_threads(len(roles), lambda index: roles[index](index))
        assert sorted(done) == sorted(published)
        assert set(done.values()) == {1}
        desk.restart()
        desk.pass_time(10_000)
        assert desk.read() == []


def test_threads_never_hold_the_same(desk: Desk) -> None:
    """Held over the receiving of others; taken back by closing, by nacks and by force."""
    desk.topic.publish_many(numbered(60))
    lock = threading.Lock()
    holders: Counter[Position] = Counter()
    acked: Counter[Position] = Counter()
    rest = threading.Barrier(4)

    def consume(index: int) -> None:
        for _ in range(8):
            consumer = desk.sub.consumer()
            mine = consumer.receive(3 + index, timeout=0)
            with lock:
                holders.update(positions(mine))
                assert max(holders.values(), default=0) <= 1
            rest.wait(PATIENCE)
            with lock:
                holders.subtract(positions(mine))
                acked.update(positions(mine[:1]))
            for message in mine[:1]:
                consumer.ack(message).result()
            rest.wait(PATIENCE)
            consumer.close()
            rest.wait(PATIENCE)

    in_threads(4, consume)
    assert set(acked.values()) == {1}
    assert len(acked) + len(desk.drain()) == 60


def test_all_who_wait_are_woken_by_enough_messages(desk: Desk) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(words(desk.sub.receive(1)))) for _ in range(5)]
    for thread in threads:
        thread.start()
    desk.topic.publish_many(numbered(5))
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(found) == ["0", "1", "2", "3", "4"]


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_a_task_receives(desk: Desk) -> None:
    async def main() -> list[str]:
        desk.publish("a", "b", "c")
        first = await desk.sub.receive_async(2)
        assert words(await desk.sub.receive_async(2, timeout=0)) == ["c"]
        assert await desk.sub.receive_async(1, timeout=0.01) == []
        await desk.sub.ack_many(first)
        return words(first)

    assert asyncio.run(main()) == ["a", "b"]
    desk.crash()
    assert desk.read() == ["c"]


def test_a_task_that_waits_does_not_hold_the_loop_up(desk: Desk) -> None:
    async def main() -> list[str]:
        tasks = [asyncio.create_task(desk.sub.receive_async()) for _ in range(3)]
        late = asyncio.create_task(desk.sub.receive_async(5, timeout=0.01))
        assert await late == []
        await asyncio.to_thread(desk.publish, "a")
        desk.publish("b", at=100)
        await asyncio.to_thread(desk.go_to, 100)
        await asyncio.to_thread(desk.publish, "c")
        parts = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        return sorted(word for part in parts for word in words(part))

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_a_task_that_is_cancelled_takes_nothing(desk: Desk) -> None:
    async def main() -> list[str]:
        for _ in range(20):
            task = asyncio.create_task(desk.sub.receive_async(5))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        desk.publish("a")
        return words(await asyncio.wait_for(desk.sub.receive_async(5), PATIENCE))

    assert asyncio.run(main()) == ["a"]


def test_a_task_that_is_cancelled_while_it_is_given_something_loses_nothing(desk: Desk) -> None:
    """What was given to it already and taken by nobody goes to who asks next."""

    async def main() -> list[str]:
        found = []
        for number in range(40):
            task = asyncio.create_task(desk.sub.receive_async())
            await asyncio.sleep(0)
            await asyncio.to_thread(desk.publish, number)
            task.cancel()
            try:
                found += await task
            except asyncio.CancelledError:
                found += await asyncio.wait_for(desk.sub.receive_async(), PATIENCE)
        return words(found)

    assert asyncio.run(main()) == [str(number) for number in range(40)]
    assert desk.sub.stats.out == 40


def test_a_task_gets_messages_one_by_one(desk: Desk) -> None:
    async def main() -> list[str]:
        found: list[str] = []

        async def consume() -> None:
            consumer = desk.sub.consumer()
            async for message in consumer:
                found.append(message.payload.decode())
                await consumer.ack(message)

        task = asyncio.create_task(consume())
        for number in range(5):
            await asyncio.to_thread(desk.publish, number)
        while desk.sub.stats.backlog:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(desk.sub.close)
        await asyncio.wait_for(task, PATIENCE)
        return found

    assert asyncio.run(main()) == ["0", "1", "2", "3", "4"]


def test_two_loops_in_two_threads(desk: Desk) -> None:
    async def consume() -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        consumer = desk.sub.consumer()
        while part := await consumer.receive_async(3, timeout=0.2 if not found else 0):
            found += part
            await consumer.ack_many(part)
        return found

    desk.topic.publish_many(numbered(40))
    both = in_threads(2, lambda _: asyncio.run(consume()))
    assert sorted(positions(both[0]) + positions(both[1])) == sorted(set(positions(both[0]) + positions(both[1])))
    assert len(both[0]) + len(both[1]) == 40


# -- subscriptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_subscription_gets_everything(store_path: Path, mode: str) -> None:
    with Desk(store_path, topic_config(mode)) as desk:
        others = [desk.topic.subscription(f"other {number}", subscription_config()) for number in range(3)]
        times = [0, 50, 20, 0, 90, 10, 20, 0, 70, 30, 60, 40, 5]
        for number, time in enumerate(times):
            desk.publish(number, at=time)
        found: list[list[tuple[int, str]]] = [[], [], [], []]
        for moment in (0, 5, 19, 20, 49, 50, 90):
            desk.go_to(moment)
            for which, sub in enumerate([desk.sub, *others]):
                # They differ in when they ask, and in what they acknowledge.
                if moment % (which + 1) and moment != 90:
                    continue
                for message in desk.drain(sub):
                    assert times[int(message.payload)] <= moment
                    found[which].append((moment, message.payload.decode()))
                    if which != 1:
                        sub.ack(message).result()
        for which in range(4):
            assert sorted(int(word) for _, word in found[which]) == list(range(len(times)))
        desk.crash()
        names = ["sub", "other 0", "other 1", "other 2"]
        again = [desk.topic.subscription(name, subscription_config()) for name in names]
        assert [len(desk.drain(sub)) for sub in again] == [0, 13, 0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_a_subscription_that_joins_late_gets_what_waits(store_path: Path, mode: str) -> None:
    with Desk(store_path, topic_config(mode)) as desk:
        for number in range(12):
            desk.publish(number, at=100 + number)
        assert desk.read() == []
        desk.go_to(105)
        assert desk.consume() == [str(number) for number in range(6)]
        late = desk.topic.subscription("late", subscription_config())
        assert sorted(desk.read(late), key=int) == [str(number) for number in range(6)]
        desk.go_to(200)
        assert desk.read(late) == desk.consume() == [str(number) for number in range(6, 12)]


@pytest.mark.parametrize("mode", MODES)
def test_what_one_does_is_nothing_to_the_other(store_path: Path, mode: str) -> None:
    with Desk(store_path, topic_config(mode), subscription_config(nack_delay=500)) as desk:
        other = desk.topic.subscription("other", subscription_config())
        given = desk.publish(*range(4))
        desk.publish("late", at=100)
        received = desk.drain()
        assert len(desk.drain(other)) == 4
        desk.sub.nack(received[0])
        desk.sub.ack(received[1]).result()
        desk.pass_time(500)
        assert desk.read() == ["0", "late"]
        assert desk.read(other) == ["late"]
        desk.sub.reset(given[0])
        assert desk.read(other) == []
        desk.topic.unsubscribe("sub")
        other.redeliver_all()
        assert desk.read(other) == ["0", "1", "2", "3", "late"]


# -- processes ---------------------------------------------------------------------------------------------------------


def test_processes_take_turns(store_path: Path, child: Callable[..., Any]) -> None:
    consume = (
        "found = []\n"
        "with store.topic('t') as topic, topic.subscription('s') as sub:\n"
        "    topic.publish(b'from ' + name)\n"
        "    for m in sub.receive(3, timeout=0):\n"
        "        found.append(m.payload.decode())\n"
        "        sub.ack(m)"
    )
    one, two = child(), child()
    one.run("name = b'one'")
    two.run("name = b'two'")
    one.run("[store.topic('t').publish(b'%d' % n) for n in range(7)] and None")
    found = []
    for process in (one, two, one, two):
        process.run(consume)
        found += process.run("found")
    wanted = [*map(str, range(7)), "from one", "from two", "from one", "from two"]
    assert found == wanted


def test_who_was_fenced_out_gives_nothing_away(store_path: Path, child: Callable[..., Any]) -> None:
    """Two processes, and each takes the topic from the other while that consumes; what was acknowledged does not come
    again, what was not, does."""
    with Desk(store_path) as desk:
        desk.topic.publish_many(numbered(30))
        received = desk.sub.receive(10, timeout=0)
        desk.sub.ack_many(received[:5]).result()
        other = child()
        other.run("sub = store.topic('persistent://public/default/t').subscription('sub')")
        with pytest.raises(LedgerFencedError):
            desk.sub.ack_many(received[5:]).result(PATIENCE)
        other.run("found = sub.receive(10, timeout=0)")
        assert other.run("[m.payload.decode() for m in found]") == [str(number) for number in range(5, 15)]
        other.run("sub.ack_many(found[:5]).result()")
        with pytest.raises(LedgerFencedError):
            desk.sub.receive(100, timeout=PATIENCE)
        desk.sub.close()
        desk.topic.close()
        desk.crash()
        assert desk.read() == [str(number) for number in range(10, 30)]
