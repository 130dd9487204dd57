"""Nodes below ``/ledgers`` other than ledgers: the layout, the instance id, cookies and available bookies.

A running bookie has a node below ``available``, a read-only one below ``available/readonly``. The value is a
BookieServiceInfoFormat: field 6 is an endpoint, whose fields 1 to 4 are id, port, host and protocol.
"""

from __future__ import annotations

from bookstand.ledger.cluster.ledger_path import ROOT
from bookstand.proto.wire_format import write_bytes_field, write_varint_field

LAYOUT = f"{ROOT}/LAYOUT"
INSTANCE_ID = f"{ROOT}/INSTANCEID"
COOKIES = f"{ROOT}/cookies"
AVAILABLE = f"{ROOT}/available"
READ_ONLY = f"{AVAILABLE}/readonly"

HIERARCHICAL = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
"""Value of the layout node for the layout of :mod:`bookstand.ledger.cluster.ledger_path`."""

_NAME, _PROTOCOL = b"bookie", b"bookie-rpc"

_ENDPOINTS = 6
_ID, _PORT, _HOST, _PROTOCOL_FIELD = 1, 2, 3, 4


def service_info(host: str, port: int) -> bytes:
    """Encode the BookieServiceInfoFormat of a bookie that listens at this address."""
    endpoint = bytearray()
    write_bytes_field(endpoint, _ID, _NAME)
    write_varint_field(endpoint, _PORT, port)
    write_bytes_field(endpoint, _HOST, host.encode())
    write_bytes_field(endpoint, _PROTOCOL_FIELD, _PROTOCOL)
    out = bytearray()
    write_bytes_field(out, _ENDPOINTS, endpoint)
    return bytes(out)
