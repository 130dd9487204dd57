"""Four-letter words: status commands for operators and supervisors, which need no session."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.state import State

# The server behaves like 3.9. Clients derive from the number which requests they may send.
VERSION = "3.9.5-bookstand"
MOST_CHARACTERS = 4 << 20
"""Maximum size of a response: clients without a session can request all watches."""


def _ruok(state: State) -> str:
    return "imok"


def _isro(state: State) -> str:
    return "rw"


def _conf(state: State) -> str:
    least, most = state.sessions.limits
    return _lines(
        f"clientPort={state.port}",
        f"dataDir={state.storage.path}",
        f"tickTime={state.tick}",
        "maxClientCnxns=0",
        f"minSessionTimeout={least}",
        f"maxSessionTimeout={most}",
        "serverId=0",
    )


def _envi(state: State) -> str:
    return _lines(
        "Environment:",
        f"zookeeper.version={VERSION}, built on 01/01/1970 00:00 GMT",
        f"host.name={platform.node()}",
        f"python.version={platform.python_version()}",
        f"os.name={platform.system()}",
        f"os.arch={platform.machine()}",
        f"os.version={platform.release()}",
    )


def _srvr(state: State) -> str:
    return _lines(f"Zookeeper version: {VERSION}, built on 01/01/1970 00:00 GMT", *_figures(state))


def _stat(state: State) -> str:
    return _lines(
        f"Zookeeper version: {VERSION}, built on 01/01/1970 00:00 GMT",
        "Clients:",
        *_clients(state),
        "",
        *_figures(state),
    )


def _figures(state: State) -> Iterator[str]:
    least, average, most = state.metrics.latency()
    yield f"Latency min/avg/max: {least:.0f}/{average:.4f}/{most:.0f}"
    yield f"Received: {state.metrics.answers}"
    yield f"Sent: {state.metrics.answers + state.metrics.events}"
    yield f"Connections: {len(state.connections)}"
    yield f"Outstanding: {state.outstanding}"
    yield f"Zxid: {state.tree.zxid:#x}"
    yield "Mode: standalone"
    yield f"Node count: {state.znodes}"


def _clients(state: State) -> Iterator[str]:
    for connection in state.connections:
        yield (
            f" /{connection.peer}[{int(connection.session is not None)}](queued={len(connection.frames)},"
            f"recved={connection.requests},sent={connection.answers})"
        )


def _cons(state: State) -> str:
    return _lines(*_clients(state), "")


def _dump(state: State) -> str:
    lines = ["SessionTracker dump:", f"Session Sets ({len(state.sessions)})/({len(state.sessions)}):"]
    lines += [f"\t{session.id:#x}\t{session.timeout}ms" for session in state.sessions]
    owned = {owner: paths for owner, paths in state.tree.ephemerals.items() if paths}
    lines += ["ephemeral nodes dump:", f"Sessions with Ephemerals ({len(owned)}):"]
    for owner, paths in owned.items():
        lines += [f"{owner:#x}:", *(f"\t{path}" for path in sorted(paths))]
    return _lines(*lines)


def _wchs(state: State) -> str:
    connections, paths, total = state.watches.counts()
    return _lines(f"{connections} connections watching {paths} paths", f"Total watches:{total}")


def _wchp(state: State) -> str:
    lines: list[str] = []
    for path, watchers in sorted(state.watches.by_path().items()):
        lines += [path, *sorted(f"\t{watcher.session_id:#x}" for watcher in watchers)]
    return _lines(*lines)


def _wchc(state: State) -> str:
    watched: dict[int, list[str]] = {}
    for path, watchers in sorted(state.watches.by_path().items()):
        for watcher in watchers:
            watched.setdefault(watcher.session_id, []).append(path)
    lines: list[str] = []
    for session_id, paths in sorted(watched.items()):
        lines += [f"{session_id:#x}", *(f"\t{path}" for path in paths)]
    return _lines(*lines)


def _mntr(state: State) -> str:
    least, average, most = state.metrics.latency()
    _, _, watches = state.watches.counts()
    figures = {
        "version": f"{VERSION}, built on 01/01/1970 00:00 GMT",
        "server_state": "standalone",
        "min_latency": f"{least:.0f}",
        "avg_latency": f"{average:.4f}",
        "max_latency": f"{most:.0f}",
        "packets_received": state.metrics.answers,
        "packets_sent": state.metrics.answers + state.metrics.events,
        "num_alive_connections": len(state.connections),
        "outstanding_requests": state.outstanding,
        "znode_count": state.znodes,
        "watch_count": watches,
        "ephemerals_count": state.ephemerals,
        "global_sessions": len(state.sessions),
    }
    return _lines(*(f"zk_{name}\t{value}" for name, value in figures.items()))


def _srst(state: State) -> str:
    state.metrics.reset()
    return _lines("Server stats reset.")


def _crst(state: State) -> str:
    for connection in state.connections:
        connection.requests = connection.answers = 0
    return _lines("Connection stats reset.")


def _dirs(state: State) -> str:
    """One directory holds data and log, so both sizes are equal, as in ZooKeeper with a single directory."""
    with os.scandir(state.storage.path) as found:
        size = sum(entry.stat().st_size for entry in found if entry.is_file())
    return _lines(f"datadir_size: {size}", f"logdir_size: {size}")


def _rejected(name: str) -> Callable[[State], str]:
    """ZooKeeper's response to a word that is not whitelisted. The server has no trace mask and no digest history."""
    return lambda state: _lines(f"{name} is not executed because it is not in the whitelist.")


def _lines(*lines: str) -> str:
    out: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > MOST_CHARACTERS:
            out.append(f"... and more: {len(lines) - len(out)} lines are left out\n")
            break
        out.append(f"{line}\n")
    return "".join(out)


WORDS: dict[bytes, Callable[[State], str]] = {
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
    b"crst": _crst,
    b"dirs": _dirs,
    **{name.encode(): _rejected(name) for name in ("gtmk", "hash", "stmk")},
}
