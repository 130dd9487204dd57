"""Disks of bookies made for a test: files with the entries and records that it wants to be there."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from bookstand.storage.format.digest import Digest
from bookstand.storage.format.entry_codec import encode, encode_explicit_lac

LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")
LEDGER_KEY, FENCE, EXPLICIT_LAC = -0x1000, -0x2000, -0x8000


def entries(
    digest: Digest,
    ledger_id: int,
    payloads: Iterable[bytes],
    *,
    first: int = 0,
    lac: int | None = None,
    length: int = 0,
) -> list[bytes]:
    """Consecutive entries as they are stored; each says that the one before the last is confirmed, or ``lac``."""
    found = []
    for entry_id, payload in enumerate(payloads, first):
        length += len(payload)
        found.append(encode(digest, ledger_id, entry_id, entry_id - 1 if lac is None else lac, length, payload))
    return found


def ledger_key(ledger_id: int, key: bytes) -> bytes:
    return IDS.pack(ledger_id, LEDGER_KEY) + LENGTH.pack(len(key)) + key


def fence(ledger_id: int) -> bytes:
    return IDS.pack(ledger_id, FENCE)


def explicit_lac(digest: Digest, ledger_id: int, lac: int) -> bytes:
    body = encode_explicit_lac(digest, ledger_id, lac)
    return IDS.pack(ledger_id, EXPLICIT_LAC) + LENGTH.pack(len(body)) + body


class Bookie:
    """A bookie below ``folder``, with as many journal and ledger folders as are written to."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.name = name

    def log(self, log_id: int, records: Iterable[bytes], ledgers: str = "ledgers") -> Path:
        header = struct.pack(">4siqi", b"BKLO", 1, 0, 0).ljust(1024, b"\0")
        path = self._write(ledgers, f"{log_id:x}.log", header, records)
        path.with_name("lastMark").write_bytes(bytes(16))
        return path

    def journal(self, journal_id: int, records: Iterable[bytes], journal: str = "journal") -> Path:
        header = struct.pack(">4si", b"BKLG", 6).ljust(512, b"\0")
        return self._write(journal, f"{journal_id:x}.txn", header, records, bytes(4096))

    def _write(self, folder: str, name: str, header: bytes, records: Iterable[bytes], end: bytes = b"") -> Path:
        current = self.folder / folder / "current"
        current.mkdir(parents=True, exist_ok=True)
        cookie = f'5\nbookieHost: "{self.name}"\njournalDir: "journal"\nledgerDirs: "1\\tledgers"\ninstanceId: "i"\n'
        (current / "VERSION").write_text(cookie)
        path = current / name
        with path.open("wb") as file:
            file.write(header)
            file.writelines(part for record in records for part in (LENGTH.pack(len(record)), record))
            file.write(end)
        return path
