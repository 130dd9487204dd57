"""LevelDB through plyvel: synced batches, and synced single puts (which it groups across threads in C++)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Missing

_FIRST_KEY = 1 << 64


class LevelDb:
    def __init__(self, directory: Path) -> None:
        try:
            import plyvel
        except ImportError as error:
            raise Missing(f"plyvel cannot be imported ({error})") from error
        self._db = plyvel.DB(str(directory / "leveldb"), create_if_missing=True)
        self._next = _FIRST_KEY

    def stored(self, payloads: list[bytes]) -> list[bytes]:
        return payloads

    def append_batches(self, payloads: list[bytes], batches: int) -> None:
        key = self._next
        for _ in range(batches):
            with self._db.write_batch(sync=True) as batch:
                put = batch.put
                for number, value in enumerate(payloads, key):
                    put(number.to_bytes(16), value)
            key += len(payloads)
        self._next = key

    def put_range(self, first: int, payload: bytes, count: int) -> None:
        """Make `count` durable puts, one after the other."""
        put = self._db.put
        for number in range(_FIRST_KEY + first, _FIRST_KEY + first + count):
            put(number.to_bytes(16), payload, sync=True)

    def count(self) -> int:
        return sum(1 for _ in self._db.iterator(include_value=False))

    def close(self) -> None:
        self._db.close()
