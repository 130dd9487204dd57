"""Handles of created ledgers: adding, forcing, closing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bookstand import errors
from bookstand.testing.model.handle import Handle
from bookstand.testing.model.servers import Metadata, Stored
from bookstand.testing.model.session import Session
from bookstand.testing.model.values import (
    ADD_QUORUM_TIMEOUT,
    CLIENT_CLOSED,
    CLOSED,
    DEFAULT_DIGEST,
    DIGEST_BYTES,
    DUPLICATE_ENTRY,
    FENCED,
    HEADER_BYTES,
    ILLEGAL_OPERATION,
    IN_RECOVERY,
    LEDGER_CLOSED,
    METADATA_VERSION,
    OK,
    Pending,
    digest_name,
    error,
)


@dataclass
class _Add:
    entry_id: int
    data: bytes
    pending: Pending
    done: bool = False


class Writer(Handle):
    """Handle of a created ledger. It assigns entry ids in order."""

    def __init__(self, client: Session, metadata: Metadata, arguments: dict[str, Any]) -> None:
        super().__init__(client, metadata)
        self.deferred_sync = bool(arguments.get("deferred_sync"))
        self.digest = digest_name(arguments.get("digest", DEFAULT_DIGEST))
        self.generation = self.bookie.generation
        self.adds: dict[int, _Add] = {}  # submitted and unanswered
        self.head = -1  # last one answered in order; ahead of the LAC with deferred sync
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
        """Append several entries. All are sent before the first is answered, so all carry the previous LAC."""
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
            # Stored on the machine, but on too few replicas: the others check the fence when the add reaches them.
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
        # An existing entry is not changed, and the add succeeds.
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
            # With deferred sync, ids up to the head may be rewritten; they do not wait for earlier adds.
            if not first.done or first.entry_id > self.head + 1:
                return
            del self.adds[first.entry_id]
            self.head = max(self.head, first.entry_id)
            if not self.deferred_sync:
                self.last_add_confirmed = self.head
            first.pending.complete(first.entry_id)

    def expire_adds(self) -> None:
        """Expire the add quorum timeout of the oldest add."""
        if self.adds:
            self._fail_adds(ADD_QUORUM_TIMEOUT)

    def _fail_adds(self, code: int) -> None:
        """Fail all pending adds after one failed; the handle closes itself."""
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

    def tell_explicit_lac(self) -> None:
        """Send the explicit LAC, if the client has an interval for it."""
        if self.client.explicit_lac_interval and self.writable and self.last_add_confirmed >= 0:
            bookie = self.bookie
            bookie.explicit_lac = max(bookie.explicit_lac, self.last_add_confirmed)
            bookie.known_lac = max(bookie.known_lac, self.last_add_confirmed)

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
        """Fail pending adds, then write the ledger's end to the metadata. Repeated calls return the first result."""
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
    """Handle of a ledger created with create_adv: the caller assigns entry ids; adds are still answered in id order."""

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
