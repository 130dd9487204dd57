"""The queues that ours is held against do what they are measured for; no test here judges a time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import queues, queues_restart, rows
from benchmarks.baselines.queue_redis import RedisQueue, RedisQueueFastest
from benchmarks.baselines.queue_sqlite import SqliteQueue
from benchmarks.baselines.servers import Server
from benchmarks.figures import Figure
from benchmarks.measure import Missing, Sample, Series

PAYLOADS = [b"%d" % number * 100 for number in range(10)]
LATEST = max(set(range(100)) - set(queues_restart.acknowledged(100)), key=queues_restart.delays(100).__getitem__)


@pytest.fixture(params=list(queues.CANDIDATES))
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[queues.Queue]:
    with closing(_or_skip(queues.CANDIDATES[request.param], tmp_path)) as opened:
        yield opened


def _or_skip(opened: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return opened(*arguments)
    except Missing as missing:
        pytest.skip(str(missing))


def test_a_run_takes_everything_through(queue: queues.Queue) -> None:
    sample = queues.run(queue, PAYLOADS, batches=3)
    assert sample.cpu > 0
    assert sample.wall > 0


def test_messages_come_once_and_in_order(queue: queues.Queue) -> None:
    queue.publish(PAYLOADS)
    first, second = queue.receive(4), queue.receive(100)
    assert queue.payloads(first) + queue.payloads(second) == PAYLOADS
    assert queue.receive(1) == []
    queue.ack(first)
    queue.ack(second)
    assert queue.left() == 0


@pytest.mark.parametrize("name", [name for name in queues.CANDIDATES if name != "huey"])
def test_what_is_not_acknowledged_counts(name: str, tmp_path: Path) -> None:
    with closing(_or_skip(queues.CANDIDATES[name], tmp_path)) as queue:
        queue.publish(PAYLOADS)
        queue.ack(queue.receive(4))
        assert queue.left() == 6
        queue.receive(2)
        assert queue.left() == 6


@pytest.mark.parametrize(
    "name", ["ours", "SQLite by hand", "Redis", "persist-queue", "beanstalkd", "beanstalkd, piped"]
)
def test_it_is_there_after_a_restart(name: str, tmp_path: Path) -> None:
    with closing(_or_skip(queues.CANDIDATES[name], tmp_path)) as queue:
        queue.publish(PAYLOADS)
        queue.ack(queue.receive(4))
    with closing(queues.CANDIDATES[name](tmp_path)) as queue:
        assert queue.payloads(queue.receive(100)) == PAYLOADS[4:]


@pytest.mark.parametrize("opened", [SqliteQueue, RedisQueue, RedisQueueFastest])
def test_delays_and_leases_of_those_written_by_hand(opened: Callable[..., Any], tmp_path: Path) -> None:
    with closing(_or_skip(opened, tmp_path, 40)) as queue:
        queue.publish(PAYLOADS[:2], delay_millis=60_000)
        queue.publish(PAYLOADS[2:4])
        out = queue.receive(10)
        assert queue.payloads(out) == PAYLOADS[2:4]
        assert queue.receive(10) == []
        time.sleep(0.05)
        again = queue.receive(10)
        assert queue.payloads(again) == PAYLOADS[2:4]
        queue.ack(again)
        assert queue.left() == 2


def test_a_lease_that_ran_out_is_not_acknowledged(tmp_path: Path) -> None:
    with closing(SqliteQueue(tmp_path, lease_millis=1)) as queue:
        queue.publish(PAYLOADS)
        late = queue.receive(5)
        time.sleep(0.01)
        assert queue.payloads(queue.receive(5)) == PAYLOADS[5:]
        assert queue.payloads(queue.receive(5)) == PAYLOADS[:5]
        with pytest.raises(RuntimeError, match="lease"):
            queue.ack(late)
        assert queue.left() == 10


class _Forgetful(SqliteQueue):
    def ack(self, messages: Any) -> None:
        super().ack(messages[1:])


class _Lossy(SqliteQueue):
    def payloads(self, messages: Any) -> list[bytes]:
        return super().payloads(messages)[1:]


@pytest.mark.parametrize(("opened", "output"), [(_Forgetful, "still has 1"), (_Lossy, "returned 29")])
def test_what_does_not_come_back_whole_is_no_figure(opened: Callable[..., Any], output: str, tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as queue, pytest.raises(RuntimeError, match=output):
        queues.run(queue, PAYLOADS, batches=3)


def test_the_best_is_the_baseline_and_the_others_are_named() -> None:
    measured = {
        "ours": Series([Sample(1e-5, 1e-5)]),
        "huey": Series([Sample(4e-4, 4e-4)]),
        "litequeue": Series([Sample(2e-4, 3e-4)]),
        "beanstalkd": Missing("no beanstalkd on the path"),
    }
    row = rows.BY_NAME["P14q"]
    figure = queues.figure(row, measured, ["huey", "litequeue", "beanstalkd"], "")
    assert figure.value == pytest.approx(20)
    assert figure.ok
    for output in ("huey 400", "litequeue 200", "beanstalkd missing: no beanstalkd"):
        assert output in figure.note
    none = queues.figure(row, measured, ["beanstalkd"], "")
    assert none.value is None
    assert "no beanstalkd on the path" in none.note


def test_a_server_that_is_not_installed_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no-such-server"):
        Server("no-such-server", lambda socket: [], tmp_path)


def test_a_server_that_ends_is_missing(tmp_path: Path) -> None:
    if shutil.which("false") is None:
        pytest.skip("no program that fails")
    with pytest.raises(Missing, match="ended with 1"):
        Server("false", lambda socket: [], tmp_path)


def test_the_cpu_time_of_a_server_is_read_from_outside(tmp_path: Path) -> None:
    listen = (
        "import socket, sys, time\n"
        "with socket.socket(socket.AF_UNIX) as at:\n"
        "    at.bind(sys.argv[1]); at.listen()\n"
        "    while time.process_time() < 0.2: pass\n"
        "    time.sleep(60)\n"
    )
    if shutil.which("python3") is None:
        pytest.skip("no python3 on the path")
    server = Server("python3", lambda socket: ["-c", listen, socket], tmp_path)
    try:
        end = time.monotonic() + 30
        while server.cpu() < 0.2 and time.monotonic() < end:
            time.sleep(0.01)
        assert server.cpu() >= 0.2
        assert os.path.exists(server.socket)
    finally:
        server.stop()
    assert not os.path.exists(server.socket)


@pytest.mark.parametrize("kind", ["plain", "delayed"])
def test_a_restart_is_measured(kind: str, tmp_path: Path) -> None:
    opened, read, whole = queues_restart.restarted(kind, tmp_path / "store", 3_000, rounds=1)
    assert opened.cpu > 0
    assert read.cpu > 0
    assert "start of Python" in whole


@pytest.mark.parametrize(
    ("kind", "answer", "output"),
    [
        ("plain", {"number": 3, "backlog": 99}, "99 messages are outstanding"),
        ("plain", {"number": queues_restart.acknowledged(100)[0], "backlog": 90}, "is acknowledged"),
        ("plain", {"number": 98, "backlog": 90}, "was the first"),
        ("delayed", {"number": LATEST, "backlog": 90}, "before its delivery time"),
    ],
)
def test_a_wrong_first_delivery_is_no_figure(kind: str, answer: dict[str, int], output: str) -> None:
    with pytest.raises(RuntimeError, match=output):
        queues_restart.check(kind, 100, answer)


def test_the_worse_of_two_restarts_is_the_figure() -> None:
    row = rows.BY_NAME["P17"]
    plain = Figure(row, value=0.02, ours=20, baseline=1_000, note="plain")
    delayed = Figure(row, value=0.08, ours=80, baseline=1_000, note="delayed")
    found = queues_restart.worse({"plain": plain, "delayed": delayed})
    assert found is delayed
    assert "plain: 0.02" in found.note
    assert found.ok
