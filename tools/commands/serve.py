"""Serve a store to BookKeeper and ZooKeeper clients in any language. One process acts as the whole cluster.

The store is created if it does not exist. When clients can connect, the addresses for their configuration are printed.
Ctrl-C or SIGTERM stops the server: received requests are answered, the store is closed, and the exit code is 0.

There is no authentication: any client that can reach the ports can read and write the store. By default only this
machine can reach them.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bookstand.errors import IncorrectParameterError
from bookstand.server.bind_errors import LOOPBACK
from bookstand.server.bookie.shared_state import LEAST_FRAME_BYTES, MOST_FRAME_BYTES, Limits
from bookstand.server.server import Server
from bookstand.testing import environment
from bookstand.tools.cli import output
from bookstand.tools.cli.options import Json

if TYPE_CHECKING:
    from bookstand.testing.faults.faults import Faults

EXAMPLES = (
    "bookstand serve my-store --zookeeper 0",
    "bookstand serve my-store --zookeeper 0 --bookies 1 --metrics 0 --json",
    "bookstand serve my-store --zookeeper 0 --admin 0 --fault delay@append=0.01",
)

_NO_AUTHENTICATION = "no authentication: any client that can reach these ports can write"


def run(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE", help="Folder of the store. It is created if it does not exist.", show_default=False
        ),
    ],
    bookies: Annotated[int, typer.Option(metavar="COUNT", help="Number of bookies.")] = 3,
    bookie_ports: Annotated[
        str | None,
        typer.Option(
            metavar="PORT,...",
            help="Port of each bookie, in the order of their numbers; replaces --bookies. 0, the default, is the "
            "bookie's previous port, or any free port.",
            show_default=False,
        ),
    ] = None,
    zookeeper: Annotated[
        str,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Address at which ZooKeeper listens. Port 0 is any free port.",
        ),
    ] = "2181",
    host: Annotated[str, typer.Option(metavar="HOST", help="Address at which bookies listen.")] = LOOPBACK,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Host to which clients connect, if it differs from these addresses.",
            show_default=False,
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Address of the HTTP API for state, metrics and faults.", show_default=False
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Address of the metrics for Prometheus.", show_default=False),
    ] = None,
    max_frame_size: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=LEAST_FRAME_BYTES,
            max=MOST_FRAME_BYTES,
            help="Maximum size of a frame that bookies accept, including its length field, as nettyMaxFrameSizeBytes. "
            "A larger add is rejected.",
        ),
    ] = Limits.frame_bytes,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Fault rule of the test kit, such as fail@append(4:17)=-6. May be repeated.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    server = Server(
        store,
        bookies,
        bookie_ports=None if bookie_ports is None else _ports(bookie_ports),
        zookeeper=zookeeper,
        host=host,
        advertise=advertise,
        admin=admin,
        metrics=metrics,
        limits=Limits(frame_bytes=max_frame_size),
        faults=fault or (),
        hooks=_hooks(),
        check="structure",
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.end())
    with server:
        _tell(server, store, json)
        server.wait()


def _hooks() -> Faults | None:
    """Return the faults that the environment sets; the test kit is only loaded if there are any."""
    if environment.FAULTS not in os.environ:
        return None
    from bookstand.testing.faults.faults import Faults

    return Faults.from_environment()


def _ports(text: str) -> list[int]:
    ports = text.split(",")
    if not all(port.isdecimal() and int(port) < 1 << 16 for port in ports):
        raise IncorrectParameterError(
            f"--bookie-ports must be port numbers up to 65535, separated by commas, not {text!r}"
        )
    return list(map(int, ports))


def _tell(server: Server, path: str, json: bool) -> None:
    """Print the addresses right away, because clients wait for them."""
    if json:
        output.json_line({"kind": "serve", **server.state(), "path": path})
    else:
        output.paragraph(f"store {path}")
        output.paragraph(f"metadataServiceUri={server.metadata_service_uri}")
        output.paragraph(f"metadataStoreUrl={server.metadata_store_url}")
        for number, address in enumerate(server.bookies, 1):
            output.line(f"bookie {number}: {address}")
        for what, url in (("admin", server.admin_url), ("metrics", server.metrics_url)):
            if url is not None:
                output.line(f"{what}: {url}")
        output.paragraph(_NO_AUTHENTICATION)
    sys.stdout.flush()
