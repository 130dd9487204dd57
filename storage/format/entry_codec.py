"""Stored entries, byte for byte as a bookie stores them. No other module knows the layout."""

from __future__ import annotations

from bookstand.errors import DigestMismatchError
from bookstand.proto.struct_layout import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.format.digest import Digest

LAYOUT = Layout(
    "a stored entry",
    ("ledger id", "q", ""),
    ("entry id", "q", ""),
    ("LAC", "q", "the writer's last-add-confirmed when the entry was sent"),
    ("length", "q", "payload bytes of the ledger up to and including this entry"),
    ("digest", "0, 4, 8 or 20 bytes", "of the 32 bytes before it and the payload"),
    ("payload", "the rest", "what was appended"),
)
HEADER = LAYOUT.struct
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 32

EXPLICIT_LAC = Layout(
    "an explicit LAC",
    ("ledger id", "q", ""),
    ("LAC", "q", "the LAC sent without an entry"),
    ("digest", "0, 4, 8 or 20 bytes", "of the 16 bytes before it"),
)


def encode(
    digest: Digest, ledger_id: int, entry_id: int, last_add_confirmed: int, cumulative_length: int, payload: bytes
) -> bytes:
    header = HEADER.pack(ledger_id, entry_id, last_add_confirmed, cumulative_length)
    return header + digest.of(header, payload) + payload


def decode(digest: Digest, ledger_id: int, entry_id: int, stored: bytes) -> tuple[int, int, bytes]:
    """Return (last add confirmed, cumulative length, payload); :class:`DigestMismatchError` names the defect."""
    stored_entry, last_add_confirmed, length, payload = _verified(digest, ledger_id, stored, f"{ledger_id}:{entry_id}")
    if stored_entry != entry_id:
        raise DigestMismatchError(f"entry {ledger_id}:{entry_id}: the stored bytes are those of entry {stored_entry}")
    return last_add_confirmed, length, payload


def decode_last_confirmed(digest: Digest, ledger_id: int, stored: bytes) -> tuple[int, int]:
    """Return (last add confirmed, cumulative length) of any entry of the ledger."""
    _, last_add_confirmed, length, _ = _verified(digest, ledger_id, stored, f"{ledger_id}:last")
    return last_add_confirmed, length


def _verified(digest: Digest, ledger_id: int, stored: bytes, name: str) -> tuple[int, int, int, bytes]:
    start = HEADER_BYTES + digest.size
    if len(stored) < start:
        raise DigestMismatchError(f"entry {name}: {len(stored)} bytes are too few for header and {digest.name} digest")
    header, payload = stored[:HEADER_BYTES], stored[start:]
    if digest.of(header, payload) != stored[HEADER_BYTES:start]:
        raise DigestMismatchError(f"entry {name}: its {digest.name} digest does not match its bytes")
    stored_ledger, entry_id, last_add_confirmed, length = HEADER.unpack(header)
    if stored_ledger != ledger_id:
        raise DigestMismatchError(f"entry {name}: the stored bytes are those of ledger {stored_ledger}")
    return entry_id, last_add_confirmed, length, payload


def decode_header(stored: bytes) -> tuple[int, int, int, int]:
    """Return (ledger id, entry id, last add confirmed, cumulative length) without verifying the digest."""
    if len(stored) < HEADER_BYTES:
        raise DigestMismatchError(f"a stored entry of {len(stored)} bytes is too short for its header")
    ledger_id, entry_id, last_add_confirmed, length = HEADER.unpack_from(stored)
    return ledger_id, entry_id, last_add_confirmed, length


def encode_explicit_lac(digest: Digest, ledger_id: int, last_add_confirmed: int) -> bytes:
    """Body of a request that sets the LAC without adding an entry."""
    body = EXPLICIT_LAC.struct.pack(ledger_id, last_add_confirmed)
    return body + digest.of(body, b"")
