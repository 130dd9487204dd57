"""What the original keeps its buckets in, as recordings had it: snapshots and properties, calls that fail and calls
that are held back, and what waits for them.

A procedure of several calls is a generator: it yields the :class:`Task` that it waits for, and is told what that came
to, at once if it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, NamedTuple

from tests.replay.delayed_surprises import CALLS_IN_FLIGHT

Index = tuple[int, int, int]  # time, ledger, entry
Steps = Generator["Task", Any, Any]
Work = Callable[[], Any]

MISSING, PERSISTENCE, BAD_VERSION, THROWN = "missing", "persistence", "bad_version", "throw:"
SNAPSHOT_CALLS = ("create", "metadata", "segments", "length", "delete")
ATTEMPTS = 4


class Failed(Exception):  # noqa: N818 - what a call came to, not what went wrong in the model
    """``kind`` is what recordings call it."""


class Thrown(Failed):
    """It failed before it was a call."""


class Task:
    """What will be known of a procedure, or of a call, once it is done."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: Failed | None = None
        self._waiting: list[Callable[[], None]] = []

    @classmethod
    def following(cls, steps: Steps) -> Task:
        """A procedure, begun."""
        task = cls()
        task._go_on(steps, None)
        return task

    def settle(self, work: Work) -> None:
        try:
            self.value = work()
        except Failed as failed:
            self.error = failed
        self._finish()

    def _finish(self) -> None:
        self.done = True
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            told()

    def _go_on(self, steps: Steps, waited: Task | None) -> None:
        while True:
            try:
                if waited is not None and waited.error is not None:
                    waited = steps.throw(waited.error)
                else:
                    waited = steps.send(None if waited is None else waited.value)
            except StopIteration as end:
                self.value = end.value
                return self._finish()
            except Failed as failed:
                self.error = failed
                return self._finish()
            if not waited.done:
                waited._waiting.append(partial(self._go_on, steps, waited))
                return None


DONE = Task()
DONE.settle(lambda: None)


def all_of(tasks: Iterable[Task]) -> Steps:
    """The first failure counts, once all are done."""
    failures = []
    for task in tasks:
        try:
            yield task
        except Failed as failed:
            failures.append(failed)
    if failures:
        raise failures[0]


class Held(NamedTuple):
    kind: str
    task: Task
    work: Work


class OriginalStorage:
    """``snapshots`` by id, each its segments; ``properties`` in their order. ``left`` tells how many segments can be
    read of those that were cut short. ``meets`` tells whether the original has a surprise."""

    def __init__(self, first_id: int, meets: Callable[[str], bool]) -> None:
        self.snapshots: dict[int, list[list[Index]]] = {}
        self.left: dict[int, int] = {}
        self.properties: dict[str, str] = {}
        self.next_id = first_id
        self.failing: dict[str, list[str]] = {}
        self.holding: set[str] = set()
        self.held: list[Held] = []
        self._meets = meets

    # -- calls ---------------------------------------------------------------------------------------------------------

    def persistently(self, kind: str, work: Work, surprise: str) -> Task:
        """Calls until one passes. ``surprise``: what the original meets if they fail; empty, if that is no surprise."""
        return Task.following(self._again(kind, work, surprise))

    def _again(self, kind: str, work: Work, surprise: str) -> Steps:
        passing = (PERSISTENCE, MISSING) if kind in SNAPSHOT_CALLS else (BAD_VERSION,)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return (yield self._call(kind, work, surprise))
            except Failed as failed:
                if str(failed) not in passing or attempt == ATTEMPTS:
                    raise

    def _call(self, kind: str, work: Work, surprise: str) -> Task:
        task = Task()
        if self.failing.get(kind) and (not surprise or self._meets(surprise)):
            error = self.failing[kind].pop(0)
            if error.startswith(THROWN):
                raise Thrown(error)
            work = _failing(error)
        if kind in self.holding and self._meets(CALLS_IN_FLIGHT):
            self.held.append(Held(kind, task, work))
        else:
            task.settle(work)
        return task

    def will_fail(self, kind: str) -> bool:
        """However often it is tried."""
        return len(self.failing.get(kind, ())) >= ATTEMPTS

    def fail(self, kind: str, error: str, times: int) -> None:
        self.failing.setdefault(kind, []).extend([error] * times)

    def release(self, count: int | None = None, kind: str | None = None) -> None:
        """Complete the oldest calls that are held; as many as there are."""
        for _ in range(len(self.held) if count is None else count):
            held = next((one for one in self.held if kind in (None, one.kind)), None)
            if held is None:
                return
            self.held.remove(held)
            held.task.settle(held.work)

    def release_all(self) -> None:
        self.holding.clear()
        while self.held:
            self.release()

    # -- what calls do -------------------------------------------------------------------------------------------------

    def create(self, segments: list[list[Index]]) -> int:
        bucket_id = self.next_id
        self.next_id += 1
        self.snapshots[bucket_id] = segments
        return bucket_id

    def read(self, bucket_id: int) -> list[list[Index]]:
        if bucket_id not in self.snapshots:
            raise Failed(MISSING)
        if not self.snapshots[bucket_id]:
            raise Failed("IndexOutOfBoundsException")
        return self.snapshots[bucket_id]

    def read_segments(self, bucket_id: int, first: int, last: int) -> list[list[Index]]:
        segments = self.read(bucket_id)
        if last > self.left.get(bucket_id, len(segments)):
            raise Failed(PERSISTENCE)
        return segments[first - 1 : last]

    def delete(self, bucket_id: int) -> None:
        if bucket_id not in self.snapshots:
            raise Failed(MISSING)
        del self.snapshots[bucket_id]


def _failing(error: str) -> Work:
    def fail() -> Any:
        raise Failed(error)

    return fail
