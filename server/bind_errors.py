"""Addresses that servers listen on, and the errors of listening."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookstand.errors import IncorrectParameterError, ServerAddressError

Address = tuple[str, int]
LOOPBACK = "127.0.0.1"


def address_of(text: str) -> Address:
    """Parse ``host:port``. A port without a host is on the loopback interface."""
    host, colon, port = text.rpartition(":")
    if (colon and not host) or not port.isdecimal() or int(port) > 65535:
        raise IncorrectParameterError(f"an address is written host:port, with a port up to 65535, not {text!r}")
    if not colon:
        return LOOPBACK, int(port)
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


@contextmanager
def bind_errors(who: str) -> Iterator[None]:
    """Convert OSError into an error that names the service that cannot listen."""
    try:
        yield
    except OSError as error:
        raise ServerAddressError(f"{who} cannot listen: {error.strerror or error}") from error
