"""A pytest plugin by which kazoo's own tests run against a server of ours, in the process of the tests.

In the place of the cluster of Java servers that kazoo's harness starts, there is one server over a store. Stopping it
and running it again keeps the store, as restarting a server keeps its data.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from types import ModuleType

import bookstand
from tests.server.zookeeper.kit import Serving

# What the harness imports to make keys for TLS, and servers in Java.
common = ModuleType("kazoo.testing.common")
common.ZookeeperCluster = None  # type: ignore[attr-defined]
sys.modules["kazoo.testing.common"] = common

from kazoo.testing import harness  # noqa: E402


class Server:
    """One server of the cluster, as kazoo's tests handle it."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="kazoo-")
        self._port = 0
        self._serving: Serving | None = None

    @property
    def running(self) -> bool:
        return self._serving is not None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def client_port(self) -> int:
        return self._port

    def run(self) -> None:
        if self._serving is None:
            self._store = bookstand.open(self._folder)
            self._serving = Serving(self._store.storage, port=self._port).__enter__()
            self._port = self._serving.port

    def stop(self) -> None:
        if self._serving is not None:
            self._serving.__exit__()
            self._serving = None
            report = self._store.verify()
            self._store.close()
            assert report.ok, str(report)

    def destroy(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.__init__()  # type: ignore[misc]

    def get_logs(self) -> list[str]:
        return []


class Cluster(list[Server]):
    """A cluster of one."""

    def start(self) -> None:
        for server in self:
            server.run()

    def stop(self) -> None:
        for server in self:
            server.stop()

    def terminate(self) -> None:
        for server in self:
            server.destroy()


CLUSTER = Cluster([Server()])
harness.get_global_cluster = lambda: CLUSTER
