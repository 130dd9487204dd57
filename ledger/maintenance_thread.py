"""Background thread of a client: sends explicit LACs, and fails adds that exceed the add quorum timeout."""

from __future__ import annotations

from threading import Thread, current_thread
from time import monotonic
from weakref import ref

from bookstand.errors import BookstandError
from bookstand.storage.commit.futures import open_gate, shut_gate
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.ledger.client import Client


class MaintenanceThread(ProcessBound):
    """One thread for all writers of a client, started only if ``explicit_lac_interval`` or ``add_quorum_timeout`` is
    set."""

    def __init__(self, client: Client) -> None:
        self._client = ref(client)
        self._stopped = shut_gate()
        self._thread: Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="bookstand-background", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        open_gate(self._stopped)
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        next_lac = monotonic()
        while True:
            client = self._client()
            if client is None:
                return
            interval, timeout = client.explicit_lac_interval, client.add_quorum_timeout
            now = monotonic()
            is_lac_due = interval is not None and now >= next_lac
            try:
                _run_maintenance(client, now, is_lac_due)
            except Exception:
                # No other thread maintains the writers, so this one goes on.
                logger().exception("the maintenance of a store's writers failed")
            if interval is not None and is_lac_due:
                next_lac = now + interval
            # The thread must not keep an otherwise unreferenced client alive while it sleeps.
            del client
            pauses = [interval] if interval is not None else []
            if timeout is not None:
                pauses.append(timeout / 10)
            if self._stopped.acquire(True, min(pauses)):
                open_gate(self._stopped)
                return


def _run_maintenance(client: Client, now: float, is_lac_due: bool) -> None:
    for writer in client.writers():
        if client.add_quorum_timeout is not None:
            writer.expire(now)
        if is_lac_due:
            try:
                writer.send_explicit_lac()
            except BookstandError:
                # Fenced, deleted or out of space: the writer's next add reports it.
                continue
