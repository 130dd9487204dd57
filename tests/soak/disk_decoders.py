"""Readers of bookies' disks: the part of the table that is theirs."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from bookstand.disk.block import Digests, TryAll
from bookstand.disk.damage import Damage
from bookstand.errors import MalformedError
from tests.disk import plain_reading
from tests.disk.plain_reading import KNOWN, OTHER_PASSWORD, PASSWORD, Found
from tests.soak.decoder import Decoder

_DIGESTS: dict[str, Digests] = {"by known digests": KNOWN, "by trying": TryAll([PASSWORD, OTHER_PASSWORD])}


def all_of_them(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    logs, journals = plain_reading.some_logs(rng), plain_reading.some_journals(rng)
    return {
        f"{what}, {how}": Decoder(samples, _held_against_the_slow_way(read, folder / "of a bookie", digests), share=0.3)
        for what, samples, read in (
            ("entry log", logs, plain_reading.read_log),
            ("journal", journals, plain_reading.read_journal),
        )
        for how, digests in _DIGESTS.items()
    }


def _held_against_the_slow_way(
    read: Callable[..., tuple[list[Found], list[Damage]]], path: Path, digests: Digests
) -> Callable[[bytes], list[Found]]:
    """Damage counts as a refusal, once what was found beside it turned out to be just what is right in the file."""

    def decode(data: bytes) -> list[Found]:
        found, damage = read(path, data, digests)
        plain_reading.hold_against(data, found, digests)
        if damage:
            raise MalformedError(str(damage[0]))
        return found

    return decode
