"""Bare LMDB through py-lmdb: synced commits, entries as large as bookstand's."""

from __future__ import annotations

from pathlib import Path

import lmdb

_HEADER = bytes(36)
_FIRST_KEY = 1 << 64


class RawLmdb:
    """A put loop with 16-byte keys, and values of header, digest and payload as large as ours.

    Tried and slower: `Transaction.put`, arguments by keyword (by a third), `struct.pack` for keys (5 to 10 %), `map`
    over `put`, `overwrite=False`, `writemap`, `meminit=False`.
    """

    def __init__(self, directory: Path) -> None:
        self._env = lmdb.open(str(directory / "lmdb"), map_size=2 << 30, max_dbs=2, lib_version=0)
        self._db = self._env.open_db(b"entries")
        self._next = _FIRST_KEY

    def stored(self, payloads: list[bytes]) -> list[bytes]:
        return [_HEADER + payload for payload in payloads]

    def append_batches(self, payloads: list[bytes], batches: int) -> None:
        key = self._next
        for _ in range(batches):
            with self._env.begin(write=True, db=self._db) as transaction:
                put = transaction.cursor().put
                for number, value in enumerate(payloads, key):
                    put(number.to_bytes(16), value, True, True, True)
            key += len(payloads)
        self._next = key

    def append_one(self, value: bytes) -> None:
        key = self._next
        self._next = key + 1
        with self._env.begin(write=True, db=self._db) as transaction:
            transaction.put(key.to_bytes(16), value, True, True, True)

    def scan(self) -> None:
        """Iterate over every key and value as bytes; `buffers=True`, `getmulti` and `item()` are slower."""
        with self._env.begin(db=self._db) as transaction:
            for _key, _value in transaction.cursor().iternext(True, True):
                pass

    def count(self) -> int:
        with self._env.begin(db=self._db) as transaction:
            return int(transaction.stat(self._db)["entries"])

    def close(self) -> None:
        self._env.close()


class BulkLmdb(RawLmdb):
    """Uses `putmulti`, which calls from Python into C once per batch."""

    def append_batches(self, payloads: list[bytes], batches: int) -> None:
        key = self._next
        for _ in range(batches):
            with self._env.begin(write=True, db=self._db) as transaction:
                items = [(number.to_bytes(16), value) for number, value in enumerate(payloads, key)]
                transaction.cursor().putmulti(items, True, True, True)
            key += len(payloads)
        self._next = key
