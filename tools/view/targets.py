"""Opening of views by path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from bookstand.disk.path_kind import BOOKIE, BOOKIE_FILE, STORE, Target, classify, find_dump
from bookstand.errors import IncorrectParameterError, NoSuchNodeError, NotAStoreError, StoreNotFoundError
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.process.data_files import check_local
from bookstand.tools.cli.damage_report import DamageError, summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.store import Store
    from bookstand.tools.view.base import View

__all__ = ["BOOKIE", "BOOKIE_FILE", "STORE", "Target", "find_dump", "classify", "open_view"]


LIMITS: ContextVar[ExpansionLimits] = ContextVar("LIMITS", default=DEFAULT)
"""Expansion limits, which the command line sets."""


def open_view(
    path: str,
    disks: Sequence[str] = (),
    metadata: str | None = None,
    passwords: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> View:
    """Open a view of the store or the bookie at ``path``. The other arguments are for bookies; ``disks`` are additional
    ones of the same cluster."""
    target = classify(path)
    words = [os.fsencode(password) for password in passwords]
    if target.kind == STORE:
        if metadata is not None or disks:
            what = "no other disks have parts of it" if disks else "which contains its metadata: no dump is needed"
            raise IncorrectParameterError(f"{path} is a store, {what}")
        from bookstand.tools.view.store import StoreView

        return StoreView(target.path, words, LIMITS.get())
    from bookstand.tools.view.bookies import DiskView

    if disks and target.kind == BOOKIE_FILE:
        raise IncorrectParameterError(f"{path} is a file: --disk requires a folder")
    check_bookies(disks)
    check_dump(metadata)
    return DiskView(target, disks, metadata, words, progress, LIMITS.get())


def check_bookies(paths: Sequence[str]) -> None:
    for path in paths:
        if classify(path).kind != BOOKIE:
            raise NotAStoreError(f"{path} is not a bookie's folder")


def topics_meant(store: Store, patterns: Sequence[str]) -> list[str]:
    """Return the topics that match the patterns, without duplicates. A pattern is a name, a suffix or a glob. Each must
    match."""
    from bookstand.disk.store_source import StoreSource
    from bookstand.managed_ledger.topic_name import fits

    source = StoreSource(store.storage, (), store.expansion_limits)
    names = [*source.dump.topics, *source.dump.partitioned]
    for pattern in patterns:
        if not any(fits(name, pattern) for name in names):
            absent = f"there is no topic {pattern!r}"
            if source.damage:
                raise DamageError(f"{absent}; damage may hide it: {summary(source.damage)}")
            raise NoSuchNodeError(absent)
    return list(dict.fromkeys(name for name in names if any(fits(name, one) for one in patterns)))


def check_dump(metadata: str | None) -> None:
    if metadata is not None and not os.path.exists(metadata):
        check_local(metadata, "the metadata dump")
        raise StoreNotFoundError(f"there is no metadata dump at {metadata}")
