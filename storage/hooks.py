"""Failpoints and hooks by which tests intervene in the store. Without hooks each failpoint costs one comparison."""

from __future__ import annotations

from bookstand.errors import StoreCrashedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bookstand.storage.storage import Storage

    Proceed = Callable[..., None]
    # Subject of an operation: a ledger id, (ledger id, entry id), a node path, or None for the store itself.
    Subject = int | tuple[int, int] | str | None

POINTS: dict[str, str] = {
    # creating and opening a store
    "open.before": "the folder exists; its data file may not",
    "open.before_rename": "a new data file is complete and synced, under a temporary name",
    "open.created": "a new data file has its final name; nothing has opened it yet",
    "open.before_marker": "the data file is open; this process has no marker yet",
    "open.after_marker": "this process has its marker; markers of dead processes are not removed yet",
    "open.after": "the store is open",
    # every commit
    "commit.before_write": "a commit is about to begin; nothing of it is in the data file",
    "commit.before_sync": "the whole commit is staged; none of its pages is written",
    "commit.after_sync": "a commit is durable; no caller has been notified",
    # appends, once per entry
    "append.before_store": "an entry has its id; the store has not received it",
    "append.stored": "an entry is durable; its append is not acknowledged",
    # opening a ledger, and reading its last-add-confirmed
    "open_ledger.before": "a ledger is about to be opened",
    "open_ledger.after": "a ledger is open, and recovered if requested; the caller has no handle yet",
    # recovery
    "recovery.before": "recovery of an unclosed ledger is about to begin; nothing has changed",
    "recovery.marked": "its metadata is IN_RECOVERY; its writer is not fenced yet",
    "recovery.fenced": "the ledger is fenced; its last entry is not known yet",
    "recovery.entry_read": "recovery has read another slice of entries after the last-add-confirmed",
    "recovery.before_close": "the last entry is known; the compare-and-set to CLOSED is about to be submitted",
    "recovery.after_close": "the metadata is CLOSED; the caller has not been notified",
    # other ledger operations
    "create.before": "a ledger is about to be created",
    "create.after": "a ledger is created; the caller does not know its id",
    "force.before": "acknowledged entries are about to be forced",
    "force.after": "they are forced; the last-add-confirmed has not advanced",
    "close.before_cas": "the compare-and-set to CLOSED is about to be submitted",
    "close.after_cas": "the metadata is CLOSED; the caller has not been notified",
    "delete.before": "a ledger is about to be deleted",
    "delete.after": "a ledger is deleted; the caller has not been notified, and no entry is collected",
    "metadata.before": "a ledger's metadata is about to be replaced, by a close, a recovery or the caller",
    "metadata.after": "it is replaced; the caller has not been notified",
    # nodes
    "nodes.put.before": "a node is about to be written",
    "nodes.put.after": "a node is written; the caller has not been notified",
    "nodes.delete.before": "a node is about to be deleted",
    "nodes.delete.after": "a node is deleted; the caller has not been notified",
    # compaction and backup
    "compact.before": "nothing is collected yet",
    "compact.collected": "entries of deleted ledgers are collected; the data file is still the old one",
    "compact.copied": "the new data file is complete and synced, under a temporary name",
    "compact.renamed": "the new data file has its final name; the store has not opened it yet",
    "compact.after": "the store uses the new data file; the caller has not been notified",
    "backup.before": "the folder of the backup exists and is empty",
    "backup.copied": "the copy is complete and synced, under a temporary name",
    "backup.renamed": "the copy has its final name, which is not synced yet",
    # topics
    "topic.closed": "a topic's ledger is closed; the next one is neither created nor listed",
    "topic.begun": "a topic's next ledger is created and listed; nothing is written to it",
    "topic.trimmed": "consumed ledgers of a topic are deleted and unlisted; the caller has not been notified",
    # cursors
    "cursor.encoded": "pages and marker of a flush are encoded; none of them is written",
    "cursor.flushed": "a flush is durable; no caller has been notified",
    "cursor.copied": "a cursor's new ledger holds its full state; its record still refers to the old ledger",
    "cursor.switched": "a cursor's record refers to the new ledger; the state in memory does not yet",
}
"""Every failpoint, with the state of the store there. Hooks may pause, delay, fail or crash the store at each."""


class SimulatedCrash(BaseException):
    """Raised by a hook to simulate the death of the process at a failpoint; see :meth:`Storage.crash`.

    A BaseException, so that code under test does not handle it as the result of an operation. All other users of the
    store, in any thread, get ``reason``.
    """

    def __init__(self, point: str) -> None:
        super().__init__(f"a simulated crash at {point}")
        self.point = point
        self.reason = StoreCrashedError(f"the store has crashed at {point} (simulated); open it again")


class Hooks:
    """Base class of hooks. Override the methods of interest; the others change nothing.

    ``proceed`` may be called from any thread, once; ``proceed(error)`` makes the operation fail with that error.
    """

    sees_entries = True
    """False if the hooks do not override ``before_add``, ``after_add`` and ``on_read``. Entries are then batched as
    without hooks; otherwise each entry is submitted on its own."""

    def before_add(self, ledger_id: int, entry_id: int, proceed: Proceed) -> bool:
        """Called before an entry is submitted. Return True to hold it back from the store until ``proceed()``."""
        return False

    def after_add(self, ledger_id: int, entry_id: int, proceed: Proceed) -> bool:
        """Called when an entry is stored and synced. Return True to delay its acknowledgment until ``proceed()``."""
        return False

    def on_read(self, ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        """Called when an entry is read. Return the bytes for the reader; None means "no such entry". May raise."""
        return stored

    def on_fence(self, ledger_id: int) -> None:
        """Called before a ledger is fenced. May raise."""

    def on_read_lac(self, ledger_id: int) -> None:
        """Called before a ledger's last-add-confirmed is read. May raise."""

    def for_bookie(self, number: int) -> Hooks:
        """Hooks for operations at one bookie of a server. The default makes no distinction between bookies."""
        return self

    def appears_empty(self, ledger_id: int) -> bool:
        """Called when a ledger is opened. Return True to make its handle see a ledger that was closed empty."""
        return False

    def crashed(self, reason: StoreCrashedError) -> None:
        """Called after a crash: operations that are held back must proceed now, or fail with ``reason``; nothing is
        stored any longer.

        Called inside :meth:`Storage.crash`, which returns when no other thread is committing.
        """

    def disk_is_full(self) -> bool:
        """Called before each commit. True keeps a store that has found its disk full from checking for free space."""
        return False

    def point(self, name: str) -> None:
        """Called at each failpoint of ``POINTS``.

        May raise, or end the process. An exception at a failpoint of a commit refuses the commit before the sync, and
        leaves the caller with an unknown outcome after it. Elsewhere the operation fails with the exception.
        :class:`SimulatedCrash` closes the store as the death of the process would.
        """

    def on_failpoint(self, name: str, subject: Subject, storage: Storage) -> None:
        """Like :meth:`point`, with the subject and the store. Not called for the failpoints of a commit.

        No lock is held and no transaction is open, so the store may be used, except at the failpoints of ``open``.
        """
        self.point(name)
