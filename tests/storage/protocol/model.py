"""An executable model of the commit protocol: the states of a store's files and of the processes that use it.

docs/crash-safety.md describes it. The model knows no bytes. A commit is a *version*: it writes one data page, which
stands for its whole tree, and a header page that refers to it. Versions form chains: a version, the one that its commit
was based on, and so on. Of a version only this counts: whether its chain has every commit that must be in it, and none
that must not.

Every page and the name of the data file exist twice: as processes see them, and on the disk. A page that is *dirty*
was written and not synced; a power cut keeps it, loses it or, in case of a data page, tears it. A sync that fails
writes any of the dirty pages and leaves all of them clean, as Linux does.

A step is what a process does between two moments at which a kill, a power cut or the other process can make a
difference. Each step has a label, by which recorded operations are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from marshal import dumps
from typing import Any, NamedTuple

PROCESSES = (0, 1)
NOBODY = -1
DEAD = 2
"""Owner of LMDB's lock of writers that died while it held it."""

HEADERS = (0, 1)
FIRST_DATA, DATA_PAGES = 2, 3
LENGTH = FIRST_DATA + DATA_PAGES
"""After the pages: the length of the file, 1 if it reaches to the end of the last data page."""
CYCLE = 6
"""Header page and data page of a commit depend on its number modulo 2 and 3."""
NOTHING = 0
"""In place of a version: no version, or one that nothing refers to."""


class ViolationError(Exception):
    """An invariant does not hold; the message says which."""


class Header(NamedTuple):
    number: int
    """LMDB's transaction id."""
    version: int
    page: int
    """The data page that the version was written to."""


class Item(NamedTuple):
    """A page, or the length of the file: as processes see it, and as it is on the disk."""

    seen: Any
    stored: Any
    dirty: bool = False


class Version(NamedTuple):
    chain: int
    """Bits: the version and those before it, as far as something still refers to them."""
    lacks: bool = False
    """A commit is missing from the chain that was acknowledged, or shown after a power cut."""
    refused: bool = False
    """A commit is in the chain that was reported as failed."""


class Process(NamedTuple):
    step: str = "absent"
    """The step that comes next."""
    then: str = ""
    """Where an opening of LMDB's environment leads to."""
    own: bool = False
    """The newest commit is this process's own."""
    effective: bool = False
    """The commit whose outcome is looked for took effect."""
    name_synced: bool = True
    """The name of the data file is durable as far as this process knows."""
    file: int = NOBODY
    """Data file that the environment has open."""
    version: int = NOTHING
    """The commit that is being made, or whose outcome is looked for."""
    number: int = 0
    """Of that commit."""
    replaced: int = 0
    """Number that its header page had before."""


ABSENT = Process()
WITHOUT_ENVIRONMENT = frozenset({"absent", "open", "wait", "closed", "broken"})
BEFORE_HEADER = frozenset({"repair", "sync", "header", "flush", "undo"})
"""A commit of which no header page may refer to the version yet, or not any more."""


class Rules(NamedTuple):
    """What the protocol does. Each rule that is dropped makes a mutant of the model."""

    first_sync: bool = True
    """A commit syncs its data pages before it writes its header page."""
    header_sync: bool = True
    """It waits until its header page is on the disk."""
    marks: bool = True
    """A failed commit is recognized by its mark, not by its number."""
    reopen_locked: bool = True
    """Reopening holds the folder's lock."""
    settle_rewrites: bool = True
    """After a failed commit both header pages are written again before the sync."""
    settle_syncs: bool = True
    """They are synced before the outcome is reported."""
    settle_lowers: bool = True
    """A header page with a number above that of the newest commit gets a lower one."""
    next_repairs: bool = True
    """A commit that finds the traces of a failed one removes them durably before it writes."""
    next_rewrites: bool = True
    """A commit that follows another process's writes its header page again before the first sync."""
    copy_sync: bool = True
    """A compaction syncs the copy before it renames it."""
    name_sync: bool = True
    """It syncs the folder before the next commit."""
    open_sync: bool = True
    """Opening syncs the folder."""
    compact_alone: bool = True
    """A compaction replaces the file only if no other process has it open."""
    page_reuse: bool = True
    """A data page is used again by the third commit after its own, not by the next."""

    def page_of(self, number: int) -> int:
        return number % DATA_PAGES if self.page_reuse else 0


class Bounds(NamedTuple):
    """How often something may happen; None: without a bound."""

    commits: int | None = None
    faults: int | None = None
    kills: int | None = None
    cuts: int | None = None


class World:
    """One state, while its successors are made."""

    __slots__ = (
        "bounds",
        "files",
        "folder",
        "name_seen",
        "name_stored",
        "newest",
        "processes",
        "rules",
        "unseen",
        "versions",
        "writer",
    )

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.files: dict[int, list[Item]] = {0: _new_file()}
        self.name_seen = self.name_stored = 0
        self.versions: dict[int, Version] = {1: Version(1 << 1), 2: Version(1 << 1 | 1 << 2)}
        self.unseen = False
        """No process has shown a state since the last power cut."""
        self.folder = NOBODY
        """Holder of the folder's lock."""
        self.writer = NOBODY
        """Holder of LMDB's lock of writers."""
        self.newest = 0
        """Number of the newest commit as LMDB's lock file says."""
        self.processes: list[Process] = [ABSENT] * len(PROCESSES)

    def copy(self) -> World:
        new = World.__new__(World)
        new.rules = self.rules
        new.bounds = self.bounds
        new.files = {number: items.copy() for number, items in self.files.items()}
        new.name_seen, new.name_stored = self.name_seen, self.name_stored
        new.versions = self.versions.copy()
        new.unseen = self.unseen
        new.folder, new.writer, new.newest = self.folder, self.writer, self.newest
        new.processes = self.processes.copy()
        return new

    # -- parts ---------------------------------------------------------------------------------------------------------

    def go(self, process: int, step: str, **changes: Any) -> None:
        self.processes[process] = self.processes[process]._replace(step=step, **changes)

    def items(self, process: int) -> list[Item]:
        return self.files[self.processes[process].file]

    def spend(self, what: str) -> bool:
        """Use up one of what is bounded; False if none is left."""
        left = getattr(self.bounds, what)
        if left is None:
            return True
        if left == 0:
            return False
        self.bounds = self.bounds._replace(**{what: left - 1})
        return True

    def failing(self) -> Iterator[World]:
        """The state in which the device fails once more, if it may."""
        new = self.copy()
        if new.spend("faults"):
            yield new

    def has_environment(self, process: int) -> bool:
        return self.processes[process].step not in WITHOUT_ENVIRONMENT

    def visible(self, process: int) -> Header:
        header: Header = self.items(process)[self.newest % 2].seen
        return header

    def take_writer(self, process: int) -> bool:
        """Take LMDB's lock of writers; False if another process holds it."""
        if self.writer not in (NOBODY, DEAD):
            return False
        if self.writer == DEAD:
            number = newest_of(self.items(process)).number
            if number != self.newest:
                self.newest = number
                self.processes = [one._replace(own=False) for one in self.processes]
        self.writer = process
        return True

    def unlock(self, process: int) -> None:
        if self.folder == process:
            self.folder = NOBODY

    # -- promises ------------------------------------------------------------------------------------------------------

    def require(self, version: int) -> None:
        """From now on every state that is shown has the commit."""
        for name, one in self.versions.items():
            if not one.chain >> version & 1 and not one.lacks:
                self.versions[name] = one._replace(lacks=True)

    def refuse(self, version: int) -> None:
        """From now on no state that is shown has the commit."""
        for name, one in self.versions.items():
            if one.chain >> version & 1 and not one.refused:
                self.versions[name] = one._replace(refused=True)

    def check_shown(self, items: list[Item], header: Header, where: str) -> None:
        """The state that a header page refers to keeps all promises."""
        version = self.versions.get(header.version)
        if version is None or items[FIRST_DATA + header.page].seen != header.version:
            raise ViolationError(f"{where} shows a damaged tree")
        if header.page == DATA_PAGES - 1 and not items[LENGTH].seen:
            raise ViolationError(f"{where} reads behind the end of the file")
        if version.lacks:
            raise ViolationError(f"{where} shows a state without a commit that was acknowledged or shown before")
        if version.refused:
            raise ViolationError(f"{where} shows a commit that was reported as failed")

    def check(self) -> None:
        """What every process with an open environment reads keeps all promises."""
        for process, one in enumerate(self.processes):
            if one.step not in WITHOUT_ENVIRONMENT and one.step != "initialize":
                self.check_shown(self.items(process), self.visible(process), "a process that has the store open")

    # -- one key for all states that behave alike ----------------------------------------------------------------------

    def key(self) -> bytes:
        """The state up to the names of versions, files and processes, and up to a common shift of numbers."""
        self._forget_unused()
        shifts = {number: _shift(items) for number, items in self.files.items()}
        first, second = (self._local(process, shifts) for process in PROCESSES)
        if first < second:
            return dumps(self._parts((0, 1), shifts), 2)
        if first > second:
            return dumps(self._parts((1, 0), shifts), 2)
        return min(dumps(self._parts((0, 1), shifts), 2), dumps(self._parts((1, 0), shifts), 2))

    def files_key(self) -> bytes:
        """The part of the key on which power cuts depend, after :meth:`key`."""
        shifts = {number: _shift(items) for number, items in self.files.items()}
        parts, _, versions, *_ = self._parts((0, 1), shifts)
        return dumps((parts, versions, self.name_seen == self.name_stored, self.bounds[:]), 2)

    def _forget_unused(self) -> None:
        if len(self.files) > 1:
            used = {self.name_seen, self.name_stored, *(one.file for one in self.processes)}
            self.files = {number: items for number, items in self.files.items() if number in used}
        used = {header.version for items in self.files.values() for one in items[:FIRST_DATA] for header in one[:2]}
        for process, one in enumerate(self.processes):
            if one.step in BEFORE_HEADER or not self.rules.marks:
                used.add(one.version)
            elif one.version not in used:
                # Without a header page it cannot take effect any more.
                self.processes[process] = one._replace(version=NOTHING)
        for items in self.files.values():
            for index, (seen, stored, dirty) in enumerate(items):
                if FIRST_DATA <= index < LENGTH:
                    seen, stored = seen if seen in used else NOTHING, stored if stored in used else NOTHING
                items[index] = Item(seen, stored, dirty and seen != stored)
        self.versions = {name: one for name, one in self.versions.items() if name in used}
        if not any(one.step == "wait" or one.step not in WITHOUT_ENVIRONMENT for one in self.processes):
            # The process that opens the environment next initializes LMDB's lock file.
            self.newest, self.writer = 0, NOBODY

    def _local(self, process: int, shifts: dict[int, int]) -> tuple[Any, ...]:
        """What there is to say of a process without names."""
        one = self.processes[process]
        shift = shifts.get(one.file, 0)
        numbers = (one.number - shift, one.replaced - shift) if one.number else (0, 0)
        return (*one[:5], *numbers, self.folder == process, self.writer == process)

    def _parts(self, order: tuple[int, int], shifts: dict[int, int]) -> tuple[Any, ...]:
        files = {self.name_seen: 0}
        files.setdefault(self.name_stored, 1)
        for process in order:
            file = self.processes[process].file
            if file != NOBODY:
                files.setdefault(file, len(files))
        names = {NOTHING: NOTHING}
        parts: list[Any] = []
        for file in files:
            shift = shifts[file]
            items = self.files[file]
            for seen, stored, dirty in items[:FIRST_DATA]:
                parts += (seen[0] - shift, names.setdefault(seen[1], len(names)), seen[2])
                parts += (stored[0] - shift, names.setdefault(stored[1], len(names)), stored[2], dirty)
            for seen, stored, dirty in items[FIRST_DATA:LENGTH]:
                parts += (names.setdefault(seen, len(names)), names.setdefault(stored, len(names)), dirty)
            parts += items[LENGTH]
        processes = []
        shift = 0
        for process in order:
            one = self.processes[process]
            if one.file != NOBODY:
                shift = shifts[one.file]
            local = self._local(process, shifts)
            processes.append((*local, files.get(one.file, NOBODY), names.setdefault(one.version, len(names))))
        versions = []
        for version in list(names)[1:]:
            chain, lacks, refused = self.versions[version]
            versions.append((sum(1 << new for old, new in names.items() if chain >> old & 1), lacks, refused))
        return (
            tuple(parts),
            tuple(processes),
            tuple(versions),
            files[self.name_stored],
            self.unseen,
            self.writer == DEAD,
            self.newest - shift,
            self.bounds[:],
        )


def _new_file() -> list[Item]:
    """A store with two commits, synced."""
    pages = [Header(0, 1, 0), Header(1, 2, 1), 1, 2, NOTHING, 0]
    return [Item(page, page) for page in pages]


def newest_of(items: list[Item]) -> Header:
    """The header page that LMDB takes when it opens the file."""
    first, second = items[0].seen, items[1].seen
    newest: Header = second if first.number < second.number else first
    return newest


def _least(items: list[Item]) -> int:
    return min(items[0].seen.number, items[0].stored.number, items[1].seen.number, items[1].stored.number)


def _shift(items: list[Item]) -> int:
    least = _least(items)
    return least - least % CYCLE


def put(items: list[Item], index: int, value: Any) -> None:
    """Write a page: processes see it, and it waits for a sync."""
    items[index] = Item(value, items[index].stored, True)


def sync(items: list[Item]) -> None:
    for index, item in enumerate(items):
        if item.dirty:
            items[index] = Item(item.seen, item.seen)


def failed_syncs(world: World, process: int) -> Iterator[World]:
    """What a failed sync may leave: some of the dirty pages on the disk, and none of them dirty."""
    for spent in world.failing():
        items = spent.items(process)
        dirty = [index for index, item in enumerate(items) if item.dirty]
        for written in product((False, True), repeat=len(dirty)):
            new = spent.copy()
            items = new.items(process)
            for index, done in zip(dirty, written, strict=True):
                seen, stored, _ = items[index]
                items[index] = Item(seen, seen if done else stored)
            yield new


# -- steps: opening and closing ----------------------------------------------------------------------------------------


class Step(NamedTuple):
    label: str
    process: int
    """NOBODY for the power."""
    world: World
    """The state afterwards."""


def successors(world: World) -> Iterator[Step]:
    """Every step that is possible, but for power cuts."""
    for process in PROCESSES:
        for label, new in _STEPS[world.processes[process].step](world, process):
            yield Step(label, process, new)
        for label, new in _killed(world, process):
            yield Step(label, process, new)


Outcomes = Iterator[tuple[str, World]]


def _absent(world: World, process: int) -> Outcomes:
    """Lock the folder, and look at the files before LMDB does, unless another process writes to them."""
    if world.folder != NOBODY:
        return
    new = world.copy()
    new.folder = process
    if world.processes[1 - process].step == "absent":
        items = new.files[new.name_seen]
        numbers = [items[index].seen.number for index in HEADERS]
        if abs(numbers[0] - numbers[1]) != 1:
            raise ViolationError(f"the store is refused: its header pages have the numbers {numbers}")
        new.check_shown(items, newest_of(items), "the first look at the file")
    new.go(process, "open", then="show")
    yield "lock the folder to open the store", new


def _open(world: World, process: int) -> Outcomes:
    """Open LMDB's environment: the first process initializes the lock file."""
    other = 1 - process
    new = world.copy()
    if world.processes[other].step == "initialize":
        new.go(process, "wait")
        yield "wait for LMDB's lock file", new
        return
    if world.has_environment(other):
        new.go(process, "opened", file=new.name_seen)
        yield "share LMDB's lock file", _entered(new, process)
    else:
        items = new.files[new.name_seen]
        # Transaction 0, as numbers are shifted: below all of the file.
        least = _least(items)
        new.newest = least - least % CYCLE - CYCLE
        new.writer = NOBODY
        new.go(process, "initialize", file=new.name_seen)
        yield "lock LMDB's lock file", new
    yield from _failed_opening(world, process)


def _wait(world: World, process: int) -> Outcomes:
    """The lock file is taken as the other process leaves it."""
    if world.processes[1 - process].step != "initialize":
        new = world.copy()
        new.go(process, "opened", file=new.name_seen)
        yield "share LMDB's lock file", _entered(new, process)


def _initialize(world: World, process: int) -> Outcomes:
    new = world.copy()
    new.newest = newest_of(new.items(process)).number
    new.go(process, "opened")
    yield "initialize LMDB's lock file", _entered(new, process)
    yield from _failed_opening(world, process)


def _entered(world: World, process: int) -> World:
    """Only an opening of the store does more under the folder's lock, and a compaction."""
    then = world.processes[process].then
    if then in ("idle", "settle"):
        world.unlock(process)
        world.go(process, then, then="")
    elif then == "name":
        world.go(process, "name", then="")
    return world


def _failed_opening(world: World, process: int) -> Outcomes:
    for new in world.failing():
        new.unlock(process)
        then = new.processes[process].then
        if then == "show":
            new.processes[process] = ABSENT
        elif then == "settle":
            new.processes[process] = Process("broken")
        else:
            new.go(process, "closed", then="", file=NOBODY)
        yield "fail to open LMDB's environment", new


def _opened(world: World, process: int) -> Outcomes:
    new = world.copy()
    if new.unseen:
        new.unseen = False
        new.require(new.visible(process).version)
    new.go(process, "announce", then="")
    yield "show the newest commit", new


def _announce(world: World, process: int) -> Outcomes:
    """Leave the marker of a process that writes, and sync the folder."""
    new = world.copy()
    if new.rules.open_sync:
        new.name_stored = new.name_seen
    new.unlock(process)
    new.go(process, "idle")
    yield "leave the marker", new
    for new in world.failing():
        new.unlock(process)
        new.processes[process] = ABSENT
        yield "fail to leave the marker", new


def _close(world: World, process: int) -> Outcomes:
    new = world.copy()
    new.processes[process] = ABSENT
    yield "close the store", new


def _closed(world: World, process: int) -> Outcomes:
    """The environment could not be opened again: the next use tries it once more."""
    yield from _close(world, process)
    yield from _reopen(world, process, "idle", "lock the folder to open LMDB's environment")


def _reopen(world: World, process: int, then: str, label: str) -> Outcomes:
    """Close the environment, if it is open, and open it, under the folder's lock."""
    if world.folder == NOBODY or not world.rules.reopen_locked:
        new = world.copy()
        if new.rules.reopen_locked:
            new.folder = process
        new.go(process, "open", then=then, file=NOBODY, own=False)
        yield label, new


# -- steps: a commit ---------------------------------------------------------------------------------------------------


def _idle(world: World, process: int) -> Outcomes:
    yield from _close(world, process)
    # A compaction does not need the name of the file that it replaces.
    yield from _compact(world, process)
    if not world.processes[process].name_synced:
        # If it fails, nothing changes.
        new = world.copy()
        if new.rules.name_sync:
            new.name_stored = new.name_seen
        new.go(process, "idle", name_synced=True)
        yield "sync the folder", new
        return
    yield from _begin(world, process)
    yield from _reopen(world, process, "idle", "lock the folder to open an environment that cannot grow")


def _begin(world: World, process: int) -> Outcomes:
    """Begin a write transaction, prepare its commit, and write its data pages."""
    new = world.copy()
    if not new.take_writer(process):
        return
    if world.writer == DEAD:
        nothing = new.copy()
        nothing.writer = NOBODY
        nothing.go(process, "idle")
        yield "begin a transaction that changes nothing", nothing
    if not new.spend("commits"):
        return
    items = new.items(process)
    base = new.visible(process)
    number = new.newest + 1
    version = max(new.versions) + 1
    chain, lacks, refused = new.versions[base.version]
    new.versions[version] = Version(chain | 1 << version, lacks, refused)
    newer, older = new.newest % 2, number % 2
    new.go(process, "repair", version=version, number=number, replaced=items[older].seen.number)
    repairs = new.rules.next_repairs and _has_traces(new, items, number)
    if repairs or not new.processes[process].own:
        for failed in new.failing():
            yield "fail to prepare the header pages", _end_commit(failed, process, failed.processes[process].own)
    if new.rules.next_rewrites and not new.processes[process].own:
        put(items, newer, items[newer].seen)
    if repairs:
        _rewrite_headers(items, new.newest)
        new.go(process, "repair", replaced=number - 2)
        yield "begin a commit and repair the header pages", new
    else:
        yield from _written(new, process, "begin a commit and write its data pages")


def _rewrite_headers(items: list[Item], newest: int) -> None:
    """Write both header pages again; the other one has the number of the commit before, whatever it had."""
    newer, older = newest % 2, (newest + 1) % 2
    put(items, newer, items[newer].seen)
    put(items, older, items[older].seen._replace(number=newest - 1))


def _has_traces(world: World, items: list[Item], number: int) -> bool:
    """Return whether the header page to be written next has another commit than the one before the newest."""
    older, newest = items[number % 2].seen, items[(number - 1) % 2].seen
    if older.number != number - 2:
        return True
    # A compacted file has no page of the commit before.
    return older.version == newest.version or not world.versions[newest.version].chain >> older.version & 1


def _written(world: World, process: int, label: str) -> Outcomes:
    """Write the data pages; LMDB ends the transaction if that fails."""
    one = world.processes[process]
    page = world.rules.page_of(one.number)
    items = world.items(process)
    failed = list(world.failing())
    put(items, FIRST_DATA + page, one.version)
    if page == DATA_PAGES - 1:
        put(items, LENGTH, 1)
    failed += world.failing()
    world.go(process, "sync" if world.rules.first_sync else "header")
    yield label, world
    for new in failed:
        yield f"{label}, which fails", _give_up(new, process)


def _give_up(world: World, process: int) -> World:
    """LMDB ends the transaction, and has given up the environment."""
    world.writer = NOBODY
    world.go(process, "relock", own=False)
    if world.rules.marks:
        world.go(process, "relock", number=0, replaced=0)
    return world


def _end_commit(world: World, process: int, own: bool = False) -> World:
    world.writer = NOBODY
    world.go(process, "idle", version=NOTHING, number=0, replaced=0, effective=False, own=own)
    return world


def _repair(world: World, process: int) -> Outcomes:
    """Make the header pages durable without the traces of a failed commit."""
    new = world.copy()
    sync(new.items(process))
    yield from _written(new, process, "sync the repaired header pages and write the data pages")
    for new in failed_syncs(world, process):
        new.refuse(new.processes[process].version)
        yield "fail to sync the repaired header pages", _end_commit(new, process)


def _sync(world: World, process: int) -> Outcomes:
    new = world.copy()
    sync(new.items(process))
    new.go(process, "header")
    yield "sync the data file", new
    for new in failed_syncs(world, process):
        yield "fail to sync the data file", _give_up(new, process)


def _header(world: World, process: int) -> Outcomes:
    one = world.processes[process]
    new = world.copy()
    put(new.items(process), one.number % 2, Header(one.number, one.version, new.rules.page_of(one.number)))
    new.go(process, "flush")
    yield "write the header page", new
    for new in world.failing():
        new.go(process, "undo")
        yield "fail to write the header page", new
        # Some of its bytes were written, but not the number, which is last.
        torn = new.copy()
        put(torn.items(process), one.number % 2, Header(one.replaced, NOTHING, 0))
        yield "fail to write the header page", torn


def _flush(world: World, process: int) -> Outcomes:
    """The write of the header page waits for the disk; then the commit is acknowledged."""
    one = world.processes[process]
    slot = one.number % 2
    new = world.copy()
    items = new.items(process)
    if new.rules.header_sync:
        items[slot] = Item(items[slot].seen, items[slot].seen)
    new.newest = one.number
    new.require(one.version)
    other = new.processes[1 - process]
    if other.own:
        new.processes[1 - process] = other._replace(own=False)
    yield "acknowledge the commit", _end_commit(new, process, own=True)
    for stored in (items[slot].seen, world.items(process)[slot].stored):
        for new in world.failing():
            items = new.items(process)
            items[slot] = Item(items[slot].seen, stored)
            new.go(process, "undo")
            yield "fail to sync the header page", new


def _undo(world: World, process: int) -> Outcomes:
    """LMDB writes the header page again with its former number, and does not wait for it."""
    one = world.processes[process]
    new = world.copy()
    put(new.items(process), one.number % 2, Header(one.replaced, one.version, new.rules.page_of(one.number)))
    yield "undo the header page", _give_up(new, process)
    for new in world.failing():
        yield "fail to undo the header page", _give_up(new, process)


# -- steps: after a failed commit --------------------------------------------------------------------------------------


def _relock(world: World, process: int) -> Outcomes:
    return _reopen(world, process, "settle", "lock the folder to open the environment again")


def _settle(world: World, process: int) -> Outcomes:
    """Look for the mark of the failed commit, and write both header pages again."""
    new = world.copy()
    if not new.take_writer(process):
        return
    one = new.processes[process]
    if new.rules.marks:
        effective = bool(new.versions[new.visible(process).version].chain >> one.version & 1)
    else:
        effective = new.newest >= one.number
    for failed in new.failing():
        yield "fail to write both header pages again", _break(failed, process)
    if new.rules.settle_rewrites:
        items = new.items(process)
        if new.rules.settle_lowers:
            _rewrite_headers(items, new.newest)
        else:
            for slot in HEADERS:
                put(items, slot, items[slot].seen)
    new.go(process, "report", effective=effective)
    yield "look for the mark and write both header pages again", new


def _break(world: World, process: int) -> World:
    """The outcome is unknown, and nothing more is written through this opening of the store."""
    world.writer = NOBODY
    world.go(process, "reading", version=NOTHING, number=0, replaced=0, effective=False)
    return world


def _report(world: World, process: int) -> Outcomes:
    one = world.processes[process]
    new = world.copy()
    if new.rules.settle_syncs:
        sync(new.items(process))
    unknown = new.copy()
    if one.effective:
        new.require(one.version)
        yield "report the commit as done", _end_commit(new, process)
    else:
        new.refuse(one.version)
        yield "report the commit as failed", _end_commit(new, process)
        # More writers than the list of marks holds may have committed since.
    yield "report the outcome as unknown", _end_commit(unknown, process)
    if world.rules.settle_syncs:
        for new in failed_syncs(world, process):
            yield "fail to sync the header pages", _break(new, process)


# -- steps: compaction -------------------------------------------------------------------------------------------------


def _compact(world: World, process: int) -> Outcomes:
    """Write the newest state into a new file, which counts its commits from the beginning, sync it, and rename it."""
    other = world.processes[1 - process].step
    if world.folder != NOBODY or (other != "absent" and world.rules.compact_alone):
        return
    new = world.copy()
    new.folder = process
    new.go(process, "open", then="name", file=NOBODY, own=False, name_synced=False)
    for failed in new.failing():
        yield "fail to compact the store", failed
    target = max(new.files) + 1
    version = world.visible(process).version
    missing = Header(-CYCLE, NOTHING, 0)
    items = [Item(missing, missing), Item(missing, missing)]
    items += [Item(NOTHING, NOTHING) for _ in range(DATA_PAGES)]
    items.append(Item(0, 0))
    new.files[target] = items
    put(items, 0, Header(0, NOTHING, 0))
    put(items, 1, Header(1, version, new.rules.page_of(1)))
    put(items, FIRST_DATA + new.rules.page_of(1), version)
    if new.rules.copy_sync:
        sync(items)
    new.name_seen = target
    yield "compact the store and rename the copy", new


def _name(world: World, process: int) -> Outcomes:
    new = world.copy()
    if new.rules.name_sync:
        new.name_stored = new.name_seen
    new.unlock(process)
    new.go(process, "idle", name_synced=True)
    yield "sync the folder after the compaction", new
    for new in world.failing():
        new.unlock(process)
        new.go(process, "idle")
        yield "fail to sync the folder after the compaction", new


# -- kills and power cuts ----------------------------------------------------------------------------------------------


def _killed(world: World, process: int) -> Outcomes:
    if world.processes[process].step == "absent":
        return
    new = world.copy()
    if new.spend("kills"):
        new.unlock(process)
        if new.writer == process:
            new.writer = DEAD
        new.processes[process] = ABSENT
        yield "kill the process", new


def power_cuts(world: World) -> Iterator[Step]:
    """Every state that a power cut may leave. They depend on the files only, and not on the processes."""
    spent = world.copy()
    if not spent.spend("cuts"):
        return
    spent.processes = [ABSENT] * len(PROCESSES)
    spent.folder = spent.writer = NOBODY
    spent.unseen = True
    for name in {world.name_seen, world.name_stored}:
        outcomes = [_left(index, item) for index, item in enumerate(world.files[name])]
        for left in product(*outcomes):
            new = spent.copy()
            new.name_seen = new.name_stored = name
            new.files = {name: [Item(one, one) for one in left]}
            yield Step("cut the power", NOBODY, new)


def _left(index: int, item: Item) -> Iterable[Any]:
    """What a power cut may leave of a page."""
    if not item.dirty:
        return (item.stored,)
    if FIRST_DATA <= index < LENGTH:
        return dict.fromkeys((item.stored, item.seen, NOTHING))
    return dict.fromkeys((item.stored, item.seen))


_STEPS: dict[str, Callable[[World, int], Outcomes]] = {
    "absent": _absent,
    "open": _open,
    "wait": _wait,
    "initialize": _initialize,
    "opened": _opened,
    "announce": _announce,
    "closed": _closed,
    "broken": _close,
    "reading": _close,
    "idle": _idle,
    "repair": _repair,
    "sync": _sync,
    "header": _header,
    "flush": _flush,
    "undo": _undo,
    "relock": _relock,
    "settle": _settle,
    "report": _report,
    "name": _name,
}
