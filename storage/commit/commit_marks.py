"""Commit marks: the record by which a writer recognizes its own commit after the device failed during it.

A failed commit may have taken effect all the same. The records that it changed cannot decide that, because another
process may have written the same bytes since. Therefore every commit also writes the record ``writers`` of ``meta``. It
lists the last writers, newest first: the random, unique identity of each, and the number of its last commit as that
writer counts them. After a failure a writer reads its own mark:

- It has the number of the failed commit: the commit took effect.
- It has the number before: the commit took no effect, whatever others have committed since.
- It is missing, and the list is not full or contains a mark that it had before: the commit took no effect, because
  later commits would have displaced the older marks first.
- It is missing from a list that is full of newer marks: more writers than the list holds have committed since, and the
  outcome cannot be known.

The record begins with the checksum of the meta page of the previous commit. LMDB writes the next commit to that page.
If the page has another checksum then, another commit has failed since, and :class:`MetaPages` removes its traces.
"""

from __future__ import annotations

import os

from bookstand.errors import StoreDamagedError
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format import schema, sealed_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import lmdb

    from bookstand.storage.lmdb.meta_page import MetaPages

WRITERS_LISTED = 16
BEFORE = Layout(
    f"the record `{schema.META_WRITERS.decode()}` of `meta`; after this come the marks",
    ("meta page", "I", "CRC32C of the meta page of the commit before, from the map size on; 0 if it was not read"),
)
MARK = Layout(
    f"the last writers, newest first, under `{schema.META_WRITERS.decode()}` in `meta`: up to {WRITERS_LISTED} times",
    ("writer", "16s", "random: identifies one opening of the store for writing"),
    ("commits", "Q", "number of commits this writer has tried"),
)
_BEFORE, _MARK = BEFORE.struct, MARK.struct
_OTHERS_SIZE = (WRITERS_LISTED - 1) * _MARK.size


class CommitMarks:
    """Marks of one writer. Callers hold LMDB's writer lock."""

    __slots__ = ("_before", "_commits", "_identity", "_last", "_newest", "_others")

    def __init__(self) -> None:
        self._identity = os.urandom(16)
        self._commits = 0
        # Marks of other writers as of this writer's last commit, and LMDB's number of that commit.
        self._others = b""
        self._last = -1
        # Checksums of meta pages: that of the commit before it, and that of the commit before the one in progress.
        self._before: int | None = None
        self._newest = 0

    def forget(self) -> None:
        """Discard the last commit, because the environment was reopened and may have another file."""
        self._last = -1

    def write(
        self, transaction: lmdb.Transaction, meta: lmdb._Database, number: int, meta_pages: MetaPages | None
    ) -> None:
        """Write the mark of LMDB's commit ``number``. ``meta_pages`` is None if the environment is not durable."""
        is_own = self._last == number - 1
        if not is_own:
            self._before, marks = _read(transaction, meta)
            self._others = b"".join(mark for mark in marks if not mark.startswith(self._identity))[:_OTHERS_SIZE]
        self._last = -1
        self._newest = 0 if meta_pages is None else meta_pages.prepare(number, self._before, is_own)
        self._commits += 1
        body = _BEFORE.pack(self._newest) + _MARK.pack(self._identity, self._commits) + self._others
        transaction.put(schema.META_WRITERS, sealed_record.seal(schema.META_WRITERS, body), True, True, False, meta)

    def committed(self, number: int) -> None:
        """Record that the marked transaction took effect as LMDB's commit ``number``."""
        self._last = number
        self._before = self._newest

    def took_effect(self, transaction: lmdb.Transaction, meta: lmdb._Database) -> bool | None:
        """Return whether the last marked commit took effect; None if unknown."""
        _, marks = _read(transaction, meta)
        for mark in marks:
            writer, commits = _MARK.unpack(mark)
            if writer == self._identity:
                return bool(commits == self._commits)
        before = {self._others[start : start + _MARK.size] for start in range(0, len(self._others), _MARK.size)}
        return None if len(marks) == WRITERS_LISTED and before.isdisjoint(marks) else False


def _read(transaction: lmdb.Transaction, meta: lmdb._Database) -> tuple[int | None, list[bytes]]:
    """Checksum of the meta page of the commit before, None if no commit has recorded one yet, and the marks."""
    sealed: bytes | None = transaction.get(schema.META_WRITERS, None, meta)  # type: ignore[assignment]
    if sealed is None:
        return None, []
    body = sealed_record.unseal(schema.META, schema.META_WRITERS, sealed)
    size = len(body) - _BEFORE.size
    if size < 0 or size % _MARK.size or size > WRITERS_LISTED * _MARK.size:
        raise StoreDamagedError(
            f"{sealed_record.describe(schema.META, schema.META_WRITERS)} is damaged: {len(body)} bytes are not a "
            f"checksum and up to {WRITERS_LISTED} marks of {_MARK.size}"
        )
    marks = [body[start : start + _MARK.size] for start in range(_BEFORE.size, len(body), _MARK.size)]
    return _BEFORE.unpack_from(body)[0], marks
