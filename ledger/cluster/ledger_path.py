"""Paths of ledgers in BookKeeper's hierarchical layouts: ``/ledgers/00/0000/L0012`` with 10 digits of the ledger id,
or ``/ledgers/000/0000/0000/0000/L0012`` with 19 digits for ids from 2^31 - 1."""

from __future__ import annotations

import re

from bookstand.errors import IncorrectParameterError

_INT64 = 1 << 63
ROOT = "/ledgers"
_SHORT_ID = re.compile(r"/ledgers/([0-9]{2})/([0-9]{4})/L([0-9]{4})")
_LONG_ID = re.compile(r"/ledgers/([0-9]{3})/([0-9]{4})/([0-9]{4})/([0-9]{4})/L([0-9]{4})")
_FIRST_LONG_ID = (1 << 31) - 1


def ledger_path(ledger_id: int) -> str:
    """Return the path of a ledger's node."""
    if not 0 <= ledger_id < _INT64:
        raise IncorrectParameterError(f"the ledger id must be from 0 to 2^63-1, not {ledger_id}")
    if ledger_id < _FIRST_LONG_ID:
        digits = f"{ledger_id:010}"
        return f"{ROOT}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019}"
    return f"{ROOT}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of(path: str) -> int | None:
    """Return the id of the ledger whose node is at ``path``, in either layout, or None."""
    match = _SHORT_ID.fullmatch(path) or _LONG_ID.fullmatch(path)
    if match is None:
        return None
    ledger_id = int("".join(match.groups()))
    return ledger_id if ledger_id < _INT64 else None
