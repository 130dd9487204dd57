"""Fault injection for stores: by rules, from a seed, and repeatable from one line."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple, Self

from bookstand.errors import BookstandError, IncorrectParameterError, OutcomeUnknownError
from bookstand.storage.commit.ledger_operations import UpdateLedger
from bookstand.storage.commit.node_operations import PutNode
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.hooks import Hooks, SimulatedCrash
from bookstand.storage.lmdb.errors import disk_full
from bookstand.storage.storage import Storage
from bookstand.testing import environment
from bookstand.testing.clock import RealClock, VirtualClock
from bookstand.testing.faults.blocking import BlockedCall, BlockedOperation, Stall
from bookstand.testing.faults.bookie import BookieFaults
from bookstand.testing.faults.failpoints import BY_POINT, OPERATIONS, POINTS, check_operation
from bookstand.testing.faults.pulsar_mock import MockBookKeeperFaults
from bookstand.testing.faults.rules import (
    TIMES,
    Rule,
    Subject,
    as_seconds,
    check_rule,
    error_of,
    name_of_error,
    parse_rule,
    seconds_of,
)

__all__ = ["Faults", "Fired", "Rule", "SimulatedCrash", "Stall", "UnfiredFaultsError"]

_VERSION = "v1:"
_LONGEST_SEED = 4000  # int() rejects more than 4300 digits
_LONGEST_PLACE = 20
_MODES = ("raise", "kill")

_ACTING = ("delay", "stall", "conflict", "fail")


class UnfiredFaultsError(BookstandError, AssertionError):
    """Some rules of a test never fired, so the test does not test what it claims."""


class Fired(NamedTuple):
    """Entry of :attr:`Faults.log`: the rule, and the operation that it affected."""

    rule: str
    operation: str
    ledger: int | None
    entry: int | None
    path: str | None
    bookie: int | None = None


class Faults(MockBookKeeperFaults, Hooks):
    """Hooks that inject faults according to rules: ``bookstand.open(path, hooks=faults)``.

    Rules are created by ``fail``, ``lose_ack``, ``delay``, ``stall``, ``conflict``, ``flip``, ``disk_full`` and
    ``crash``, at any time. A rule applies to an operation (``Faults.operations()``) or, for crashes, to a point
    (``Faults.points()``). It matches every occurrence, unless it names a ledger, an entry, a node's path or, in a
    served store, a bookie. These parameters select among the matching occurrences:

    ``nth``
        from the n-th on (1 is the first, counted since the rule was created),
    ``times``
        at most this many (None: unlimited),
    ``probability``
        each with this probability. It is determined by the seed, the rule and the subject of the operation, so the same
        entries are affected under every thread schedule.

    ``after=True``: the rule fires after the operation took effect, before its caller is notified. At most one rule of
    each kind fires before an operation, and one after it: the oldest that is due, and rules with limited ``times``
    first. The operation is first delayed, then stalled, then conflicts, then fails.

    A failed append is reported as a failure of the bookie: all pending appends of the handle fail with the same error,
    and the handle closes its ledger at the last acknowledged entry. With ``after=True`` the entry remains in the store,
    after that end. Appends in a transaction are part of one "commit", and are not an "append".

    A Faults object may be passed to several stores and used from several threads. As a context manager, it releases
    stalls at the end and raises :class:`UnfiredFaultsError` if a rule never fired, see :meth:`check`.
    """

    def __init__(self, seed: int = 0, clock: VirtualClock | None = None) -> None:
        """``clock``: :class:`VirtualClock` that measures delays; None for real delays."""
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise IncorrectParameterError(f"a seed is a number, not {seed!r}")
        if clock is not None and not isinstance(clock, VirtualClock):
            raise IncorrectParameterError(f"delays need a VirtualClock, or None, not {clock!r}")
        self.seed = seed
        self.clock = clock
        self.log: list[Fired] = []
        """Faults injected so far, in order."""
        self.passed: Counter[str] = Counter()
        """Number of times that each point was passed."""
        self.rules: list[Rule] = []
        self._waits: VirtualClock | RealClock = RealClock() if clock is None else clock
        self._lock = Lock()
        self._by_operation: dict[str, list[Rule]] = {}
        self._held: set[BlockedOperation] = set()
        # Appends that passed ``before_add``; those in transactions do not.
        self._begun: Counter[Subject] = Counter()
        # Rules for a full disk; the first one applies.
        self._full_disks: list[Rule] = []
        self._read_interceptor: Callable[[int, int, bytes | None], bytes | None] | None = None

    # -- creating rules ------------------------------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        code: int = -6,
        *,
        error: BookstandError | type[BookstandError] | None = None,
        ledger: int | None = None,
        entry: int | None = None,
        path: str | None = None,
        bookie: int | None = None,
        nth: int | None = None,
        times: int | None = 1,
        probability: float | None = None,
        after: bool = False,
    ) -> Rule:
        """Fail with BookKeeper's ``code``, or with ``error``: before any effect or (``after``) after all of it."""
        value = name_of_error(code, error)
        rule = Rule("fail", operation, ledger, entry, path, nth, times, probability, after, value, bookie)
        if isinstance(error, BookstandError):
            rule.action = error
        return self._add(rule)

    def lose_ack(self, operation: str = "append", **which: Any) -> Rule:
        """Make the operation durable, but report an unknown outcome: :class:`OutcomeUnknownError`."""
        return self.fail(operation, error=OutcomeUnknownError, after=True, **which)

    def delay(
        self,
        operation: str,
        seconds: float | tuple[float, float],
        *,
        after: bool = False,
        ledger: int | None = None,
        entry: int | None = None,
        path: str | None = None,
        bookie: int | None = None,
        nth: int | None = None,
        times: int | None = None,
        probability: float | None = None,
    ) -> Rule:
        """Delay the operation by a number of seconds, or by a random one within a range; ``times`` is unlimited by
        default."""
        value = as_seconds(seconds)
        return self._add(Rule("delay", operation, ledger, entry, path, nth, times, probability, after, value, bookie))

    def stall(
        self,
        operation: str,
        *,
        after: bool = False,
        ledger: int | None = None,
        entry: int | None = None,
        path: str | None = None,
        bookie: int | None = None,
        nth: int | None = None,
        times: int | None = 1,
        probability: float | None = None,
    ) -> Stall:
        """Block the operation until the :class:`Stall` is released."""
        rule = self._add(Rule("stall", operation, ledger, entry, path, nth, times, probability, after, "", bookie))
        stall: Stall = rule.action
        return stall

    def conflict(
        self,
        operation: str = "close",
        *,
        ledger: int | None = None,
        path: str | None = None,
        nth: int | None = None,
        times: int | None = 1,
        probability: float | None = None,
    ) -> Rule:
        """Simulate a concurrent write of the same metadata or node right before, which changes its version.

        A close or a recovery rereads the metadata and succeeds; a write with an expected version fails with -17. The
        concurrent write stores the existing value again. A missing node is created with an empty value.
        """
        return self._add(Rule("conflict", operation, ledger, None, path, nth, times, probability))

    def disk_full(self, after: int = 0) -> Rule:
        """Make the disk full after ``after`` more commits, until :meth:`free_space`.

        The commit that encounters the full disk fails with -6, caused by a DiskFullError. From then on the store
        behaves as on a disk that is really full: operations that need space fail immediately, and others are committed.
        Collecting deleted ledgers frees space in the file as usual.
        """
        return self._full(after, None)

    def disk_full_until(self, condition: Callable[[], object]) -> Rule:
        """Make the disk full now, until ``condition()``, which is called before each commit, returns a true value."""
        if not callable(condition):
            raise IncorrectParameterError(f"a condition is called, which {condition!r} cannot be")
        return self._full(0, condition)

    def _full(self, after: int, condition: Callable[[], object] | None) -> Rule:
        if isinstance(after, bool) or not isinstance(after, int) or after < 0:
            raise IncorrectParameterError(f"a disk is full after a number of commits, not after {after!r}")
        return self._add(Rule("full", "commit", value=str(after) if after else "", action=condition))

    def free_space(self) -> None:
        """End all full disks."""
        with self._lock:
            self._full_disks.clear()

    def flip(
        self,
        ledger: int,
        entry: int,
        bit: int | str = "random",
        *,
        times: int | None = None,
        bookie: int | None = None,
    ) -> Rule:
        """Flip one bit whenever this entry is read: bit number ``bit``, or one derived from the seed, always the same.
        The stored entry is not changed, so verify() finds nothing."""
        if bit != "random" and (isinstance(bit, bool) or not isinstance(bit, int) or bit < 0):
            raise IncorrectParameterError(f"a bit is a number from 0 up, or 'random', not {bit!r}")
        value = "" if bit == "random" else str(bit)
        return self._add(Rule("flip", "read", ledger, entry, times=times, value=value, bookie=bookie))

    def crash(
        self,
        point: str,
        nth: int = 1,
        mode: str = "raise",
        *,
        ledger: int | None = None,
        entry: int | None = None,
        path: str | None = None,
        bookie: int | None = None,
    ) -> Rule:
        """Crash when a point is passed for the n-th time or, with filters, for the n-th time that matches them.

        ``mode="raise"``: the call that passed the point raises :class:`SimulatedCrash`, which is not an Exception. The
        store behaves as if the process had died: queued commits are dropped, and all of its handles raise
        ``StoreCrashedError``, in other threads as well. The path can be reopened immediately. A crash in the store's
        background thread has only these effects. ``mode="kill"``: SIGKILL for the whole process.
        """
        if mode not in _MODES:
            raise IncorrectParameterError(f"a crash is one of {_MODES}, not {mode!r}")
        value = "" if mode == "raise" else mode
        return self._add(
            Rule("crash", point, ledger, entry, path, None if nth == 1 else nth, value=value, bookie=bookie)
        )

    def add(self, text: str) -> Rule:
        """Add a rule in the notation of ``str(rule)`` and of replays."""
        return self._add(parse_rule(text))

    def _add(self, rule: Rule) -> Rule:
        check_rule(rule)
        _check_value(rule)
        if rule.kind == "stall":
            rule.action = Stall()
        text = str(rule)
        with self._lock:
            rule.seed = self.seed, text, sum(str(other) == text for other in self.rules)
            self.rules.append(rule)
            if rule.kind == "full":
                self._full_disks.append(rule)
            else:
                self._by_operation.setdefault(rule.operation, []).append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Disable a rule; it is no longer required to fire."""
        with self._lock:
            for rules in (self.rules, self._full_disks, self._by_operation.get(rule.operation, [])):
                if rule in rules:
                    rules.remove(rule)
        if rule.kind == "stall":
            rule.action.release()

    @property
    def stalls(self) -> list[Stall]:
        """Stalls of all rules, in order, including rules of a replay."""
        return [rule.action for rule in self.rules if rule.kind == "stall"]

    def release(self) -> None:
        """Release all stalls."""
        for stall in self.stalls:
            stall.release()

    # -- listing and checking ------------------------------------------------------------------------------------------

    @staticmethod
    def points() -> Mapping[str, str]:
        """Return every point of the store, with the state of the store there."""
        return POINTS

    @staticmethod
    def operations() -> Mapping[str, str]:
        """Return every operation that rules can match."""
        return {name: operation.meaning for name, operation in OPERATIONS.items()}

    def unfired(self) -> list[Rule]:
        """Return the rules that have not fired."""
        return [rule for rule in self.rules if rule.expected and not rule.fired]

    def check(self) -> None:
        """Raise :class:`UnfiredFaultsError` if required rules have not fired."""
        unfired = self.unfired()
        if unfired:
            rules = ", ".join(f"{rule} (met {rule.seen} operations)" for rule in unfired)
            raise UnfiredFaultsError(f"never happened: {rules}; to replay: {self.replay_line}")

    @property
    def replay(self) -> str:
        """Seed and rules on one line, which :meth:`parse` reads.

        Conditions and interceptors are not included: a disk that was full until a condition stays full in a replay.
        """
        return ";".join([f"{_VERSION}seed={self.seed}", *map(str, self.rules)])

    @property
    def replay_line(self) -> str:
        """Replay as an assignment for a shell."""
        return f'{environment.FAULTS}="{self.replay}"'

    @classmethod
    def parse(cls, text: str, clock: VirtualClock | None = None) -> Self:
        """Parse a replay."""
        if not isinstance(text, str) or not text.startswith(_VERSION):
            raise IncorrectParameterError(f"a replay begins with {_VERSION!r}, not as {text!r}")
        first, *rest = text[len(_VERSION) :].split(";")
        name, _, seed = first.strip().partition("=")
        if name != "seed" or not seed.removeprefix("-").isdecimal() or len(seed) > _LONGEST_SEED:
            raise IncorrectParameterError(f"a replay begins with {_VERSION}seed=<number>, not as {text[:200]!r}")
        faults = cls(int(seed), clock)
        for item in rest:
            if item.strip():
                faults.add(item)
        return faults

    @classmethod
    def from_environment(cls, name: str = environment.FAULTS, clock: VirtualClock | None = None) -> Self | None:
        """Parse the replay in an environment variable; return None if it is not set."""
        text = os.environ.get(name)
        return cls.parse(text, clock) if text else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if error is None:
            self.check()
        else:
            error.add_note(f"to replay the faults: {self.replay_line}")

    def __repr__(self) -> str:
        return f"<Faults {self.replay}>"

    # -- matching operations -------------------------------------------------------------------------------------------

    def _meet(self, operation: str, after: bool, subject: Subject, kinds: tuple[str, ...] = _ACTING) -> dict[str, Rule]:
        """Count an operation, and return the rules that fire, at most one of each kind."""
        if operation not in self._by_operation:
            return {}
        with self._lock:
            found: dict[str, Rule] = {}
            for rule in self._by_operation[operation]:
                if rule.after != after or rule.kind not in kinds or not rule.matches(subject):
                    continue
                if rule.due(subject):
                    other = found.get(rule.kind)
                    if other is None or (other.times is None and rule.times is not None):
                        found[rule.kind] = rule
            for rule in found.values():
                self._fired(rule, operation, subject)
            return found

    def _fired(self, rule: Rule, operation: str, subject: Subject) -> None:
        rule.fired += 1
        self.log.append(Fired(str(rule), operation, *subject))

    def _hold(self, found: dict[str, Rule], subject: Subject, go_on: Callable[[BookstandError | None], None]) -> bool:
        """Delay, stall and fail the operation; return False, without an effect, if no such rule fires."""
        delay, stall, failing = found.get("delay"), found.get("stall"), found.get("fail")
        if delay is None and stall is None and failing is None:
            return False
        failure = None if failing is None else _failure(failing)

        def let_go(error: BookstandError | None) -> None:
            with self._lock:
                self._held.discard(held)
            go_on(error or failure)

        held = BlockedOperation(let_go)
        with self._lock:
            self._held.add(held)

        def wait_for_release() -> None:
            if stall is None:
                held.let_go()
            else:
                stall.action.hold(held)

        if delay is None:
            wait_for_release()
        else:
            seconds = delay.random("seconds", subject).uniform(*seconds_of(delay.value))
            self._waits.call_later(seconds, wait_for_release)
        return True

    def _happen(self, operation: str, after: bool, subject: Subject, storage: Storage | None) -> None:
        """Apply the rules to an operation that runs in this thread."""
        found = self._meet(operation, after, subject)
        if not found:
            return
        failing = found.pop("fail", None)
        waiting = BlockedCall()
        if self._hold(found, subject, waiting.go_on):
            waiting.wait()
        if "conflict" in found and storage is not None:
            _write_the_same(storage, subject)
        if failing is not None:
            raise _failure(failing)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def point(self, name: str) -> None:
        self.on_failpoint(name, None, None)

    def on_failpoint(self, name: str, subject: Any, storage: Storage | None, bookie: int | None = None) -> None:
        about = _subject_of(subject)._replace(bookie=bookie)
        with self._lock:
            self.passed[name] += 1
            for rule in self._by_operation.get(name, ()):
                if rule.kind == "crash" and rule.matches(about) and rule.due(about):
                    self._fired(rule, name, about)
                    if rule.value == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise SimulatedCrash(name)
        for operation, after in BY_POINT[name]:
            self._happen(operation, after, about, storage)
        if name == "commit.before_sync":
            self._find_disk_full()

    def before_add(
        self, ledger_id: int, entry_id: int, proceed: Callable[..., None], bookie: int | None = None
    ) -> bool:
        subject = Subject(ledger_id, entry_id, bookie=bookie)
        with self._lock:
            self._begun[subject] += 1
        return self._hold(self._meet("append", False, subject), subject, proceed)

    def after_add(self, ledger_id: int, entry_id: int, proceed: Callable[..., None], bookie: int | None = None) -> bool:
        subject = Subject(ledger_id, entry_id, bookie=bookie)
        with self._lock:
            began = self._begun.pop(subject, 0)
            if not began:
                return False
            if began > 1:
                self._begun[subject] = began - 1
        return self._hold(self._meet("append", True, subject), subject, proceed)

    def on_read(self, ledger_id: int, entry_id: int, stored: bytes | None, bookie: int | None = None) -> bytes | None:
        subject = Subject(ledger_id, entry_id, bookie=bookie)
        self._happen("read", False, subject, None)
        if self._read_interceptor is not None:
            stored = self._read_interceptor(ledger_id, entry_id, stored)
        if not stored:
            return stored
        with self._lock:
            for rule in self._by_operation.get("read", ()):
                if rule.kind == "flip" and rule.matches(subject) and rule.due(subject):
                    self._fired(rule, "read", subject)
                    bit = int(rule.value) if rule.value else rule.random("bit", subject).randrange(len(stored) * 8)
                    stored = _flipped(stored, bit)
        return stored

    def on_fence(self, ledger_id: int, bookie: int | None = None) -> None:
        self._happen("fence", False, Subject(ledger_id, bookie=bookie), None)

    def on_read_lac(self, ledger_id: int, bookie: int | None = None) -> None:
        self._happen("read_lac", False, Subject(ledger_id, bookie=bookie), None)

    def for_bookie(self, number: int) -> Hooks:
        return BookieFaults(self, number)

    def appears_empty(self, ledger_id: int) -> bool:
        return "empty" in self._meet("open", True, Subject(ledger_id), ("empty",))

    def crashed(self, reason: BookstandError) -> None:
        """Resume blocked operations, which would otherwise wait forever."""
        with self._lock:
            held = list(self._held)
        for one in held:
            one.let_go(reason)

    def disk_is_full(self) -> bool:
        rule = next(iter(self._full_disks), None)
        if rule is None:
            return False
        if rule.action is not None and rule.action():
            self.free_space()
            return False
        return bool(rule.seen >= int(rule.value or 0))

    def _find_disk_full(self) -> None:
        """Fail the first commit on the full disk; the store itself rejects later ones that need space. ``seen`` counts
        the commits before the first."""
        with self._lock:
            rule = next(iter(self._full_disks), None)
            if rule is None or rule.fired:
                return
            if rule.seen < int(rule.value or 0):
                rule.seen += 1
                return
            self._fired(rule, "commit", Subject())
        answer = disk_full(f"by the rule {rule}", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        raise answer from answer.__cause__


def _subject_of(subject: Any) -> Subject:
    if isinstance(subject, str):
        return Subject(path=subject)
    if isinstance(subject, tuple):
        return Subject(*subject)
    return Subject(subject)


def _failure(rule: Rule) -> BookstandError:
    given: BookstandError | None = rule.action
    if given is not None:
        return given.with_traceback(None)
    kind = error_of(rule.value)
    about = getattr(kind, "default_message", kind.__name__)
    return kind(f"{about} (by the rule {rule})")


def _flipped(stored: bytes, bit: int) -> bytes:
    if bit >= len(stored) * 8:
        raise IncorrectParameterError(f"there is no bit {bit} to flip: the entry has {len(stored) * 8}")
    changed = bytearray(stored)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _write_the_same(storage: Storage, subject: Subject) -> None:
    """Rewrite the existing value, which increments its version."""
    ledger_id, path = subject.ledger, subject.path
    if ledger_id is not None:
        metadata = storage.metadata(ledger_id)
        if metadata is not None:
            storage.apply(WriteBatch(UpdateLedger(ledger_id, metadata[0], None)))
    elif path is not None:
        node = storage.node(path)
        storage.apply(WriteBatch(PutNode(path, b"" if node is None else node[0], None)))


def _is_place(value: str) -> bool:
    return value.isdecimal() and len(value) <= _LONGEST_PLACE


def _check_value(rule: Rule) -> None:
    """Check the value of a rule, which depends on its kind."""
    kind, value = rule.kind, rule.value
    if kind == "fail":
        error_of(value)
    elif kind == "delay":
        seconds_of(value)
    elif kind == "conflict":
        if rule.after or not check_operation(rule.operation).conflicts:
            able = [name for name, operation in OPERATIONS.items() if operation.conflicts]
            raise IncorrectParameterError(f"a conflict is before one of {able}, not at {rule.operation!r}")
    elif kind == "crash":
        if value not in ("", *_MODES) or rule.after or rule.probability is not None or rule.times != 1:
            raise IncorrectParameterError(f"{rule} is no crash, which is written like crash@commit.before_sync#3=kill")
    elif kind in ("full", "flip"):
        at = "commit" if kind == "full" else "read"
        if rule.operation != at or rule.after or not (_is_place(value) or value in ("", "random")):
            raise IncorrectParameterError(f"{rule} is not what a replay writes; {kind} is at {at!r}, with a number")
        rule.value = "" if value == "random" else value
    elif value or (kind == "empty" and (rule.operation, rule.after) != ("open", True)):
        raise IncorrectParameterError(f"{rule} is not what a replay writes")
    assert kind in TIMES
