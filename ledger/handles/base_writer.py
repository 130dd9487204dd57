"""Base class of writers: batching and acknowledgment of adds, force, explicit LACs and close.

Entries are submitted as :class:`PendingAdd` objects. Appends share one as long as its commit has not begun and the
last-add-confirmed has not changed. Adds are acknowledged strictly in the order of entry ids, even if the store
commits a later entry first.

A failed add fails the handle: all pending adds fail with the same error, and the handle closes the ledger at its
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

# With deferred sync, acknowledged bytes that may remain uncommitted in memory.
_MAX_UNCOMMITTED_BYTES = 4 << 20

_FINAL_CLOSE_ERRORS = (MetadataVersionError, NoSuchLedgerError)


class BaseWriter(LedgerHandle):
    """Base class of writers. ``self._lock`` guards the attributes."""

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
        self.has_timeout = client.add_quorum_timeout is not None
        self.open_batch: OpenAddBatch | None = None
        self._incarnation = incarnation
        self._deferred = bool(deferred_sync)
        self._hooks = client.storage.entry_hooks
        # Hooks and deferred sync handle entries one by one: each add has a single entry.
        self._unbatched = self._hooks is not None or self._deferred
        self._largest_payload = client.max_entry_bytes - HEADER_BYTES - digest.size
        # Pending adds by their first entry id.
        self._adds: dict[int, PendingAdd] = {}
        # Acknowledged adds whose futures have not been completed yet.
        self._unsettled: list[PendingAdd] = []
        # Last entry acknowledged in order. With deferred sync it is ahead of the LAC.
        self._last_acknowledged = -1
        # Commit error of an entry that was acknowledged early; the next force raises it.
        self._early_ack_error: BaseException | None = None
        # Set when the handle starts closing. Each thread that waits for it tries to write the CLOSED metadata, one at
        # a time under _end_lock, so that the close completes even if the thread that began it was interrupted.
        self._closing: Completion | None = None
        self._end_lock = RLock()
        # An open transaction has reserved the next entry ids.
        self._reserved = False
        self._reserved_by: Call | None = None
        # Bytes that a thread is committing without a PendingAdd; None: none, or already failed.
        self._solo_bytes: int | None = None
        # Acquired before _lock by each add, and held by append_many() so that its entry ids are consecutive.
        self._append_lock = RLock()
        self._adding_many = False
        self._length_flushed = 0
        self._sent_lac = -1
        self._lac_at_last_send = -1

    @property
    def last_add_pushed(self) -> int:
        with self._lock:
            return self._lap + self._unsealed_counts()[0]

    @property
    def length(self) -> int:
        with self._lock:
            return self._length + self._unsealed_counts()[1]

    def submitted_totals(self) -> tuple[int, int]:
        """Number of entry ids assigned, and total bytes of their payloads."""
        with self._lock:
            entries, size = self._unsealed_counts()
            return self._lap + 1 + entries, self._length + size

    @property
    def is_closing(self) -> bool:
        """Return True if the ledger is closed, or a call to close it has begun."""
        return self._closing is not None or self.is_closed()

    # -- submitting; the lock is held --------------------------------------------------------------------------------

    def _exclusive(self, add: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call ``add`` without entries of other threads in between. The caller holds ``_append_lock``."""
        try:
            with self._lock:
                self._adding_many = True
                # Appends could still join the open batch, whose entries precede these.
                self.seal_batch()
            return add(*arguments, **named)
        finally:
            self._adding_many = False

    def _refusal(self) -> BookstandError | None:
        if self._reserved and self._reserved_by is not None and self._reserved_by.is_over:
            # An interruption prevented the transaction from releasing the writer.
            self.release()
        if self._reserved:
            raise IllegalOperationError(
                f"ledger {self._id} is part of an open transaction; if the transaction was interrupted, close the "
                "ledger's writer"
            )
        if self._closing is not None or self._metadata.state == CLOSED:
            return LedgerClosedError(f"ledger {self._id} is closed")
        if self._client.closed:
            return ClientClosedError(f"store {self._storage.path} is closed")
        if self._deferred and not self._client.v3:
            return IllegalOperationError(f"ledger {self._id}: the v2 protocol does not support deferred sync")
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

    # -- batching; the lock is held ----------------------------------------------------------------------------------

    def _start_batch(self, sealed: bool = False) -> OpenAddBatch:
        """Open a batch for subsequent appends. ``_lap`` and ``_length`` exclude its entries until it is sealed."""
        add = OpenAddBatch(self, self._entries(self._lap + 1, [], self._lac, in_order=True), sealed)
        self._storage.enqueue_locked(add)
        self._adds[add.entries.first_entry] = add
        self.open_batch = add
        return add

    def seal_batch(self) -> None:
        """Seal the open batch, and count its entries in ``_lap`` and ``_length``."""
        add = self.open_batch
        if add is not None:
            add.seal()
            entries = add.entries
            assert entries.sizes is not None
            self._lap = entries.last_entry
            self._length = entries.length_before + entries.sizes.total
            self.open_batch = None

    def _joinable_batch(self) -> OpenAddBatch | None:
        """Return the open batch, if appends may still join it."""
        add = self.open_batch
        if add is None or not add.sealed:
            return add
        # Complete a seal_batch() that was interrupted.
        self.seal_batch()
        return None

    def _unsealed_counts(self) -> tuple[int, int]:
        """Return entries and bytes that ``_lap`` and ``_length`` exclude."""
        add = self._joinable_batch()
        return (0, 0) if add is None else add.counts()

    # -- single entries: with caller-assigned ids, hooks or deferred sync --------------------------------------------

    def _submit_single(self, data: bytes, entry_id: int | None, lac: int | None = None) -> tuple[Completion, int]:
        """Submit one entry. ``entry_id`` defaults to the next id, ``lac`` to the current last-add-confirmed."""
        with self._append_lock, self._lock:
            chosen = entry_id is not None
            if entry_id is None:
                entry_id = self._lap + 1
            elif entry_id <= self._lac or entry_id in self._adds:
                return failed(DuplicateEntryIdError(f"entry {self._id}:{entry_id} has already been added"))
            refusal = self._refusal()
            if refusal is None:
                self._storage.check_writable()
                add = self._make_add(entry_id, [data], self._lac if lac is None else lac, in_order=False)
                self._adds[entry_id] = add
                self._length += len(data)
                if not chosen:
                    self._lap = entry_id
        if refusal is not None:
            return self._reject(refusal)
        hooks = self._hooks
        if hooks is not None:
            try:
                self._storage.point("append.before_store", (self._id, entry_id))
            except BookstandError as error:
                self._submit(add, error)
                return add, entry_id
            if hooks.before_add(self._id, entry_id, lambda error=None: self._submit(add, error)):
                return add, entry_id
        self._submit(add)
        return add, entry_id

    def _submit(self, add: PendingAdd, error: BaseException | None = None) -> None:
        """Queue an add. With deferred sync it is acknowledged immediately, before the commit."""
        early = self._deferred and self._hooks is None
        if error is None and early:
            error = self._fenced_error()
        if error is None:
            try:
                self._storage.enqueue(add)
            except BookstandError as refusal:
                error = refusal
        if error is None and not early:
            self.committer.schedule_background()
            return
        callbacks: list[Callable[[], None]] = []
        self._finish_add(add, error, callbacks)
        call_all(callbacks)
        if early:
            self._limit_uncommitted()

    def _fenced_error(self) -> BookstandError | None:
        state = self._storage.state(self._id)
        if state is None or state.incarnation != self._incarnation or state.fenced:
            return LedgerFencedError(f"ledger {self._id} is fenced")
        return None

    def _limit_uncommitted(self) -> None:
        """Commit when the acknowledged entries in memory exceed ``_MAX_UNCOMMITTED_BYTES``."""
        if self._length - self._length_flushed >= _MAX_UNCOMMITTED_BYTES:
            self._length_flushed = self._length
            self._storage.flush()
        else:
            self.committer.schedule_background()

    def _reject(self, refusal: BookstandError) -> tuple[Completion, int]:
        if isinstance(refusal, IllegalOperationError):
            self._fail(refusal)
        return failed(refusal)

    # -- transactions ------------------------------------------------------------------------------------------------

    def reserve(self, call: Call | None) -> int:
        """Reject appends until :meth:`release` or the end of ``call``, and return the next entry id."""
        self._client.check_usable()
        self._storage.flush_if_queued()
        with self._append_lock, self._lock:
            refusal = self._refusal()
            if refusal is not None:
                raise refusal
            self.seal_batch()
            self._reserved, self._reserved_by = True, call
            return self._lap + 1

    def release(self) -> None:
        self._reserved, self._reserved_by = False, None

    def reserve_entries(self, payloads: list[bytes]) -> PendingAdd:
        """Assign entry ids to payloads that a transaction commits. The caller holds the lock."""
        self._reserved = False
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        add = self._make_add(self._lap + 1, payloads, self._lac, in_order=not self._unbatched)
        self._adds[add.entries.first_entry] = add
        self._lap += len(payloads)
        self._length += add.payload_bytes
        self._reserved = True
        return add

    def rollback_entries(self, add: PendingAdd) -> None:
        """Undo :meth:`reserve_entries` after the transaction failed. The caller holds the lock."""
        if self._adds.pop(add.entries.first_entry, None) is add:
            self._lap -= len(add.payloads)
            self._length -= add.payload_bytes

    def mark_never_created(self) -> None:
        """Close the handle of a ledger whose transaction did not commit."""
        with self._lock:
            self._closing = Completion()
        self._closing.complete(error=NoSuchLedgerError(f"ledger {self._id} was never created"))

    # -- acknowledgment ----------------------------------------------------------------------------------------------

    def on_add_committed(self, add: PendingAdd, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        """Handle the outcome of a commit. Runs in the thread that led it."""
        hooks = self._hooks
        if hooks is not None and error is None:
            first_entry = add.entries.first_entry
            try:
                self._storage.point("append.stored", (self._id, first_entry))
            except BookstandError as refusal:
                self._finish_add(add, refusal, later)
                return

            def proceed(error: BaseException | None = None) -> None:
                if get_ident() == committing:
                    self._finish_add(add, error, later)
                    return
                callbacks: list[Callable[[], None]] = []
                self._finish_add(add, error, callbacks)
                call_all(callbacks)

            # If the hook calls proceed() itself, the commit is still in progress: callbacks must run later.
            committing = get_ident()
            is_intercepted = hooks.after_add(self._id, first_entry, proceed)
            committing = 0
            if is_intercepted:
                return
        self._finish_add(add, error, later)

    def _finish_add(self, add: PendingAdd, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        with self._lock:
            if self._adds.get(add.entries.first_entry) is not add:
                if error is not None and self._deferred:
                    self._early_ack_error = error
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
        """Acknowledge stored adds in order of their ids. The caller holds the lock. An interrupted call is repeated."""
        while self._adds and (add := self._next_in_order()) is not None and add.stored:
            entries = add.entries
            last = max(self._last_acknowledged, entries.first_entry + len(add.payloads) - 1)
            self._unsettled.append(add)
            del self._adds[entries.first_entry]
            self._last_acknowledged = last
        if self._unsettled and not self._deferred and self._last_acknowledged > self._lac:
            # Entries submitted from now on carry the new LAC.
            self.seal_batch()
            self._lac = self._last_acknowledged

    def _next_in_order(self) -> PendingAdd | None:
        add = self._adds.get(self._last_acknowledged + 1)
        if add is None and self._adds:
            # With deferred sync, an id up to _last_acknowledged may be written again. No add precedes it.
            lowest = min(self._adds)
            if lowest <= self._last_acknowledged:
                return self._adds[lowest]
        return add

    def _fail(self, error: BaseException) -> None:
        """Fail all pending adds, and close the ledger at the LAC."""
        pending: list[PendingAdd] = []
        began_close = False
        try:
            with self._lock:
                if self._metadata.state == IN_RECOVERY:
                    pending = self._take_pending()
                else:
                    pending, began_close = self._begin_close()
            closing = self._closing
            if began_close and closing is not None:
                self.drive(closing, None)
        finally:
            _complete_all(pending, error)

    def fail(self, error: BaseException) -> None:
        """Fail the handle after a transaction whose outcome is unknown."""
        self.release()
        self._fail(error)

    def _take_pending(self) -> list[PendingAdd]:
        """Remove and return all pending adds. The caller holds the lock. Atomic with respect to interruptions."""
        self.seal_batch()
        pending = [self._adds[first] for first in sorted(self._adds)]
        size = sum([add.payload_bytes for add in pending]) + (self._solo_bytes or 0)
        self._adds, self._solo_bytes = {}, None
        self._length -= size
        return pending

    def expire(self, now: float) -> None:
        """Fail the handle if its oldest add has exceeded the add quorum timeout."""
        timeout = self._client.add_quorum_timeout
        with self._lock:
            oldest = min((add.started for add in self._adds.values()), default=now)
        if timeout is not None and now - oldest > timeout:
            self._fail(AddEntryQuorumTimeoutError(f"ledger {self._id}: an add was not acknowledged within {timeout} s"))

    def fail_all(self, reason: BookstandError) -> None:
        """Fail all pending adds, without closing the ledger."""
        pending: list[PendingAdd] = []
        try:
            with self._lock:
                pending = self._take_pending()
        finally:
            _complete_all(pending, reason)

    # -- force, explicit LAC, close ----------------------------------------------------------------------------------

    def force(self) -> None:
        """Make acknowledged entries durable. With deferred sync this advances the last-add-confirmed."""
        with self._lock:
            if self._closing is not None or self._metadata.state == CLOSED:
                raise LedgerClosedError(f"ledger {self._id} is closed")
            last = self._last_acknowledged
            if last < 0:
                return
            self._client.check_usable()
            if not self._client.v3:
                raise IllegalOperationError(f"ledger {self._id}: the v2 protocol does not support force")
        if self._storage.hooks is not None:
            self._storage.point("force.before", self._id)
        self._storage.flush()
        if self._storage.hooks is not None:
            self._storage.point("force.after", self._id)
        with self._lock:
            error, self._early_ack_error = self._early_ack_error, None
            length = self._length
        if error is not None:
            self._fail(error)
            raise error.with_traceback(None)
        self._advance_lac(last, length)
        with self._lock:
            self.seal_batch()

    def send_explicit_lac(self) -> None:
        """Store the LAC explicitly if it has not changed since the last call and was not sent before."""
        with self._lock:
            lac, previous = self._lac, self._lac_at_last_send
            self._lac_at_last_send = lac
            if self._closing is not None or lac < 0 or lac != previous or lac <= self._sent_lac:
                return
        self._storage.apply(WriteBatch(SetExplicitLac(self._id, self._incarnation, self._master_key, lac)))
        self._sent_lac = lac

    def close(self) -> None:
        """Commit queued adds, fail adds that remain pending, and mark the ledger CLOSED.

        A repeated close has the same outcome. :class:`MetadataVersionError` means that another client closed the
        ledger at a different last entry, which this handle then returns.
        """
        self.close_async().result()

    def close_async(self) -> Pending:
        """Close the ledger as :meth:`close` does. The returned Pending is already done."""
        with self._lock:
            if self._client.closed:
                return completed(error=ClientClosedError(f"store {self._storage.path} is closed"))
            closing = self._closing
        if closing is not None:
            return pending_for(closing)
        self._storage.flush()
        pending: list[PendingAdd] = []
        try:
            with self._lock:
                pending, _ = self._begin_close()
                closing = self._closing
        finally:
            _complete_all(pending, LedgerClosedError(f"ledger {self._id} was closed before the add was acknowledged"))
        assert closing is not None
        self.drive(closing, None)
        return pending_for(closing)

    def _begin_close(self) -> tuple[list[PendingAdd], bool]:
        """Reject further adds. The caller holds the lock. Returns the pending adds, and True if this call began the
        close."""
        began_close = self._closing is None
        pending = self._take_pending()
        self._lap = self._lac
        if began_close:
            self._closing = Completion(self)
        return pending, began_close

    def drive(self, completion: Completion, deadline: float | None) -> None:
        """Write the CLOSED metadata in the waiting thread, unless another thread has done so."""
        with self._end_lock:
            if not completion.done and completion is self._closing:
                self._write_end()

    def hurry(self) -> None:
        """Do nothing: :meth:`drive` writes the CLOSED metadata in the waiting threads."""

    def _write_end(self) -> None:
        """Change the metadata to CLOSED with this handle's LAC and length, by compare-and-set."""
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
                    f"ledger {self._id} was closed by another client at entry {self._metadata.last_entry_id} with "
                    f"length {self._metadata.length}, not at {last_entry} with {length}"
                )
            if self._storage.hooks is not None:
                self._storage.point("close.after_cas", self._id)
        except SimulatedCrash as crash:
            closing.complete(error=crash.reason)
            raise
        except BookstandError as error:
            if not isinstance(error, _FINAL_CLOSE_ERRORS):
                # The ledger is not closed, for example because the disk is full. The next close() retries.
                with self._lock:
                    self._closing = None
            closing.complete(error=error)
        else:
            closing.complete()


def _complete_all(adds: list[PendingAdd], error: BaseException) -> None:
    """Fail each add, even if the first pass is interrupted."""
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
