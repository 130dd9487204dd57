"""Damage of twelve kinds to the data file of small stores: opened, read, verified and written by a child each.

Half of the stores were closed in good order and are opened with ``check="full"``; the other half were left by a process
that died, which the quickest check looks at as closely. A case is a damaged file that no other case of the round has
and that is not the file as it was; every round has a store of its own. A file that is rolled back to an earlier
complete state of itself is the one damage that only a witness can tell, so half of the cases have one. It compares the
number of the commit, which stands in LMDB's header: where every page that has changed since went back and the header
did not, not even the witness can tell.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from bookstand.errors import StoreFormatError
from bookstand.storage.lmdb.meta_page import parse_meta
from tests.soak.kinds import Done, Kind
from tests.storage import trials
from tests.storage.trials import PAGE, Damage

EACH_KIND = 24
SECTOR = 512
META_PAGES = 2
META_BYTES = 152
META_FIELDS = (16, 20, 32, 40, 80, 128, 136, 144)
"""Where stand the magic, the version, the map's size, the size of a page, the roots of the two trees, the last page and
the number of the commit."""


class Target(NamedTuple):
    """The file to damage, and what it was at earlier commits."""

    image: bytes
    earlier: list[bytes]

    @property
    def pages(self) -> int:
        return len(self.image) // PAGE


def _bit_flip(rng: random.Random, target: Target) -> Damage:
    return [_flipped(rng, target)]


def _bit_flips(rng: random.Random, target: Target) -> Damage:
    # At different places: twice the same would be none.
    return list({edit[1]: edit for edit in (_flipped(rng, target) for _ in range(rng.randrange(2, 30)))}.values())


def _flipped(rng: random.Random, target: Target) -> list[Any]:
    offset = rng.randrange(len(target.image))
    return ["write", offset, f"{target.image[offset] ^ 1 << rng.randrange(8):02x}"]


def _byte_tear(rng: random.Random, target: Target) -> Damage:
    """A page of which a write got no further than some byte; the rest is what was there before."""
    page, old = _page_and_its_past(rng, target)
    torn = rng.randrange(1, PAGE)
    return [["write", page * PAGE + torn, old[torn:].hex()]]


def _sector_tear(rng: random.Random, target: Target) -> Damage:
    """A page of which only some sectors were written."""
    page, old = _page_and_its_past(rng, target)
    sectors = rng.sample(range(PAGE // SECTOR), rng.randrange(1, PAGE // SECTOR))
    return [
        ["write", page * PAGE + sector * SECTOR, old[sector * SECTOR : (sector + 1) * SECTOR].hex()]
        for sector in sectors
    ]


def _page_and_its_past(rng: random.Random, target: Target) -> tuple[int, bytes]:
    """A page, and what it held at an earlier commit, or nothing."""
    earlier = rng.choice(target.earlier)
    changed = [page for page in range(target.pages) if _page(earlier, page) != _page(target.image, page)]
    page = rng.choice(changed) if changed and rng.random() < 0.9 else rng.randrange(target.pages)
    return page, _page(earlier, page)


def _page(image: bytes, page: int) -> bytes:
    return image[page * PAGE : (page + 1) * PAGE].ljust(PAGE, b"\0")


def _truncation(rng: random.Random, target: Target) -> Damage:
    page = rng.randrange(target.pages)
    return [["cut", page * PAGE + rng.choice([0, 0, rng.randrange(PAGE)])]]


def _swapped_pages(rng: random.Random, target: Target) -> Damage:
    one, other = rng.sample(range(target.pages), 2)
    return [
        ["write", one * PAGE, _page(target.image, other).hex()],
        ["write", other * PAGE, _page(target.image, one).hex()],
    ]


def _misdirected_page(rng: random.Random, target: Target) -> Damage:
    """A page over another one, now and then with the number that it should have there."""
    one, other = rng.sample(range(target.pages), 2)
    damage: Damage = [["copy", one, other]]
    if rng.random() < 0.5:
        damage.append(["write", other * PAGE, other.to_bytes(8, "little").hex()])
    return damage


def _zeroed_pages(rng: random.Random, target: Target) -> Damage:
    page = rng.randrange(target.pages)
    count = rng.randrange(1, min(4, target.pages - page) + 1)
    start = rng.choice([0, 0, rng.randrange(PAGE // SECTOR) * SECTOR])
    return [["write", page * PAGE + start, "00" * (count * PAGE - start)]]


def _garbage_page(rng: random.Random, target: Target) -> Damage:
    page = rng.randrange(target.pages)
    # All of it, or its header alone.
    size = rng.choice([PAGE, rng.randrange(1, 32)])
    return [["write", page * PAGE + rng.randrange(PAGE - size + 1), rng.randbytes(size).hex()]]


def _stale_pages(rng: random.Random, target: Target) -> Damage:
    """Writes that never arrived: pages as they were at an earlier commit."""
    earlier = rng.choice(target.earlier)
    changed = [page for page in range(target.pages) if _page(earlier, page) != _page(target.image, page)]
    if not changed:
        return []
    stale = rng.sample(changed, rng.randrange(1, min(4, len(changed)) + 1))
    return [["write", page * PAGE, _page(earlier, page).hex()] for page in stale]


def _earlier_file(rng: random.Random, target: Target) -> Damage:
    """The whole file as it was at an earlier commit."""
    return [["cut", 0], ["write", 0, rng.choice(target.earlier).hex()]]


def _damaged_meta(rng: random.Random, target: Target) -> Damage:
    """A word of one or both header pages, or what lies around it."""
    damage: Damage = []
    for page in rng.choice([[0], [1], [0, 1]]):
        word = page * PAGE + rng.choice([rng.randrange(0, META_BYTES, 4), rng.choice(META_FIELDS)])
        value = rng.choice(
            [bytes(4), b"\xff" * 4, b"\0\0\x10\0", rng.randbytes(4), rng.randrange(99).to_bytes(4, "little")]
        )
        damage.append(["write", word, value.hex()])
    return damage


KINDS: dict[str, Callable[[random.Random, Target], Damage]] = {
    "bit flip": _bit_flip,
    "bit flips": _bit_flips,
    "byte tear": _byte_tear,
    "sector tear": _sector_tear,
    "truncation": _truncation,
    "swapped pages": _swapped_pages,
    "misdirected page": _misdirected_page,
    "zeroed pages": _zeroed_pages,
    "garbage page": _garbage_page,
    "stale pages": _stale_pages,
    "earlier file": _earlier_file,
    "damaged meta": _damaged_meta,
}


class Case(NamedTuple):
    kind: str
    damage: Damage
    unclean: bool
    witness: bool


def cases(seed: int, target: Target, each_kind: int = EACH_KIND, kinds: Collection[str] = tuple(KINDS)) -> list[Case]:
    """So many of each of the kinds, as far as there are so many that are not alike."""
    rng = random.Random(seed)
    seen = {_fingerprint(target.image)}
    found = []
    for kind in kinds:
        damage = KINDS[kind]
        wanted = each_kind
        for _ in range(each_kind * 5):
            if not wanted:
                break
            made = damage(rng, target)
            fingerprint = _fingerprint(trials.edited(target.image, made))
            if fingerprint not in seen:
                seen.add(fingerprint)
                found.append(Case(kind, made, rng.random() < 0.5, wanted % 2 == 0))
                wanted -= 1
    return found


def _commit(image: bytes) -> int:
    """The number of the last commit, as LMDB's header has it; -1 where it has none."""
    return max(map(_commit_of_meta, (_page(image, page) for page in range(META_PAGES))))


def _commit_of_meta(page: bytes) -> int:
    try:
        meta = parse_meta(page)
    except StoreFormatError:
        return -1
    return -1 if meta is None else meta.transaction


def _fingerprint(image: bytes) -> bytes:
    return hashlib.blake2b(image, digest_size=16).digest()


def one_round(seed: int, each_kind: int = EACH_KIND, kinds: Collection[str] = tuple(KINDS)) -> Done:
    folder = Path(tempfile.mkdtemp(prefix="bookstand-damaged-", dir=place()))
    try:
        return _one_round(seed, each_kind, kinds, folder)
    finally:
        shutil.rmtree(folder)


def _one_round(seed: int, each_kind: int, kinds: Collection[str], folder: Path) -> Done:
    shape = trials.Shape.of(seed)
    earlier: list[bytes] = []
    history = trials.make(folder / "clean", shape, earlier)
    image = (folder / "clean" / "data.mdb").read_bytes()
    shutil.copytree(folder / "clean", folder / "unclean")
    trials.left_by_a_crash(folder / "unclean")
    planned = cases(seed, Target(image, earlier), each_kind, kinds)
    problems: list[str] = []

    def examine(unclean: bool) -> None:
        for witness in (False, True):
            some = [case for case in planned if (case.unclean, case.witness) == (unclean, witness)]
            if not some:
                continue
            name = "unclean" if unclean else "clean"
            results = trials.trials(
                folder / name,
                [case.damage for case in some],
                folder / f"{name}-{witness}",
                shape,
                check="fast" if unclean else "full",
                witness=witness,
                then_write=True,
            )
            for case, result in zip(some, results, strict=True):
                told = witness and _commit(trials.edited(image, case.damage)) != _commit(image)
                fault = trials.fault(result, told, shape, history)
                if fault is not None:
                    opened = f"{name}, {'with' if witness else 'without'} a witness"
                    problems.append(f"{case.kind} ({opened}): {fault}: {short(case.damage)}: {result}")

    run_both(lambda: examine(True), lambda: examine(False))
    return Done(len(planned), problems)


def run_both(*works: Callable[[], None]) -> None:
    """At once, on two processors where there are two; the first failure is raised."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def short(damage: Damage) -> str:
    return ", ".join(" ".join(str(word)[:24] for word in edit) for edit in damage[:4])


def place() -> str | None:
    """In memory where that is possible: what is read does not depend on the disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


KIND = Kind(one_round)
