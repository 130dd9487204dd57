"""Several changes in one commit: appends to several ledgers, ledgers created and deleted, nodes written.

Everything is gathered first and happens when the ``with`` block ends, together or not at all. An exception inside the
block drops it all.
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
from bookstand.ledger.client import COLLECTED_AT_ONCE
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


class _Together(CommitRequest):
    """The whole transaction on its way; afterwards it tells everybody who takes part."""

    __slots__ = ("adds", "answers")

    def __init__(
        self, client: Client, operations: list[Operation], adds: list[PendingAdd], answers: list[Completion]
    ) -> None:
        super().__init__(client.storage.committer, operations)
        self.adds = adds
        self.answers = answers

    def on_committed(self, value: Any, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        if error is None:
            for add in self.adds:
                add.writer.add_finished(add, None, later)
        for number, answer in enumerate(self.answers):
            later += answer.settle(None if value is None else value[number], error)
        later += self.settle(value, error)


class Transaction(ProcessBound):
    """``with store.transaction() as t``. While a writer takes part, it takes no other appends."""

    def __init__(self, client: Client) -> None:
        client.check_writable()
        self._client = client
        self._operations: list[Operation] = []
        self._answers: list[Completion] = []
        self._appends: dict[LedgerWriter, list[bytes]] = {}
        self._next_entry: dict[LedgerWriter, int] = {}
        self._created: list[LedgerWriter] = []
        self._gathering = True
        self._committed = False
        # The caller of the block: if it is over, the transaction is as well.
        self._call: Call | None = None

    # -- what can be part of it ------------------------------------------------------------------------------------

    def append(self, writer: LedgerWriter, data: bytes) -> int:
        """Add an entry to a ledger of this store; returns the id it will have."""
        self._check_gathering()
        if not isinstance(writer, LedgerWriter) or writer.client is not self._client:
            raise IncorrectParameterError(f"{writer!r} is no writer of this store that hands out its entry ids itself")
        payload = validation.as_payload(data)
        # Before the writer takes part, so that it does not do so with nothing.
        writer.check_size(writer.last_add_pushed + 1, payload)
        if writer not in self._next_entry:
            # Before the reservation, so that it ends with the transaction whatever happens here.
            self._appends[writer] = []
            try:
                self._next_entry[writer] = writer.reserve(self._call)
            except BookstandError:
                # It is part of another transaction, which this one must not release it from.
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
        """Create a ledger. Its id is known at once, its writer can be appended to in this transaction; should the
        transaction be dropped, the id is not used again."""
        self._check_gathering()
        client = self._client
        new = client.prepare(None, ensemble, write_quorum, ack_quorum, digest, password, custom_metadata)
        ((ledger_id, incarnation),) = client.storage.apply(WriteBatch(ReserveLedger()))
        metadata = metadata_format.serialize(new.metadata)
        self._add(CreateLedger(ledger_id, new.master_key, new.digest.name, metadata, incarnation))
        writer = client.writer_for(new, ledger_id, incarnation, adv=False, deferred_sync=False)
        assert isinstance(writer, LedgerWriter)
        self._created.append(writer)
        self._appends[writer] = []
        self._next_entry[writer] = writer.reserve(self._call)
        return writer

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger; the transaction is refused if it does not exist."""
        self._check_gathering()
        self._add(DeleteLedger(validation.as_ledger_id(ledger_id), self._client.clock.now()))

    def put_node(self, path: str, value: bytes, expected_version: int | None = None) -> Pending:
        """Write a node; the Pending's result is its new version, once the transaction has ended."""
        self._check_gathering()
        return self._add(PutNode(check_path(path), check_value(value), check_version(expected_version)))

    def delete_node(self, path: str, expected_version: int | None = None) -> None:
        """Delete a node, if it has the expected version (None: any)."""
        self._check_gathering()
        self._add(DeleteNode(check_path(path), check_version(expected_version)))

    def require_node(self, path: str, version: int) -> None:
        """The transaction is refused, with :class:`NodeMovedError`, unless the node has this version then."""
        self._check_gathering()
        self._add(AssertNodeVersion(check_path(path), version))

    def _add(self, operation: Operation) -> Pending:
        self._operations.append(operation)
        self._answers.append(Completion())
        return pending_for(self._answers[-1])

    def _check_gathering(self) -> None:
        if not self._gathering:
            raise IllegalOperationError("the transaction has ended")

    # -- its end ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._call = call_of_block(sys._getframe(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._finish(commit=error is None)
        except ForkedStoreError:
            # In a forked child, nothing of the transaction is left to drop.
            if error is None:
                raise

    def _finish(self, commit: bool) -> None:
        self._check_gathering()
        self._gathering = False
        # The caller may live on.
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
        """Let the writers go. An interrupted call is repeated."""
        for writer in self._appends:
            writer.release()
        if not self._committed:
            for writer in self._created:
                writer.never_created()
            dropped = IllegalOperationError("the transaction was dropped")
            for answer in self._answers:
                answer.complete(error=dropped)

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
        """Entries may have been added: their writers end."""
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
                        adds.append(writer.stage(payloads))
                operations = [*self._operations, *(add.entries for add in adds)]
                together = _Together(self._client, operations, adds, self._answers)
                if operations:
                    storage.enqueue_locked(together)
            except BookstandError:
                self._unstage(adds)
                raise
        if not operations:
            return
        together.wait()
        error = together.error
        if error is not None:
            if not isinstance(error, OutcomeUnknownError):
                with storage.committer_lock:
                    self._unstage(adds)
            raise error.with_traceback(None)
        if any(isinstance(operation, DeleteLedger) for operation in operations):
            self._client.collect_deleted(COLLECTED_AT_ONCE)

    def _unstage(self, adds: list[PendingAdd]) -> None:
        for add in adds:
            add.writer.unstage(add)
