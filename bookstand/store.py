"""The front door: a store, which wires the rooms and loads each on first use."""

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
    """Open the store at ``path``, a folder.

    The same path may be opened several times in a process: each Store is a client of its own over shared files.

    Args:
        path: The store's folder.
        create: Make the store if it is not there.
        read_only: Change nothing; what would is refused with −104.
        durability: ``"commit"``: what was confirmed survives kill -9 and power loss. ``"none"`` is for throw-away
            stores: a crash may destroy the file.
        check: How closely the file is looked at before it is believed: ``"fast"``, its structure if the store was not
            closed in good order; ``"structure"``, that always; ``"full"``, always, and every entry as well;
            ``"subprocess"``, all of it in another process first, for files that are not trusted.
        max_entry_bytes: The largest entry, its header and digest included.
        explicit_lac_interval: Seconds after which the last-add-confirmed of writers that stand still is told. None:
            never.
        wire: Which of BookKeeper's protocols handles behave like, ``"v3"`` or ``"v2"``.
        witness: Notice a rollback of the whole file to an earlier commit, at the price of one more flush a commit.
        bookies: The largest ensemble that a ledger may ask for.
        digest_autodetect: Open ledgers by the digest in their metadata, whichever is given.
        metadata_format: In which of BookKeeper's formats new ledgers' metadata is written: 1, 2 or 3.
        add_quorum_timeout: Seconds after which an add that is not answered fails. None: it waits.
        cluster: The label of that name in metrics.
        clock: Where the time comes from. None: the machine.
        hooks: What is called at named points; faults come in by it.
        defaults: What ledgers are created and opened with; ``bookstand.bookkeeper_defaults`` are the original's.
        expansion_limits: How far an entry or a record may expand when it is decoded: compressed payloads, batches, the
            states of cursors. An entry beyond them is damaged for readers.
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
        # Nobody gets the store who could close it.
        storage.close()
        raise


class Store(ProcessBound):
    """An open store. Use :func:`bookstand.open`; a context manager. All methods may be called from any thread."""

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
        """How far an entry or a record may expand when it is decoded."""
        return self._client.expansion_limits

    @property
    def storage(self) -> Storage:
        """The bookie below; shared by all who have the path open in this process."""
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
        """A new ledger with the next free id; what is not given comes from the store's defaults.

        ``deferred_sync``: appends are answered early, and promised only after ``force()``.
        """
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
        """A new ledger whose writer chooses the entry ids, and with an id of the caller's choice if one is given."""
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
        """Read a ledger. With ``recovery`` its writer is fenced, and the ledger closed where it ends; without, the
        writer goes on, and the reader follows a little behind. The password is checked first."""
        return self._client.open(ledger_id, recovery, password, digest)

    def delete_ledger(self, ledger_id: int, missing_ok: bool = False) -> None:
        """Delete a ledger's metadata. Its entries stay readable through open handles, until they are collected: by
        :meth:`compact`, or some time after."""
        self._client.delete(ledger_id, missing_ok)
        self._client.collect_deleted()

    def list_ledgers(self) -> Iterator[int]:
        """The ids of all ledgers, ascending."""
        return self._client.list()

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """What is stored of a ledger: its state, its quorums, where it ends."""
        return self._client.read_metadata(ledger_id)

    def write_ledger_metadata(self, metadata: LedgerMetadata, expected_version: int | None = None) -> int:
        """Replace a ledger's metadata if it has the expected version (None: any), past all handles; returns the new
        version."""
        if not isinstance(metadata, LedgerMetadata):
            raise IncorrectParameterError(f"this is no ledger metadata: {metadata!r}")
        return self._client.write_metadata(metadata, expected_version).version

    def is_closed(self, ledger_id: int) -> bool:
        """Whether a ledger's metadata says that it is closed."""
        return self._client.read_metadata(ledger_id).state == "CLOSED"

    # -- topics ----------------------------------------------------------------------------------------------------

    def topic(self, name: str, config: TopicConfig | None = None) -> Topic:
        """A topic with its subscriptions. Opening it takes it over from whoever had it open before.

        A store opens a topic once. Later calls return the same object; a ``config`` given then replaces that of the
        open topic, as :meth:`Topic.change_config` does, and None leaves it as it is.
        """
        from bookstand.delivery.topic import Topic

        self._client.check_usable()
        with self._topics_lock:
            found = self._topics.get(name)
            if found is None or not found.usable:
                if found is not None:
                    _close(found)
                found = self._topics[name] = Topic(self, name, config)
                return found
        # Without the lock: a dispatcher that holds a subscription's lock may be opening a dead-letter topic.
        if config is not None:
            found.change_config(config)
        return found

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
        """The ledgers of a topic, written to as one. Opening it takes it over from whoever wrote to it before.

        A ledger is followed by the next at the first of its limits: ``max_entries_per_ledger`` (50,000 by default),
        ``max_bytes_per_ledger`` (100 MiB) and ``max_ledger_age`` (four hours, in seconds). ``info_compression`` is the
        codec of the topic's record; ``skip_lost`` reads past ledgers that are listed but missing, instead of raising.

        A store opens a topic once. Later calls return the same object and change the options that they name; an option
        that is None stays as it is.
        """
        from bookstand.managed_ledger.managed_ledger import ManagedLedger

        with self._topics_lock:
            found = self._managed_ledgers.get(name)
            if found is None or not found.usable:
                found = self._managed_ledgers[name] = ManagedLedger(
                    self._client,
                    name,
                    create=create,
                    max_entries_per_ledger=max_entries_per_ledger,
                    max_bytes_per_ledger=max_bytes_per_ledger,
                    max_ledger_age=max_ledger_age,
                    info_compression=info_compression,
                    skip_lost=bool(skip_lost),
                )
                return found
            found.change_options(
                max_entries_per_ledger, max_bytes_per_ledger, max_ledger_age, info_compression, skip_lost
            )
            return found

    def bucket_snapshots(self) -> list[BucketSnapshot]:
        """The snapshots of delayed messages, by ledger, with those that nobody needs any more. A look: nothing is
        opened, and no tracker disturbed."""
        self._client.check_usable()
        from bookstand.delivery.tracker.bucket.snapshot.listing import bucket_snapshots

        return list(bucket_snapshots(self._client))

    # -- everything else -------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Nodes:
        """Values under paths, with versions."""
        self._client.check_usable()
        return Nodes(self._storage, self._client.check_usable, self._client.check_writable)

    def transaction(self) -> Transaction:
        """Appends to several ledgers, ledgers created and deleted, nodes written: in one commit, or none of it."""
        from bookstand.ledger.transaction import Transaction

        return Transaction(self._client)

    def metrics(self) -> StoreCollector:
        """A collector for prometheus-client with the figures of what is open. Needs ``bookstand[metrics]``."""
        from bookstand.metrics import StoreCollector

        return StoreCollector(self._client, self.cluster)

    def verify(self) -> Report:
        """Read everything, and say what is wrong."""
        self._client.check_usable()
        from bookstand.storage.verify import verify

        self._storage.flush_if_queued()
        return verify(self._storage)

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Copy the store, as it is at one moment, into a new folder, while writers go on."""
        self._client.check_usable()
        from bookstand.storage.backup import backup

        backup(self._storage, destination)

    def compact(self) -> int:
        """Remove what deleted ledgers left, and give the space back to the disk; returns the bytes freed.

        The file is written anew, for which no other process may have the store open; where one has, only the entries
        are removed, and the space is used again by the store itself.
        """
        self._client.check_writable()
        from bookstand.storage.backup import compact

        return compact(self._storage, self._client.clock.now())

    def close(self) -> None:
        """Commit what is queued, topics' acknowledgments with it, and close. Ledgers that are being written stay open
        in the store."""
        if not self._closed:
            # An interrupted call is repeated: each step does nothing where it was done.
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
    """What cannot be written any more does not keep a store from being closed."""
    try:
        topic.close()
    except BookstandError as error:
        from bookstand.storage.logger import logger

        logger().warning("topic %s was closed with an error: %s", topic.name, error)


class temporary(ProcessBound):  # noqa: N801 - reads as the function it is used as
    """``with bookstand.temporary() as store``: a throw-away store, without durability, gone when the block ends.

    Takes the options of :func:`open`.
    """

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
        """In a forked child: leave the folder to the parent, also when the interpreter exits."""
        if self._removal is not None:
            self._removal.detach()
