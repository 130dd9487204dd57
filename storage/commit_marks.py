"""Commit marks: the record by which a writer recognizes its own commit after the device failed during it.

A commit that fails may have taken effect all the same. The records that it changed cannot decide that: another process
may have written the same bytes since. Therefore every commit also writes the record ``writers`` of ``meta``, which
lists the last writers, newest first: the identity of each, random and never used by another, and the number of its last
commit as that writer counts them. After a failure a writer reads its own line:

- it has the number of the failed commit: the commit took effect;
- it has the number before: the commit took no effect, whatever others have committed since;
- it is missing, and the list is not full or has a mark that it had before: the commit took no effect, because later
  commits would have displaced the older marks first;
- it is missing from a list that is full of newer marks: more writers than the list holds have committed since, and the
  outcome cannot be known.
"""

from __future__ import annotations

import os

from bookstand.errors import StoreDamagedError
from bookstand.proto.layout import Layout
from bookstand.storage import keys, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import lmdb

WRITERS_LISTED = 16
MARK = Layout(
    f"the last writers, newest first, under `{keys.META_WRITERS.decode()}` in `meta`: up to {WRITERS_LISTED} times",
    ("writer", "16s", "random: one opening of the store for writing"),
    ("commits", "Q", "how many commits this writer has tried"),
)
_MARK = MARK.struct
_OTHERS_SIZE = (WRITERS_LISTED - 1) * _MARK.size


class CommitMarks:
    """The marks that one writer leaves. Callers hold LMDB's lock of writers."""

    __slots__ = ("_commits", "_identity", "_last", "_others")

    def __init__(self) -> None:
        self._identity = os.urandom(16)
        self._commits = 0
        # The marks of other writers as of this writer's last commit, and LMDB's number of that commit.
        self._others = b""
        self._last = -1

    def write(self, transaction: lmdb.Transaction, meta: lmdb._Database, number: int) -> None:
        """Mark the transaction, LMDB's commit ``number``, as this writer's next commit."""
        if self._last != number - 1:
            marks = _read(transaction, meta)
            self._others = b"".join(mark for mark in marks if not mark.startswith(self._identity))[:_OTHERS_SIZE]
        self._last = -1
        self._commits += 1
        body = _MARK.pack(self._identity, self._commits) + self._others
        transaction.put(keys.META_WRITERS, record.seal(keys.META_WRITERS, body), True, True, False, meta)

    def committed(self, number: int) -> None:
        """Note that the marked transaction took effect as LMDB's commit ``number``."""
        self._last = number

    def took_effect(self, transaction: lmdb.Transaction, meta: lmdb._Database) -> bool | None:
        """Return whether the last marked commit took effect; None if that cannot be known."""
        marks = _read(transaction, meta)
        for mark in marks:
            writer, commits = _MARK.unpack(mark)
            if writer == self._identity:
                return bool(commits == self._commits)
        before = {self._others[start : start + _MARK.size] for start in range(0, len(self._others), _MARK.size)}
        return None if len(marks) == WRITERS_LISTED and before.isdisjoint(marks) else False


def _read(transaction: lmdb.Transaction, meta: lmdb._Database) -> list[bytes]:
    sealed: bytes | None = transaction.get(keys.META_WRITERS, None, meta)  # type: ignore[assignment]
    if sealed is None:
        return []
    body = record.unseal(keys.META, keys.META_WRITERS, sealed)
    if len(body) % _MARK.size or len(body) > WRITERS_LISTED * _MARK.size:
        raise StoreDamagedError(
            f"{record.describe(keys.META, keys.META_WRITERS)} is damaged: {len(body)} bytes are not up to "
            f"{WRITERS_LISTED} marks of {_MARK.size}"
        )
    return [body[start : start + _MARK.size] for start in range(0, len(body), _MARK.size)]
