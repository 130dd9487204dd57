"""Four-letter words, and figures for metrics."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bookstand.server.zookeeper.four_letter_words import WORDS
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import CreateMode, Op
from tests.server.zookeeper.kit import PATIENCE, Client, Serving


def ask(port: int, word: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(word.encode())
        answer = b""
        while more := connection.recv(65536):
            answer += more
    return answer.decode()


def test_all_are_answered(serving: Serving, client: Client) -> None:
    client.exists("/", watch=True)
    for word in WORDS:
        assert ask(serving.port, word.decode())


def test_what_they_say(serving: Serving, connect: Callable[..., Client]) -> None:
    client = connect()
    client.create("/e", mode=CreateMode.EPHEMERAL)
    client.get("/e", watch=True)
    client.children("/", watch=True)
    session = f"{client.session_id:#x}"
    assert ask(serving.port, "ruok") == "imok"
    assert ask(serving.port, "isro") == "rw"
    assert re.search(r"zookeeper\.version=3\.\d+\.\d+", ask(serving.port, "envi"))
    assert f"clientPort={serving.port}\n" in ask(serving.port, "conf")
    assert "Mode: standalone\nNode count: 5\n" in ask(serving.port, "srvr")
    assert re.search(r"/127\.0\.0\.1:\d+\[1\]\(queued=0,recved=4,sent=4\)", ask(serving.port, "stat"))
    assert f"Sessions with Ephemerals (1):\n{session}:\n\t/e\n" in ask(serving.port, "dump")
    assert ask(serving.port, "wchs") == "1 connections watching 2 paths\nTotal watches:2\n"
    assert ask(serving.port, "wchp") == f"/\n\t{session}\n/e\n\t{session}\n"
    assert ask(serving.port, "wchc") == f"{session}\n\t/\n\t/e\n"
    figures = dict(line.split("\t") for line in ask(serving.port, "mntr").splitlines())
    assert figures["zk_znode_count"] == "5"
    assert figures["zk_watch_count"] == "2"
    assert figures["zk_ephemerals_count"] == "1"
    assert figures["zk_global_sessions"] == "1"
    ask(serving.port, "srst")
    assert "Received: 0\n" in ask(serving.port, "srvr")


def test_connection_statistics_are_reset_by_a_word(serving: Serving, client: Client) -> None:
    client.exists("/")
    assert ask(serving.port, "crst") == "Connection stats reset.\n"
    assert re.search(r"\[1\]\(queued=0,recved=0,sent=0\)", ask(serving.port, "cons"))
    client.exists("/")
    assert re.search(r"\[1\]\(queued=0,recved=1,sent=1\)", ask(serving.port, "cons"))
    assert "Received: 0" not in ask(serving.port, "srvr")


def test_the_size_of_the_folder(serving: Serving, client: Client, store: Any) -> None:
    client.create("/a")
    found = re.fullmatch(r"datadir_size: (\d+)\nlogdir_size: (\d+)\n", ask(serving.port, "dirs"))
    assert found is not None
    assert int(found[1]) == int(found[2]) >= (Path(store.path) / "data.mdb").stat().st_size


@pytest.mark.parametrize("word", ["gtmk", "hash", "stmk"])
def test_words_without_a_meaning_here_are_rejected_as_zookeeper_does(serving: Serving, word: str) -> None:
    """``stmk`` is followed by a mask of eight octets."""
    octets = word + "\0" * 8 if word == "stmk" else word
    assert ask(serving.port, octets) == f"{word} is not executed because it is not in the whitelist.\n"


@pytest.mark.parametrize("cuts", [(1,), (2, 3), (1, 2, 3)])
def test_a_word_is_answered_however_it_arrives(serving: Serving, cuts: tuple[int, ...]) -> None:
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin, end in pairwise((0, *cuts, 4)):
            connection.sendall(b"ruok"[begin:end])
            time.sleep(0.05)
        assert connection.recv(100) == b"imok"


def test_words_are_those_of_zookeeper(serving: Serving) -> None:
    listed = "conf cons crst dirs dump envi gtmk hash isro mntr ruok srst srvr stat stmk wchc wchp wchs"
    assert sorted(word.decode() for word in WORDS) == listed.split()


def test_figures(serving: Serving, connect: Callable[..., Client]) -> None:
    client = connect()
    client.create("/a")
    client.create("/a")
    client.get("/a", watch=True)
    client.set("/a", b"x")

    def figures() -> dict[tuple[Any, ...], float]:
        return {(s.name, *sorted(s.labels.items())): s.value for s in serving.server.samples()}

    found = serving.do(figures)
    prefix = "bookstand_zookeeper_"
    requests = f"{prefix}requests_total"
    assert found[requests, ("op", "create"), ("result", "ok")] == 1
    assert found[requests, ("op", "create"), ("result", "node_exists")] == 1
    assert found[requests, ("op", "set_data"), ("result", "ok")] == 1
    assert found[f"{prefix}request_seconds_count", ("op", "create")] == 2
    assert found[f"{prefix}request_seconds_bucket", ("le", "+Inf"), ("op", "create")] == 2
    assert found[f"{prefix}request_seconds_sum", ("op", "create")] > 0
    assert found[f"{prefix}events_total",] == 1
    assert found[f"{prefix}sessions",] == 1
    assert found[f"{prefix}znodes",] == 5
    assert found[f"{prefix}watches",] == 0


def test_prometheus_takes_them(serving: Serving, client: Client, store: Any) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest

    client.create("/a")
    client.call(Op.CHECK_WATCHES, records.PathAndNumber("/a", 3))
    store._client.add_metrics(serving.server)
    registry = CollectorRegistry()
    registry.register(store.metrics())
    text = generate_latest(registry).decode()
    assert 'bookstand_zookeeper_requests_total{cluster="standalone",op="create",result="ok"} 1.0' in text
    assert 'bookstand_zookeeper_requests_total{cluster="standalone",op="check_watches",result="no_watcher"} 1.0' in text
    assert "# TYPE bookstand_zookeeper_request_seconds histogram" in text
