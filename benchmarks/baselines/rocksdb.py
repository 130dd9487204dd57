"""RocksDB through rocksdict: raw bytes, one synced WriteBatch per commit."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Missing

_FIRST_KEY = 1 << 64


class RocksDb:
    """Tried without gain: a vector memtable, pipelined writes, `batch[key] = value`."""

    def __init__(self, directory: Path) -> None:
        try:
            import rocksdict
        except ImportError as error:
            raise Missing(f"rocksdict cannot be imported ({error})") from error
        self._batch = rocksdict.WriteBatch
        self._db = rocksdict.Rdict(str(directory / "rocksdb"), rocksdict.Options(raw_mode=True))
        self._synced = rocksdict.WriteOptions()
        self._synced.sync = True
        self._next = _FIRST_KEY

    def stored(self, payloads: list[bytes]) -> list[bytes]:
        return payloads

    def append_batches(self, payloads: list[bytes], batches: int) -> None:
        key = self._next
        for _ in range(batches):
            batch = self._batch(raw_mode=True)
            put = batch.put
            for number, value in enumerate(payloads, key):
                put(number.to_bytes(16), value)
            self._db.write(batch, self._synced)
            key += len(payloads)
        self._next = key

    def count(self) -> int:
        return sum(1 for _ in self._db.keys())  # noqa: SIM118

    def close(self) -> None:
        self._db.close()
