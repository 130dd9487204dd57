"""Transactions: appends to several ledgers, creation and deletion of ledgers, and node writes in one commit.

Changes are collected first and committed atomically when the ``with`` block ends. An exception inside the block
discards them.
"""

from __future__ import annotations

import sys

from bookstand.errors import (
    BookstandError,
    ForkedStoreError,
    IllegalOperationError,
    IncorrectParameterError,
    OutcomeUnknownError,
)
from bookstand.ledger import validation
from bookstand.ledger.client import MAX_COLLECTED_LEDGERS
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.ledger.validation import MISSING
from bookstand.storage.commit.futures import Completion, Pending, pending_for
from bookstand.storage.commit.group_commit import CommitRequest
from bookstand.storage.commit.ledger_operations import CreateLedger, DeleteLedger, ReserveLedger
from bookstand.storage.commit.node_operations import AssertNodeVersion, DeleteNode, PutNode
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import ledger_metadata as metadata_format
from bookstand.storage.metadata_store import check_path, check_value, check_version
from bookstand.storage.process.fork_guard import ProcessBound
from bookstand.storage.process.interrupt_guard import call_of_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Self

    from bookstand.ledger.client import Client
    from bookstand.ledger.handles.add_batch import PendingAdd
    from bookstand.storage.commit.operations import Operation
    from bookstand.storage.process.interrupt_guard import Call


class _TransactionSubmission(CommitRequest):
    """Commit request of a whole transaction, which completes its adds and operations."""

    __slots__ = ("adds", "completions")

    def __init__(
        self, client: Client, operations: list[Operation], adds: list[PendingAdd], completions: list[Completion]
    ) -> None:
        super().__init__(client.storage.committer, operations)
        self.adds = adds
        self.completions = completions

    def on_committed(self, value: Any, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        if error is None:
            for add in self.adds:
                add.writer.on_add_committed(add, None, later)
        for number, completion in enumerate(self.completions):
            later += completion.settle(None if value is None else value[number], error)
        later += self.settle(value, error)


class Transaction(ProcessBound):
    """Changes of one commit; use ``with store.transaction() as t``. A writer rejects other appends while it takes part
    in a transaction."""

    def __init__(self, client: Client) -> None:
        client.check_writable()
        self._client = client
        self._operations: list[Operation] = []
        self._completions: list[Completion] = []
        self._appends: dict[LedgerWriter, list[bytes]] = {}
        self._next_entry: dict[LedgerWriter, int] = {}
        self._created: list[LedgerWriter] = []
        self._is_open = True
        self._committed = False
        # Call that runs the block. If it returns without __exit__, the transaction has ended too.
        self._call: Call | None = None

    # -- operations ------------------------------------------------------------------------------------------------

    def append(self, writer: LedgerWriter, data: bytes) -> int:
        """Add an entry to a ledger of this store, and return the entry id that it will have."""
        self._check_open()
        if not isinstance(writer, LedgerWriter) or writer.client is not self._client:
            raise IncorrectParameterError(f"{writer!r} must be a LedgerWriter of this store")
        payload = validation.as_payload(data)
        # Checked before the reservation, so that a rejected payload does not reserve the writer.
        writer.check_size(writer.last_add_pushed + 1, payload)
        if writer not in self._next_entry:
            # Recorded before the reservation, so that _end() releases the writer even after an interruption here.
            self._appends[writer] = []
            try:
                self._next_entry[writer] = writer.reserve(self._call)
            except BookstandError:
                # Another transaction has reserved it; this one must not release it.
                del self._appends[writer]
                raise
        entry_id = self._next_entry[writer] + len(self._appends[writer])
        self._appends[writer].append(payload)
        return entry_id

    def create_ledger(
        self,
        ensemble: int = MISSING,
        write_quorum: int = MISSING,
        ack_quorum: int = MISSING,
        digest: str = MISSING,
        password: bytes = MISSING,
        custom_metadata: dict[str, bytes] = MISSING,
    ) -> LedgerWriter:
        """Create a ledger, and return its writer, which can be appended to in this transaction. The ledger id is
        assigned immediately. It is not reused if the transaction is discarded."""
        self._check_open()
        client = self._client
        new = client.plan_ledger(None, ensemble, write_quorum, ack_quorum, digest, password, custom_metadata)
        ((ledger_id, incarnation),) = client.storage.apply(WriteBatch(ReserveLedger()))
        metadata = metadata_format.serialize(new.metadata)
        self._add(CreateLedger(ledger_id, new.master_key, new.digest.name, metadata, incarnation))
        writer = client.open_writer(new, ledger_id, incarnation, adv=False, deferred_sync=False)
        assert isinstance(writer, LedgerWriter)
        self._created.append(writer)
        self._appends[writer] = []
        self._next_entry[writer] = writer.reserve(self._call)
        return writer

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger; the transaction fails if it does not exist."""
        self._check_open()
        self._add(DeleteLedger(validation.as_ledger_id(ledger_id), self._client.clock.now()))

    def put_node(self, path: str, value: bytes, expected_version: int | None = None) -> Pending:
        """Write a node. The result of the returned Pending is its new version, available after the commit."""
        self._check_open()
        return self._add(PutNode(check_path(path), check_value(value), check_version(expected_version)))

    def delete_node(self, path: str, expected_version: int | None = None) -> None:
        """Delete a node if it has the expected version (None: any)."""
        self._check_open()
        self._add(DeleteNode(check_path(path), check_version(expected_version)))

    def require_node(self, path: str, version: int) -> None:
        """Fail the commit with :class:`NodeMovedError` unless the node has this version."""
        self._check_open()
        self._add(AssertNodeVersion(check_path(path), version))

    def _add(self, operation: Operation) -> Pending:
        self._operations.append(operation)
        self._completions.append(Completion())
        return pending_for(self._completions[-1])

    def _check_open(self) -> None:
        if not self._is_open:
            raise IllegalOperationError("the transaction has ended")

    # -- commit and rollback ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._call = call_of_block(sys._getframe(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._finish(commit=error is None)
        except ForkedStoreError:
            # A forked child has nothing to roll back, so the exception that ends the block propagates.
            if error is None:
                raise

    def _finish(self, commit: bool) -> None:
        self._check_open()
        self._is_open = False
        # Break the reference cycle: the caller's frame refers to this transaction.
        self._call = None
        try:
            if commit:
                self._commit()
                self._committed = True
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        """Release the writers. Idempotent: an interrupted call is repeated."""
        for writer in self._appends:
            writer.release()
        if not self._committed:
            for writer in self._created:
                writer.mark_never_created()
            discarded = IllegalOperationError("the transaction was discarded")
            for completion in self._completions:
                completion.complete(error=discarded)

    def _commit(self) -> None:
        try:
            self._submit()
        except BookstandError as error:
            if isinstance(error, OutcomeUnknownError):
                self._fail(error)
            raise
        except BaseException as interruption:
            self._fail(OutcomeUnknownError(f"a transaction was interrupted by {interruption!r}"))
            raise

    def _fail(self, error: BookstandError) -> None:
        """Fail the writers with appends, because their entries may have been added."""
        for writer, payloads in self._appends.items():
            if payloads:
                writer.fail(error)

    def _submit(self) -> None:
        self._client.check_writable()
        storage = self._client.storage
        adds: list[PendingAdd] = []
        with storage.committer_lock:
            try:
                for writer, payloads in self._appends.items():
                    if payloads:
                        adds.append(writer.reserve_entries(payloads))
                operations = [*self._operations, *(add.entries for add in adds)]
                submission = _TransactionSubmission(self._client, operations, adds, self._completions)
                if operations:
                    storage.enqueue_locked(submission)
            except BookstandError:
                self._rollback_entries(adds)
                raise
        if not operations:
            return
        submission.wait()
        error = submission.error
        if error is not None:
            if not isinstance(error, OutcomeUnknownError):
                with storage.committer_lock:
                    self._rollback_entries(adds)
            raise error.with_traceback(None)
        if any(isinstance(operation, DeleteLedger) for operation in operations):
            self._client.collect_deleted(MAX_COLLECTED_LEDGERS)

    def _rollback_entries(self, adds: list[PendingAdd]) -> None:
        for add in adds:
            add.writer.rollback_entries(add)
