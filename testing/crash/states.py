"""States of the disk that a power cut may leave after recorded file operations. Pure: no I/O.

Assumptions about disks and file systems
----------------------------------------

1. Power may fail between any two operations, and during a write.
2. ``fsync`` and ``fdatasync`` of a file make its writes and its size durable. A write through ``O_DSYNC`` makes itself
   and all pending writes to the same page durable. Nothing else does. Until then, each page of a write and each
   truncation may or may not be on the disk, independently of all others. Subsets suffice: they cover every order of
   arrival. Pending writes to one page are applied in their order.
3. Names (created, renamed, removed) become durable when their directory is synced; for a rename, the directory of the
   new name. Until then each may or may not exist, independently of others and of the file's content. A rename is
   atomic. Syncing a file does not make its name durable.
4. A page may be torn between any two sectors of 512 bytes during a write. A write within one sector, such as LMDB's
   header, may be torn after any number of bytes, although disks write whole sectors. Later bytes of a sector are
   assumed not to arrive without the earlier ones.
5. An extended file may contain zeros where its data did not arrive.
6. Durable data remains. Disks that acknowledge before they write are not covered, nor is decay of the medium.
7. The content of ``lock.mdb`` does not matter: the first process that opens the store after a power cut rewrites it.
   In every state it has its contents at the cut.

For up to five pending pages and names, all subsets are generated. For more: all, none, each one alone missing or
present (up to a limit), and a seeded sample. Identical disk contents form one state, the one with most acknowledgments.
"""

from __future__ import annotations

import random
import re
from hashlib import blake2b
from itertools import chain, combinations
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError
from bookstand.testing.crash.recording import (
    ACKNOWLEDGE,
    CREATE,
    DATA_KINDS,
    GONE,
    NAME_KINDS,
    PAGE,
    RENAME,
    SYNC,
    SYNC_FOLDER,
    WRITE,
    changed_names,
    folder_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bookstand.testing.crash.recording import Operation, Recording

SECTOR = 512
EXHAUSTIVE = 5
"""Maximum number of pending operations for which all subsets are generated."""
SAMPLES = 12
"""Number of random subsets at each cut with more pending operations, and of random tears of each page."""
SINGLES = 24
"""Maximum number of pending operations that are tried alone, missing and present; beyond it, a sample is."""

_LOCK_FILE = "lock.mdb"
_CASE = re.compile(r"cut=(\d+)(?:;drop=([\d,]+))?(?:;tear=([\d:sb0-9a-f,]+))?")


class TornWrite(NamedTuple):
    """Partial write: a mask of sectors (``unit="s"``), or a number of bytes (``"b"``)."""

    operation: int
    unit: str
    part: int

    def __str__(self) -> str:
        return f"{self.operation}:{self.unit}{self.part:x}"


class Case(NamedTuple):
    """A power cut after ``cut`` operations; those ``dropped`` are lost completely, and those ``torn`` in part."""

    cut: int
    dropped: tuple[int, ...] = ()
    torn: tuple[TornWrite, ...] = ()

    def __str__(self) -> str:
        parts = [f"cut={self.cut}"]
        if self.dropped:
            parts.append("drop=" + ",".join(map(str, self.dropped)))
        if self.torn:
            parts.append("tear=" + ",".join(map(str, self.torn)))
        return ";".join(parts)

    @staticmethod
    def parse(text: str) -> Case:
        found = _CASE.fullmatch(text)
        if found is None:
            raise IncorrectParameterError(f"{text!r} describes no power cut")
        cut, dropped, torn = found.groups()
        tears = []
        for one in (torn or "").split(",") if torn else ():
            number, _, rest = one.partition(":")
            if not number.isdigit() or rest[:1] not in ("s", "b") or not rest[1:]:
                raise IncorrectParameterError(f"{one!r} describes no torn write")
            tears.append(TornWrite(int(number), rest[0], int(rest[1:], 16)))
        return Case(int(cut), tuple(int(one) for one in dropped.split(",")) if dropped else (), tuple(tears))


class State(NamedTuple):
    """A case with the number of acknowledgments before it, and a digest of the disk."""

    case: Case
    acknowledged: int
    digest: bytes


class Content:
    """File content as whole pages, which states share, and a size."""

    __slots__ = ("digest", "pages", "size")

    def __init__(self, pages: list[bytes], size: int) -> None:
        self.pages = pages
        self.size = size
        self.digest: bytes | None = None

    def copy(self) -> Content:
        return Content(self.pages.copy(), self.size)

    def to_bytes(self) -> bytes:
        return b"".join(self.pages)[: self.size]

    def write(self, offset: int, data: bytes) -> None:
        """Write within one page."""
        self.digest = None
        number, start = divmod(offset, PAGE)
        end = start + len(data)
        self._reach(number * PAGE + end)
        if len(data) == PAGE:
            self.pages[number] = data
        else:
            page = self.pages[number]
            self.pages[number] = page[:start] + data + page[end:]

    def write_in_part(self, offset: int, data: bytes, tear: TornWrite) -> None:
        start = offset % PAGE
        if tear.unit == "b":
            arrived = data[: tear.part]
            self._reach(offset + len(data))
            if arrived:
                self.write(offset, arrived)
            return
        self._reach(offset + len(data))
        self.digest = None
        page = self.pages[offset // PAGE]
        changed = bytearray(page)
        changed[start : start + len(data)] = data
        for sector in range(PAGE // SECTOR):
            if not tear.part >> sector & 1:
                changed[sector * SECTOR : (sector + 1) * SECTOR] = page[sector * SECTOR : (sector + 1) * SECTOR]
        self.pages[offset // PAGE] = bytes(changed)

    def truncate(self, size: int) -> None:
        self.digest = None
        self._reach(size)
        count = -(-size // PAGE)
        del self.pages[count:]
        if size % PAGE:
            self.pages[-1] = self.pages[-1][: size % PAGE].ljust(PAGE, b"\0")
        self.size = size

    def _reach(self, size: int) -> None:
        missing = -(-size // PAGE) - len(self.pages)
        if missing > 0:
            self.pages += [_ZEROS] * missing
        self.size = max(self.size, size)


_ZEROS = bytes(PAGE)


class Disk:
    """Files by number, and names. Copies share contents until one of them writes."""

    __slots__ = ("_own", "contents", "names")

    def __init__(self, contents: dict[int, Content], names: dict[str, int]) -> None:
        self.contents = contents
        self.names = names
        self._own: set[int] = set()

    def copy(self) -> Disk:
        self._own = set()
        return Disk(self.contents.copy(), self.names.copy())

    def apply(self, operation: Operation, tear: TornWrite | None = None) -> None:
        for path, file in changed_names(operation):
            if file == GONE:
                self.names.pop(path, None)
            else:
                self.names[path] = file
        if operation.kind in DATA_KINDS:
            content = self._writable(operation.file)
            if operation.kind != WRITE:
                content.truncate(operation.offset)
            elif tear is None:
                content.write(operation.offset, operation.data)
            else:
                content.write_in_part(operation.offset, operation.data, tear)

    def _writable(self, file: int) -> Content:
        if file not in self._own:
            known = self.contents.get(file)
            self.contents[file] = Content([], 0) if known is None else known.copy()
            self._own.add(file)
        return self.contents[file]

    def image(self) -> dict[str, Content | None]:
        """Return all files whose parent directories exist: name to content, None for directories."""
        names = self.names
        image: dict[str, Content | None] = {}
        for path in sorted(names):
            folder = folder_of(path)
            if folder and not (folder in image and image[folder] is None):
                continue
            file = names[path]
            image[path] = (self.contents.get(file) or _EMPTY) if file else None
        return image


_EMPTY = Content([], 0)


class Walk:
    """Iterates over a recording, and tracks which operations are durable and which are pending."""

    def __init__(self, recording: Recording) -> None:
        self._operations = recording.operations
        self.cut = 0
        self.acknowledged = 0
        self.durable = Disk({}, {})
        self.waiting: list[int] = []
        # A write through O_DSYNC is in progress until the next operation begins.
        self._under_way: int | None = None

    def advance_to(self, cut: int) -> None:
        if not self.cut <= cut <= len(self._operations):
            raise IncorrectParameterError(f"there is no cut at {cut}, the recording has {len(self._operations)}")
        while self.cut < cut:
            self._advance()

    def _advance(self) -> None:
        number = self.cut
        operation = self._operations[number]
        self.cut += 1
        if self._under_way is not None:
            done = self._operations[self._under_way]
            self._settle(lambda one: one.file == done.file and _same_page(one, done))
            self._under_way = None
        kind = operation.kind
        if kind == ACKNOWLEDGE:
            self.acknowledged += 1
        elif kind == SYNC:
            self._settle(lambda one: one.kind in DATA_KINDS and one.file == operation.file)
        elif kind == SYNC_FOLDER:
            self._settle_names(operation.path)
        elif operation.path.rpartition("/")[2] == _LOCK_FILE and kind in DATA_KINDS:
            self.durable.apply(operation)
        else:
            self.waiting.append(number)
            if operation.synchronous:
                self._under_way = number

    def _settle(self, concerned: Callable[[Operation], bool]) -> None:
        still = []
        for number in self.waiting:
            if concerned(self._operations[number]):
                self.durable.apply(self._operations[number])
            else:
                still.append(number)
        self.waiting = still

    def _settle_names(self, folder: str) -> None:
        """Make the names in a synced directory durable, along with earlier pending operations on them."""
        operations = self._operations
        names = {
            name
            for number in self.waiting
            for name in (operations[number].path, operations[number].target)
            if operations[number].kind in NAME_KINDS and _home(operations[number]) == folder
        }
        self._settle(lambda one: one.kind in NAME_KINDS and (_home(one) == folder or one.path in names))

    def image(self, case: Case) -> dict[str, Content | None]:
        """Return the contents of the disk in a case of this cut."""
        return self._disk(frozenset(case.dropped), {tear.operation: tear for tear in case.torn}).image()

    def _disk(self, dropped: frozenset[int], torn: dict[int, TornWrite]) -> Disk:
        disk = self.durable.copy()
        for number in self.waiting:
            if number not in dropped:
                disk.apply(self._operations[number], torn.get(number))
        return disk

    # -- cases of this cut ---------------------------------------------------------------------------------------------

    def cases(self, chance: random.Random) -> Iterator[Case]:
        """Yield the cases that the last operation adds. An acknowledgment adds all of them, because more is
        promised."""
        waiting = self.waiting
        last = self.cut - 1
        newest = last if waiting and waiting[-1] == last else None
        yield Case(self.cut)
        if newest is None and self.cut and self._operations[last].kind != ACKNOWLEDGE:
            return
        others = waiting[:-1] if newest is not None else waiting
        for dropped in self._subsets(others, chance):
            yield Case(self.cut, dropped)
        if newest is not None and self._operations[newest].kind == WRITE:
            for tear in self._tears(newest, chance):
                yield Case(self.cut, (), (tear,))
                if others:
                    yield Case(self.cut, tuple(others), (tear,))
        following = self._operations[self.cut] if self.cut < len(self._operations) else None
        if following is None or following.kind in (SYNC, ACKNOWLEDGE) or following.synchronous:
            # The set of pending writes is largest before operations that make some durable.
            torn = [number for number in others if self._operations[number].kind == WRITE]
            for number in torn if len(torn) <= SINGLES else chance.sample(torn, SINGLES):
                for tear in self._tears(number, chance):
                    yield Case(self.cut, (), (tear,))

    def _subsets(self, waiting: Sequence[int], chance: random.Random) -> Iterator[tuple[int, ...]]:
        if len(waiting) <= EXHAUSTIVE:
            yield from chain.from_iterable(combinations(waiting, size) for size in range(1, len(waiting) + 1))
            return
        yield tuple(waiting)
        for one in waiting if len(waiting) <= SINGLES else sorted(chance.sample(waiting, SINGLES)):
            yield (one,)
            yield tuple(other for other in waiting if other != one)
        for _ in range(SAMPLES):
            share = chance.random()
            yield tuple(one for one in waiting if chance.random() < share)

    def _tears(self, number: int, chance: random.Random) -> Iterator[TornWrite]:
        operation = self._operations[number]
        start = operation.offset % PAGE
        first, last = start // SECTOR, (start + len(operation.data) - 1) // SECTOR
        if first == last:
            for part in range(len(operation.data)):
                yield TornWrite(number, "b", part)
            return
        count = last - first + 1
        whole = (1 << count) - 1
        masks = (
            {0}
            | {(1 << size) - 1 for size in range(1, count)}
            | {whole & ~((1 << size) - 1) for size in range(1, count)}
        )
        masks |= {chance.randrange(whole) for _ in range(SAMPLES)}
        for mask in sorted(masks):
            yield TornWrite(number, "s", mask << first)


def _home(operation: Operation) -> str:
    return folder_of(operation.target if operation.kind == RENAME else operation.path)


def _same_page(one: Operation, other: Operation) -> bool:
    return (
        one.kind != CREATE
        and one.kind in DATA_KINDS
        and (one.kind != WRITE or one.offset // PAGE == other.offset // PAGE)
    )


class Digests:
    """Digests of images, with a cache of page digests."""

    def __init__(self) -> None:
        self._pages: dict[bytes, bytes] = {}

    def of(self, image: dict[str, Content | None]) -> bytes:
        told = blake2b(digest_size=16)
        for path, content in image.items():
            told.update(path.encode(errors="surrogateescape") + b"\0")
            told.update(b"folder" if content is None else self._content(content))
        return told.digest()

    def _content(self, content: Content) -> bytes:
        if content.digest is None:
            pages = self._pages
            told = [content.size.to_bytes(8, "big")]
            for page in content.pages:
                digest = pages.get(page)
                if digest is None:
                    digest = pages[page] = blake2b(page, digest_size=16).digest()
                told.append(digest)
            content.digest = blake2b(b"".join(told), digest_size=16).digest()
        return content.digest


def crash_states(recording: Recording, seed: int = 0, limit: int | None = None) -> list[State]:
    """Return the distinct states in the order of their cuts, or a seeded sample of ``limit`` states."""
    if limit is not None and limit < 1:
        raise IncorrectParameterError(f"limit is a number of states from 1 up, or None, not {limit!r}")
    chance = random.Random(seed)
    walk = Walk(recording)
    digests = Digests()
    found: dict[bytes, State] = {}
    for cut in range(len(recording.operations) + 1):
        walk.advance_to(cut)
        for case in walk.cases(chance):
            digest = digests.of(walk.image(case))
            # Same disk contents, but more acknowledgments.
            known = found.get(digest)
            if known is None or walk.acknowledged > known.acknowledged:
                found[digest] = State(case, walk.acknowledged, digest)
    states: Iterable[State] = found.values()
    if limit is not None and len(found) > limit:
        states = chance.sample(list(states), limit)
    return sorted(states, key=lambda state: state.case)
