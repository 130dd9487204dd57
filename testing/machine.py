"""Stateful test of a store against a reference model: any order of operations by two clients, restarts and crashes.

A program that wraps a store subclasses :class:`LedgerMachine` and defines how to open it::

    class WithMyWrapper(LedgerMachine):
        def open_store(self, path):
            return MyWrapper(bookstand.open(path))

    TestMyWrapper = WithMyWrapper.TestCase

``open_store`` may also pass hooks. Delaying, blocking or reordering operations must not change results.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bookstand
from bookstand.errors import ClientClosedError, MissingExtraError, StoreCrashedError
from bookstand.testing.assertions import PATIENCE, code_of, eventually_readable, outcome, refused

try:
    import hypothesis.strategies as st
    from hypothesis.stateful import (
        Bundle,
        MultipleResults,
        RuleBasedStateMachine,
        consumes,
        initialize,
        invariant,
        multiple,
        rule,
    )
except ImportError as missing:
    raise MissingExtraError("bookstand.testing.machine needs Hypothesis: pip install 'bookstand[test]'") from missing

PAYLOADS = st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"\0" * 300, bytes(5000)]))
HOW = st.sampled_from(["one", "async", "many"])
DIGESTS = st.sampled_from(["crc32", "crc32c", "hmac", "dummy"])


@dataclass
class LedgerModel:
    """Reference model of one ledger, with the open handle of its writer."""

    ledger_id: int
    adv: bool
    deferred: bool
    password: bytes
    writer: Any
    stored: dict[int, bytes] = field(default_factory=dict)
    acknowledged: int = -1
    """Last entry whose add was acknowledged."""
    lac: int = -1
    """Last-add-confirmed of the writer."""
    pending: dict[int, Any] = field(default_factory=dict)
    fenced: bool = False
    handle_closed: bool = False
    closed_at: int | None = None
    """Last entry in the metadata, once its state is CLOSED."""
    close_codes: set[int | None] = field(default_factory=set)
    """Possible results of closing the handle after another client has closed the ledger."""
    readers: list[Any] = field(default_factory=list)

    @property
    def contiguous(self) -> int:
        """Last entry before the first gap."""
        last = -1
        while last + 1 in self.stored:
            last += 1
        return last


class LedgerMachine(RuleBasedStateMachine):
    """State machine whose runs end by reopening the store with ``check="full"``, comparing it and verifying it."""

    ledgers: Bundle[LedgerModel] = Bundle("ledgers")
    store: Any
    other: Any

    # -- methods for subclasses --------------------------------------------------------------------------------------

    def open_store(self, path: Path) -> Any:
        """Open a client of the store at ``path``, creating the store if necessary. Two clients are open at a time; each
        is closed."""
        return bookstand.open(path)

    def make_folder(self) -> Path:
        """Return an empty directory for one run, which is removed afterwards."""
        return Path(tempfile.mkdtemp(prefix="bookstand-machine-"))

    def crash_store(self) -> None:
        """Simulate the death of the process that has the store open."""
        self.store.storage.crash()

    # -- setup and teardown ------------------------------------------------------------------------------------------

    @initialize()
    def open(self) -> None:
        self.store = self.other = None
        self.folder = self.make_folder()
        self.path = self.folder / "store"
        self.models: dict[int, LedgerModel] = {}
        self.deleted: set[int] = set()
        self.store = self.open_store(self.path)
        self.other = self.open_store(self.path)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            for client in (self.store, self.other):
                if client is not None:
                    client.close()
            if not self.path.exists():
                return
            with bookstand.open(self.path, create=False, check="full") as store:
                assert sorted(self.models) == list(store.list_ledgers())
                for model in self.models.values():
                    reader = store.open_ledger(model.ledger_id, password=model.password)
                    last = model.contiguous if model.closed_at is None else model.closed_at
                    assert reader.last_add_confirmed == last
                    assert [entry.data for entry in reader] == [model.stored[i] for i in range(last + 1)]
                report = store.verify()
                assert report.ok, report.problems
        finally:
            shutil.rmtree(self.folder)

    # -- creating and deleting ---------------------------------------------------------------------------------------

    @rule(
        target=ledgers,
        adv=st.booleans(),
        deferred=st.booleans(),
        digest=DIGESTS,
        password=st.binary(max_size=4),
        payloads=st.lists(PAYLOADS, max_size=6),
        how=HOW,
    )
    def create(
        self, adv: bool, deferred: bool, digest: str, password: bytes, payloads: list[bytes], how: str
    ) -> LedgerModel | MultipleResults[LedgerModel]:
        """Create a ledger with some entries, because most later operations have no effect on an empty ledger."""
        if len(self.models) >= 5:
            return multiple()
        create = self.store.create_ledger_adv if adv else self.store.create_ledger
        writer = create(digest=digest, password=password, deferred_sync=deferred)
        assert writer.id not in self.models
        assert writer.id not in self.deleted
        model = LedgerModel(writer.id, adv, deferred, password, writer)
        self.models[writer.id] = model
        for payload in payloads if adv else ():
            self._write(model, model.acknowledged + 1, payload)
        if not adv:
            self._append(model, payloads, how)
        return model

    @rule(model=consumes(ledgers), collect=st.booleans())
    def delete(self, model: LedgerModel, collect: bool) -> None:
        self.other.delete_ledger(model.ledger_id)
        with refused(-25):
            self.store.open_ledger(model.ledger_id, password=model.password)
        if model.writer is not None:
            # A closed handle repeats the result of its close.
            assert code_of(model.writer.close) in ((None, -17, -25) if model.handle_closed else (-25,))
            for pending in model.pending.values():
                assert outcome(pending) in (-11, -101)
        if collect:
            self.store.compact()
        del self.models[model.ledger_id]
        self.deleted.add(model.ledger_id)

    @rule(model=consumes(ledgers), payload=PAYLOADS)
    def create_again(self, model: LedgerModel, payload: bytes) -> None:
        """Recreate a ledger under its id: it starts empty, and the former writer cannot write to it."""
        self.store.delete_ledger(model.ledger_id)
        again = self.other.create_ledger_adv(model.ledger_id, password=b"again")
        with refused(-7, -13):
            again.read_unconfirmed(0, 0)
        assert again.write(0, payload) == 0
        if model.writer is not None and not model.handle_closed:
            entry_id = max([model.acknowledged, *model.pending, *model.stored]) + 1
            write = (lambda: model.writer.write(entry_id, b"x")) if model.adv else (lambda: model.writer.append(b"x"))
            assert code_of(write) == -101
        again.close()
        reader = self.store.open_ledger(model.ledger_id, password=b"again")
        assert [entry.data for entry in reader] == [payload]
        self.other.delete_ledger(model.ledger_id)
        del self.models[model.ledger_id]
        self.deleted.add(model.ledger_id)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _refusal(self, model: LedgerModel) -> int | None:
        """Return the error code that a new add must raise; None if it must succeed."""
        if model.handle_closed:
            return -11
        return -101 if model.fenced else None

    def _failed(self, model: LedgerModel) -> None:
        """Model an add that failed on the fence: all pending adds fail, and the handle closes itself."""
        for pending in model.pending.values():
            assert outcome(pending) == -101
        model.pending.clear()
        model.handle_closed = True

    def _confirmed(self, model: LedgerModel, entry_id: int) -> None:
        model.acknowledged = entry_id
        if not model.deferred:
            model.lac = entry_id

    @rule(model=ledgers, payloads=st.lists(PAYLOADS, max_size=6), how=HOW)
    def append(self, model: LedgerModel, payloads: list[bytes], how: str) -> None:
        if model.writer is None:
            return
        if model.adv:
            with refused(-100):
                model.writer.append(b"x")
            return
        refusal = self._refusal(model)
        if refusal is not None:
            if payloads:
                assert code_of(lambda: model.writer.append(payloads[0])) == refusal
                self._failed(model)
            return
        self._append(model, payloads, how)

    def _append(self, model: LedgerModel, payloads: list[bytes], how: str) -> None:
        first = model.acknowledged + 1
        expected = list(range(first, first + len(payloads)))
        if how == "one":
            ids = [model.writer.append(payload) for payload in payloads]
        elif how == "async":
            ids = [pending.result(60) for pending in [model.writer.append_async(payload) for payload in payloads]]
        else:
            ids = list(model.writer.append_many(payloads))
        assert ids == expected
        for entry_id, payload in zip(ids, payloads, strict=True):
            model.stored[entry_id] = payload
            self._confirmed(model, entry_id)
        assert model.writer.last_add_pushed == model.acknowledged

    @rule(model=ledgers, ahead=st.integers(-2, 4), payload=PAYLOADS)
    def write(self, model: LedgerModel, ahead: int, payload: bytes) -> None:
        if model.writer is None:
            return
        if not model.adv:
            with refused(-100):
                model.writer.write(0, b"x")
            return
        entry_id = model.acknowledged + 1 + ahead
        if entry_id <= model.lac or entry_id in model.pending:
            assert code_of(lambda: model.writer.write_async(entry_id, payload).result(60)) == -22
            return
        if ahead < 0:
            # Acknowledged but not forced: neither pending nor up to the LAC. BookKeeper leaves the result open.
            return
        refusal = self._refusal(model)
        if refusal is not None:
            if entry_id not in model.stored:
                assert code_of(lambda: model.writer.write_async(entry_id, payload).result(60)) == refusal
                self._failed(model)
            return
        self._write(model, entry_id, payload)

    def _write(self, model: LedgerModel, entry_id: int, payload: bytes) -> None:
        pending = model.writer.write_async(entry_id, payload)
        if entry_id > model.acknowledged + 1:
            eventually_readable(self.other_reader(model), entry_id)
            assert not pending.done()
        model.stored[entry_id] = payload
        model.pending[entry_id] = pending
        while (done := model.pending.pop(model.acknowledged + 1, None)) is not None:
            assert outcome(done) == ("ok", model.acknowledged + 1)
            self._confirmed(model, model.acknowledged + 1)

    def other_reader(self, model: LedgerModel) -> Any:
        return self.other.open_ledger(model.ledger_id, recovery=False, password=model.password)

    @rule(model=ledgers)
    def force(self, model: LedgerModel) -> None:
        if model.writer is None:
            return
        if model.handle_closed:
            with refused(-11):
                model.writer.force()
            return
        model.writer.force()
        model.lac = model.acknowledged

    @rule(model=ledgers)
    def close(self, model: LedgerModel) -> None:
        if model.writer is None:
            return
        if model.closed_at is None:
            model.writer.close()
            model.closed_at = model.lac
        else:
            code = code_of(model.writer.close)
            if not model.close_codes:
                # Closing at the same end succeeds. The lengths of adv ledgers may differ even then, as in BookKeeper.
                model.close_codes = {-17} if model.closed_at != model.lac else {None, -17} if model.adv else {None}
            assert code in model.close_codes
            model.close_codes = {code}
        model.lac = model.closed_at
        for pending in model.pending.values():
            assert outcome(pending) == -11
        model.pending.clear()
        model.handle_closed = True
        assert model.writer.is_closed()
        assert self.other.is_closed(model.ledger_id)
        assert model.writer.last_add_confirmed == model.closed_at

    # -- opening and reading -----------------------------------------------------------------------------------------

    @rule(model=ledgers, by_other=st.booleans())
    def recover(self, model: LedgerModel, by_other: bool) -> None:
        client = self.other if by_other else self.store
        with refused(-102):
            client.open_ledger(model.ledger_id, password=model.password + b"!")
        reader = client.open_ledger(model.ledger_id, password=model.password)
        if model.closed_at is None:
            model.closed_at = model.contiguous
            model.fenced = True
        assert reader.last_add_confirmed == model.closed_at
        assert reader.is_closed()
        if not model.adv and not model.deferred:
            assert reader.length == sum(len(model.stored[i]) for i in range(model.closed_at + 1))
        assert [entry.data for entry in reader] == [model.stored[i] for i in range(model.closed_at + 1)]

    @rule(model=ledgers)
    def open_without_recovery(self, model: LedgerModel) -> None:
        reader = self.other_reader(model)
        if model.closed_at is not None:
            assert reader.last_add_confirmed == model.closed_at
        else:
            assert -1 <= reader.last_add_confirmed <= max(model.lac, -1) or model.writer is None
            assert reader.last_add_confirmed <= model.contiguous
        model.readers.append(reader)

    @rule(model=ledgers, data=st.data())
    def read_of_an_open_reader(self, model: LedgerModel, data: st.DataObject) -> None:
        if not model.readers:
            return
        reader = data.draw(st.sampled_from(model.readers))
        before = reader.last_add_confirmed
        lac = reader.read_last_confirmed()
        assert before <= lac <= model.contiguous
        if model.closed_at is None and model.writer is not None:
            assert lac <= model.lac
        if lac >= 0:
            assert [entry.data for entry in reader.read(0, lac)] == [model.stored[i] for i in range(lac + 1)]
            assert reader.read_last_entry().data == model.stored[lac]
        else:
            with refused(-13):
                reader.read_last_entry()

    @rule(model=ledgers, first=st.integers(-2, 12), count=st.integers(-1, 12), unconfirmed=st.booleans())
    def read(self, model: LedgerModel, first: int, count: int, unconfirmed: bool) -> None:
        handle = model.writer if model.writer is not None else self.other_reader(model)
        last = first + count
        call = handle.read_unconfirmed if unconfirmed else handle.read
        wanted = range(first, last + 1)
        if first < 0 or last < first:
            with refused(-14):
                call(first, last)
        elif not unconfirmed and last > handle.last_add_confirmed:
            with refused(-1):
                call(first, last)
        elif all(i in model.stored for i in wanted):
            entries = call(first, last)
            assert [(entry.entry_id, entry.data) for entry in entries] == [(i, model.stored[i]) for i in wanted]
            assert [entry.length for entry in entries] == [len(model.stored[i]) for i in wanted]
            assert {entry.ledger_id for entry in entries} == {model.ledger_id}
        elif model.stored:
            with refused(-13):
                call(first, last)
        else:
            with refused(-7, -13):
                call(first, last)

    @rule(model=ledgers, start=st.integers(0, 12), count=st.integers(0, 12), size=st.sampled_from([0, 1, 200, 6000]))
    def batch(self, model: LedgerModel, start: int, count: int, size: int) -> None:
        handle = self.other_reader(model)
        if start not in model.stored:
            with refused(-13, -7):
                handle.batch_read_unconfirmed(start, count, size)
            return
        entries = handle.batch_read_unconfirmed(start, count, size)
        assert 1 <= len(entries) <= (count or 1000)
        assert [(entry.entry_id, entry.data) for entry in entries] == [
            (i, model.stored[i]) for i in range(start, start + len(entries))
        ]
        if size == 0 and len(entries) != count:
            assert start + len(entries) not in model.stored
        if start <= handle.last_add_confirmed:
            confirmed = handle.batch_read(start, count, size)
            assert confirmed == entries[: handle.last_add_confirmed - start + 1][: len(confirmed)]
            assert confirmed

    # -- restarts ----------------------------------------------------------------------------------------------------

    @rule(check=st.sampled_from(["fast", "full"]))
    def reopen(self, check: str) -> None:
        pending = [one for model in self.models.values() for one in model.pending.values()]
        writers = [model.writer for model in self.models.values() if model.writer is not None]
        self.store.close()
        assert {outcome(one) for one in pending} <= {-19}
        for writer in writers:
            with refused(-19):
                writer.read(0, 0)
        self.other.close()
        bookstand.open(self.path, create=False, check=check).close()
        self._open_again()

    def _open_again(self) -> None:
        for model in self.models.values():
            model.writer = None
            model.pending.clear()
            model.readers.clear()
        self.store = self.open_store(self.path)
        self.other = self.open_store(self.path)

    @rule()
    def crash(self) -> None:
        self.crash_store()
        self._crashed(lambda: list(self.store.list_ledgers()))
        for client in (self.store, self.other):
            client.close()
        for model in self.models.values():
            for pending in model.pending.values():
                self._crashed(lambda pending=pending: pending.result(PATIENCE))  # type: ignore[misc]
        self._open_again()
        for model in self.models.values():
            self._adopt_survivors(model)

    def _crashed(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except (StoreCrashedError, ClientClosedError):
            return
        raise AssertionError("a handle works on after the crash")

    def _adopt_survivors(self, model: LedgerModel) -> None:
        """Drop lost entries from the model. Only entries that were acknowledged but not forced may be lost."""
        reader = self.other_reader(model)
        gone: list[int] = []
        for entry_id, payload in sorted(model.stored.items()):
            if code_of(lambda entry_id=entry_id: reader.read_unconfirmed(entry_id, entry_id)) is None:  # type: ignore[misc]
                assert reader.read_unconfirmed(entry_id, entry_id)[0].data == payload
                assert not gone or model.adv, f"entry {entry_id} is there, and {gone} before it are not"
            else:
                gone.append(entry_id)
        assert model.deferred or not gone, f"entries {gone} were acknowledged, and are gone"
        assert not gone or gone[0] > model.lac, f"entries {gone} were forced up to {model.lac}, and are gone"
        for entry_id in gone:
            del model.stored[entry_id]

    @rule()
    def other_client_comes_and_goes(self) -> None:
        self.other.close()
        for model in self.models.values():
            model.readers.clear()
        self.other = self.open_store(self.path)

    # -- invariants --------------------------------------------------------------------------------------------------

    @invariant()
    def handles_agree(self) -> None:
        if not hasattr(self, "models"):
            return
        for model in self.models.values():
            if model.writer is not None and not model.fenced:
                assert model.writer.last_add_confirmed == model.lac
                assert model.writer.is_closed() == model.handle_closed
                if not model.deferred and not model.handle_closed:
                    assert model.writer.length == sum(map(len, model.stored.values()))

    @invariant()
    def metadata_agrees(self) -> None:
        if not hasattr(self, "models"):
            return
        assert list(self.other.list_ledgers()) == sorted(self.models)
        for model in self.models.values():
            metadata = self.other.ledger_metadata(model.ledger_id)
            if model.closed_at is None:
                assert (metadata.state, metadata.last_entry_id, metadata.length) == ("OPEN", -1, 0)
            else:
                assert (metadata.state, metadata.last_entry_id) == ("CLOSED", model.closed_at)
