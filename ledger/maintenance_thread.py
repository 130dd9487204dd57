"""What happens without being asked for: telling explicit LACs, and giving up on adds that wait for too long."""

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
    """One thread for all writers of a client, and only where a setting asks for it."""

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
        next_telling = monotonic()
        while True:
            client = self._client()
            if client is None:
                return
            interval, timeout = client.explicit_lac_interval, client.add_quorum_timeout
            now = monotonic()
            try:
                _look_after(client, now, interval is not None and now >= next_telling)
            except Exception:
                # This thread is the only one; the next look follows.
                logger().exception("what was due for a store's writers failed")
            if interval is not None and now >= next_telling:
                next_telling = now + interval
            # Nothing here is to keep a client alive that everybody else has dropped.
            del client
            pauses = [interval] if interval is not None else []
            if timeout is not None:
                pauses.append(timeout / 10)
            if self._stopped.acquire(True, min(pauses)):
                open_gate(self._stopped)
                return


def _look_after(client: Client, now: float, telling: bool) -> None:
    for writer in client.writers():
        if client.add_quorum_timeout is not None:
            writer.expire(now)
        if telling:
            try:
                writer.tell_lac()
            except BookstandError:
                # Fenced, deleted, full: the writer itself hears of it with its next add.
                continue
