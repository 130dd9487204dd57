"""Four-letter words: what somebody at a terminal, or a supervisor, asks a server for without a session."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.server import ZooKeeperServer

WORD_BYTES = 4

# What the server answers as is 3.9's; the number tells clients which requests they may send.
VERSION = "3.9.5-bookstand"


def _ruok(server: ZooKeeperServer) -> str:
    return "imok"


def _isro(server: ZooKeeperServer) -> str:
    return "rw"


def _conf(server: ZooKeeperServer) -> str:
    least, most = server.sessions.limits
    return _lines(
        f"clientPort={server.port}",
        f"dataDir={server.storage.path}",
        f"tickTime={server.tick}",
        "maxClientCnxns=0",
        f"minSessionTimeout={least}",
        f"maxSessionTimeout={most}",
        "serverId=0",
    )


def _envi(server: ZooKeeperServer) -> str:
    return _lines(
        "Environment:",
        f"zookeeper.version={VERSION}, built on 01/01/1970 00:00 GMT",
        f"host.name={platform.node()}",
        f"python.version={platform.python_version()}",
        f"os.name={platform.system()}",
        f"os.arch={platform.machine()}",
        f"os.version={platform.release()}",
    )


def _srvr(server: ZooKeeperServer) -> str:
    return _lines(f"Zookeeper version: {VERSION}, built on 01/01/1970 00:00 GMT", *_figures(server))


def _stat(server: ZooKeeperServer) -> str:
    return _lines(
        f"Zookeeper version: {VERSION}, built on 01/01/1970 00:00 GMT",
        "Clients:",
        *_clients(server),
        "",
        *_figures(server),
    )


def _figures(server: ZooKeeperServer) -> Iterator[str]:
    least, average, most = server.metrics.latency()
    yield f"Latency min/avg/max: {least:.0f}/{average:.4f}/{most:.0f}"
    yield f"Received: {server.metrics.received}"
    yield f"Sent: {server.metrics.sent}"
    yield f"Connections: {len(server.connections)}"
    yield f"Outstanding: {server.outstanding}"
    yield f"Zxid: {server.tree.zxid:#x}"
    yield "Mode: standalone"
    yield f"Node count: {server.znodes}"


def _clients(server: ZooKeeperServer) -> Iterator[str]:
    for connection in server.connections:
        yield (
            f" /{connection.peer}[{int(connection.session is not None)}](queued={len(connection.frames)},"
            f"recved={connection.received_count},sent={connection.sent_count})"
        )


def _cons(server: ZooKeeperServer) -> str:
    return _lines(*_clients(server), "")


def _dump(server: ZooKeeperServer) -> str:
    lines = ["SessionTracker dump:", f"Session Sets ({len(server.sessions)})/({len(server.sessions)}):"]
    lines += [f"\t{session.id:#x}\t{session.timeout}ms" for session in server.sessions]
    owned = {owner: paths for owner, paths in server.tree.ephemerals.items() if paths}
    lines += ["ephemeral nodes dump:", f"Sessions with Ephemerals ({len(owned)}):"]
    for owner, paths in owned.items():
        lines += [f"{owner:#x}:", *(f"\t{path}" for path in sorted(paths))]
    return _lines(*lines)


def _wchs(server: ZooKeeperServer) -> str:
    connections, paths, total = server.tree.watches.counts()
    return _lines(f"{connections} connections watching {paths} paths", f"Total watches:{total}")


def _wchp(server: ZooKeeperServer) -> str:
    lines: list[str] = []
    for path, watchers in sorted(server.tree.watches.by_path().items()):
        lines += [path, *sorted(f"\t{watcher.session_id:#x}" for watcher in watchers)]
    return _lines(*lines)


def _wchc(server: ZooKeeperServer) -> str:
    watched: dict[int, list[str]] = {}
    for path, watchers in sorted(server.tree.watches.by_path().items()):
        for watcher in watchers:
            watched.setdefault(watcher.session_id, []).append(path)
    lines: list[str] = []
    for session_id, paths in sorted(watched.items()):
        lines += [f"{session_id:#x}", *(f"\t{path}" for path in paths)]
    return _lines(*lines)


def _mntr(server: ZooKeeperServer) -> str:
    least, average, most = server.metrics.latency()
    _, _, watches = server.tree.watches.counts()
    figures = {
        "version": f"{VERSION}, built on 01/01/1970 00:00 GMT",
        "server_state": "standalone",
        "min_latency": f"{least:.0f}",
        "avg_latency": f"{average:.4f}",
        "max_latency": f"{most:.0f}",
        "packets_received": server.metrics.received,
        "packets_sent": server.metrics.sent,
        "num_alive_connections": len(server.connections),
        "outstanding_requests": server.outstanding,
        "znode_count": server.znodes,
        "watch_count": watches,
        "ephemerals_count": sum(map(len, server.tree.ephemerals.values())),
        "global_sessions": len(server.sessions),
    }
    return _lines(*(f"zk_{name}\t{value}" for name, value in figures.items()))


def _srst(server: ZooKeeperServer) -> str:
    server.metrics.reset()
    return _lines("Server stats reset.")


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


WORDS: dict[bytes, Callable[[ZooKeeperServer], str]] = {
    b"ruok": _ruok,
    b"isro": _isro,
    b"conf": _conf,
    b"envi": _envi,
    b"srvr": _srvr,
    b"stat": _stat,
    b"cons": _cons,
    b"dump": _dump,
    b"wchs": _wchs,
    b"wchp": _wchp,
    b"wchc": _wchc,
    b"mntr": _mntr,
    b"srst": _srst,
}
