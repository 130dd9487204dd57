"""What a bookie without authentication says to whoever authenticates himself, in either version."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.protocol.v2 import MalformedRequestError

NONE = messages.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")


def check(octets: bytes) -> None:
    """Whether it is an authentication at all."""
    try:
        messages.AuthMessage.FromString(octets)
    except DecodeError as error:
        raise MalformedRequestError(f"this is no authentication: {error}") from None
