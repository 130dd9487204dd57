"""What may be asked of a server over HTTP, by a program in any language."""

from __future__ import annotations

import http.client
import json
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand import errors
from bookstand.server import http_endpoint, serve
from bookstand.server.bind_errors import address_of
from bookstand.server.server import Server
from bookstand.server.zookeeper.protocol.protocol import EventType
from tests.kit import PATIENCE, eventually
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire
from tests.server.zookeeper.kit import Client, ClosedError

JSON = {"Content-Type": "application/json"}
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def server(store_path: Path) -> Iterator[Server]:
    with serve(store_path, bookies=1, admin="127.0.0.1:0", metrics="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def ask(server: Server) -> Ask:
    """Status and body of an answer, which is JSON."""

    def ask(method: str, path: str, said: Any = None, headers: dict[str, str] = JSON) -> tuple[int, Any]:
        assert server.admin_url is not None
        status, body = request(server.admin_url, method, path, said, headers)
        return status, json.loads(body)

    return ask


def request(url: str, method: str, path: str, said: Any = None, headers: dict[str, str] = JSON) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address_of(url.removeprefix("http://").partition("/")[0]), PATIENCE)
    try:
        body = said if said is None or isinstance(said, bytes) else json.dumps(said).encode()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(address_of(server.bookies[0])) as connection:
        yield connection


def test_the_state_says_where_everything_is(server: Server, ask: Ask) -> None:
    client = Client(address_of(server.zookeeper)[1]).connect()
    status, state = ask("GET", "/state")
    assert (status, state) == (200, server.state())
    assert state["metadata_service_uri"] == server.metadata_service_uri
    assert state["bookies"] == [{"name": server.bookies[0], "address": server.bookies[0], "running": True}]
    assert state["sessions"] == [f"{client.session_id:#x}"]
    client.close()


def test_faults_are_put_in_and_taken_out(ask: Ask, wire: Wire) -> None:
    rule = "fail@append(1:1)*inf=-105"
    assert ask("POST", "/faults", {"rule": rule}) == (200, [{"rule": rule, "met": 0, "fired": 0}])
    assert [wire.v2(kit.v2_add(kit.stored(1, number))).code for number in range(3)] == [0, 106, 0]
    assert ask("GET", "/faults") == (200, [{"rule": rule, "met": 1, "fired": 1}])
    ask("POST", "/faults", {"rule": "delay@read=0.01"})
    assert ask("DELETE", "/faults?rule=fail%40append(1%3A1)*inf%3D-105")[1] == [
        {"rule": "delay@read=0.01", "met": 0, "fired": 0}
    ]
    assert wire.v2(kit.v2_add(kit.stored(1, 1))).code == 0
    assert ask("DELETE", "/faults") == (200, [])


def test_a_rule_is_taken_out_in_the_words_that_it_was_put_in_with(ask: Ask) -> None:
    """Also where they say what goes without saying."""
    assert ask("POST", "/faults", {"rule": "stall+after@append(1:1)*1"})[1][0]["rule"] == "stall+after@append(1:1)"
    assert ask("DELETE", "/faults?rule=stall%2Bafter%40append(1%3A1)*1") == (200, [])


def test_what_is_stalled_is_let_go(ask: Ask, wire: Wire) -> None:
    ask("POST", "/faults", {"rule": "stall@append"})
    wire.send(kit.v2_add(kit.stored(1, 0)))
    eventually(lambda: ask("GET", "/faults")[1][0]["fired"])
    assert ask("POST", "/faults/release")[0] == 200
    assert wire.frame() is not None


def test_an_answer_that_is_lost(ask: Ask, server: Server, wire: Wire) -> None:
    ask("POST", "/faults", {"rule": "fail+after@append(1:0)=OutcomeUnknownError"})
    wire.send(kit.v2_add(kit.stored(1, 0)))
    eventually(lambda: server.store.storage.entry(1, 0) is not None)
    eventually(lambda: ask("GET", "/faults")[1][0]["fired"])
    assert select.select([wire.socket], [], [], 0.1)[0] == []


def test_a_crash_at_a_named_point(ask: Ask, server: Server, wire: Wire) -> None:
    """The entry is stored, and its client never told."""
    status, rules = ask("POST", "/crash", {"point": "append.stored"})
    assert (status, rules[0]["rule"]) == (200, "crash@append.stored")
    wire.send(kit.v2_add(kit.stored(1, 0)))
    assert wire.frame() is None
    with pytest.raises(errors.StoreCrashedError):
        server.wait()


def test_a_crash_at_once(ask: Ask, server: Server, wire: Wire) -> None:
    assert ask("POST", "/crash", {}) == (200, {"crashed": True})
    assert wire.frame() is None
    with pytest.raises(errors.StoreCrashedError):
        server.wait()


def test_a_bookie_is_stopped_and_started(ask: Ask, server: Server, wire: Wire) -> None:
    bookie = {"name": server.bookies[0], "address": server.bookies[0]}
    assert ask("POST", "/bookies/1/stop", {}) == (200, {**bookie, "running": False})
    assert wire.is_closed()
    with pytest.raises(ConnectionRefusedError):
        Wire(address_of(server.bookies[0]))
    assert ask("GET", "/state")[1]["bookies"] == [{**bookie, "running": False}]
    assert ask("POST", "/bookies/1/start") == (200, {**bookie, "running": True})
    with Wire(address_of(server.bookies[0])) as again:
        assert again.v2(kit.v2_add(kit.stored(1, 0))).code == 0


def test_a_session_is_cut_off_and_ended(ask: Ask, server: Server) -> None:
    port = address_of(server.zookeeper)[1]
    client = Client(port).connect()
    session = {"session": f"{client.session_id:#x}"}
    assert ask("POST", "/sessions/disconnect", session) == (200, session)
    with pytest.raises((ClosedError, ConnectionError)):
        client.ping()
    again = Client(port).connect(session_id=client.session_id, password=client.password)
    assert again.session_id == client.session_id
    assert ask("POST", "/sessions/expire", session)[0] == 200
    eventually(lambda: ask("GET", "/state")[1]["sessions"] == [])
    assert ask("POST", "/sessions/expire", session)[0] == 400
    client.close()
    again.close()


@pytest.mark.parametrize("place", ["admin_url", "metrics_url"])
def test_figures(server: Server, wire: Wire, place: str) -> None:
    wire.v2(kit.v2_add(kit.stored(1, 0)))
    status, body = request(getattr(server, place), "GET", "/metrics")
    assert status == 200
    lines = body.decode().splitlines()
    assert 'bookstand_bookie_requests_total{bookie="1",cluster="standalone",op="add",result="ok"} 1.0' in lines
    assert any(line.startswith("bookstand_zookeeper_znodes") for line in lines)


def test_who_has_figures_has_no_faults(server: Server) -> None:
    assert server.metrics_url is not None
    assert request(server.metrics_url, "POST", "/faults", {"rule": "fail@append"})[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "said", "headers", "status", "says"),
    [
        ("GET", "/", None, JSON, 404, "/faults"),
        ("PUT", "/faults", None, JSON, 501, None),
        ("DELETE", "/crash", None, JSON, 405, "POST"),
        ("POST", "/faults", {}, JSON, 400, "'rule' must be a string"),
        ("POST", "/faults", {"rule": "fail@nothing"}, JSON, 400, "there is no operation"),
        ("POST", "/faults", b"{", JSON, 400, "not JSON"),
        ("POST", "/faults", [], JSON, 400, "a JSON object"),
        ("POST", "/faults", bytes(70_000), JSON, 413, "at most"),
        ("DELETE", "/faults?rule=fail%40append", None, JSON, 400, "there is no rule"),
        ("POST", "/faults", {"rule": "fail@append@bookie2"}, JSON, 400, "has no bookie 2"),
        ("POST", "/bookies/2/stop", {}, JSON, 404, "/bookies/1/stop"),
        ("GET", "/bookies/1/stop", None, JSON, 405, "POST"),
        ("POST", "/crash", {"point": "nowhere"}, JSON, 400, "there is no point"),
        ("POST", "/crash", {"point": "append.stored", "nth": 0}, JSON, 400, "nth"),
        ("POST", "/crash", {"mode": "gently"}, JSON, 400, "raise or kill"),
        ("POST", "/sessions/expire", {"session": "mine"}, JSON, 400, "as in /state"),
        # What a page in a browser could send.
        ("POST", "/crash", b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        ("GET", "/state", None, {"Host": "evil.example:80"}, 403, "by its address"),
    ],
)
def test_what_is_refused(
    server: Server, method: str, path: str, said: Any, headers: dict[str, str], status: int, says: str | None
) -> None:
    assert server.admin_url is not None
    found, body = request(server.admin_url, method, path, said, headers)
    assert found == status
    if says is not None:
        assert says in json.loads(body)["error"]["message"]
    assert request(server.admin_url, "GET", "/state")[0] == 200


def test_a_port_that_is_taken(server: Server, tmp_path: Path) -> None:
    taken = str(server.admin_url).removeprefix("http://")
    with pytest.raises(errors.ServerAddressError, match=f"the endpoint for admin cannot listen.*{taken}"):
        Server(tmp_path / "other", admin=taken).start()


def test_a_stop_is_answered_when_watchers_have_been_notified(server: Server, ask: Ask) -> None:
    port = address_of(server.zookeeper)[1]
    with Client(port).connect() as watcher:
        watcher.children("/ledgers/available", watch=True)
        assert ask("POST", "/bookies/1/stop", {})[0] == 200
        assert select.select([watcher.socket], [], [], 0)[0] == [watcher.socket]
        watcher.ping()
        assert watcher.events == [(EventType.CHILDREN_CHANGED, "/ledgers/available")]


def test_connections_that_say_nothing_are_bounded_and_make_room_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "MOST_CONNECTIONS", 3)
    routes = {"/state": {"GET": lambda said: http_endpoint.as_json({})}}
    with http_endpoint.Endpoint("test", ("127.0.0.1", 0), routes) as listening:
        address = address_of(listening.url.removeprefix("http://"))
        silent = [socket.create_connection(address, PATIENCE) for _ in range(3)]
        for each in silent:
            each.sendall(b"GET /state HTTP/1.1\r\n")

        def is_closed() -> bool:
            try:
                return request(listening.url, "GET", "/state")[0] != 200
            except (OSError, http.client.HTTPException):
                return True

        eventually(is_closed)
        for each in silent:
            each.close()
        eventually(lambda: not is_closed())


@pytest.mark.parametrize("body", [b"[" * 60_000, b'{"rule": ' + b"[" * 50_000, b"\xff", b"[1]"])
def test_a_body_that_cannot_be_read_is_answered(ask: Ask, body: bytes) -> None:
    status, answer = ask("POST", "/faults", body)
    assert (status, answer["error"]["kind"]) == (400, "RefusedError")


@pytest.mark.parametrize(
    ("path", "host", "status"), [("/state", "[", 400), ("http://[/state", "127.0.0.1", 400), ("/state", "", 403)]
)
def test_an_address_that_cannot_be_read_is_answered(ask: Ask, path: str, host: str, status: int) -> None:
    assert ask("GET", path, headers={"Host": host})[0] == status
