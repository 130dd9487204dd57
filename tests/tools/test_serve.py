"""``bookstand serve`` as a process: how it ends, what SIGKILL leaves, and what keeps it from serving."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import bookstand
from bookstand.server.bind_errors import address_of
from bookstand.tools.cli.exit_codes import FAILED, FINE, WRONG_ARGUMENTS
from tests.kit import PATIENCE, eventually
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire
from tests.tools.child import finished, start
from tests.tools.kit import run

RULE = "delay@append=0.01"


@contextmanager
def serving(path: Path, *options: object) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The process, and what it said of itself."""
    child = start("serve", path, *options, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        line = child.stdout.readline()
        assert line, child.stderr.read()
        yield child, json.loads(line)
    finally:
        child.kill()
        child.communicate(timeout=PATIENCE)


def bookie_of(said: dict[str, Any]) -> Wire:
    return Wire(address_of(said["bookies"][0]["address"]))


def test_the_largest_frame_is_an_option(tmp_path: Path) -> None:
    options = "--zookeeper", 0, "--bookies", 1, "--max-frame-size", 2_000
    with serving(tmp_path / "store", *options) as (_, said), bookie_of(said) as wire:
        assert wire.v2(kit.v2_add(kit.stored(1, 0, bytes(1_500)))).code == 0
        assert wire.v2(kit.v2_add(kit.stored(1, 1, bytes(2_500)))).code == 100
        assert wire.v2(kit.v2_add(kit.stored(1, 1, bytes(1_500)))).code == 0


@pytest.mark.parametrize("size", ["1023", "2147483648", "many"])
def test_a_frame_size_that_makes_no_sense_is_refused(tmp_path: Path, size: str) -> None:
    done = run("serve", tmp_path / "store", "--zookeeper", 0, "--max-frame-size", size)
    assert (done.code, done.out) == (WRONG_ARGUMENTS, "")
    assert "--max-frame-size" in done.err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "store", "--zookeeper", 0, "--fault", "delay@append=0.2") as (child, said):
        wire = bookie_of(said)
        assert wire.v2(kit.v2_add(kit.stored(1, 0))).code == 0
        wire.send(kit.v2_add(kit.stored(1, 1)))
        client = KazooClient(hosts=said["zookeeper"], timeout=30)
        client.start(timeout=PATIENCE)
        client.stop()
        client.close()
        child.send_signal(number)
        assert finished(child) == (FINE, "", "")
        wire.socket.close()
    with bookstand.open(tmp_path / "store", create=False) as store:
        assert store.verify().ok
        assert store.storage.entry(1, 0) is not None
        assert store.nodes.children("/ledgers/available") == ["readonly"]


def test_sigkill_and_a_start_on_the_same_ports(tmp_path: Path) -> None:
    """Sessions and ephemerals go on within their time-out, and every add that was answered is there."""
    path = tmp_path / "store"
    answered: set[int] = set()
    states: list[str] = []
    with ExitStack() as stack:
        child, said = stack.enter_context(serving(path, "--zookeeper", 0, "--bookies", 1))
        client = KazooClient(hosts=said["zookeeper"], timeout=30)
        client.add_listener(states.append)
        client.start(timeout=PATIENCE)
        session = client.client_id[0]
        client.create("/here", b"x", ephemeral=True)
        wire = bookie_of(said)

        def write() -> None:
            try:
                for number in range(1_000_000):
                    assert wire.v2(kit.v2_add(kit.stored(7, number))).code == 0
                    answered.add(number)
            except (OSError, AssertionError, AttributeError, EOFError):
                # It was killed: there is no answer.
                pass

        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: len(answered) >= 20)
        child.kill()
        child.wait(PATIENCE)
        writer.join(PATIENCE)
        wire.socket.close()
        port = address_of(said["zookeeper"])[1]
        child, again = stack.enter_context(serving(path, "--zookeeper", port, "--bookies", 1))
        assert again["bookies"] == said["bookies"]
        assert again["sessions"] == [f"{session:#x}"]
        eventually(lambda: client.connected and client.exists("/here") is not None)
        assert client.client_id[0] == session
        assert client.exists("/here").owner_session_id == session
        assert "LOST" not in states
        with bookie_of(again) as wire:
            for number in sorted(answered):
                assert wire.v2(kit.v2_read(7, number)).body == kit.stored(7, number)
        client.stop()
        client.close()


def test_a_crash_ends_it(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--zookeeper", 0, "--fault", "crash@append.stored") as (child, said):
        wire = bookie_of(said)
        wire.send(kit.v2_add(kit.stored(1, 0)))
        assert wire.frame() is None
        wire.socket.close()
        code, _, err = finished(child)
        assert (code, err.count("\n")) == (FAILED, 1)
        assert "crashed" in err


def test_sigkill_by_a_request(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--zookeeper", 0, "--admin", 0) as (child, said):
        connection = http.client.HTTPConnection(*address_of(said["admin"].removeprefix("http://")), PATIENCE)
        connection.request("POST", "/crash", b'{"mode": "kill"}', {"Content-Type": "application/json"})
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            connection.getresponse()
        connection.close()
        assert child.wait(PATIENCE) == -signal.SIGKILL


def test_rules_come_from_the_environment_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKSTAND_FAULTS", f"v1:seed=7;{RULE}")
    with serving(tmp_path / "store", "--zookeeper", 0, "--fault", "fail@read=-1") as (_, said):
        assert [rule["rule"] for rule in said["rules"]] == [RULE, "fail@read=-1"]


def test_it_binds_this_machine_alone_unless_told_otherwise(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--zookeeper", 0, "--admin", 0, "--metrics", 0) as (_, said):
        urls = [said[name].removeprefix("http://").partition("/")[0] for name in ("admin", "metrics")]
        places = [said["zookeeper"], *urls, *(bookie["address"] for bookie in said["bookies"])]
        assert {address_of(place)[0] for place in places} == {"127.0.0.1"}
    wide = ("--zookeeper", "0.0.0.0:0", "--host", "0.0.0.0", "--advertise", "localhost")
    with serving(tmp_path / "store", *wide) as (_, said):
        assert said["metadata_service_uri"].startswith("zk+hierarchical://localhost:")
        with bookie_of(said) as wire:
            assert wire.v2(kit.v2_add(kit.stored(1, 0))).code == 0


def test_it_says_that_it_asks_nobody(tmp_path: Path) -> None:
    child = start("serve", tmp_path / "store", "--zookeeper", 0, stdout=subprocess.PIPE)
    try:
        said = [child.stdout.readline() for _ in range(7)]
    finally:
        child.kill()
        child.communicate(timeout=PATIENCE)
    assert said[-1] == "no authentication: any client that can reach these ports can write\n"


def test_a_store_that_is_served_already(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--zookeeper", 0) as (child, said):
        result = run("serve", tmp_path / "store", "--zookeeper", 0)
        assert (result.code, result.out) == (FAILED, "")
        assert f"process {child.pid} serves its bookies already" in result.err
        with bookie_of(said) as wire:
            assert wire.v2(kit.v2_add(kit.stored(1, 0))).code == 0


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for option in ("--zookeeper", "--admin"):
            words = ["--zookeeper", 0, "--admin", 0, option, port]
            result = run("serve", tmp_path / "store", *words)
            assert (result.code, result.out) == (FAILED, "")
            assert str(port) in result.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--bookie-ports", "3181,many"), "separated by commas"),
        (("--bookies", 0), "from 1 to"),
        (("--zookeeper", "0.0.0.0:0"), "advertise"),
        (("--zookeeper", "here"), "host:port"),
        (("--fault", "fail@nothing"), "no operation"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path: Path, options: tuple[object, ...], says: str) -> None:
    result = run("serve", tmp_path / "store", "--zookeeper", 0, *options)
    assert (result.code, result.out) == (WRONG_ARGUMENTS, "")
    assert says in result.err
