"""Entries of one file as columns, and the digests they are checked by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bookstand.storage.format.digest import Digest, digest_for, digest_name

Column = NDArray[np.int64]

# The digest is valid.
GOOD = 0
# The digest cannot be checked: the entry has none, or an HMAC with an unknown password. The header is plausible, and a
# record or the end of the data follows.
UNCHECKED = 1
# The digest is wrong. The entry is reported as damage and is in no block.
BAD = 2

# Digest size of an entry for which no digest matched.
NO_DIGEST = -1


LENGTH_BYTES = 4
"""Size of the length field at the beginning of each record."""


class Block(NamedTuple):
    """Consecutive entries in file order. Entry ``i`` is stored as ``data[starts[i] : starts[i] + sizes[i]]``."""

    data: bytes
    starts: Column
    sizes: Column
    # Offsets of the stored entries in the file, after the length fields of their records.
    offsets: Column
    ledger_ids: Column
    entry_ids: Column
    lacs: Column
    lengths: Column
    verdicts: NDArray[np.uint8]
    # Size of the digest between header and payload, which identifies it: 4 CRC32C, 8 CRC32, 20 HMAC, 0 none; NO_DIGEST
    # if unknown.
    digest_sizes: Column

    def stored(self, row: int) -> bytes:
        start = int(self.starts[row])
        return self.data[start : start + int(self.sizes[row])]


class Digests(Protocol):
    """Digest of each ledger's entries."""

    @property
    def passwords(self) -> Sequence[bytes]:
        """Candidate passwords for an HMAC, for ledgers whose password is unknown."""

    def of(self, ledger_id: int) -> Digest | None:
        """Return the ledger's digest. For None, CRC32C, CRC32 and an HMAC with each of the passwords are tried."""


class TryAllDigests:
    """Digests without metadata: all of them are tried."""

    def __init__(self, passwords: Sequence[bytes] = ()) -> None:
        self.passwords: Sequence[bytes] = tuple(passwords)

    def of(self, ledger_id: int) -> Digest | None:
        return None


class KnownDigests:
    """Digests by ledger id, from (digest name, password). All digests are tried for other ledgers, and for an HMAC
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
