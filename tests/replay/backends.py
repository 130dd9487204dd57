"""The two things that a recording is replayed on: the plain model, and bookstand."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from bookstand import errors
from bookstand.storage.hooks import Hooks
from bookstand.testing import model
from tests.replay.bookies import DIGEST_MISMATCH, NO_SUCH_ENTRY, OK, Bookies
from tests.replay.traces import Scenario

HOOKED = ("bookie_hold", "bookie_fault", "bookie_stop", "bookie_read_only")
MEMORY = "/dev/shm"  # the recordings are about answers, not about disks
EXPLICIT_LAC_TICKS = 2  # the first only sees the LAC that the next one tells


def settings_of(header: dict[str, Any], name: str) -> dict[str, Any]:
    """The client's settings in the names of ``bookstand.open``."""
    given = header.get("clients", {}).get(name, header.get("settings", {}))
    settings: dict[str, Any] = {"wire": given.get("wire", "v3")}
    if "digest_autodetect" in given:
        settings["digest_autodetect"] = given["digest_autodetect"]
    if "metadata_format" in given:
        settings["metadata_format"] = given["metadata_format"]
    if "frame_bytes" in given:
        settings["max_entry_bytes"] = given["frame_bytes"]
    if "explicit_lac_interval_ms" in given:
        settings["explicit_lac_interval"] = given["explicit_lac_interval_ms"] / 1000
    if "add_quorum_timeout_sec" in given:
        settings["add_quorum_timeout"] = float(given["add_quorum_timeout_sec"])
    return settings


class _Lazy:
    """A call of the model in the background: made when its answer is wanted."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.pending: model.Pending | None = None

    def finish(self) -> None:
        if self.pending is not None:
            return
        self.pending = model.Pending()
        try:
            self.pending.complete(self.call())
        except errors.LedgerError as failure:
            self.pending.fail(failure)

    def done(self) -> bool:
        return self.pending is not None

    def result(self, timeout: float | None = None) -> Any:
        assert self.pending is not None
        return self.pending.result(timeout)


class ModelBackend:
    def __init__(self, scenario: Scenario) -> None:
        self.header = scenario.header
        self.bookies = Bookies()
        self.cluster = model.Cluster()
        self.clients: dict[str, model.Client] = {}
        self.bookies_changed()

    def client(self, name: str) -> model.Client:
        if name not in self.clients:
            self.clients[name] = self.cluster.client(**settings_of(self.header, name))
        return self.clients[name]

    def creator(self, name: str) -> model.Client:
        return self.client(name)

    def run(self, name: str, call: Callable[[], Any], lazy: bool) -> _Lazy:
        pending = _Lazy(call)
        if not lazy:
            pending.finish()
        return pending

    def settle(self, names: dict[str, Any], expected: Iterable[str]) -> None:
        """Nothing to wait for."""

    def wait(self, pending: Any, timeout: float) -> None:
        if isinstance(pending, _Lazy):
            pending.finish()
        elif not pending.done():
            for writer in self.cluster.writers:
                limit = writer.client.add_quorum_timeout
                if limit is not None and limit <= timeout and any(a.pending is pending for a in writer.adds.values()):
                    writer.expire_adds()

    def sleep(self, seconds: float) -> None:
        intervals = [c.explicit_lac_interval for c in self.clients.values() if c.explicit_lac_interval]
        if intervals and seconds >= EXPLICIT_LAC_TICKS * min(intervals):
            self.cluster.tell_explicit_lacs()

    def release(self) -> None:
        self.cluster.release()
        self.bookies_changed()

    def restart(self) -> None:
        """Nothing is lost, and nobody notices."""

    def bookies_changed(self) -> None:
        cluster, bookies = self.cluster, self.bookies
        cluster.bookies = bookies.available or bookies.total
        cluster.hold = bookies.hold_of
        cluster.add_fault = bookies.add_fault
        cluster.read_fault = bookies.read_fault
        cluster.read_lac_fault = bookies.read_lac_fault
        cluster.fence_fault = bookies.fence_fault

    def stored(self, ledger_id: int, entry_id: int) -> tuple[int, int, int] | None:
        found = self.cluster.ledgers[ledger_id].entries.get(entry_id)
        return None if found is None else (found.lac, found.cumulative_length, found.size)

    def close(self) -> None:
        """Nothing to give back."""


class _Background:
    """A call of the store on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.value: Any = None
        self.failure: BaseException | None = None
        self.finished = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.value = self.call()
        except BaseException as failure:
            self.failure = failure
        self.finished.set()

    def done(self) -> bool:
        return self.finished.is_set()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.finished.wait(timeout):
            raise TimeoutError
        return self.failure

    def result(self, timeout: float | None = None) -> Any:
        self.exception(timeout)
        if self.failure is not None:
            raise self.failure
        return self.value


class _BookieHooks(Hooks):
    """The store's hooks, asking ``Bookies`` what goes wrong. Also the place where held adds wait."""

    def __init__(self, bookies: Bookies) -> None:
        self.bookies = bookies
        self.lock = threading.Lock()
        self.held: list[Callable[[], None]] = []
        self.fenced: set[int] = set()

    def before_add(self, ledger_id: int, entry_id: int, proceed: Callable[..., None]) -> bool:
        if ledger_id not in self.bookies.shapes:
            return False
        fault = self.bookies.add_fault(ledger_id, entry_id)
        if fault != OK:
            proceed(errors.by_code(fault)())
            return True
        if self.bookies.hold_of(ledger_id, entry_id) == "add":
            self._keep(proceed)
            return True
        return False

    def after_add(self, ledger_id: int, entry_id: int, proceed: Callable[..., None]) -> bool:
        if ledger_id not in self.bookies.shapes:
            return False
        hold = self.bookies.hold_of(ledger_id, entry_id)
        if hold == "ack":
            self._keep(proceed)
            return True
        if hold == "minority":
            # The bookies that did not store it look at the fence when they get to it.
            self._keep(lambda: proceed(errors.LedgerFencedError()) if ledger_id in self.fenced else proceed())
            return True
        return False

    def on_read(self, ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        if stored is None or ledger_id not in self.bookies.shapes:
            return stored
        fault = self.bookies.read_fault(ledger_id, entry_id)
        if fault == OK:
            return stored
        if fault == NO_SUCH_ENTRY:
            return None
        if fault == DIGEST_MISMATCH:
            return self.bookies.spoil(ledger_id, bytes(stored))
        raise errors.by_code(fault)()

    def on_fence(self, ledger_id: int) -> None:
        if ledger_id in self.bookies.shapes:
            fault = self.bookies.fence_fault(ledger_id)
            if fault != OK:
                raise errors.by_code(fault)()
        self.fenced.add(ledger_id)

    def on_read_lac(self, ledger_id: int) -> None:
        if ledger_id in self.bookies.shapes:
            fault = self.bookies.read_lac_fault(ledger_id)
            if fault != OK:
                raise errors.by_code(fault)()

    def _keep(self, go_on: Callable[[], None]) -> None:
        with self.lock:
            self.held.append(go_on)

    def release(self) -> None:
        with self.lock:
            held, self.held = self.held, []
        for go_on in held:
            go_on()


class StoreBackend:
    """bookstand itself: one store in a folder of its own, opened once per client."""

    settle_seconds = 5.0
    always_hooked = False

    def __init__(self, scenario: Scenario) -> None:
        import bookstand
        from bookstand.storage.storage import open_storage

        self.header = scenario.header
        self.bookies = Bookies()
        # Adds take another way where there are hooks; most recordings are to see the usual one.
        hooked = self.always_hooked or any(line["op"] in HOOKED for line in scenario.lines)
        self.hooks = _BookieHooks(self.bookies) if hooked else None
        in_memory = MEMORY if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="bookstand-replay-", dir=in_memory)
        self.open = bookstand.open
        self.defaults = bookstand.bookkeeper_defaults
        self.clients: dict[str, Any] = {}
        self.short: list[Any] = []  # clients from when some bookies were down
        try:
            self.storage = open_storage(self.folder, durability="none", hooks=self.hooks)  # the recorder's own eyes
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _open(self, name: str, **more: Any) -> Any:
        settings = settings_of(self.header, name) | more
        return self.open(self.folder, durability="none", defaults=self.defaults, hooks=self.hooks, **settings)

    def client(self, name: str) -> Any:
        if name not in self.clients:
            self.clients[name] = self._open(name)
        return self.clients[name]

    def creator(self, name: str) -> Any:
        bookies = self.bookies.available or self.bookies.total
        if bookies == self.bookies.total:
            return self.client(name)
        self.short.append(self._open(name, bookies=bookies))
        return self.short[-1]

    def run(self, name: str, call: Callable[[], Any], lazy: bool) -> _Background:
        return _Background(call)

    def settle(self, names: dict[str, Any], expected: Iterable[str]) -> None:
        for name in expected:
            self.wait(names[name], self.settle_seconds)
        if any(not pending.done() for pending in names.values()):
            # They may be stored, and have to be by now.
            self.storage.flush()

    def wait(self, pending: Any, timeout: float) -> None:
        try:
            pending.exception(timeout)
        except TimeoutError:
            pass

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def release(self) -> None:
        if self.hooks is not None:
            self.hooks.release()

    def restart(self) -> None:
        """Nothing of a bookie's restart shows while its clients stay."""

    def bookies_changed(self) -> None:
        """The hooks ask every time."""

    def stored(self, ledger_id: int, entry_id: int) -> tuple[int, int, int] | None:
        raw = self.storage.entry_as_stored(ledger_id, entry_id)
        if raw is None:
            return None
        lac, cumulative_length = (int.from_bytes(raw[at : at + 8], "big", signed=True) for at in (16, 24))
        return lac, cumulative_length, len(raw)

    def close(self) -> None:
        try:
            self.release()
            for client in [*self.clients.values(), *self.short, self.storage]:
                client.close()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
