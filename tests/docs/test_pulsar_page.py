"""Running a Pulsar broker on a store: what the page says of the store and its server. What it says of the broker is
what ``make interop`` starts one with."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from kazoo.client import KazooClient

from tests.docs.steps import environment
from tests.interop import broker_page as page
from tests.kit import PATIENCE

ADMIN = "http://127.0.0.1:8089"


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """By the page's command, but at free ports."""
    command = [*shlex.split(page.serving()), "--zookeeper", "0", "--json"]
    command[command.index("--admin") + 1] = "0"
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.long
def test_the_power_is_cut_and_the_store_looked_at(tmp_path: Path) -> None:
    (cut,) = (command for command in page.commands() if command.startswith("curl "))
    with served(tmp_path) as (process, where):
        client = KazooClient(hosts=where["zookeeper"], timeout=30)
        client.start(timeout=PATIENCE)
        client.create("/managed-ledgers/acme", b"", makepath=True)
        client.stop()
        client.close()
        _, _, header, _, body, url = shlex.split(cut.replace(ADMIN, where["admin"]))
        asked = Request(url, body.encode(), dict([header.split(": ")]))
        # Nobody is left to answer.
        with pytest.raises(ConnectionError):
            urlopen(asked, timeout=PATIENCE)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        before = where
    with served(tmp_path) as (process, where):
        assert where["bookies"] == before["bookies"]
        look(tmp_path)
        process.terminate()
        assert process.wait(PATIENCE) == 0
    look(tmp_path)


def look(folder: Path) -> None:
    (commands,) = (command for command in page.commands() if command.startswith("bookstand verify "))
    for command in commands.splitlines():
        done = subprocess.run(
            shlex.split(command), cwd=folder, env=environment(), check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_what_a_broker_is_given_is_on_the_page() -> None:
    settings = page.settings(4711)
    assert settings["metadataStoreUrl"] == "zk:127.0.0.1:4711"
    assert settings["bookkeeperMetadataServiceUri"] == "zk+hierarchical://127.0.0.1:4711/ledgers"
    assert f"--cluster {settings['clusterName']} " in page.initializing(4711)
