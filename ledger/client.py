"""Counterpart of BookKeeper's client object: creates, opens and deletes ledgers and writes their metadata.

Several clients may share a storage, in one process or in several. They communicate only through the storage.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from weakref import WeakSet

from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    DigestMismatchError,
    IncorrectParameterError,
    MetadataSerializationError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    StoreDamagedError,
    UnauthorizedAccessError,
    WriteOnReadOnlyError,
)
from bookstand.ledger import validation
from bookstand.ledger.defaults import LedgerDefaults
from bookstand.ledger.validation import MISSING
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.commit.ledger_operations import (
    CreateLedger,
    DeleteLedger,
    EntriesNotCollectedError,
    UpdateLedger,
)
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import ledger_metadata as metadata_format
from bookstand.storage.format import schema
from bookstand.storage.format.digest import digest_for, digest_name, master_key
from bookstand.storage.format.ledger_metadata import CLOSED, FORMATS, LedgerMetadata
from bookstand.storage.format.ledger_state import expect_incarnation
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from bookstand.ledger.handles.advanced_writer import LedgerWriterAdv
    from bookstand.ledger.handles.base_writer import BaseWriter
    from bookstand.ledger.handles.reader import DamagedLedgerReader, LedgerReader
    from bookstand.ledger.handles.writer import LedgerWriter
    from bookstand.storage.clock import Clock
    from bookstand.storage.format.digest import Digest
    from bookstand.storage.metrics import MetricSource
    from bookstand.storage.storage import Storage

WIRES = ("v3", "v2")

# Entries of a deleted ledger are retained this long for readers that still have it open.
COLLECTION_GRACE_MILLIS = 600_000
MAX_COLLECTED_LEDGERS = 8
"""Deleted ledgers to collect after a transaction that deletes ledgers: enough to catch up, few enough to be fast."""

# Bookie ids in a ledger's metadata. A single machine serves all of them.
_BOOKIE_ID = "bookstand-{}:3181"


class NewLedger:
    """Validated parameters of a ledger to create."""

    __slots__ = ("digest", "master_key", "metadata")

    def __init__(self, metadata: LedgerMetadata, digest: Digest, master_key: bytes) -> None:
        self.metadata = metadata
        self.digest = digest
        self.master_key = master_key


class Settings:
    """Validated settings of a client."""

    __slots__ = (
        "add_quorum_timeout",
        "bookies",
        "clock",
        "defaults",
        "digest_autodetect",
        "expansion_limits",
        "explicit_lac_interval",
        "max_entry_bytes",
        "metadata_format",
        "read_only",
        "wire",
    )

    def __init__(
        self,
        *,
        defaults: LedgerDefaults,
        clock: Clock,
        max_entry_bytes: int,
        explicit_lac_interval: float | None,
        wire: str,
        bookies: int,
        digest_autodetect: bool,
        metadata_format: int,
        add_quorum_timeout: float | None,
        read_only: bool,
        expansion_limits: ExpansionLimits,
    ) -> None:
        if not isinstance(expansion_limits, ExpansionLimits):
            raise IncorrectParameterError(
                f"expansion_limits must be an ExpansionLimits, not {type(expansion_limits).__name__}"
            )
        if not isinstance(defaults, LedgerDefaults):
            raise IncorrectParameterError(f"defaults must be a LedgerDefaults, not {type(defaults).__name__}")
        if wire not in WIRES:
            raise IncorrectParameterError(f"wire must be one of {WIRES}, not {wire!r}")
        if metadata_format not in FORMATS:
            raise IncorrectParameterError(f"metadata_format must be one of {FORMATS}, not {metadata_format!r}")
        if not callable(getattr(clock, "now", None)):
            raise IncorrectParameterError(f"clock must have a method now(), {clock!r} does not")
        self.defaults = defaults
        self.clock = clock
        self.max_entry_bytes = validation.as_positive("max_entry_bytes", max_entry_bytes)
        self.explicit_lac_interval = validation.as_interval("explicit_lac_interval", explicit_lac_interval)
        self.wire = wire
        self.bookies = validation.as_positive("bookies", bookies)
        self.digest_autodetect = bool(digest_autodetect)
        self.metadata_format = metadata_format
        self.read_only = bool(read_only)
        self.expansion_limits = expansion_limits
        self.add_quorum_timeout = validation.as_interval("add_quorum_timeout", add_quorum_timeout)


class Client(ProcessBound):
    """A client of a storage. Closing it fails the pending adds of its writers; ledgers remain open in the store."""

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self.storage = storage
        self.defaults = settings.defaults
        self.clock = settings.clock
        self.max_entry_bytes = settings.max_entry_bytes
        self.explicit_lac_interval = settings.explicit_lac_interval
        self.v3 = settings.wire == "v3"
        self.bookies = settings.bookies
        self.digest_autodetect = settings.digest_autodetect
        self.expansion_limits = settings.expansion_limits
        self.add_quorum_timeout = settings.add_quorum_timeout
        self.read_only = settings.read_only
        self.closed = False
        # False after an interrupted close(), so that the next call repeats it.
        self._close_done = False
        self._metadata_version = settings.metadata_format
        self._writers: WeakSet[BaseWriter] = WeakSet()
        self._writers_lock = Lock()
        self._metric_sources: WeakSet[MetricSource] = WeakSet()
        storage.clients.add(self)
        self._maintenance: Any = None

    # -- lifecycle -------------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        if self.closed:
            raise ClientClosedError(f"store {self.storage.path} is closed")
        self.storage.check_usable()

    def check_writable(self) -> None:
        self.check_usable()
        if self.read_only:
            raise WriteOnReadOnlyError(f"store {self.storage.path} was opened read-only")

    def close(self) -> None:
        """Commit queued adds, then fail those still pending. Open ledgers stay open in the store."""
        if self._close_done:
            return
        try:
            if not self.closed:
                self.storage.flush()
        finally:
            self.closed = True
            if self._maintenance is not None:
                self._maintenance.stop()
            for writer in self.writers():
                writer.fail_all(ClientClosedError(f"store {self.storage.path} was closed"))
            self._close_done = True

    def storage_crashed(self, reason: BookstandError) -> None:
        """Fail all pending adds after the storage has crashed."""
        for writer in self.writers():
            writer.fail_all(reason)

    def add_metrics(self, source: MetricSource) -> None:
        """Register a source of metrics, which is referenced weakly."""
        with self._writers_lock:
            self._metric_sources.add(source)

    def metric_sources(self) -> list[MetricSource]:
        with self._writers_lock:
            return list(self._metric_sources)

    def register(self, writer: BaseWriter) -> None:
        with self._writers_lock:
            self._writers.add(writer)
        if self.explicit_lac_interval is not None or self.add_quorum_timeout is not None:
            if self._maintenance is None:
                from bookstand.ledger.maintenance_thread import MaintenanceThread

                self._maintenance = MaintenanceThread(self)
            self._maintenance.start()

    def writers(self) -> list[BaseWriter]:
        with self._writers_lock:
            return list(self._writers)

    # -- ledgers ---------------------------------------------------------------------------------------------------

    def create(
        self,
        ledger_id: Any = None,
        adv: bool = False,
        ensemble: Any = MISSING,
        write_quorum: Any = MISSING,
        ack_quorum: Any = MISSING,
        digest: Any = MISSING,
        password: Any = MISSING,
        custom_metadata: Any = MISSING,
        deferred_sync: bool = False,
    ) -> LedgerWriter | LedgerWriterAdv:
        self.check_writable()
        new = self.plan_ledger(ledger_id, ensemble, write_quorum, ack_quorum, digest, password, custom_metadata)
        if deferred_sync is None:
            raise IncorrectParameterError("deferred_sync must be True or False, not None")
        operation = CreateLedger(ledger_id, new.master_key, new.digest.name, metadata_format.serialize(new.metadata))
        if self.storage.hooks is not None:
            self.storage.point("create.before", ledger_id)
        while True:
            try:
                ((new_id, incarnation),) = self.storage.apply(WriteBatch(operation))
                break
            except EntriesNotCollectedError:
                self.storage.collect(ledger_id)
        if self.storage.hooks is not None:
            self.storage.point("create.after", new_id)
        return self.open_writer(new, new_id, incarnation, adv, deferred_sync)

    def open_writer(
        self, new: NewLedger, ledger_id: int, incarnation: int, adv: bool, deferred_sync: bool
    ) -> LedgerWriter | LedgerWriterAdv:
        """Return the writer of a ledger that has been created, or that the current transaction creates."""
        kind: type[LedgerWriter | LedgerWriterAdv]
        if adv:
            from bookstand.ledger.handles.advanced_writer import LedgerWriterAdv

            kind = LedgerWriterAdv
        elif deferred_sync and self.storage.entry_hooks is None:
            from bookstand.ledger.handles.deferred_writer import DeferredLedgerWriter

            kind = DeferredLedgerWriter
        else:
            from bookstand.ledger.handles.writer import LedgerWriter

            kind = LedgerWriter
        metadata = new.metadata.replace(ledger_id=ledger_id)
        writer = kind(self, metadata, new.digest, new.master_key, incarnation, deferred_sync)
        self.register(writer)
        return writer

    def plan_ledger(
        self,
        ledger_id: int | None,
        ensemble: Any,
        write_quorum: Any,
        ack_quorum: Any,
        digest: Any,
        password: Any,
        custom_metadata: Any,
    ) -> NewLedger:
        """Validate the parameters of a ledger to create, and fill in the defaults."""
        defaults = self.defaults
        ensemble = validation.as_count("ensemble", defaults.ensemble if ensemble is MISSING else ensemble)
        write_quorum = validation.as_count(
            "write_quorum", defaults.write_quorum if write_quorum is MISSING else write_quorum
        )
        ack_quorum = validation.as_count("ack_quorum", defaults.ack_quorum if ack_quorum is MISSING else ack_quorum)
        if not 0 < ack_quorum <= write_quorum <= ensemble:
            raise IncorrectParameterError(
                "quorums must be 0 < ack_quorum <= write_quorum <= ensemble, "
                f"not {ack_quorum}, {write_quorum}, {ensemble}"
            )
        name = digest_name(defaults.digest if digest is MISSING else digest)
        secret = validation.as_password(defaults.password if password is MISSING else password)
        if custom_metadata is not MISSING and not hasattr(custom_metadata, "items"):
            raise IncorrectParameterError(f"custom_metadata must be a mapping ({{}} for none), not {custom_metadata!r}")
        if ensemble > self.bookies:
            raise NotEnoughBookiesError(f"an ensemble of {ensemble} exceeds the store's {self.bookies} bookies")
        # Format 1 has no fields for password, digest and custom metadata.
        oldest = self._metadata_version < 2
        metadata = LedgerMetadata(
            0 if ledger_id is None else ledger_id,
            format_version=self._metadata_version,
            ensemble_size=ensemble,
            write_quorum_size=write_quorum,
            ack_quorum_size=ack_quorum,
            ensembles=[(0, [_BOOKIE_ID.format(number) for number in range(ensemble)])],
            digest_type=None if oldest else name,
            password=None if oldest else secret,
            ctime=-1 if oldest else self.clock.now(),
            stores_ctime=not oldest,
            custom_metadata=None if oldest or custom_metadata is MISSING else custom_metadata,
        )
        return NewLedger(metadata, digest_for(name, secret), master_key(secret))

    def open(self, ledger_id: Any, recovery: bool | None, password: Any, digest: Any) -> LedgerReader:
        self.check_usable()
        password = b"" if password is MISSING else validation.as_password(password)
        digest = None if digest is None else digest_name(digest)
        hooks = self.storage.hooks
        if hooks is not None:
            # Hooks take integers only; an invalid id is rejected below.
            self.storage.point("open_ledger.before", ledger_id if type(ledger_id) is int else None)
        reader = self._open(ledger_id, recovery, password, digest)
        if hooks is not None:
            if hooks.appears_empty(reader.id):
                reader.simulate_empty()
            self.storage.point("open_ledger.after", reader.id)
        return reader

    def open_damaged(self, ledger_id: int) -> DamagedLedgerReader:
        """Return a reader for a ledger that cannot be opened because its metadata, state or last entry is damaged.
        Raises :class:`NoSuchLedgerError` if the ledger does not exist."""
        from bookstand.ledger.handles.reader import DamagedLedgerReader

        self.check_usable()
        self.storage.flush_if_queued()
        metadata = state = None
        if self.storage.sealed(schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id)) is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        with suppress(StoreDamagedError, MetadataSerializationError):
            metadata = self.read_metadata(ledger_id)
        with suppress(StoreDamagedError):
            state = self.storage.state(ledger_id)
        if metadata is None:
            metadata = self.plan_ledger(ledger_id, MISSING, MISSING, MISSING, MISSING, b"", {}).metadata
            name = state.digest if state is not None and state.digest else self.defaults.digest
        else:
            name = metadata.digest_type or self.defaults.digest
        return DamagedLedgerReader(self, metadata, digest_for(name, b""), master_key(b""), watching=False)

    def _open(self, ledger_id: Any, recovery: bool | None, password: bytes, digest: str | None) -> LedgerReader:
        if recovery is None:
            recovery = self.defaults.recovery
        metadata = self.read_metadata(ledger_id)
        incarnation = None
        if recovery and metadata.state != CLOSED:
            # Another client may delete the ledger and create a new one with its id; recovery must not touch that one.
            metadata, incarnation = self.read_with_incarnation(ledger_id)
        reader = self._make_reader(metadata, password, digest, watching=not recovery)
        if metadata.state == CLOSED:
            return reader
        if recovery:
            from bookstand.ledger.handles.recovery import recover

            recover(reader, incarnation)
        else:
            reader.read_lac_at_open()
        return reader

    def _make_reader(
        self, metadata: LedgerMetadata, password: bytes, digest: str | None, watching: bool
    ) -> LedgerReader:
        ledger_id = metadata.ledger_id
        if metadata.has_password and metadata.password != password:
            raise UnauthorizedAccessError(f"ledger {ledger_id} has another password")
        digest_type = metadata.digest_type
        if digest is not None and not self.digest_autodetect and digest_type not in (None, digest):
            raise DigestMismatchError(f"ledger {ledger_id} has {digest_type} digests, not {digest}")
        name = digest_type or digest or self._digest_of_state(ledger_id)
        from bookstand.ledger.handles.reader import LedgerReader

        return LedgerReader(self, metadata, digest_for(name, password), master_key(password), watching)

    def _digest_of_state(self, ledger_id: int) -> str:
        """Return the digest type from the bookie's state; format 1 of the metadata does not have it."""
        state = self.storage.state(ledger_id)
        return state.digest if state is not None and state.digest else self.defaults.digest

    def delete(self, ledger_id: Any, missing_ok: bool) -> None:
        self.check_writable()
        ledger_id = validation.as_ledger_id(ledger_id)
        if self.storage.hooks is not None:
            self.storage.point("delete.before", ledger_id)
        try:
            self.storage.apply(WriteBatch(DeleteLedger(ledger_id, self.clock.now())))
        except NoSuchLedgerError:
            if not missing_ok:
                raise
        if self.storage.hooks is not None:
            self.storage.point("delete.after", ledger_id)

    def collect_deleted(self, limit: int | None = None) -> None:
        """Remove the entries of up to ``limit`` deleted ledgers whose grace period has ended. Errors are logged only:
        the deletion that precedes this call has succeeded, and the next one retries."""
        try:
            self.storage.collect_deleted(self.clock.now() - COLLECTION_GRACE_MILLIS, limit)
        except BookstandError as error:
            logger().warning("store %s: deleted ledgers could not be collected: %s", self.storage.path, error)

    def list(self) -> Iterator[int]:
        self.check_usable()
        self.storage.flush_if_queued()
        return self._list()

    def _list(self) -> Iterator[int]:
        for ledger_id in self.storage.ledger_ids():
            self.check_usable()
            yield ledger_id
        self.check_usable()

    # -- metadata --------------------------------------------------------------------------------------------------

    def read_metadata(self, ledger_id: Any) -> LedgerMetadata:
        """Return the current metadata. Raises :class:`NoSuchLedgerError` also for invalid ids."""
        self.check_usable()
        try:
            ledger_id = validation.as_ledger_id(ledger_id)
        except IncorrectParameterError as error:
            raise NoSuchLedgerError(str(error)) from None
        self.storage.flush_if_queued()
        found = self.storage.metadata(ledger_id)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        data, version = found
        return metadata_format.parse(data, ledger_id, version=version)

    def read_with_incarnation(self, ledger_id: int, expected: int | None = None) -> tuple[LedgerMetadata, int | None]:
        """Return the current metadata and the incarnation of the ledger, None if the bookie has no state for it.

        An incarnation distinguishes ledgers that had the same id one after another. If ``expected`` is not None, any
        other incarnation is rejected.
        """
        self.storage.flush_if_queued()
        found = self.storage.ledger(ledger_id)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        data, version, state = found
        expect_incarnation(expected, state, ledger_id)
        metadata = metadata_format.parse(data, ledger_id, version=version)
        return metadata, None if state is None else state.incarnation

    def newer_metadata(self, known: LedgerMetadata) -> LedgerMetadata | None:
        """Return the metadata if its version differs from ``known``. None also if the ledger was deleted."""
        found = self.storage.metadata(known.ledger_id)
        if found is None or found[1] == known.version:
            return None
        return metadata_format.parse(found[0], known.ledger_id, version=found[1])

    def write_metadata(
        self, metadata: LedgerMetadata, expected_version: int | None, incarnation: int | None = None
    ) -> LedgerMetadata:
        """Compare and set the metadata, and return it with its new version."""
        self.check_writable()
        serialized = metadata_format.serialize(metadata)
        operation = UpdateLedger(metadata.ledger_id, serialized, expected_version, incarnation)
        if self.storage.hooks is not None:
            self.storage.point("metadata.before", metadata.ledger_id)
        (version,) = self.storage.apply(WriteBatch(operation))
        if self.storage.hooks is not None:
            self.storage.point("metadata.after", metadata.ledger_id)
        return metadata.replace(version=version)
