"""A small HTTP endpoint in background threads, driven by a table of routes.

It serves people and programs on the same machine and rejects requests from web pages in their browsers. A request that
changes something must have a JSON content type, which a page of another origin cannot send. The Host header must be an
IP address or localhost, which defeats DNS rebinding.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import BoundedSemaphore, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from bookstand.errors import BookstandError
from bookstand.server.bind_errors import Address, bind_errors, joined
from bookstand.storage.logger import logger
from bookstand.storage.process import fork_guard
from bookstand.storage.process.fork_guard import ProcessBound

JSON = "application/json"
_MOST_BYTES = 1 << 16
_TIMEOUT = 10.0
# A slow connection occupies its thread: the timeout applies to each read, not to the request.
MOST_CONNECTIONS = 64


class Answer(NamedTuple):
    body: bytes
    content_type: str = JSON


Route = Callable[[Mapping[str, Any]], Answer]
"""Handler; its argument merges the query parameters and the members of the JSON object in the body."""
Routes = Mapping[str, Mapping[str, Route]]
"""Handlers by path and method."""


def as_json(value: object) -> Answer:
    return Answer(json.dumps(value, ensure_ascii=False).encode() + b"\n")


class _HttpServer(ThreadingHTTPServer):
    """One thread per connection, up to a limit. Connections beyond it are closed when they are accepted."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: Address, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            logger().warning("the endpoint %s has %d connections: another is closed", self.name, MOST_CONNECTIONS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    @property
    def name(self) -> str:
        return joined((str(self.server_address[0]), self.server_address[1]))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected; log everything else."""
        error = sys.exception()
        if not isinstance(error, OSError):
            logger().error("the endpoint %s failed", self.name, exc_info=error)


class Endpoint(ProcessBound):
    """Listen at :attr:`url` inside a ``with Endpoint("metrics", address, routes) as endpoint:`` block."""

    def __init__(self, who: str, address: Address, routes: Routes) -> None:
        with bind_errors(f"the endpoint for {who}"):
            try:
                self._server = _HttpServer(address, _handler(routes))
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror or error} at {joined(address)}") from error
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), name=f"bookstand-{who}", daemon=True)
        host, port = self._server.server_address[:2]
        self.url = f"http://{joined((str(host), port))}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _forked(self) -> None:
        """Close the port in a forked child."""
        fork_guard.disconnect(self._server.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, what: str) -> None:
        super().__init__(what)
        self.status = status


def _handler(routes: Routes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _TIMEOUT

        def _answer(self) -> None:
            try:
                _check_host(self.headers.get("Host", ""))
                self._send(HTTPStatus.OK, self._route()(self._said()))
            except _RefusedError as error:
                # Unread bytes of this request would be parsed as the next one.
                self.close_connection = True
                self._send(error.status, _failure("RefusedError", str(error)))
            except BookstandError as error:
                self._send(HTTPStatus.BAD_REQUEST, _failure(type(error).__name__, str(error)))

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - as the library calls them

        def _route(self) -> Route:
            methods = routes.get(_split(self.path).path)
            if methods is None:
                raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is {', '.join(routes)}")
            if self.command not in methods:
                raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"there is {', '.join(methods)} of it")
            return methods[self.command]

        def _said(self) -> dict[str, Any]:
            said: dict[str, Any] = dict(parse_qsl(_split(self.path).query))
            size = self.headers.get("Content-Length", "0")
            if not size.isdecimal() or int(size) > _MOST_BYTES:
                raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {_MOST_BYTES} bytes")
            if self.command == "POST" and self.headers.get_content_type() != JSON:
                raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content type of a POST must be {JSON}")
            body = self.rfile.read(int(size))
            if body:
                try:
                    found = json.loads(body)
                except (ValueError, RecursionError) as error:
                    raise _RefusedError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
                if not isinstance(found, dict):
                    raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
                said |= found
            return said

        def _send(self, status: HTTPStatus, answer: Answer) -> None:
            self.send_response(status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Do not log requests."""

    return Handler


def _failure(kind: str, what: str) -> Answer:
    return as_json({"error": {"kind": kind, "message": what}})


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{address!r} is no address: {error}") from None


def _check_host(host: str) -> None:
    name = _split(f"//{host}").hostname or ""
    try:
        ip_address(name)
    except ValueError:
        if name != "localhost":
            raise _RefusedError(HTTPStatus.FORBIDDEN, f"it is asked for by its address, not as {host!r}") from None
