"""What all handles that add entries have in common: how entries travel, how they are answered, how a ledger ends.

What travels together is an :class:`PendingAdd`: appends that come while the same last-add-confirmed holds and the
commit has not begun share one. Answers come strictly in the order of entry ids, also where the store is done with a
later entry before an earlier one.

An add that fails ends the handle: all adds under way fail with the same error, and the handle closes the ledger at its
last-add-confirmed.
"""

from __future__ import annotations

from threading import RLock, get_ident

from bookstand.errors import (
    AddEntryQuorumTimeoutError,
    BookstandError,
    ClientClosedError,
    DuplicateEntryIdError,
    IllegalOperationError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataVersionError,
    NoSuchLedgerError,
)
from bookstand.ledger.handles.add_batch import OpenAddBatch, PendingAdd
from bookstand.ledger.handles.handle import LedgerHandle
from bookstand.storage.commit.entry_operations import AddEntries, SetExplicitLac
from bookstand.storage.commit.futures import Completion, Pending, completed, pending_for
from bookstand.storage.commit.group_commit import call_all
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.format.ledger_metadata import CLOSED, IN_RECOVERY
from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.process.interrupt_guard import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from bookstand.ledger.client import Client
    from bookstand.storage.format.digest import Digest
    from bookstand.storage.format.ledger_metadata import LedgerMetadata

    P = ParamSpec("P")
    T = TypeVar("T")

# Deferred sync: what was answered early and waits in memory.
_EARLY_BYTES = 4 << 20

_CLOSING_ERRORS_THAT_STAND = (MetadataVersionError, NoSuchLedgerError)


class BaseWriter(LedgerHandle):
    """What both kinds of writers share. ``self._lock`` guards all of the state below."""

    _close_is_durable = True

    def __init__(
        self,
        client: Client,
        metadata: LedgerMetadata,
        digest: Digest,
        master_key: bytes,
        incarnation: int,
        deferred_sync: bool,
    ) -> None:
        super().__init__(client, metadata, digest, master_key)
        self.committer = client.storage.committer
        self.timed = client.add_quorum_timeout is not None
        self.gathering: OpenAddBatch | None = None
        self._incarnation = incarnation
        self._deferred = bool(deferred_sync)
        self._hooks = client.storage.entry_hooks
        # Entries go one by one, not many in one Add.
        self._alone = self._hooks is not None or self._deferred
        self._largest_payload = client.max_entry_bytes - HEADER_BYTES - digest.size
        # Adds under way by the id of their first entry.
        self._adds: dict[int, PendingAdd] = {}
        # Adds that are acknowledged and no longer under way, until they are settled.
        self._unsettled: list[PendingAdd] = []
        # The last entry answered in order; with deferred sync it runs ahead of the LAC.
        self._head = -1
        # An early answer that turned out to be wrong, to be told by the next force.
        self._broken_promise: BaseException | None = None
        # Once the handle is closing. Whoever waits for it writes the ledger's end, one thread at a time: so it is
        # written as well where the thread that began was interrupted.
        self._closing: Completion | None = None
        self._ending = RLock()
        # Part of a transaction that is being gathered: entry ids are spoken for.
        self._reserved = False
        self._reserved_by: Call | None = None
        # Bytes of an entry that its own thread is committing, past the Adds; None: there is none, or it was dropped.
        self._lone: int | None = None
        # Taken before the lock by who begins to add, and held by who adds many, between which no others may come.
        self._turn = RLock()
        self._adding_many = False
        self._length_flushed = 0
        self._told_lac = -1
        self._lac_at_tick = -1

    @property
    def last_add_pushed(self) -> int:
        with self._lock:
            return self._lap + self._gathered()[0]

    @property
    def length(self) -> int:
        with self._lock:
            return self._length + self._gathered()[1]

    def pushed(self) -> tuple[int, int]:
        """How many entry ids were handed out, and the bytes of payloads with them."""
        with self._lock:
            entries, size = self._gathered()
            return self._lap + 1 + entries, self._length + size

    @property
    def is_ending(self) -> bool:
        """Whether the ledger is closed, or a call to close it has begun."""
        return self._closing is not None or self.is_closed()

    # -- submitting; the lock is held --------------------------------------------------------------------------------

    def _to_itself(self, add: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Add entries in one call, between which no other thread's entries come; the turn is held."""
        try:
            with self._lock:
                self._adding_many = True
                # Nothing may be put in front of its entries any more.
                self.end_gathering()
            return add(*arguments, **named)
        finally:
            self._adding_many = False

    def _refusal(self) -> BookstandError | None:
        if self._reserved and self._reserved_by is not None and self._reserved_by.is_over:
            # Its end was interrupted before it began.
            self.release()
        if self._reserved:
            raise IllegalOperationError(
                f"ledger {self._id} is part of a transaction that has not ended; if it was interrupted, close the "
                "ledger's writer"
            )
        if self._closing is not None or self._metadata.state == CLOSED:
            return LedgerClosedError(f"ledger {self._id} is closed")
        if self._client.closed:
            return ClientClosedError(f"store {self._storage.path} is closed")
        if self._deferred and not self._client.v3:
            return IllegalOperationError(f"ledger {self._id}: the v2 wire has no deferred sync")
        return None

    def _entries(self, first_entry: int, payloads: list[bytes], lac: int, in_order: bool) -> AddEntries:
        return AddEntries(
            self._id,
            self._incarnation,
            self._master_key,
            self._digest,
            first_entry,
            lac,
            self._length,
            payloads,
            in_order,
        )

    def _make_add(self, first_entry: int, payloads: list[bytes], lac: int, in_order: bool) -> PendingAdd:
        return PendingAdd(self, self._entries(first_entry, payloads, lac, in_order))

    # -- gathering; the lock is held ---------------------------------------------------------------------------------

    def _begin_gathering(self, sealed: bool = False) -> OpenAddBatch:
        """An Add for what comes from now on. Until it is ended, its entries are not in ``_lap`` and ``_length``."""
        add = OpenAddBatch(self, self._entries(self._lap + 1, [], self._lac, in_order=True), sealed)
        self._storage.enqueue_locked(add)
        self._adds[add.entries.first_entry] = add
        self.gathering = add
        return add

    def end_gathering(self) -> None:
        """What comes from now on travels in another Add."""
        add = self.gathering
        if add is not None:
            add.seal()
            entries = add.entries
            assert entries.sizes is not None
            self._lap = entries.last_entry
            self._length = entries.length_before + entries.sizes.total
            self.gathering = None

    def _open_gathering(self) -> OpenAddBatch | None:
        """What entries may join."""
        add = self.gathering
        if add is None or not add.sealed:
            return add
        # An interruption kept it from being ended.
        self.end_gathering()
        return None

    def _gathered(self) -> tuple[int, int]:
        """Entries and bytes that are not counted in yet."""
        add = self._open_gathering()
        return (0, 0) if add is None else add.measure()

    # -- submitting one entry on its own: where ids are chosen, hooks are to see it, or the answer comes early -------

    def _submit_alone(self, data: bytes, entry_id: int | None, lac: int | None = None) -> tuple[Completion, int]:
        """``entry_id`` None: the next one. ``lac`` is what the entry carries, by default what holds now."""
        with self._turn, self._lock:
            chosen = entry_id is not None
            if entry_id is None:
                entry_id = self._lap + 1
            elif entry_id <= self._lac or entry_id in self._adds:
                return failed(DuplicateEntryIdError(f"entry {self._id}:{entry_id} was added already"))
            refusal = self._refusal()
            if refusal is None:
                self._storage.check_writable()
                add = self._make_add(entry_id, [data], self._lac if lac is None else lac, in_order=False)
                self._adds[entry_id] = add
                self._length += len(data)
                if not chosen:
                    self._lap = entry_id
        if refusal is not None:
            return self._refused(refusal)
        hooks = self._hooks
        if hooks is not None:
            try:
                self._storage.point("append.before_store", (self._id, entry_id))
            except BookstandError as error:
                self._enter(add, error)
                return add, entry_id
            if hooks.before_add(self._id, entry_id, lambda error=None: self._enter(add, error)):
                return add, entry_id
        self._enter(add)
        return add, entry_id

    def _enter(self, add: PendingAdd, error: BaseException | None = None) -> None:
        """An entry goes to the store, and with deferred sync its answer comes before it is there."""
        early = self._deferred and self._hooks is None
        if error is None and early:
            error = self._foreseen_refusal()
        if error is None:
            try:
                self._storage.enqueue(add)
            except BookstandError as refusal:
                error = refusal
        if error is None and not early:
            self.committer.schedule_background()
            return
        callbacks: list[Callable[[], None]] = []
        self._answer(add, error, callbacks)
        call_all(callbacks)
        if early:
            self._limit_early_answers()

    def _foreseen_refusal(self) -> BookstandError | None:
        state = self._storage.state(self._id)
        if state is None or state.incarnation != self._incarnation or state.fenced:
            return LedgerFencedError(f"ledger {self._id} is fenced")
        return None

    def _limit_early_answers(self) -> None:
        """What was answered early waits in memory; commit it when it becomes much."""
        if self._length - self._length_flushed >= _EARLY_BYTES:
            self._length_flushed = self._length
            self._storage.flush()
        else:
            self.committer.schedule_background()

    def _refused(self, refusal: BookstandError) -> tuple[Completion, int]:
        if isinstance(refusal, IllegalOperationError):
            self._fail(refusal)
        return failed(refusal)

    # -- as part of a transaction --------------------------------------------------------------------------------------

    def reserve(self, call: Call | None) -> int:
        """Take no appends until :meth:`release`, or until the call is over; returns the id that the next entry will
        have."""
        self._client.check_usable()
        self._storage.flush_if_queued()
        with self._turn, self._lock:
            refusal = self._refusal()
            if refusal is not None:
                raise refusal
            self.end_gathering()
            self._reserved, self._reserved_by = True, call
            return self._lap + 1

    def release(self) -> None:
        self._reserved, self._reserved_by = False, None

    def stage(self, payloads: list[bytes]) -> PendingAdd:
        """Count the payloads in, as entries that travel with somebody else's submission; the lock is held."""
        self._reserved = False
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        add = self._make_add(self._lap + 1, payloads, self._lac, in_order=not self._alone)
        self._adds[add.entries.first_entry] = add
        self._lap += len(payloads)
        self._length += add.payload_bytes
        self._reserved = True
        return add

    def unstage(self, add: PendingAdd) -> None:
        """The transaction was refused: as if it had not been; the lock is held."""
        if self._adds.pop(add.entries.first_entry, None) is add:
            self._lap -= len(add.payloads)
            self._length -= add.payload_bytes

    def never_created(self) -> None:
        """The transaction that was to create the ledger was refused."""
        with self._lock:
            self._closing = Completion()
        self._closing.complete(error=NoSuchLedgerError(f"ledger {self._id} was never created"))

    # -- answers -----------------------------------------------------------------------------------------------------

    def add_finished(self, add: PendingAdd, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        """The store is done with an Add. Runs in the thread that led the commit."""
        hooks = self._hooks
        if hooks is not None and error is None:
            first_entry = add.entries.first_entry
            try:
                self._storage.point("append.stored", (self._id, first_entry))
            except BookstandError as refusal:
                self._answer(add, refusal, later)
                return

            def proceed(error: BaseException | None = None) -> None:
                if get_ident() == committing:
                    self._answer(add, error, later)
                    return
                callbacks: list[Callable[[], None]] = []
                self._answer(add, error, callbacks)
                call_all(callbacks)

            # Called from inside the hook, while the commit is not over, it must not do more than note the answer.
            committing = get_ident()
            held = hooks.after_add(self._id, first_entry, proceed)
            committing = 0
            if held:
                return
        self._answer(add, error, later)

    def _answer(self, add: PendingAdd, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        with self._lock:
            if self._adds.get(add.entries.first_entry) is not add:
                if error is not None and self._deferred:
                    self._broken_promise = error
            elif error is None:
                add.stored = True
            else:
                later.append(lambda: self._fail(error))
            if error is None:
                self._acknowledge()
                for done in self._unsettled:
                    later += done.settle()
                self._unsettled = []

    def _acknowledge(self) -> None:
        """Acknowledge what is stored and in turn; the lock is held. An interrupted call is repeated."""
        while self._adds and (add := self._next_in_turn()) is not None and add.stored:
            entries = add.entries
            last = max(self._head, entries.first_entry + len(add.payloads) - 1)
            self._unsettled.append(add)
            del self._adds[entries.first_entry]
            self._head = last
        if self._unsettled and not self._deferred and self._head > self._lac:
            # Entries submitted from now on carry the new LAC.
            self.end_gathering()
            self._lac = self._head

    def _next_in_turn(self) -> PendingAdd | None:
        add = self._adds.get(self._head + 1)
        if add is None and self._adds:
            # With deferred sync an id up to the head may be written again; nothing is before it.
            lowest = min(self._adds)
            if lowest <= self._head:
                return self._adds[lowest]
        return add

    def _fail(self, error: BaseException) -> None:
        """An add failed: so do all under way, and the handle closes itself."""
        doomed: list[PendingAdd] = []
        first_time = False
        try:
            with self._lock:
                if self._metadata.state == IN_RECOVERY:
                    doomed = self._drop_adds()
                else:
                    doomed, first_time = self._begin_close()
            closing = self._closing
            if first_time and closing is not None:
                self.drive(closing, None)
        finally:
            _complete_all(doomed, error)

    def fail(self, error: BaseException) -> None:
        """End the handle: what became of an entry is not known."""
        self.release()
        self._fail(error)

    def _drop_adds(self) -> list[PendingAdd]:
        """Take all adds off their way; the lock is held. An interruption leaves all of them, or none."""
        self.end_gathering()
        doomed = [self._adds[first] for first in sorted(self._adds)]
        size = sum([add.payload_bytes for add in doomed]) + (self._lone or 0)
        self._adds, self._lone = {}, None
        self._length -= size
        return doomed

    def expire(self, now: float) -> None:
        """Fail if the oldest add has waited longer than the add quorum timeout."""
        timeout = self._client.add_quorum_timeout
        with self._lock:
            oldest = min((add.started for add in self._adds.values()), default=now)
        if timeout is not None and now - oldest > timeout:
            self._fail(AddEntryQuorumTimeoutError(f"ledger {self._id}: an add was not answered within {timeout} s"))

    def give_up(self, reason: BookstandError) -> None:
        """Nothing under way will be answered any more."""
        doomed: list[PendingAdd] = []
        try:
            with self._lock:
                doomed = self._drop_adds()
        finally:
            _complete_all(doomed, reason)

    # -- force, explicit LAC, close ----------------------------------------------------------------------------------

    def force(self) -> None:
        """Make durable what is acknowledged. With deferred sync this is what moves the last-add-confirmed."""
        with self._lock:
            if self._closing is not None or self._metadata.state == CLOSED:
                raise LedgerClosedError(f"ledger {self._id} is closed")
            head = self._head
            if head < 0:
                return
            self._client.check_usable()
            if not self._client.v3:
                raise IllegalOperationError(f"ledger {self._id}: the v2 wire has no force")
        if self._storage.hooks is not None:
            self._storage.point("force.before", self._id)
        self._storage.flush()
        if self._storage.hooks is not None:
            self._storage.point("force.after", self._id)
        with self._lock:
            broken, self._broken_promise = self._broken_promise, None
            length = self._length
        if broken is not None:
            self._fail(broken)
            raise broken.with_traceback(None)
        self._learn(head, length)
        with self._lock:
            self.end_gathering()

    def tell_lac(self) -> None:
        """Store the LAC explicitly if it has stood still since the last call, and no entry carries it yet."""
        with self._lock:
            lac, seen = self._lac, self._lac_at_tick
            self._lac_at_tick = lac
            if self._closing is not None or lac < 0 or lac != seen or lac <= self._told_lac:
                return
        self._storage.apply(WriteBatch(SetExplicitLac(self._id, self._incarnation, self._master_key, lac)))
        self._told_lac = lac

    def close(self) -> None:
        """Commit what is queued, fail what cannot be answered, and write the ledger's end into its metadata.

        Closing again gives the same answer. :class:`MetadataVersionError` says that the ledger was closed elsewhere,
        at another end, which the handle then shows.
        """
        self.close_async().result()

    def close_async(self) -> Pending:
        """The same; done when it returns, apart from what a callback sees."""
        with self._lock:
            if self._client.closed:
                return completed(error=ClientClosedError(f"store {self._storage.path} is closed"))
            closing = self._closing
        if closing is not None:
            return pending_for(closing)
        self._storage.flush()
        doomed: list[PendingAdd] = []
        try:
            with self._lock:
                doomed, _ = self._begin_close()
                closing = self._closing
        finally:
            _complete_all(doomed, LedgerClosedError(f"ledger {self._id} was closed before the add was answered"))
        assert closing is not None
        self.drive(closing, None)
        return pending_for(closing)

    def _begin_close(self) -> tuple[list[PendingAdd], bool]:
        """No adds from here on; the lock is held. Returns what was under way, and whether the end is to be written."""
        first_time = self._closing is None
        doomed = self._drop_adds()
        self._lap = self._lac
        if first_time:
            self._closing = Completion(self)
        return doomed, first_time

    def drive(self, completion: Completion, deadline: float | None) -> None:
        """A thread waits for the ledger's end: write it, unless another thread has."""
        with self._ending:
            if not completion.done and completion is self._closing:
                self._write_end()

    def hurry(self) -> None:
        """The ledger's end is written by the threads that wait for it."""

    def _write_end(self) -> None:
        """Compare and set the metadata to CLOSED at this handle's LAC and length."""
        closing = self._closing
        assert closing is not None
        last_entry, length = self._lac, self._length
        try:
            while self._metadata.state != CLOSED:
                closed = self._metadata.replace(state=CLOSED, last_entry_id=last_entry, length=length)
                if self._storage.hooks is not None:
                    self._storage.point("close.before_cas", self._id)
                try:
                    self._adopt(self._client.write_metadata(closed, self._metadata.version, self._incarnation))
                except MetadataVersionError:
                    metadata, _ = self._client.read_with_incarnation(self._id, self._incarnation)
                    self._adopt(metadata)
            if (self._metadata.last_entry_id, self._metadata.length) != (last_entry, length):
                raise MetadataVersionError(
                    f"ledger {self._id} was closed elsewhere at entry {self._metadata.last_entry_id} with length "
                    f"{self._metadata.length}, not at {last_entry} with {length}"
                )
            if self._storage.hooks is not None:
                self._storage.point("close.after_cas", self._id)
        except SimulatedCrash as crash:
            closing.complete(error=crash.reason)
            raise
        except BookstandError as error:
            if not isinstance(error, _CLOSING_ERRORS_THAT_STAND):
                # Nothing is decided: the disk may be full, say. The next close tries again.
                with self._lock:
                    self._closing = None
            closing.complete(error=error)
        else:
            closing.complete()


def _complete_all(adds: list[PendingAdd], error: BaseException) -> None:
    """Fail each. An interruption does not keep any from it."""
    try:
        for add in adds:
            add.complete(error=error)
    except BaseException:
        for add in adds:
            add.complete(error=error)
        raise


def failed(error: BookstandError) -> tuple[Completion, int]:
    completion = Completion()
    completion.complete(error=error)
    return completion, -1
