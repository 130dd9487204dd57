"""Authentication exchange of both versions: the bookie replies that authentication is disabled."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.protocol.v2 import MalformedRequestError

NONE = messages.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")


def check(octets: bytes) -> None:
    """Raise unless ``octets`` is an AuthMessage."""
    try:
        messages.AuthMessage.FromString(octets)
    except DecodeError as error:
        raise MalformedRequestError(f"this is no authentication: {error}") from None
