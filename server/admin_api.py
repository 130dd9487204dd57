"""HTTP API of a server for tests in any language: state, metrics, and fault injection."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bookstand.errors import IncorrectParameterError, MissingExtraError
from bookstand.server.http_endpoint import Answer, Route, Routes, as_json
from bookstand.testing.faults.rules import Rule

if TYPE_CHECKING:
    import bookstand
    from bookstand.server.server import Server

Said = Mapping[str, Any]


def metrics_routes(store: bookstand.Store) -> Routes:
    """Route for all metrics of the store, in the Prometheus text format."""
    return {"/metrics": {"GET": _metrics(store)}}


def _metrics(store: bookstand.Store) -> Route:
    collector = store.metrics()
    try:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ImportError as missing:
        raise MissingExtraError("metrics need prometheus-client: pip install 'bookstand[metrics]'") from missing

    def metrics(said: Said) -> Answer:
        return Answer(generate_latest(collector), CONTENT_TYPE_LATEST)

    return metrics


def routes(server: Server) -> Routes:
    """All routes. ``/metrics`` requires prometheus-client and is omitted without it."""
    faults = server.faults

    def state(said: Said) -> Answer:
        return as_json(server.state())

    def rules(said: Said) -> Answer:
        return as_json(faults.as_json())

    def put_in(said: Said) -> Answer:
        faults.add(_text(said, "rule"))
        return rules(said)

    def take_out(said: Said) -> Answer:
        if "rule" in said:
            faults.remove(_text(said, "rule"))
        else:
            faults.clear()
        return rules(said)

    def release(said: Said) -> Answer:
        faults.release()
        return rules(said)

    def crash(said: Said) -> Answer:
        mode, nth = said.get("mode", "raise"), said.get("nth", 1)
        if mode not in ("raise", "kill"):
            raise IncorrectParameterError(f"the mode of a crash is raise or kill, not {mode!r}")
        if "point" in said:
            point, value = _text(said, "point"), "kill" if mode == "kill" else ""
            faults.add(str(Rule("crash", point, nth=None if nth == 1 else nth, value=value)))
            return rules(said)
        if mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        server.crash()
        return as_json({"crashed": True})

    found: dict[str, dict[str, Route]] = {
        "/state": {"GET": state},
        "/faults": {"GET": rules, "POST": put_in, "DELETE": take_out},
        "/faults/release": {"POST": release},
        "/crash": {"POST": crash},
        **_of_bookies(server),
        "/sessions/expire": {"POST": _with_session(server.expire)},
        "/sessions/disconnect": {"POST": _with_session(server.disconnect)},
    }
    try:
        found["/metrics"] = {"GET": _metrics(server.store)}
    except MissingExtraError:
        pass
    return found


def _of_bookies(server: Server) -> dict[str, dict[str, Route]]:
    """Routes that stop and start each bookie."""

    def route(do: Callable[[int], None], number: int) -> Route:
        def called(said: Said) -> Answer:
            do(number)
            return as_json(server.state()["bookies"][number - 1])

        return called

    return {
        f"/bookies/{number}/{name}": {"POST": route(do, number)}
        for number in range(1, len(server.bookies) + 1)
        for name, do in (("stop", server.stop_bookie), ("start", server.start_bookie))
    }


def _with_session(do: Callable[[int], bool]) -> Route:
    def route(said: Said) -> Answer:
        written = _text(said, "session")
        try:
            number = int(written, 16)
        except ValueError:
            raise IncorrectParameterError(f"a session must be written as in /state, not {written!r}") from None
        if not do(number):
            raise IncorrectParameterError(f"there is no session {written}, or it has no connection")
        return as_json({"session": written})

    return route


def _text(said: Said, name: str) -> str:
    found = said.get(name)
    if not isinstance(found, str):
        raise IncorrectParameterError(f"{name!r} must be a string, not {found!r}")
    return found
