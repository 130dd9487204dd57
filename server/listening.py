"""Addresses that servers listen at, as people write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookstand.errors import IncorrectParameterError, ServerAddressError

Address = tuple[str, int]


def address_of(text: str) -> Address:
    """Host and port of ``host:port``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise IncorrectParameterError(f"an address is written host:port, with a port up to 65535, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


@contextmanager
def listening(who: str) -> Iterator[None]:
    """That there is no listening at an address is an error that says who wanted to."""
    try:
        yield
    except OSError as error:
        raise ServerAddressError(f"{who} cannot listen: {error.strerror or error}") from error
