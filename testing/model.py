"""BookKeeper's ledgers as plain dictionaries and lists: the reference model.

This is what bookstand is compared to, and a description of BookKeeper's client that can be run. Nothing here is fast,
durable or concurrent; every operation takes effect at once, and the only way to see something unfinished is to hold it
(``Cluster.hold``).

The parts, from the bottom up:

* ``Bookie``: what the storage side keeps of one ledger: entries, the fence, the highest LAC it has heard of.
* ``Metadata``: the record of one ledger in the metadata service, with the version for compare-and-set.
* ``Cluster``: both of these for all ledgers, the watches, and the faults.
* ``Client``: one client of the cluster (``bookstand.open`` of one path gives such a client each time).
* ``Handle`` and below it ``Reader``, ``Writer``, ``WriterAdv``: open ledgers. Their methods have bookstand's names.

One machine answers for the whole quorum, so there are no stripes: every entry is where everybody looks for it.

Where BookKeeper's behaviour is an accident and bookstand decided otherwise, the model does what bookstand decided;
docs/differences.md has the list. The numbers that matter everywhere:

``last_add_confirmed`` (LAC)
    The highest entry a handle knows to be acknowledged together with all before it. Entries carry the writer's LAC of
    the moment they were sent, so who learns the LAC from entries is one behind.
``last_add_pushed`` (LAP)
    For a plain writer the last id handed out; for all others what they have learnt.
``length``
    The sum of payload bytes, counted at submission and rolled back for adds that fail. The entries carry it
    (*cumulative length*). A reader learns it only from where the rules below say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bookstand import errors

HEADER_BYTES = 32
DIGEST_BYTES = {"crc32": 8, "crc32c": 4, "hmac": 20, "dummy": 0}
DEFAULT_DIGEST = "crc32"
DEFAULT_FRAME_BYTES = 5 << 20
BATCH_OVERHEAD = 36  # a batch answer's own bytes; each entry costs 4 more
BATCH_ENTRY_OVERHEAD = 4

OPEN, IN_RECOVERY, CLOSED = "OPEN", "IN_RECOVERY", "CLOSED"

OK = 0
READ_ERROR = -1
NOT_ENOUGH_BOOKIES = -6
NO_SUCH_LEDGER_ON_BOOKIE = -7
LEDGER_RECOVERY = -10
LEDGER_CLOSED = -11
NO_SUCH_ENTRY = -13
INCORRECT_PARAMETER = -14
METADATA_VERSION = -17
CLIENT_CLOSED = -19
LEDGER_EXISTS = -20
ADD_QUORUM_TIMEOUT = -21
DUPLICATE_ENTRY = -22
NO_SUCH_LEDGER = -25
DIGEST_MISMATCH = -5
ILLEGAL_OPERATION = -100
FENCED = -101
UNAUTHORIZED = -102


class _Missing:
    """Stands for an argument that was not given, where None is something else."""


MISSING = _Missing()


def error(code: int) -> errors.LedgerError:
    return errors.by_code(code)()


def code_of(exception: BaseException) -> int:
    if not isinstance(exception, errors.LedgerError):
        raise exception
    return exception.code


def digest_name(digest: str) -> str:
    name = digest.lower()
    return "hmac" if name == "mac" else name


class Entry(NamedTuple):
    ledger_id: int
    entry_id: int
    data: bytes
    length: int
    cumulative_length: int


class Pending:
    """The answer of an operation that may still be on its way."""

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        if not self._done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done:
            raise TimeoutError
        return self._error

    def complete(self, value: Any) -> None:
        if not self._done:
            self._done, self._value = True, value

    def fail(self, failure: BaseException) -> None:
        if not self._done:
            self._done, self._error = True, failure


@dataclass(frozen=True)
class Stored:
    """An entry as a bookie has it."""

    lac: int
    cumulative_length: int
    data: bytes
    size: int  # with header and digest


@dataclass
class Bookie:
    """What the storage side has of one ledger. It outlives the ledger's metadata until the id is used again."""

    generation: int = 0
    entries: dict[int, Stored] = field(default_factory=dict)
    fenced: bool = False
    explicit_lac: int = -1
    known_lac: int = -1  # the highest LAC in the header of any add, or told explicitly

    @property
    def heard_of(self) -> bool:
        return bool(self.entries) or self.fenced or self.explicit_lac >= 0

    def newest(self) -> Stored | None:
        """The entry with the highest id: what a bookie gives when asked for the last one."""
        return self.entries[max(self.entries)] if self.entries else None


@dataclass(frozen=True)
class Metadata:
    ledger_id: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: str | None
    password: bytes | None
    custom_metadata: dict[str, bytes]
    format_version: int
    state: str = OPEN
    last_entry_id: int = -1
    length: int = 0
    version: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state == CLOSED

    def replace(self, **changes: Any) -> Metadata:
        """A ledger has an end if and only if it is closed, so who reopens one must say that the end goes."""
        reopens = self.is_closed and changes.get("state", CLOSED) != CLOSED
        if reopens and not {"last_entry_id", "length"} <= set(changes):
            raise error(INCORRECT_PARAMETER)
        return replace(self, **changes)

    @property
    def has_password(self) -> bool:
        return self.password is not None

    @property
    def has_ctime(self) -> bool:
        return self.format_version >= 2

    @property
    def ensembles(self) -> tuple[tuple[int, int], ...]:
        """First entry and size of each; one machine never replaces a bookie."""
        return ((0, self.ensemble_size),)


class Cluster:
    """The metadata service and the bookies, shared by all clients."""

    def __init__(self, bookies: int = 3) -> None:
        self.bookies = bookies
        self.metadata: dict[int, Metadata] = {}
        self.ledgers: dict[int, Bookie] = {}
        self.readers: list[Reader] = []
        self.writers: list[Writer] = []
        self.next_id = 0
        # Faults, all functions so that a test can put anything in their place. The codes are BookKeeper's; OK is none.
        self.hold: Callable[[int, int], str | None] = lambda ledger, entry: None  # "add", "ack" or None
        self.add_fault: Callable[[int, int], int] = lambda ledger, entry: OK
        self.read_fault: Callable[[int, int], int] = lambda ledger, entry: OK
        self.read_lac_fault: Callable[[int], int] = lambda ledger: OK
        self.fence_fault: Callable[[int], int] = lambda ledger: OK
        self.held: list[Callable[[], None]] = []

    def client(self, **settings: Any) -> Client:
        return Client(self, **settings)

    def release(self) -> None:
        """Let everything held go on, in the order it came."""
        self.hold = lambda ledger, entry: None
        held, self.held = self.held, []
        for go_on in held:
            go_on()

    def tell_explicit_lacs(self) -> None:
        """What the background of a client with an explicit LAC interval does, once it had time."""
        for writer in self.writers:
            if writer.client.explicit_lac_interval and writer.writable and writer.last_add_confirmed >= 0:
                bookie = self.ledgers[writer.id]
                bookie.explicit_lac = max(bookie.explicit_lac, writer.last_add_confirmed)
                bookie.known_lac = max(bookie.known_lac, writer.last_add_confirmed)

    # -- metadata

    def get(self, ledger_id: int | None) -> Metadata:
        if ledger_id is None or ledger_id not in self.metadata:
            raise error(NO_SUCH_LEDGER)
        return self.metadata[ledger_id]

    def put(self, metadata: Metadata, expected_version: int | None) -> Metadata:
        """Compare and set. Readers that watch the ledger see the new value."""
        current = self.get(metadata.ledger_id)
        if expected_version is not None and expected_version != current.version:
            raise error(METADATA_VERSION)
        written = replace(metadata, version=current.version + 1)
        self.metadata[metadata.ledger_id] = written
        for reader in self.readers:
            if reader.id == metadata.ledger_id and reader.watching:
                reader.adopt(written)
        return written

    # -- bookies

    def read_entry(self, ledger_id: int, entry_id: int) -> Stored:
        bookie = self.ledgers[ledger_id]
        if not bookie.heard_of:
            raise error(NO_SUCH_LEDGER_ON_BOOKIE)
        if entry_id not in bookie.entries:
            raise error(NO_SUCH_ENTRY)
        fault = self.read_fault(ledger_id, entry_id)
        if fault != OK:
            raise error(fault)
        return bookie.entries[entry_id]

    def read_newest(self, ledger_id: int) -> Stored | None:
        """The newest entry, None if there is none. "Not there" is an answer like any other; other failures count."""
        bookie = self.ledgers[ledger_id]
        if not bookie.entries:
            return None
        try:
            return self.read_entry(ledger_id, max(bookie.entries))
        except errors.LedgerError as failure:
            if failure.code in (NO_SUCH_ENTRY, NO_SUCH_LEDGER_ON_BOOKIE):
                return None
            raise


class Client:
    def __init__(
        self,
        cluster: Cluster,
        wire: str = "v3",
        digest_autodetect: bool = True,
        metadata_format: int = 3,
        max_entry_bytes: int = DEFAULT_FRAME_BYTES,
        explicit_lac_interval: float | None = None,
        add_quorum_timeout: float | None = None,
    ) -> None:
        self.cluster = cluster
        self.wire = wire
        self.digest_autodetect = digest_autodetect
        self.metadata_format = metadata_format
        self.max_entry_bytes = max_entry_bytes
        self.explicit_lac_interval = explicit_lac_interval
        self.add_quorum_timeout = add_quorum_timeout
        self.closed = False
        self.writers: list[Writer] = []

    @property
    def v3(self) -> bool:
        return self.wire == "v3"

    def check_open(self) -> None:
        if self.closed:
            raise error(CLIENT_CLOSED)

    def close(self) -> None:
        """Adds on their way fail with -19; the ledgers stay as they are, open ones open."""
        self.closed = True
        for writer in self.writers:
            writer.client_closed()

    # -- ledgers

    def create_ledger(self, **arguments: Any) -> Writer:
        return Writer(self, self._create(None, **arguments), arguments)

    def create_ledger_adv(self, ledger_id: int | _Missing = MISSING, **arguments: Any) -> WriterAdv:
        if not isinstance(ledger_id, _Missing) and ledger_id < 0:
            raise error(INCORRECT_PARAMETER)
        chosen = None if isinstance(ledger_id, _Missing) else ledger_id
        return WriterAdv(self, self._create(chosen, **arguments), arguments)

    def _create(
        self,
        ledger_id: int | None,
        *,
        ensemble: int = 3,
        write_quorum: int = 2,
        ack_quorum: int = 2,
        digest: str | None = DEFAULT_DIGEST,
        password: bytes | _Missing | None = MISSING,
        custom_metadata: dict[str, bytes] | _Missing | None = MISSING,
        deferred_sync: bool | None = False,
    ) -> Metadata:
        self.check_open()
        if write_quorum > ensemble or ack_quorum > write_quorum or ack_quorum <= 0:
            raise error(INCORRECT_PARAMETER)
        if password is None or isinstance(password, _Missing):
            raise error(INCORRECT_PARAMETER)
        if digest is None or custom_metadata is None or deferred_sync is None:
            raise error(INCORRECT_PARAMETER)
        cluster = self.cluster
        if ensemble > cluster.bookies:
            raise error(NOT_ENOUGH_BOOKIES)
        if ledger_id is None:
            while cluster.next_id in cluster.metadata:
                cluster.next_id += 1
            ledger_id = cluster.next_id
            cluster.next_id += 1
        elif ledger_id in cluster.metadata:
            raise error(LEDGER_EXISTS)
        # Format 1 has no place for the password, the digest type and the custom metadata.
        old_format = self.metadata_format < 2
        metadata = Metadata(
            ledger_id=ledger_id,
            ensemble_size=ensemble,
            write_quorum_size=write_quorum,
            ack_quorum_size=ack_quorum,
            digest_type=None if old_format else digest_name(digest),
            password=None if old_format else password,
            custom_metadata={} if old_format or isinstance(custom_metadata, _Missing) else dict(custom_metadata),
            format_version=self.metadata_format,
        )
        cluster.metadata[ledger_id] = metadata
        # What an earlier ledger of this id left behind is collected with the creation: entries, fence, all.
        earlier = cluster.ledgers.get(ledger_id)
        cluster.ledgers[ledger_id] = Bookie(generation=0 if earlier is None else earlier.generation + 1)
        return metadata

    def open_ledger(
        self, ledger_id: int | None, recovery: bool = False, password: bytes | None = b"", digest: str | None = None
    ) -> Reader:
        self.check_open()
        if password is None:
            raise error(INCORRECT_PARAMETER)
        metadata = self.cluster.get(ledger_id)
        if metadata.password is not None and metadata.password != password:
            raise error(UNAUTHORIZED)
        stored_digest = metadata.digest_type
        if (
            not self.digest_autodetect
            and digest is not None
            and stored_digest is not None
            and digest_name(digest) != stored_digest
        ):
            raise error(DIGEST_MISMATCH)
        reader = Reader(self, metadata, watching=not recovery)
        if metadata.is_closed:
            pass
        elif recovery:
            reader.recover()
        else:
            reader.read_last_confirmed_at_open()
        self.cluster.readers.append(reader)
        return reader

    def delete_ledger(self, ledger_id: int | None, missing_ok: bool = False) -> None:
        """Only the metadata goes; the entries are collected later, or when the id is used again."""
        self.check_open()
        if ledger_id is None or ledger_id < 0:
            raise error(INCORRECT_PARAMETER)
        if ledger_id not in self.cluster.metadata:
            if missing_ok:
                return
            raise error(NO_SUCH_LEDGER)
        del self.cluster.metadata[ledger_id]

    def list_ledgers(self) -> Iterator[int]:
        self.check_open()
        return iter(sorted(self.cluster.metadata))

    def ledger_metadata(self, ledger_id: int | None) -> Metadata:
        self.check_open()
        return self.cluster.get(ledger_id)

    def is_closed(self, ledger_id: int | None) -> bool:
        return self.ledger_metadata(ledger_id).is_closed

    def write_ledger_metadata(self, metadata: Metadata, expected_version: int | None = None) -> int:
        self.check_open()
        return self.cluster.put(metadata, expected_version).version


class Handle:
    """What all open ledgers have in common: a copy of the metadata, the three numbers, and reading."""

    def __init__(self, client: Client, metadata: Metadata) -> None:
        self.client = client
        self.cluster = client.cluster
        self.id = metadata.ledger_id
        self.metadata = metadata
        self.last_add_confirmed = -1
        self.last_add_pushed = -1
        self.length = 0
        if metadata.is_closed:
            self.adopt(metadata)

    @property
    def bookie(self) -> Bookie:
        return self.cluster.ledgers[self.id]

    def is_closed(self) -> bool:
        """Whether this handle's copy of the metadata says so. Nobody tells a writer."""
        return self.metadata.is_closed

    def adopt(self, metadata: Metadata) -> None:
        """Take over newer metadata. A close says where the ledger ends, even if that is lower than what was known."""
        self.metadata = metadata
        if metadata.is_closed:
            self.last_add_confirmed = self.last_add_pushed = metadata.last_entry_id
            self.length = metadata.length

    def learn(self, lac: int, length: int) -> None:
        """Something told this handle of a LAC: numbers only rise. Happens to every kind of handle, closed or not."""
        self.last_add_confirmed = max(self.last_add_confirmed, lac)
        self.last_add_pushed = max(self.last_add_pushed, lac)
        self.length = max(self.length, length)

    # -- reading

    def read(self, first: int, last: int) -> list[Entry]:
        if first < 0 or first > last:
            raise error(INCORRECT_PARAMETER)
        if last > self.last_add_confirmed:
            raise error(READ_ERROR)
        return self._read_range(first, last)

    def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        if first < 0 or first > last:
            raise error(INCORRECT_PARAMETER)
        return self._read_range(first, last)

    def _read_range(self, first: int, last: int) -> list[Entry]:
        """All entries are asked for at once, so those behind one that fails still bring their LAC."""
        self.client.check_open()
        entries: list[Entry] = []
        failure: errors.LedgerError | None = None
        for entry_id in range(first, last + 1):
            try:
                entries.append(self._read_one(entry_id))
            except errors.LedgerError as error_of_one:
                failure = failure or error_of_one
        if failure is not None:
            raise failure
        return entries

    def _read_one(self, entry_id: int) -> Entry:
        stored = self.cluster.read_entry(self.id, entry_id)
        if self.client.v3:
            # Every answer to a read carries the bookie's LAC, not the entry's.
            self.learn(self.bookie.known_lac, 0)
        return Entry(self.id, entry_id, stored.data, len(stored.data), stored.cumulative_length)

    def batch_read(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        if start < 0:
            raise error(INCORRECT_PARAMETER)
        if start > self.last_add_confirmed:
            raise error(READ_ERROR)
        room = self.last_add_confirmed - start + 1
        return self._batch(start, min(max_count, room) if max_count > 0 else room, max_size)

    def batch_read_unconfirmed(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        if start < 0 or max_count < 0 or max_size < 0:
            raise error(INCORRECT_PARAMETER)
        return self._batch(start, max_count if max_count > 0 else None, max_size)

    def _batch(self, start: int, max_count: int | None, max_size: int) -> list[Entry]:
        """The entries from start up to the first gap, the count, or as many as fit; but one at least."""
        self.client.check_open()
        limit = self.client.max_entry_bytes
        if 0 < max_size < limit:
            limit = max_size
        batch: list[Entry] = []
        size = BATCH_OVERHEAD
        while max_count is None or len(batch) < max_count:
            try:
                stored = self.cluster.read_entry(self.id, start + len(batch))
            except errors.LedgerError:
                if not batch:
                    raise
                break
            size += BATCH_ENTRY_OVERHEAD + stored.size
            if batch and size > limit:
                break
            batch.append(self._read_one(start + len(batch)))
        return batch

    def read_last_entry(self) -> Entry:
        if self.last_add_confirmed < 0:
            raise error(NO_SUCH_ENTRY)
        return self.read(self.last_add_confirmed, self.last_add_confirmed)[0]

    # -- asking for the LAC

    def read_last_confirmed(self) -> int:
        """What the bookies say, which a writer may be ahead of."""
        if self.metadata.is_closed:
            if self.client.v3:
                self._back_to_the_end()
            return self.metadata.last_entry_id
        self.client.check_open()
        lac, length = self._ask_bookie()
        self.learn(lac, length)
        return lac

    def _back_to_the_end(self) -> None:
        """Reading may have taught a closed handle of a LAC beyond its ledger's end; asking puts that right."""
        self.last_add_confirmed = self.metadata.last_entry_id
        self.length = self.metadata.length

    def _ask_bookie(self) -> tuple[int, int]:
        """LAC and length. Over v3 there is a request for it, which knows explicit LACs but brings no length."""
        fault = self.cluster.read_lac_fault(self.id)
        if fault != OK:
            raise error(fault)
        if self.client.v3:
            newest = self.bookie.newest()
            return max(self.bookie.explicit_lac, -1 if newest is None else newest.lac), 0
        newest = self.cluster.read_newest(self.id)
        if newest is None or newest.lac < 0:
            return -1, 0
        return newest.lac, newest.cumulative_length

    def read_last_confirmed_at_open(self) -> None:
        try:
            self.read_last_confirmed()
        except errors.LedgerError:
            raise error(READ_ERROR) from None

    def try_read_last_confirmed(self) -> int:
        if self.metadata.is_closed:
            return self.metadata.last_entry_id
        self.client.check_open()
        newest = self.cluster.read_newest(self.id)
        if newest is not None and newest.lac > self.last_add_confirmed:
            self.learn(newest.lac, newest.cumulative_length)
        else:
            self.learn(self.last_add_confirmed, 0)
        return self.last_add_confirmed

    def read_explicit_last_confirmed(self) -> int:
        if self.metadata.is_closed:
            self._back_to_the_end()
            return self.metadata.last_entry_id
        self.client.check_open()
        newest = self.bookie.newest()
        lac = max(self.bookie.explicit_lac, -1 if newest is None else newest.lac)
        self.learn(lac, 0)
        return lac

    def wait_entry(self, entry_id: int, timeout: float | None = None) -> tuple[int, Entry | None]:
        """Wait until the entry is confirmed. The model has no time: if it is not by now, the time is over."""
        if self.metadata.is_closed and entry_id > self.metadata.last_entry_id:
            return self.metadata.last_entry_id, None
        if entry_id <= self.last_add_confirmed:
            found = self._read_range(entry_id, entry_id)
            return self.last_add_confirmed, found[0]
        self.client.check_open()
        if not self.bookie.entries:
            raise error(NO_SUCH_ENTRY if self.bookie.heard_of else NO_SUCH_LEDGER_ON_BOOKIE)
        if self.client.v3 and self.bookie.known_lac > self.last_add_confirmed:
            self.learn(self.bookie.known_lac, 0)
            if entry_id <= self.last_add_confirmed:
                return self.last_add_confirmed, self._read_one(entry_id)
        return self.last_add_confirmed, None

    # -- what a read handle refuses

    def append(self, data: bytes) -> int:
        raise error(ILLEGAL_OPERATION)

    def append_many(self, payloads: Iterable[bytes]) -> range:
        raise error(ILLEGAL_OPERATION)

    def write(self, entry_id: int, data: bytes) -> int:
        raise error(ILLEGAL_OPERATION)

    @property
    def writable(self) -> bool:
        return not self.metadata.is_closed

    def force(self) -> None:
        if not self.writable:
            raise error(LEDGER_CLOSED)

    def close(self) -> None:
        raise NotImplementedError


class Reader(Handle):
    def __init__(self, client: Client, metadata: Metadata, watching: bool) -> None:
        super().__init__(client, metadata)
        # Only who opened without recovery watches, and only until close.
        self.watching = watching

    def close(self) -> None:
        self.watching = False

    def recover(self) -> None:
        """Fence the ledger, find its end, close it there."""
        if self.metadata.state == OPEN:
            self.adopt(self.cluster.put(replace(self.metadata, state=IN_RECOVERY), self.metadata.version))
        try:
            fault = self.cluster.fence_fault(self.id)
            if fault != OK:
                raise error(fault)
            self.bookie.fenced = True
            newest = self.cluster.read_newest(self.id)
            if newest is not None and newest.lac >= 0:
                self.learn(newest.lac, newest.cumulative_length)
            self._recover_entries()
        except errors.LedgerError:
            raise error(LEDGER_RECOVERY) from None
        closed = replace(self.metadata, state=CLOSED, last_entry_id=self.last_add_confirmed, length=self.length)
        self.adopt(self.cluster.put(closed, self.metadata.version))

    def _recover_entries(self) -> None:
        while True:
            entry_id = self.last_add_confirmed + 1
            try:
                stored = self.cluster.read_entry(self.id, entry_id)
            except errors.LedgerError as failure:
                if failure.code in (NO_SUCH_ENTRY, NO_SUCH_LEDGER_ON_BOOKIE):
                    return
                raise
            self.last_add_confirmed = self.last_add_pushed = entry_id
            self.length = stored.cumulative_length


@dataclass
class _Add:
    entry_id: int
    data: bytes
    pending: Pending
    done: bool = False


class Writer(Handle):
    """The handle that create gives. Entry ids are handed out in order."""

    def __init__(self, client: Client, metadata: Metadata, arguments: dict[str, Any]) -> None:
        super().__init__(client, metadata)
        self.deferred_sync = bool(arguments.get("deferred_sync"))
        self.digest = digest_name(arguments.get("digest", DEFAULT_DIGEST))
        self.generation = self.bookie.generation
        self.adds: dict[int, _Add] = {}  # submitted and not yet answered
        self.head = -1  # the last one answered in order; with deferred sync ahead of the LAC
        self.closing: Pending | None = None
        client.writers.append(self)
        self.cluster.writers.append(self)

    @property
    def writable(self) -> bool:
        return self.closing is None and not self.metadata.is_closed

    # -- adding

    def append(self, data: bytes) -> int:
        return int(self._wait(self.append_async(data)))

    def append_async(self, data: bytes) -> Pending:
        pending = Pending()
        if not self.writable:
            pending.fail(error(LEDGER_CLOSED))
            return pending
        self._check_size(data)
        self.last_add_pushed += 1
        self._submit(self.last_add_pushed, data, pending)
        return pending

    def append_many(self, payloads: Iterable[bytes]) -> range:
        """All are sent before the first is answered, so all carry the LAC from before."""
        lac = self.last_add_confirmed
        first = self.last_add_pushed + 1
        pendings = []
        for data in payloads:
            pending = Pending()
            if not self.writable:
                pending.fail(error(LEDGER_CLOSED))
            else:
                self._check_size(data)
                self.last_add_pushed += 1
                self._submit(self.last_add_pushed, data, pending, lac)
            pendings.append(pending)
        for pending in pendings:
            self._wait(pending)
        return range(first, first + len(pendings))

    def _wait(self, pending: Pending) -> Any:
        return pending.result(0)

    def _check_size(self, data: bytes) -> None:
        if self._stored_size(data) > self.client.max_entry_bytes:
            raise errors.EntryTooLargeError

    def _stored_size(self, data: bytes) -> int:
        return HEADER_BYTES + DIGEST_BYTES[self.digest] + len(data)

    def _submit(self, entry_id: int, data: bytes, pending: Pending, lac: int | None = None) -> None:
        add = _Add(entry_id, data, pending)
        self.length += len(data)
        self.adds[entry_id] = add
        header_lac = self.last_add_confirmed if lac is None else lac
        stored = Stored(header_lac, self.length, data, self._stored_size(data))
        if self.client.closed:
            self._drop_adds(CLIENT_CLOSED)
            return
        if self.deferred_sync and not self.client.v3:
            self._fail_adds(ILLEGAL_OPERATION)
            return
        hold = self.cluster.hold(self.id, entry_id)
        if hold == "add":
            self.cluster.held.append(lambda: self._answer(add, self._store(entry_id, stored)))
            return
        code = self._store(entry_id, stored)
        if hold == "ack" and code == OK:
            self.cluster.held.append(lambda: self._answer(add, OK))
        elif hold == "minority" and code == OK:
            # Stored where it is seen, but too few have it: the others look at the fence when they get to it.
            self.cluster.held.append(lambda: self._answer(add, FENCED if self.bookie.fenced else OK))
        else:
            self._answer(add, code)

    def _store(self, entry_id: int, stored: Stored) -> int:
        bookie = self.bookie
        fault = self.cluster.add_fault(self.id, entry_id)
        if fault != OK:
            return fault
        if bookie.fenced or bookie.generation != self.generation:
            return FENCED
        # An entry that is there already stays as it is, and the add succeeds.
        bookie.entries.setdefault(entry_id, stored)
        bookie.known_lac = max(bookie.known_lac, stored.lac)
        return OK

    def _answer(self, add: _Add, code: int) -> None:
        if self.adds.get(add.entry_id) is not add:
            return
        if code != OK:
            self._fail_adds(code)
            return
        add.done = True
        while self.adds:
            first = self.adds[min(self.adds)]
            # With deferred sync an id up to the head may be written again: nothing is before it.
            if not first.done or first.entry_id > self.head + 1:
                return
            del self.adds[first.entry_id]
            self.head = max(self.head, first.entry_id)
            if not self.deferred_sync:
                self.last_add_confirmed = self.head
            first.pending.complete(first.entry_id)

    def expire_adds(self) -> None:
        """The add quorum timeout has passed for the oldest add."""
        if self.adds:
            self._fail_adds(ADD_QUORUM_TIMEOUT)

    def _fail_adds(self, code: int) -> None:
        """One add failed: all on their way fail with it, and the handle closes itself."""
        if self.metadata.state == IN_RECOVERY:
            self._drop_adds(code)
        else:
            self._close(code)

    def _drop_adds(self, code: int) -> None:
        adds, self.adds = self.adds, {}
        for add in adds.values():
            self.length -= len(add.data)
        for add in adds.values():
            add.pending.fail(error(code))

    def client_closed(self) -> None:
        self._drop_adds(CLIENT_CLOSED)

    # -- force and close

    def force(self) -> None:
        if not self.writable:
            raise error(LEDGER_CLOSED)
        if self.head < 0:
            return
        self.client.check_open()
        if not self.client.v3:
            raise error(ILLEGAL_OPERATION)
        self.learn(self.head, self.length)

    def close(self) -> None:
        self.close_async().result(0)

    def close_async(self) -> Pending:
        if self.client.closed:
            pending = Pending()
            pending.fail(error(CLIENT_CLOSED))
            return pending
        return self._close(LEDGER_CLOSED)

    def _close(self, code: int) -> Pending:
        """Fail what is on its way, then write the end into the metadata. Once: later calls give the same answer."""
        self.last_add_pushed = self.last_add_confirmed
        first_time = self.closing is None
        if first_time:
            self.closing = Pending()
        assert self.closing is not None
        self._drop_adds(code)
        if first_time:
            try:
                self._write_end(self.last_add_confirmed, self.length)
            except errors.LedgerError as failure:
                self.closing.fail(failure)
            else:
                self.closing.complete(None)
        return self.closing

    def _write_end(self, last_entry: int, length: int) -> None:
        while True:
            if self.metadata.is_closed:
                if (self.metadata.last_entry_id, self.metadata.length) != (last_entry, length):
                    raise error(METADATA_VERSION)
                return
            closed = replace(self.metadata, state=CLOSED, last_entry_id=last_entry, length=length)
            try:
                self.adopt(self.cluster.put(closed, self.metadata.version))
            except errors.LedgerError as failure:
                if failure.code != METADATA_VERSION:
                    raise
                self.adopt(self.cluster.get(self.id))


class WriterAdv(Writer):
    """The handle that create_adv gives: the caller chooses the entry ids, answers still come in their order."""

    def append(self, data: bytes) -> int:
        raise error(ILLEGAL_OPERATION)

    def append_async(self, data: bytes) -> Pending:
        raise error(ILLEGAL_OPERATION)

    def append_many(self, payloads: Iterable[bytes]) -> range:
        raise error(ILLEGAL_OPERATION)

    def write(self, entry_id: int, data: bytes) -> int:
        pending = self.write_async(entry_id, data)
        return int(self._wait(pending))

    def write_async(self, entry_id: int, data: bytes) -> Pending:
        pending = Pending()
        if entry_id <= self.last_add_confirmed or entry_id in self.adds:
            pending.fail(error(DUPLICATE_ENTRY))
        elif not self.writable:
            pending.fail(error(LEDGER_CLOSED))
        else:
            self._check_size(data)
            self._submit(entry_id, data, pending)
        return pending
