"""Any order of operations on several ledgers, by two clients and over restarts, against a model made of dicts."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import bookstand
from tests.kit import code_of, outcome, refused, stored_by

PAYLOADS = st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"\0" * 300, bytes(5000)]))
DIGESTS = st.sampled_from(["crc32", "crc32c", "hmac", "dummy"])


@dataclass
class Model:
    """What is known of one ledger, and its writer's handle while there is one."""

    ledger_id: int
    adv: bool
    deferred: bool
    password: bytes
    writer: Any
    stored: dict[int, bytes] = field(default_factory=dict)
    acknowledged: int = -1
    """Last entry whose add was answered."""
    lac: int = -1
    """The writer's last-add-confirmed."""
    pending: dict[int, Any] = field(default_factory=dict)
    fenced: bool = False
    handle_closed: bool = False
    closed_at: int | None = None
    """The last entry in the metadata once that says CLOSED."""
    close_codes: set[int | None] = field(default_factory=set)
    """What closing the handle may answer, once somebody else closed the ledger."""
    readers: list[Any] = field(default_factory=list)

    @property
    def contiguous(self) -> int:
        """The last entry before the first gap."""
        last = -1
        while last + 1 in self.stored:
            last += 1
        return last


class LedgersMachine(RuleBasedStateMachine):
    ledgers = Bundle("ledgers")

    @initialize()
    def open(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bookstand-model-"))
        self.path = self.directory / "store"
        self.models: dict[int, Model] = {}
        self.deleted: set[int] = set()
        self._open()

    def _open(self) -> None:
        self.store = bookstand.open(self.path)
        self.other = bookstand.open(self.path)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self.store.close()
            self.other.close()
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
            shutil.rmtree(self.directory)

    # -- creating and deleting ---------------------------------------------------------------------------------------

    @rule(target=ledgers, adv=st.booleans(), deferred=st.booleans(), digest=DIGESTS, password=st.binary(max_size=4))
    def create(self, adv: bool, deferred: bool, digest: str, password: bytes) -> Any:
        if len(self.models) >= 5:
            return multiple()
        create = self.store.create_ledger_adv if adv else self.store.create_ledger
        writer = create(digest=digest, password=password, deferred_sync=deferred)
        assert writer.id not in self.models
        assert writer.id not in self.deleted
        model = Model(writer.id, adv, deferred, password, writer)
        self.models[writer.id] = model
        return model

    @rule(model=consumes(ledgers), collect=st.booleans())
    def delete(self, model: Model, collect: bool) -> None:
        self.other.delete_ledger(model.ledger_id)
        with refused(-25):
            self.store.open_ledger(model.ledger_id, password=model.password)
        if model.writer is not None:
            # A handle that is closed already repeats what its close met with.
            assert code_of(model.writer.close) in ((None, -17, -25) if model.handle_closed else (-25,))
            for pending in model.pending.values():
                assert outcome(pending) in (-11, -101)
        if collect:
            self.store.compact()
        del self.models[model.ledger_id]
        self.deleted.add(model.ledger_id)

    @rule(model=consumes(ledgers), payload=PAYLOADS)
    def create_again(self, model: Model, payload: bytes) -> None:
        """Another generation under the same id starts clean, and the former writer cannot write into it."""
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

    def _refusal(self, model: Model) -> int | None:
        """The code that a new add is refused with."""
        if model.handle_closed:
            return -11
        return -101 if model.fenced else None

    def _failed(self, model: Model) -> None:
        """An add was refused by the fence: everything pending fails, and the handle closes itself."""
        for pending in model.pending.values():
            assert outcome(pending) == -101
        model.pending.clear()
        model.handle_closed = True

    def _confirmed(self, model: Model, entry_id: int) -> None:
        model.acknowledged = entry_id
        if not model.deferred:
            model.lac = entry_id

    @rule(model=ledgers, payloads=st.lists(PAYLOADS, max_size=6), how=st.sampled_from(["one", "async", "many"]))
    def append(self, model: Model, payloads: list[bytes], how: str) -> None:
        if model.writer is None:
            return
        if model.adv:
            with refused(-100):
                model.writer.append(b"x")
            return
        refusal = self._refusal(model)
        first = model.acknowledged + 1
        expected = list(range(first, first + len(payloads)))
        if refusal is not None:
            if payloads:
                assert code_of(lambda: model.writer.append(payloads[0])) == refusal
                self._failed(model)
            return
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
    def write(self, model: Model, ahead: int, payload: bytes) -> None:
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
            # Acknowledged and not forced: neither pending nor below the LAC. The original leaves it open.
            return
        refusal = self._refusal(model)
        if refusal is not None:
            if entry_id not in model.stored:
                assert code_of(lambda: model.writer.write_async(entry_id, payload).result(60)) == refusal
                self._failed(model)
            return
        pending = model.writer.write_async(entry_id, payload)
        if ahead > 0:
            stored_by(self.other_reader(model), entry_id)
            assert not pending.done()
        model.stored[entry_id] = payload
        model.pending[entry_id] = pending
        while (done := model.pending.pop(model.acknowledged + 1, None)) is not None:
            assert outcome(done) == ("ok", model.acknowledged + 1)
            self._confirmed(model, model.acknowledged + 1)

    def other_reader(self, model: Model) -> Any:
        return self.other.open_ledger(model.ledger_id, recovery=False, password=model.password)

    @rule(model=ledgers)
    def force(self, model: Model) -> None:
        if model.writer is None:
            return
        if model.handle_closed:
            with refused(-11):
                model.writer.force()
            return
        model.writer.force()
        model.lac = model.acknowledged

    @rule(model=ledgers)
    def close(self, model: Model) -> None:
        if model.writer is None:
            return
        if model.closed_at is None:
            model.writer.close()
            model.closed_at = model.lac
        else:
            code = code_of(model.writer.close)
            if not model.close_codes:
                # Equal ends are one close. Lengths of adv ledgers may differ where the ends do not, as the original's.
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
    def recover(self, model: Model, by_other: bool) -> None:
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
    def open_without_recovery(self, model: Model) -> None:
        reader = self.other_reader(model)
        if model.closed_at is not None:
            assert reader.last_add_confirmed == model.closed_at
        else:
            assert -1 <= reader.last_add_confirmed <= max(model.lac, -1) or model.writer is None
            assert reader.last_add_confirmed <= model.contiguous
        model.readers.append(reader)

    @rule(model=ledgers, data=st.data())
    def read_of_an_open_reader(self, model: Model, data: st.DataObject) -> None:
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
    def read(self, model: Model, first: int, count: int, unconfirmed: bool) -> None:
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
    def batch(self, model: Model, start: int, count: int, size: int) -> None:
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
        for model in self.models.values():
            model.writer = None
            model.pending.clear()
            model.readers.clear()
        self.store = bookstand.open(self.path, create=False, check=check)
        self.other = bookstand.open(self.path, create=False)

    @rule()
    def other_client_comes_and_goes(self) -> None:
        self.other.close()
        for model in self.models.values():
            model.readers.clear()
        self.other = bookstand.open(self.path, create=False)

    # -- what always holds -------------------------------------------------------------------------------------------

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


TestLedgers = LedgersMachine.TestCase
TestLedgers.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
