"""kazoo's own tests, as they are in its distribution, against a server over a store.

Each module runs in a process of its own, with ``kazoo_plugin`` in the place of the cluster of Java servers. Kazoo waits
for most things for some seconds only: on a busy machine what has failed is run once more by itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kazoo")
pytest.importorskip("objgraph")

ROOT = Path(__file__).resolve().parent.parent.parent.parent

LEFT_OUT = {
    "test_client.py::TestClient::test_update_host_list": "goes on with other servers of a cluster when one is stopped",
    "test_client.py::TestSSLClient": "TLS",
    "test_client.py::TestReconfig": "changes which servers a cluster has",
    "test_connection.py::TestReadOnlyMode": "stops two of three servers, so that the third may only be read from",
}
"""And whole modules: ``test_sasl`` (SASL), ``test_gevent_handler`` and ``test_eventlet_handler`` (the same requests by
other event loops, which are not installed), ``test_build`` (kazoo's own packaging)."""

PASSED = {
    "barrier": 8,
    "cache": 17,
    "client": 106,
    "connection": 10,
    "counter": 5,
    "election": 2,
    "exceptions": 4,
    "hosts": 3,
    "interrupt": 1,
    "lease": 12,
    "lock": 31,
    "partitioner": 8,
    "party": 4,
    "paths": 16,
    "queue": 12,
    "retry": 7,
    "security": 4,
    "selectors_select": 5,
    "threading_handler": 22,
    "utils": 7,
    "watchers": 22,
}
"""How many tests of each module run, and pass."""


@pytest.mark.long
@pytest.mark.parametrize("name", PASSED)
def test_module(name: str, tmp_path: Path) -> None:
    module = f"test_{name}.py"
    found = run(module, tmp_path)
    if found.returncode == 1:
        print(found.stdout)
        again = run(module, tmp_path, "--last-failed")
        assert again.returncode == 0, again.stdout
        failed = int(re.findall(r"(\d+) failed", found.stdout)[-1])
    else:
        assert found.returncode == 0, found.stdout
        failed = 0
    assert int(re.findall(r"(\d+) passed", found.stdout)[-1]) + failed == PASSED[name]


def run(module: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    left_out = [f"--deselect=kazoo/tests/{test}" for test in LEFT_OUT if test.startswith(module)]
    command = [sys.executable, "-m", "pytest", "-p", "tests.server.zookeeper.kazoo_plugin", "-p", "no:randomly", "-q"]
    command += ["-o", f"cache_dir={folder}/cache", "-c", "/dev/null", "--timeout=200", *left_out, *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    import kazoo

    site = Path(kazoo.__file__).parent.parent
    return subprocess.run(
        [*command, f"--rootdir={site}", f"kazoo/tests/{module}"],
        cwd=site,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
