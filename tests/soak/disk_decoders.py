"""Readers of bookies' disks: the part of the table that is theirs.

Reports of damage count as a refusal.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bookstand.disk.bookies.bookie_directory import read_last_mark
from bookstand.disk.damage import Damage, Report
from bookstand.disk.format.entry_block import Digests, TryAllDigests
from bookstand.disk.format.index_file import read_index
from bookstand.disk.metadata.dump import MetadataDump
from bookstand.errors import MalformedError
from bookstand.ledger.cluster import cookie
from tests.disk import plain_reading
from tests.disk.plain_reading import KNOWN, OTHER_PASSWORD, PASSWORD, Found
from tests.disk.recordings import dump_path
from tests.soak.decoder import Decoder

_DIGESTS: dict[str, Digests] = {"by known digests": KNOWN, "by trying": TryAllDigests([PASSWORD, OTHER_PASSWORD])}


def all_of_them(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    logs, journals = plain_reading.some_logs(rng), plain_reading.some_journals(rng)
    path = folder / "of a bookie"
    found = {
        f"{what}, {how}": Decoder(samples, _held_against_the_slow_way(read, path, digests), share=0.3)
        for what, samples, read in (
            ("entry log", logs, plain_reading.read_log),
            ("journal", journals, plain_reading.read_journal),
        )
        for how, digests in _DIGESTS.items()
    }
    found["cookie"] = Decoder(_cookies(rng), cookie.parse, cookie.serialize)
    found["index file"] = Decoder(_indexes(rng), from_file(path, _index))
    found["last mark"] = Decoder(
        [struct.pack(">qq", rng.randrange(1 << 40), rng.randrange(1 << 30))], from_file(path, read_last_mark)
    )
    found["dump of metadata"] = Decoder(dumps(), from_file(path, everything_in_a_dump), share=0.2)
    return found


def _held_against_the_slow_way(
    read: Callable[..., tuple[list[Found], list[Damage]]], path: Path, digests: Digests
) -> Callable[[bytes], list[Found]]:
    """What is found beside damage is just what is right in the file."""

    def decode(data: bytes) -> list[Found]:
        found, damage = read(path, data, digests)
        plain_reading.hold_against(data, found, digests)
        if damage:
            raise MalformedError(str(damage[0]))
        return found

    return decode


def from_file(path: Path, read: Callable[[Path, Report], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        path.write_bytes(data)
        damage: list[Damage] = []
        found = read(path, damage.append)
        if damage:
            raise MalformedError(str(damage[0]))
        return found

    return decode


def _cookies(rng: random.Random) -> list[bytes]:
    folders = tuple(f"/mnt/{rng.randrange(1000)}" for _ in range(rng.randrange(1, 4)))
    return [
        cookie.serialize(cookie.Cookie("bookie:3181", folders, folders, "c5e9")),
        cookie.serialize(cookie.Cookie("b-\u00fc", folders[:1], folders, "")),
    ]


def _indexes(rng: random.Random) -> list[bytes]:
    header = b"BKLE" + struct.pack(">ii", 1, 20) + rng.randbytes(20) + struct.pack(">ii", 1, 0)
    locations = struct.pack(">4q", *(rng.randrange(1 << 40) for _ in range(4)))
    return [header.ljust(1024, b"\0") + locations]


def _index(path: Path, report: Report) -> Any:
    found = read_index(path.rename(path.with_name("7.idx")), report)
    return None if found is None else (found[1:], found.locations().tolist())


@cache
def dumps() -> list[bytes]:
    """Some nodes of each kind, of which a recorded dump has hundreds."""
    kinds: dict[tuple[str, ...], bytes] = {}
    for name in ("a", "d"):
        for line in gzip.decompress(dump_path(name).read_bytes()).splitlines(keepends=True):
            parts = json.loads(line)["path"].split("/")
            kinds.setdefault((name, parts[1], str(len(parts))), line)
    return [b"".join(line for (of, *_), line in kinds.items() if of == name) for name in ("a", "d")]


def everything_in_a_dump(path: Path, report: Report) -> Any:
    dump = MetadataDump.open(path, report)
    topics = {name: dump.topic_info(name) for name in dump.topics}
    cursors = {(name, one): dump.cursor_info(name, one) for name in topics for one in dump.cursors(name)}
    return dict(dump.ledgers), topics, cursors, dict(dump.partitioned), dump.bookies
