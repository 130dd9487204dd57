"""Ways to break the commit protocol: each must be noticed by the histories of real processes.

``python -m tests.soak.protocol_defects SEED COUNT DEFECT`` runs histories under the shim, as
``tests.storage.protocol.histories`` does, of processes with one of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from bookstand.storage import storage
from bookstand.storage.commit.commit_marks import CommitMarks
from bookstand.storage.lmdb.environment import LmdbEnvironment
from bookstand.storage.lmdb.meta_page import MetaPages
from tests.soak.kinds import Done, Kind
from tests.soak.victims import shared_library
from tests.storage.protocol import histories

ROUNDS = 10
HISTORIES = 20
"""Of a round; after so many rounds a defect that was not noticed is missed."""


class _Unlocked:
    """In place of the folder's lock."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> _Unlocked:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def release(self) -> None:
        pass


def _open_unlocked() -> None:
    """A store is opened without the folder's lock."""

    class ProcessMarkers:
        FolderLock = _Unlocked

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real, storage.process_markers = storage.process_markers, ProcessMarkers()  # type: ignore[assignment]


def _reopen_unlocked() -> None:
    """LMDB's environment is reopened, after a failed commit or in place of a larger map, without the folder's lock."""

    def folder_lock(self: Any) -> Any:
        self._map_lock.leave_all()
        return _Unlocked()

    LmdbEnvironment._folder_lock = folder_lock  # type: ignore[method-assign]


def _judge_by_number() -> None:
    """A failed commit took effect if LMDB's newest commit has its number."""
    numbers: dict[int, int] = {}
    write = CommitMarks.write

    def note(self: Any, transaction: Any, meta: Any, number: int, headers: Any) -> None:
        numbers[id(self)] = number
        write(self, transaction, meta, number, headers)

    CommitMarks.write = note  # type: ignore[method-assign]
    CommitMarks.took_effect = (  # type: ignore[method-assign]
        lambda self, transaction, meta: transaction.id() > numbers[id(self)]
    )


def _answers_not_final() -> None:
    """Report the outcome of a failed commit before it is durable."""
    MetaPages.rewrite = lambda self, newest: None  # type: ignore[method-assign]


def _traces_remain() -> None:
    """The next commit leaves the traces of a failed one in the header pages."""
    prepare = MetaPages.prepare

    def believe(self: Any, number: int, before: int | None, is_own: bool) -> int:
        real, self._rewrite = self._rewrite, lambda *_: None
        try:
            return prepare(self, number, before, is_own)
        finally:
            self._rewrite = real

    MetaPages.prepare = believe  # type: ignore[method-assign]


def _headers_in_the_cache() -> None:
    """The header page of another process's commit is taken for written."""
    prepare = MetaPages.prepare
    MetaPages.prepare = (  # type: ignore[method-assign]
        lambda self, number, before, is_own: prepare(self, number, before, True)
    )


DEFECTS: dict[str, Callable[[], None]] = {
    "opened without the folder's lock": _open_unlocked,
    "reopened without the folder's lock": _reopen_unlocked,
    "a failed commit is judged by its number": _judge_by_number,
    "answers are not final": _answers_not_final,
    "traces of a failed commit remain": _traces_remain,
    "header pages are taken for written": _headers_in_the_cache,
}


def missed(name: str) -> str | None:
    """The defect, if the histories do not notice it."""
    for seed in range(ROUNDS):
        _, problems, _ = histories.run(shared_library(), seed, HISTORIES, "tests.soak.protocol_defects", name)
        if problems:
            return None
    return f"defect {name!r} was not noticed in {ROUNDS * HISTORIES} histories"


def one_round(seed: int) -> Done:
    name = sorted(DEFECTS)[seed % len(DEFECTS)]
    problem = missed(name)
    return Done(1, [problem] if problem else [])


KIND = Kind(one_round)


if __name__ == "__main__":
    DEFECTS[sys.argv[3]]()
    print(json.dumps(histories.main(int(sys.argv[1]), int(sys.argv[2]))))
