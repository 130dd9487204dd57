"""The files of a store: created so that a crash at any moment leaves a complete store or none, and checked before use.

LMDB trusts every file. A truncated file raises SIGBUS, and a file whose creation crashed before the first commit
never opens again. Therefore files are created under a temporary name, and checked before LMDB opens them.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager

import lmdb

from bookstand import errors
from bookstand.errors import (
    IncorrectParameterError,
    NotAStoreError,
    StoreAccessError,
    StoreDamagedError,
    StoreError,
    StoreNotFoundError,
)
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.lmdb.environment import DATA_FILE, LOCK_FILE, LOCK_FILE_BYTES, data_file, lock_file
from bookstand.storage.lmdb.errors import disk_full, reraise
from bookstand.storage.lmdb.meta_page import META_BYTES, META_PAGES, SMALLEST_PAGE, parse_meta
from bookstand.storage.process import process_markers, witness
from bookstand.storage.process.interrupt_guard import is_interruption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from bookstand.storage.hooks import Hooks

_CREATING = "creating-"

# Minimum read rate of a probe, in bytes per second.
_SLOWEST_PROBE = 1 << 20


_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_IN_SCHEMES = _LETTERS | frozenset("0123456789+.-")


def folder_name(path: str | os.PathLike[str]) -> str:
    try:
        name = os.fsdecode(os.fspath(path))
    except TypeError:
        raise IncorrectParameterError(f"a store's path must be a string or path, not {path!r}") from None
    if not name or "\0" in name:
        raise IncorrectParameterError(f"{name!r} is not a valid path for a store")
    check_local(name, "a store's path")
    return name


def check_local(path: str, what: str) -> None:
    """Reject an address such as ``s3a://bucket/store``, which would be a relative path otherwise. ``what`` names the
    path in the message."""
    scheme, separator, _ = path.partition(":/")
    # A scheme has at least two letters.
    if separator and len(scheme) > 1 and scheme[0] in _LETTERS and _IN_SCHEMES.issuperset(scheme):
        raise IncorrectParameterError(
            f"{what} must be a local path, or that of a mounted file system, not the address {path!r} "
            f"(./{path} is a local path of that name)"
        )


def prepare_folder(path: str, create: bool, read_only: bool) -> None:
    """Ensure that a folder exists that holds a store, or may become one."""
    if os.path.exists(path):
        if os.path.isdir(path):
            return
        raise NotAStoreError(f"{path} is not a folder, so it is not a store")
    if not create or read_only:
        raise StoreNotFoundError(f"there is no store at {path}")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise_os_error(error, f"cannot create the folder {path}")


def create_if_missing(path: str, create: bool, read_only: bool, durable: bool, hooks: Hooks | None = None) -> bool:
    """Create the data file if there is none, under the folder's lock; return True if it was created."""
    if has_data_file(path):
        return False
    others = [name for name in os.listdir(path) if not is_store_file(name)]
    if others:
        raise NotAStoreError(f"{path} holds other files ({sorted(others)[0]}, …) and no store")
    if not create or read_only:
        raise StoreNotFoundError(f"there is no store at {path}")
    remove_leftovers(path)
    temporary = os.path.join(path, f"{_CREATING}{os.getpid()}")
    crashed = False
    try:
        _write_superblock(temporary)
        if durable:
            sync_file(temporary)
        # Before the rename, regardless of the durability, which may be another one at the next opening: a data file
        # with its final name must never lose the names of its folders.
        process_markers.sync_parents(path)
        if hooks is not None:
            hooks.point("open.before_rename")
        os.rename(temporary, data_file(path))
        if durable:
            process_markers.sync_folder(path)
    except SimulatedCrash:
        crashed = True
        raise
    except lmdb.Error as error:
        reraise(error, path, "creating it")
    except OSError as error:
        raise_os_error(error, f"cannot create the store {path}")
    finally:
        if not crashed and os.path.exists(temporary):
            os.unlink(temporary)
    return True


def remove_leftovers(path: str) -> None:
    """Remove the remains of a crashed creation, backup or compaction. The caller uses the store exclusively."""
    for name in os.listdir(path):
        leftover = os.path.join(path, name)
        if name.startswith(_CREATING):
            if os.path.isdir(leftover):
                import shutil

                shutil.rmtree(leftover)
            else:
                os.unlink(leftover)


def has_data_file(path: str) -> bool:
    try:
        os.lstat(data_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _write_superblock(path: str) -> None:
    # sync=False: the file is synced as a whole before it gets its final name.
    env = lmdb.open(
        os.fsencode(path),
        subdir=False,
        lock=False,
        sync=False,
        map_size=1 << 20,
        max_dbs=len(schema.DATABASES),
        lib_version=0,
    )
    try:
        databases = {name: env.open_db(name) for name in schema.DATABASES}
        with env.begin(write=True, db=databases[schema.META]) as transaction:
            transaction.put(schema.META_FORMAT, schema.FORMAT.pack(schema.FORMAT_VERSION))
            transaction.put(schema.META_STORE_ID, sealed_record.seal(schema.META_STORE_ID, os.urandom(16)))
            for counter in (schema.META_NEXT_LEDGER, schema.META_NEXT_INCARNATION):
                transaction.put(counter, sealed_record.seal(counter, bytes(schema.COUNTER_BYTES)))
            for total in schema.META_SUMS.values():
                transaction.put(total, sealed_record.encode_checksum_xor(total, 0))
    finally:
        env.close()


def preallocate_lock_file(path: str, read_only: bool) -> bool:
    """Give the lock file its full size, because LMDB maps it without checking for disk space.

    Return whether LMDB should use a lock file. A reader does without one on a read-only medium, as LMDB decides itself,
    and on a disk without space.
    """
    name = lock_file(path)
    if read_only and not os.access(path, os.W_OK):
        return True
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Written rather than allocated: it is small, and works on every system.
            missing = os.fstat(descriptor).st_size < LOCK_FILE_BYTES
            if missing and os.pwrite(descriptor, bytes(LOCK_FILE_BYTES), 0) != LOCK_FILE_BYTES:
                raise OSError(errno.ENOSPC, "written only in part")
        finally:
            os.close(descriptor)
    except OSError as error:
        if read_only and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return False
        raise_os_error(error, f"cannot create the lock file {name}")
    return True


def check_file_length(path: str, read_only: bool) -> bool:
    """Refuse a data file that LMDB would crash on: without meta pages, or shorter than its meta page says.

    A valid file may be shorter if its last pages are free, which only a check of the whole file can prove. Such a file
    is extended, and True returned. If that check was mistaken, reads return zeros, which fail every digest, instead of
    crossing the end of the file, which kills the process.
    """
    name = data_file(path)
    try:
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(SMALLEST_PAGE)
            metas = [parse_meta(first)]
            page_size = metas[0].page_size if metas[0] else SMALLEST_PAGE
            file.seek(page_size if page_size >= SMALLEST_PAGE else SMALLEST_PAGE)
            metas.append(parse_meta(file.read(META_BYTES)))
    except OSError as error:
        raise_os_error(error, f"cannot read {name}")
    valid = [meta for meta in metas if meta]
    if len(valid) < META_PAGES:
        raise StoreDamagedError(f"{name} is damaged: {len(valid)} of its {META_PAGES} meta pages can be read")
    transactions = {meta.transaction for meta in valid}
    if transactions != {0} and max(transactions) - min(transactions) != 1:
        # Commits alternate between the two pages. After a flipped bit here LMDB would use the older one.
        raise StoreDamagedError(f"{name} is damaged: its meta pages have commits {sorted(transactions)}")
    newest = max(valid)
    expected = (newest.last_page + 1) * newest.page_size
    if size < expected:
        if read_only or not _is_complete_despite_length(name):
            raise StoreDamagedError(f"{name} is damaged: it has {size} bytes, but its meta page requires {expected}")
        try:
            os.truncate(name, expected)
            sync_file(name)
        except OSError as error:
            raise_os_error(error, f"cannot extend {name}")
        return True
    return False


def _is_complete_despite_length(name: str) -> bool:
    from lmdb.verify import VerifyError, verify

    try:
        return not verify(name, subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError:
        return False
    except OSError as error:
        raise_os_error(error, f"cannot read {name}")


def structure_problem(path: str) -> str | None:
    """Check LMDB's trees and free list page by page, without LMDB; return the first problem. Continuing with LMDB could
    crash the process, or overwrite pages in use."""
    from lmdb.verify import VerifyError, verify

    name = data_file(path)
    try:
        problems = verify(name, subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        problems = [error]
    except OSError as error:
        raise_os_error(error, f"cannot read {name}")
    if not problems:
        return None
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{name} is damaged: {problems[0]}{more}"


def verify_structure(path: str) -> None:
    problem = structure_problem(path)
    if problem is not None:
        raise StoreDamagedError(f"{problem}: bookstand repair saves what can be saved")


def probe_in_subprocess(path: str) -> None:
    """Have a child process read the whole store first, so that a crash kills only the child."""
    import subprocess

    timeout = 120 + os.path.getsize(data_file(path)) / _SLOWEST_PROBE
    try:
        probe = subprocess.run(
            [sys.executable, "-m", "bookstand.storage.process.probe", path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise StoreDamagedError(f"store {path} is damaged: reading it did not finish within {timeout:.0f} s") from None
    if probe.returncode < 0:
        raise StoreDamagedError(f"store {path} is damaged: reading it killed a process with signal {-probe.returncode}")
    if probe.returncode:
        name, _, message = probe.stdout.strip().partition(": ")
        kind = getattr(errors, name, StoreDamagedError)
        raise kind(message or f"store {path} is damaged: {probe.stderr.strip()}")


@contextmanager
def os_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, errors.BookstandError):
            raise
        raise_os_error(error, doing)


def raise_os_error(error: OSError, doing: str) -> NoReturn:
    """Raise the translation of an operating system error; an interruption is raised as it is."""
    if is_interruption(error):
        raise error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        answer = disk_full(doing, error)
        raise answer from answer.__cause__
    kind = StoreAccessError if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreError
    raise kind(f"{doing}: {error.strerror or error}") from error


def is_store_file(name: str) -> bool:
    prefixes = (_CREATING, process_markers.WRITER, process_markers.READER, process_markers.SERVER)
    return name in (DATA_FILE, LOCK_FILE, witness.FILE) or name.startswith(prefixes)


def sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
