"""Where a test may reach into the store. Storage owns the interface; without hooks each point costs one test."""

from __future__ import annotations

from bookstand.errors import StoreCrashedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bookstand.storage.storage import Storage

    Proceed = Callable[..., None]
    # What an operation is about: a ledger's id, a ledger's and an entry's id, a node's path, or the store itself.
    Subject = int | tuple[int, int] | str | None

POINTS: dict[str, str] = {
    # making and opening a store
    "open.before": "a folder is there, its data file may not be",
    "open.before_rename": "a new data file is whole and synced, under a temporary name",
    "open.created": "a new data file has its name; nothing has opened it yet",
    "open.before_marker": "the data file is open; the marker of this process is not there yet",
    "open.after_marker": "the marker of this process is there; those of dead processes are not removed yet",
    "open.after": "the store is open",
    # every commit, whatever it holds
    "commit.before_write": "a commit is about to begin; nothing of it is in the data file",
    "commit.before_sync": "all of a commit is staged; none of its pages is written",
    "commit.after_sync": "a commit is on the disk; nobody has been told",
    # appends, entry by entry
    "append.before_store": "an entry has its id; the store has not seen it",
    "append.stored": "an entry is on the disk; its append is not acknowledged",
    # opening a ledger, and asking for its last-add-confirmed
    "open_ledger.before": "a ledger is about to be opened",
    "open_ledger.after": "a ledger is open, and recovered if it was to be; the caller has no handle yet",
    # recovery
    "recovery.before": "a ledger that is not closed is about to be recovered; nothing of it is changed",
    "recovery.marked": "its metadata says IN_RECOVERY; its writer is not stopped yet",
    "recovery.fenced": "the ledger is fenced; its end is not known yet",
    "recovery.entry_read": "recovery has read one more slice of entries behind the last-add-confirmed",
    "recovery.before_close": "the end is known; the compare-and-set to CLOSED is about to be submitted",
    "recovery.after_close": "the metadata says CLOSED; the caller has not been told",
    # the other things that happen to a ledger
    "create.before": "a ledger is about to be created",
    "create.after": "a ledger is created; the caller does not know its id",
    "force.before": "what is acknowledged is about to be forced",
    "force.after": "it is forced; the last-add-confirmed has not moved",
    "close.before_cas": "the compare-and-set to CLOSED is about to be submitted",
    "close.after_cas": "the metadata says CLOSED; the caller has not been told",
    "delete.before": "a ledger is about to be deleted",
    "delete.after": "a ledger is deleted; the caller has not been told, and nothing is collected",
    "metadata.before": "a ledger's metadata is about to be replaced, by a close, a recovery or the caller",
    "metadata.after": "it is replaced; whoever asked for it has not been told",
    # nodes
    "nodes.put.before": "a node is about to be written",
    "nodes.put.after": "a node is written; the caller has not been told",
    "nodes.delete.before": "a node is about to be deleted",
    "nodes.delete.after": "a node is deleted; the caller has not been told",
    # giving back space, and copies
    "compact.before": "nothing is collected yet",
    "compact.collected": "what deleted ledgers left is collected; the data file is the old one",
    "compact.copied": "the new data file is whole and synced, under a temporary name",
    "compact.renamed": "the new data file has its name; the store has not opened it yet",
    "compact.after": "the store goes on with the new data file; the caller has not been told",
    "backup.before": "the folder of a backup is there, and empty",
    "backup.copied": "the copy is whole and synced, under a temporary name",
    "backup.renamed": "the copy has its name, which is not synced yet",
    # topics
    "topic.closed": "a topic's ledger is closed; the next is neither made nor listed",
    "topic.begun": "a topic's next ledger is made and listed; nothing is written to it",
    "topic.trimmed": "consumed ledgers of a topic are deleted and unlisted; the caller has not been told",
    # cursors
    "cursor.encoded": "pages and marker of a flush are encoded; none of them is written",
    "cursor.flushed": "a flush is on the disk; whoever waits for it has not been told",
    "cursor.copied": "a cursor's new ledger holds the whole state; its record points at the old one",
    "cursor.switched": "a cursor's record points at the new ledger; the state in memory does not yet",
}
"""Every point that the store passes, and how things stand there. Hooks may stop, delay, fail or crash it at each."""


class SimulatedCrash(BaseException):
    """Raised by a hook to have everything go as if the process had died there; see :meth:`Storage.crash`.

    A BaseException, so that code under test does not take it for an answer. Whoever else uses the store, in whatever
    thread, is told ``reason``.
    """

    def __init__(self, point: str) -> None:
        super().__init__(f"a simulated crash at {point}")
        self.point = point
        self.reason = StoreCrashedError(f"the store has crashed at {point} (simulated); open it again")


class Hooks:
    """Override what is of interest; every method here lets things take their course.

    ``proceed`` may be called from any thread, once; ``proceed(error)`` makes the operation fail with that error.
    """

    sees_entries = True
    """Whether ``before_add``, ``after_add`` and ``on_read`` are called. Then entries travel one by one; hooks that do
    not care for single entries say False, and entries travel together as without hooks."""

    def before_add(self, ledger_id: int, entry_id: int, proceed: Proceed) -> bool:
        """An entry is about to be submitted. True: it waits, unseen by the store, until ``proceed()``."""
        return False

    def after_add(self, ledger_id: int, entry_id: int, proceed: Proceed) -> bool:
        """An entry is stored and synced. True: its acknowledgment waits until ``proceed()``."""
        return False

    def on_read(self, ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        """An entry was read. What is returned is what the reader gets; None is "no such entry". May raise."""
        return stored

    def on_fence(self, ledger_id: int) -> None:
        """A ledger is about to be fenced. May raise."""

    def on_read_lac(self, ledger_id: int) -> None:
        """A ledger's last-add-confirmed is about to be read. May raise."""

    def of_bookie(self, number: int) -> Hooks:
        """The hooks for what happens at one of a server's bookies: the same, unless they tell bookies apart."""
        return self

    def appears_empty(self, ledger_id: int) -> bool:
        """A ledger was opened. True: its handle is to believe that it was closed without an entry."""
        return False

    def crashed(self, reason: StoreCrashedError) -> None:
        """The store has crashed: whatever is held is to go on now, or fail with ``reason``; nothing is stored any more.

        Called inside :meth:`Storage.crash`, which returns when no other thread is in the middle of a commit.
        """

    def disk_is_full(self) -> bool:
        """Asked before each commit: True, and a store that has found its disk full does not look for itself whether
        there is space again."""
        return False

    def point(self, name: str) -> None:
        """The store passes one of ``POINTS``.

        May raise, or end the process. Of the points of a commit: what is raised before the sync refuses the commit,
        what is raised after it leaves the caller with an unknown outcome. What is raised elsewhere is the operation's
        answer. :class:`SimulatedCrash` closes the store as a dead process would.
        """

    def at(self, name: str, subject: Subject, storage: Storage) -> None:
        """The same with what it is about, and the store that passes it; not called for the points of a commit.

        No lock is held and no transaction is open, so the store may be used, other than in the points of ``open``.
        """
        self.point(name)
