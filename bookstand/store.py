"""Public facade: opens stores, and imports the packages for topics on first use."""

from __future__ import annotations

from threading import RLock

from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.ledger.client import Client, Settings
from bookstand.ledger.defaults import defaults as one_machine
from bookstand.ledger.validation import MISSING, as_ledger_id
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.clock import SystemClock
from bookstand.storage.format.ledger_metadata import LedgerMetadata
from bookstand.storage.metadata_store import Nodes
from bookstand.storage.process.fork_guard import ProcessBound
from bookstand.storage.storage import open_storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Any, Self
    from weakref import finalize

    from bookstand.delivery.topic import Topic
    from bookstand.delivery.topic_config import TopicConfig
    from bookstand.delivery.tracker.bucket.snapshot.listing import BucketSnapshot
    from bookstand.ledger.defaults import LedgerDefaults
    from bookstand.ledger.handles.advanced_writer import LedgerWriterAdv
    from bookstand.ledger.handles.reader import LedgerReader
    from bookstand.ledger.handles.writer import LedgerWriter
    from bookstand.ledger.transaction import Transaction
    from bookstand.managed_ledger.managed_ledger import ManagedLedger
    from bookstand.metrics import StoreCollector
    from bookstand.storage.clock import Clock
    from bookstand.storage.hooks import Hooks
    from bookstand.storage.storage import Storage
    from bookstand.storage.verify import Report


def open(
    path: str | os.PathLike[str],
    create: bool = True,
    read_only: bool = False,
    durability: str = "commit",
    check: str = "fast",
    max_entry_bytes: int = 5 << 20,
    explicit_lac_interval: float | None = None,
    wire: str = "v3",
    witness: bool = False,
    bookies: int = 3,
    digest_autodetect: bool = True,
    metadata_format: int = 3,
    add_quorum_timeout: float | None = None,
    cluster: str = "standalone",
    clock: Clock | None = None,
    hooks: Hooks | None = None,
    defaults: LedgerDefaults = one_machine,
    expansion_limits: ExpansionLimits = DEFAULT,
) -> Store:
    """Open the store in the folder ``path``.

    A process may open the same path several times: each Store is a separate client of shared files.

    Args:
        path: The store's folder.
        create: Create the store if it does not exist.
        read_only: Reject all changes with −104.
        durability: ``"commit"``: acknowledged changes survive kill -9 and power loss. ``"none"`` is for temporary
            stores: a crash may destroy the file.
        check: Check of the data file before use: ``"fast"``, its structure unless the store was closed cleanly;
            ``"structure"``, always its structure; ``"full"``, its structure and every entry; ``"subprocess"``,
            everything in another process first, for untrusted files.
        max_entry_bytes: Maximum size of an entry, including its header and digest.
        explicit_lac_interval: Seconds after which an idle writer sends an explicit LAC. None: never.
        wire: BookKeeper protocol whose client behavior handles have, ``"v3"`` or ``"v2"``.
        witness: Detect a rollback of the whole file to an earlier commit, at the cost of an additional sync per commit.
        bookies: Number of bookies, which limits the ensemble size.
        digest_autodetect: Use the digest type in a ledger's metadata, even if another one is passed.
        metadata_format: Version of BookKeeper's metadata format for new ledgers: 1, 2 or 3.
        add_quorum_timeout: Seconds after which an unacknowledged add fails. None: never.
        cluster: Value of the label ``cluster`` in metrics.
        clock: Source of the time. None: the system clock.
        hooks: Callbacks at named points, used for fault injection.
        defaults: Defaults for creating and opening ledgers; ``bookstand.bookkeeper_defaults`` are BookKeeper's.
        expansion_limits: Limits for decoding entries and records with compressed payloads, batches or cursor states.
            An entry that exceeds them is treated as damaged.
    """
    settings = Settings(
        defaults=defaults,
        clock=clock if clock is not None else SystemClock(),
        max_entry_bytes=max_entry_bytes,
        explicit_lac_interval=explicit_lac_interval,
        wire=wire,
        bookies=bookies,
        digest_autodetect=digest_autodetect,
        metadata_format=metadata_format,
        add_quorum_timeout=add_quorum_timeout,
        read_only=read_only,
        expansion_limits=expansion_limits,
    )
    storage = open_storage(
        path,
        create=create,
        read_only=read_only,
        durability=durability,
        check=check,
        witness=witness,
        hooks=hooks,
    )
    try:
        return Store(Client(storage, settings), cluster)
    except BaseException:
        # No caller receives a Store to close.
        storage.close()
        raise


class Store(ProcessBound):
    """An open store, which :func:`bookstand.open` returns; a context manager. All methods may be called from any
    thread."""

    path: str
    """The store's folder."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._storage = client.storage
        self.path = client.storage.path
        self.cluster = cluster
        self._managed_ledgers: dict[str, ManagedLedger] = {}
        self._topics: dict[str, Topic] = {}
        self._topics_lock = RLock()
        self._closed = False

    @property
    def expansion_limits(self) -> ExpansionLimits:
        """Limits for decoding entries and records."""
        return self._client.expansion_limits

    @property
    def storage(self) -> Storage:
        """Underlying storage, shared by all stores that this process has open at the path."""
        return self._storage

    # -- ledgers ---------------------------------------------------------------------------------------------------

    def create_ledger(
        self,
        ensemble: int = MISSING,
        write_quorum: int = MISSING,
        ack_quorum: int = MISSING,
        digest: str = MISSING,
        password: bytes | str = MISSING,
        custom_metadata: Mapping[str, bytes] = MISSING,
        deferred_sync: bool = False,
    ) -> LedgerWriter:
        """Create a ledger with the next id. Omitted arguments have the store's defaults. With ``deferred_sync``,
        appends are acknowledged before they are durable; ``force()`` makes them durable."""
        return self._client.create(  # type: ignore[return-value]
            None, False, ensemble, write_quorum, ack_quorum, digest, password, custom_metadata, deferred_sync
        )

    def create_ledger_adv(
        self,
        ledger_id: int | None = None,
        ensemble: int = MISSING,
        write_quorum: int = MISSING,
        ack_quorum: int = MISSING,
        digest: str = MISSING,
        password: bytes | str = MISSING,
        custom_metadata: Mapping[str, bytes] = MISSING,
        deferred_sync: bool = False,
    ) -> LedgerWriterAdv:
        """Create a ledger to whose writer the caller passes entry ids, optionally with a given ledger id."""
        if ledger_id is not None:
            ledger_id = as_ledger_id(ledger_id)
        return self._client.create(  # type: ignore[return-value]
            ledger_id, True, ensemble, write_quorum, ack_quorum, digest, password, custom_metadata, deferred_sync
        )

    def open_ledger(
        self,
        ledger_id: int,
        recovery: bool | None = None,
        password: bytes | str = MISSING,
        digest: str | None = None,
    ) -> LedgerReader:
        """Open a ledger for reading.

        With ``recovery``, the writer is fenced, and the ledger is closed at its last entry. Without, the writer can
        continue, and the reader follows its last-add-confirmed. The password is checked first.
        """
        return self._client.open(ledger_id, recovery, password, digest)

    def delete_ledger(self, ledger_id: int, missing_ok: bool = False) -> None:
        """Delete a ledger. Open handles can read its entries until they are removed, by :meth:`compact` or later."""
        self._client.delete(ledger_id, missing_ok)
        self._client.collect_deleted()

    def list_ledgers(self) -> Iterator[int]:
        """Iterate over the ids of all ledgers in ascending order."""
        return self._client.list()

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return a ledger's metadata: its state, quorums, last entry and others."""
        return self._client.read_metadata(ledger_id)

    def write_ledger_metadata(self, metadata: LedgerMetadata, expected_version: int | None = None) -> int:
        """Replace a ledger's metadata if it has the expected version (None: any), and return the new version. Open
        handles are not notified."""
        if not isinstance(metadata, LedgerMetadata):
            raise IncorrectParameterError(f"metadata must be a LedgerMetadata, not {metadata!r}")
        return self._client.write_metadata(metadata, expected_version).version

    def is_closed(self, ledger_id: int) -> bool:
        """Return True if a ledger is closed according to its metadata."""
        return self._client.read_metadata(ledger_id).state == "CLOSED"

    # -- topics ----------------------------------------------------------------------------------------------------

    def topic(self, name: str, config: TopicConfig | None = None) -> Topic:
        """Open a topic with its subscriptions. This takes over the topic, and fences its previous owner.

        A store opens a topic once. Later calls return the same object. They replace its configuration as
        :meth:`Topic.change_config` does, unless ``config`` is None.
        """
        from bookstand.delivery.topic import Topic

        self._client.check_usable()
        with self._topics_lock:
            topic = self._topics.get(name)
            if topic is None or not topic.usable:
                if topic is not None:
                    _close(topic)
                topic = self._topics[name] = Topic(self, name, config)
                return topic
        # Not under the lock: a dispatcher that holds a subscription's lock may be opening a dead-letter topic.
        if config is not None:
            topic.change_config(config)
        return topic

    def managed_ledger(
        self,
        name: str,
        create: bool = True,
        max_entries_per_ledger: int | None = None,
        max_bytes_per_ledger: int | None = None,
        max_ledger_age: float | None = None,
        info_compression: str | None = None,
        skip_lost: bool | None = None,
    ) -> ManagedLedger:
        """Open a topic's managed ledger. This takes over the topic, and fences its previous writer.

        The managed ledger rolls over to a new ledger at the first limit that is reached: ``max_entries_per_ledger``
        (50,000 by default), ``max_bytes_per_ledger`` (100 MiB) or ``max_ledger_age`` (four hours, in seconds).
        ``info_compression`` is the codec of the topic's record. With ``skip_lost``, reads skip ledgers that are listed
        but missing, instead of raising.

        A store opens a topic once. Later calls return the same object, and change the options that are not None.
        """
        from bookstand.managed_ledger.managed_ledger import ManagedLedger

        with self._topics_lock:
            opened = self._managed_ledgers.get(name)
            if opened is None or not opened.usable:
                opened = self._managed_ledgers[name] = ManagedLedger(
                    self._client,
                    name,
                    create=create,
                    max_entries_per_ledger=max_entries_per_ledger,
                    max_bytes_per_ledger=max_bytes_per_ledger,
                    max_ledger_age=max_ledger_age,
                    info_compression=info_compression,
                    skip_lost=bool(skip_lost),
                )
                return opened
            opened.change_options(
                max_entries_per_ledger, max_bytes_per_ledger, max_ledger_age, info_compression, skip_lost
            )
            return opened

    def bucket_snapshots(self) -> list[BucketSnapshot]:
        """List the bucket snapshots of delayed messages by ledger, including orphaned ones, without opening topics."""
        self._client.check_usable()
        from bookstand.delivery.tracker.bucket.snapshot.listing import bucket_snapshots

        return list(bucket_snapshots(self._client))

    # -- nodes, transactions and maintenance -----------------------------------------------------------------------

    @property
    def nodes(self) -> Nodes:
        """Metadata store: versioned values by path."""
        self._client.check_usable()
        return Nodes(self._storage, self._client.check_usable, self._client.check_writable)

    def transaction(self) -> Transaction:
        """Begin a transaction: appends, creation and deletion of ledgers, and node writes in one atomic commit."""
        from bookstand.ledger.transaction import Transaction

        return Transaction(self._client)

    def metrics(self) -> StoreCollector:
        """Return a prometheus-client collector for everything that is open. Requires ``bookstand[metrics]``."""
        from bookstand.metrics import StoreCollector

        return StoreCollector(self._client, self.cluster)

    def verify(self) -> Report:
        """Read everything, and report damage."""
        self._client.check_usable()
        from bookstand.storage.verify import verify

        self._storage.flush_if_queued()
        return verify(self._storage)

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Copy a consistent snapshot of the store to a new folder, without blocking writers."""
        self._client.check_usable()
        from bookstand.storage.backup import backup

        backup(self._storage, destination)

    def compact(self) -> int:
        """Remove the entries of deleted ledgers, rewrite the data file, and return the number of bytes freed.

        If another process has the store open, the file is not rewritten. The freed space is then available to the
        store, but not to the file system.
        """
        self._client.check_writable()
        from bookstand.storage.backup import compact

        return compact(self._storage, self._client.clock.now())

    def close(self) -> None:
        """Commit queued adds and acknowledgments, and close the store. Ledgers being written stay open in the store."""
        if not self._closed:
            # Each step is idempotent, so that an interrupted call can be repeated.
            for topic in list(self._topics.values()):
                _close(topic)
            self._client.close()
            self._storage.close(self._client)
            self._closed = True

    def __enter__(self) -> Self:
        self._client.check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store at {self.path}{', closed' if self._client.closed else ''}>"


def _close(topic: Topic) -> None:
    """Close a topic. Errors are logged only, so that they do not prevent closing the store."""
    try:
        topic.close()
    except BookstandError as error:
        from bookstand.storage.logger import logger

        logger().warning("topic %s was closed with an error: %s", topic.name, error)


class temporary(ProcessBound):  # noqa: N801 - used like a function
    """Context manager for a temporary store: ``with bookstand.temporary() as store``. The store has no durability, and
    is deleted at the end of the block. It takes the options of :func:`open`."""

    def __init__(self, **options: object) -> None:
        self._options = {"durability": "none"} | options
        self._store: Store | None = None
        self._removal: finalize[..., Any] | None = None

    def __enter__(self) -> Store:
        from shutil import rmtree
        from tempfile import mkdtemp
        from weakref import finalize

        folder = mkdtemp(prefix="bookstand-")
        self._removal = finalize(self, rmtree, folder)
        try:
            self._store = open(folder, **self._options)  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise
        return self._store

    def close(self) -> None:
        """Close the store and remove its folder. The end of the ``with`` block does this."""
        try:
            if self._store is not None:
                self._store.close()
        finally:
            if self._removal is not None:
                self._removal()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forked(self) -> None:
        """Keep the folder when a forked child exits: it belongs to the parent process."""
        if self._removal is not None:
            self._removal.detach()
