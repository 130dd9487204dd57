"""Serve a store to clients of BookKeeper and ZooKeeper in any language, as a cluster that is nothing but this process.

The store is made if it is not there. What clients have to be configured with is printed once they can connect. It ends
with Ctrl-C or SIGTERM: what has arrived is answered, and the store is closed; that is exit code 0.

Nobody is asked who he is: whoever reaches the ports reads and writes the store. Without other options they are reached
from this machine alone.
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

_NOBODY_ASKED = "nobody is asked who he is: whoever reaches these ports may write"


def run(
    store: Annotated[
        str,
        typer.Argument(metavar="STORE", help="A store: its folder. It is made if it is not there.", show_default=False),
    ],
    bookies: Annotated[int, typer.Option(metavar="COUNT", help="How many bookies there are.")] = 3,
    bookie_ports: Annotated[
        str | None,
        typer.Option(
            metavar="PORT,...",
            help="Where each bookie listens, in the order of their numbers; then these say how many there are. 0, or "
            "without this: where it did before, and anywhere at first.",
            show_default=False,
        ),
    ] = None,
    zookeeper: Annotated[
        str,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Where ZooKeeper listens. Port 0 is any free one.",
        ),
    ] = "2181",
    host: Annotated[str, typer.Option(metavar="HOST", help="At which address bookies listen.")] = LOOPBACK,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="By which host clients find all of it, if not those.", show_default=False),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Where state, figures and faults may be had over HTTP.", show_default=False
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Where Prometheus may have figures.", show_default=False),
    ] = None,
    max_frame_size: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=LEAST_FRAME_BYTES,
            max=MOST_FRAME_BYTES,
            help="Size of the largest frame that bookies accept, with its length field, as nettyMaxFrameSizeBytes. "
            "A longer add is refused.",
        ),
    ] = Limits.frame_bytes,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="A rule of the test kit, such as fail@append(4:17)=-6. May be repeated.",
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
        raise IncorrectParameterError(f"ports are numbers up to 65535 with commas between them, not {text!r}")
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
        output.paragraph(_NOBODY_ASKED)
    sys.stdout.flush()
