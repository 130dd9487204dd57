"""Power cuts of a real file system on a real block device: the kind ``block_device``.

Workloads (``crash_work.py``, and topics with delayed messages) run on ext4 and XFS, mounted from a loop device whose
writes and flushes are logged (``block_device_process.py``). At a cut the device has every write that a flush followed,
and any part of the others, by sectors of 512 bytes. Such images are mounted again, so that the kernel's own recovery of
the file system comes first, and the store on them is checked with what had been acknowledged before the cut. Nothing
here assumes what a file system does with writes, syncs and renames: this is the check of the assumptions in
``bookstand.testing.crash.states``.

Needs Linux, root, ``/dev/fuse``, loop devices, and ``mkfs`` of the file system.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from bookstand.testing.crash.check import examine_store
from tests.delivery import test_subscription_crashes
from tests.delivery.subscription_kit import MODES
from tests.kit import ROOT
from tests.soak import crash_promises
from tests.soak.block_device_process import ENTRY, FLUSH, mount_file
from tests.soak.crash_states import workload_of
from tests.soak.kinds import Done, Kind, KindUnavailableError

CUTS = 40
"""Power cuts of each workload."""
SECTOR = 512
_SECONDS = 120
"""After which time a command of the file system is considered stuck."""

Workload = Callable[[str, Callable[[Any], None]], object]


class FileSystem(NamedTuple):
    name: str
    mkfs: tuple[str, ...]
    mebibytes: int
    mount_options: str = "defaults"


FILE_SYSTEMS = (
    FileSystem("ext4", ("mkfs.ext4", "-q", "-F"), 64),
    FileSystem("xfs", ("mkfs.xfs", "-q", "-f"), 300, "nouuid"),
)


class Write(NamedTuple):
    offset: int
    data: bytes


class Recording(NamedTuple):
    """``base``: the device before the file system was mounted. ``log`` has None for a flush. ``told``: what the
    workload acknowledged, each with the length of the log then."""

    base: Path
    log: list[Write | None]
    told: list[tuple[int, Any]]


def missing(system: FileSystem) -> str | None:
    """Name what this machine lacks to run these tests on a file system; None if it lacks nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting a file system needs Linux and root"
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(path):
            return f"there is no {path}"
    for command in (system.mkfs[0], "mount", "umount", "losetup", "cp"):
        if shutil.which(command) is None:
            return f"there is no {command}"
    if system.name not in Path("/proc/filesystems").read_text().split():
        return f"the kernel has no {system.name}"
    return _refusal()


def _refusal() -> str | None:
    """Why mounting is refused, as it is in many containers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.touch()
        try:
            os.close(mount_file(str(file)))
        except OSError as error:
            return str(error)
        _run("umount", "-l", str(file))
    return None


# -- recording ---------------------------------------------------------------------------------------------------------


def record(workload: Workload, system: FileSystem, folder: Path) -> Recording:
    """Run a workload on a fresh file system, and log what reaches its device."""
    image, file, log, mountpoint = folder / "image", folder / "device", folder / "log", folder / "mounted"
    _make_file_system(system, image)
    file.touch()
    told: list[tuple[int, Any]] = []
    with _device(file, image, log) as length, _mounted(file, system, mountpoint):
        workload(str(mountpoint / "store"), lambda promise: told.append((length(), promise)))
    return Recording(image, list(_entries(log)), told)


def _make_file_system(system: FileSystem, image: Path) -> Path:
    with open(image, "wb") as made:
        made.truncate(system.mebibytes << 20)
    _run(*system.mkfs, str(image))
    return image


@contextmanager
def _device(file: Path, image: Path, log: Path) -> Iterator[Callable[[], int]]:
    """The device, and how many entries its log has so far."""
    command = [sys.executable, "-m", "tests.soak.block_device_process", str(file), str(image), str(log)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    out, answers = process.stdin, process.stdout

    def length() -> int:
        out.write(b"\n")
        out.flush()
        return int(answers.readline())

    try:
        if answers.readline() != b"ready\n":
            raise RuntimeError(f"the logging device did not start: exit code {process.wait(_SECONDS)}")
        yield length
    finally:
        with suppress(subprocess.CalledProcessError):
            _run("umount", str(file))
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            out.close()
            answers.close()


@contextmanager
def _mounted(file: Path, system: FileSystem, mountpoint: Path) -> Iterator[None]:
    mountpoint.mkdir(exist_ok=True)
    loop = _run("losetup", "--find", "--show", str(file)).strip()
    try:
        _run("mount", "-t", system.name, "-o", system.mount_options, loop, str(mountpoint))
        try:
            yield
        finally:
            _run("umount", str(mountpoint))
    finally:
        _run("losetup", "--detach", loop)


class CutDisk:
    """A mounted file system whose power can be cut while it is in use; then it is mounted again as the cut left it."""

    def __init__(self, system: FileSystem, folder: Path) -> None:
        self.path = folder / "mounted"
        self._system = system
        self._folder = folder
        self._cuts = 0
        self._image = _make_file_system(system, folder / "image-0")
        self._mount()

    def _mount(self) -> None:
        self._log = self._folder / f"log-{self._cuts}"
        file = self._folder / "device"
        file.touch()
        with ExitStack() as stack:
            self._length = stack.enter_context(_device(file, self._image, self._log))
            stack.enter_context(_mounted(file, self._system, self.path))
            self._mounted = stack.pop_all()

    def cut(self, kept: str, seed: int) -> None:
        """Cut the power now. The processes that use the file system have ended; ``kept``: see :class:`Cut`."""
        cut = Cut(self._length(), kept, seed)
        self.close()
        self._cuts += 1
        image = self._folder / f"image-{self._cuts}"
        write_image(Recording(self._image, list(_entries(self._log)), []), cut, image)
        self._image = image
        self._mount()

    def close(self) -> None:
        self._mounted.close()


def _entries(log: Path) -> Iterator[Write | None]:
    with open(log, "rb") as file:
        while header := file.read(ENTRY.size):
            offset, length = ENTRY.unpack(header)
            yield None if offset == FLUSH else Write(offset, file.read(length))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS).stdout


# -- cuts --------------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """The first ``length`` entries of the log happened. Of the writes after the last flush the device has ``kept``:
    ``"none"``, ``"all"``, ``"writes"`` (some of them) or ``"sectors"`` (some of their sectors)."""

    length: int
    kept: str
    seed: int


def cuts_of(recording: Recording, count: int, seed: int) -> list[Cut]:
    """Moments at random, half of them just before or after an acknowledgment."""
    chance = random.Random(seed)
    moments = [moment for moment, _ in recording.told] or [0]
    chosen = []
    for number in range(count):
        if number % 2:
            length = min(len(recording.log), chance.choice(moments) + chance.choice((-1, 0, 0, 1)))
        else:
            length = chance.randint(0, len(recording.log))
        kept = chance.choice(("none", "all", "writes", "sectors", "sectors"))
        chosen.append(Cut(max(0, length), kept, chance.getrandbits(32)))
    return sorted(chosen)


def write_image(recording: Recording, cut: Cut, path: Path) -> None:
    """Write the contents of the device after a cut."""
    _run("cp", "--sparse=always", str(recording.base), str(path))
    log = recording.log[: cut.length]
    flushed = max((number + 1 for number, entry in enumerate(log) if entry is None), default=0)
    chance = random.Random(cut.seed)
    with open(path, "r+b", buffering=0) as image:
        for number, entry in enumerate(log):
            if entry is None:
                continue
            if number < flushed or cut.kept == "all" or (cut.kept == "writes" and chance.random() < 0.5):
                os.pwrite(image.fileno(), entry.data, entry.offset)
            elif cut.kept == "sectors":
                for at in range(0, len(entry.data), SECTOR):
                    if chance.random() < 0.5:
                        os.pwrite(image.fileno(), entry.data[at : at + SECTOR], entry.offset + at)


def examine(recording: Recording, cut: Cut, system: FileSystem, folder: Path, case: Case) -> str | None:
    """Mount the device after a cut and check the store; return what is wrong with it, if anything."""
    image, mountpoint = folder / "cut", folder / "mounted"
    write_image(recording, cut, image)
    told = [promise for moment, promise in recording.told if moment <= cut.length]
    with _mounted(image, system, mountpoint):
        try:
            examine_store(str(mountpoint / "store"), case.check, told, case.options)
        except Exception:
            return f"{system.name}: {cut}, after {told[-3:]}: {traceback.format_exc()}"
    return None


class Case(NamedTuple):
    workload: Workload
    check: Callable[[Any, list[Any]], None]
    options: dict[str, Any]
    """Of opening the store."""


def case_of(seed: int) -> Case:
    """Return a workload on ledgers, or for every third seed one on a topic."""
    if seed % 3 == 2:
        mode = list(MODES)[seed // 3 % len(MODES)]
        return Case(test_subscription_crashes.Workload(mode), test_subscription_crashes.Check(mode), {})
    mixture = workload_of(seed)
    return Case(mixture, crash_promises.check, {"witness": mixture.witness})


def run(seed: int, system: FileSystem, cuts: int) -> Done:
    """Record the workload of a seed on a file system, and cut the power at random moments."""
    case = case_of(seed)
    problems = []
    with tempfile.TemporaryDirectory(prefix="bookstand-device-", dir="/dev/shm") as name:
        folder = Path(name)
        recording = record(case.workload, system, folder)
        chosen = cuts_of(recording, cuts, seed)
        for cut in chosen:
            problem = examine(recording, cut, system, folder, case)
            if problem is not None:
                problems.append(problem)
    figures = Counter({f"cuts on {system.name}": len(chosen), "logged writes and flushes": len(recording.log)})
    return Done(len(chosen), problems, figures)


def round_of(seed: int) -> Done:
    """File systems take turns."""
    usable = [system for system in FILE_SYSTEMS if missing(system) is None]
    if not usable:
        raise KindUnavailableError("; ".join(f"{system.name}: {missing(system)}" for system in FILE_SYSTEMS))
    return run(seed, usable[seed % len(usable)], CUTS)


KIND = Kind(round_of)
