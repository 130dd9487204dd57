"""Entries of one file by the column, and by which digest they were checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bookstand.storage.format.digest import Digest, digest_for, digest_name

Column = NDArray[np.int64]

# The digest is right.
GOOD = 0
# There was no digest to check by: none is kept, or it is an HMAC under a password that was not offered. The entry's
# header makes sense, and so does what lies behind the entry.
UNCHECKED = 1
# The digest is wrong. Such an entry is reported as damage, and is in no block.
BAD = 2

# In the column of digest sizes: none of the digests tried was right.
NO_DIGEST = -1


LENGTH_BYTES = 4
"""Each record begins with its length."""


class Block(NamedTuple):
    """Entries that lie behind one another in a file, in its order. Entry ``i`` is stored as
    ``data[starts[i] : starts[i] + sizes[i]]``."""

    data: bytes
    starts: Column
    sizes: Column
    # Where the stored entries begin in the file: behind the lengths of their records.
    offsets: Column
    ledger_ids: Column
    entry_ids: Column
    lacs: Column
    lengths: Column
    verdicts: NDArray[np.uint8]
    # How many bytes of digest lie between header and payload, which tells the digest, too: 4 CRC32C, 8 CRC32, 20 HMAC,
    # 0 none; NO_DIGEST where it is not known.
    digest_sizes: Column

    def stored(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.data[start : start + int(self.sizes[row])]


class Digests(Protocol):
    """By which digest the entries of a ledger are to be checked."""

    @property
    def passwords(self) -> Sequence[bytes]:
        """Those under which an HMAC may be, where the ledger's own is not known."""

    def of(self, ledger_id: int) -> Digest | None:
        """None: not known. CRC32C, CRC32 and an HMAC for each of the passwords are tried."""


class TryAllDigests:
    """Without any metadata."""

    def __init__(self, passwords: Sequence[bytes] = ()) -> None:
        self.passwords: Sequence[bytes] = tuple(passwords)

    def of(self, ledger_id: int) -> Digest | None:
        return None


class KnownDigests:
    """From ledger id to (name of the digest, password). Ledgers that are not in it are tried, as are those with an HMAC
    whose password is None."""

    def __init__(self, known: Mapping[int, tuple[str, bytes | None]], passwords: Sequence[bytes] = ()) -> None:
        self.passwords: Sequence[bytes] = tuple(passwords)
        self._digests = {
            ledger_id: digest_for(name, password or b"")
            for ledger_id, (name, password) in known.items()
            if password is not None or digest_name(name) != "hmac"
        }

    def of(self, ledger_id: int) -> Digest | None:
        return self._digests.get(ledger_id)
