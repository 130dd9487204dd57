"""Applies the operations of a recording to a backend, and gives answers in the recording's form.

Both backends, the plain model and bookstand itself, have bookstand's API, so there is one driver. What it adds is only
the recordings' way of speaking: symbols for ledgers, payload seeds, operations that stay pending, bookies by index.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from bookstand import errors
from tests.replay.bookies import Bookies, Shape

EXPLICIT_BASE = 5_000_000_000
SHOWN_TEXT = 64

Result = dict[str, Any]


class Answer(NamedTuple):
    result: Result
    state: dict[str, list[Any]]
    completed: list[tuple[str, Result]]


class Backend(Protocol):
    """What a driver needs beside the API."""

    bookies: Bookies

    def client(self, name: str) -> Any: ...

    def creator(self, name: str) -> Any:
        """The client when it creates a ledger: it sees only the bookies that are up. One is, whatever happened."""

    def run(self, name: str, call: Callable[[], Any], lazy: bool) -> Any:
        """Start a call in the background and give a pending for it. ``lazy``: its answer depends on what follows."""

    def settle(self, names: dict[str, Any], expected: Iterable[str]) -> None:
        """Give the pendings time; those expected must be done or will not be."""

    def wait(self, pending: Any, timeout: float) -> None:
        """As settle, for one, for as long as the recording waited."""

    def sleep(self, seconds: float) -> None: ...

    def release(self) -> None: ...

    def restart(self) -> None: ...

    def bookies_changed(self) -> None: ...

    def stored(self, ledger_id: int, entry_id: int) -> tuple[int, int, int] | None:
        """LAC and cumulative length in an entry's header, and its stored size."""

    def close(self) -> None: ...


class Driver:
    has_several_bookies = False
    """Whether it tells of bookies that may each know something else."""

    def __init__(self, header: dict[str, Any], backend: Backend) -> None:
        self.header = header
        self.backend = backend
        self.handles: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}  # handle -> "writer", "adv" or "reader"
        self.handle_clients: dict[str, str] = {}
        self.ids: dict[str, int] = {}  # symbol -> ledger id
        self.symbols: dict[int, str] = {}
        self.generated = 0
        self.adds: dict[str, Any] = {}  # pending name -> the backend's pending
        self.background: dict[str, tuple[Any, Callable[[Any], Result]]] = {}
        self.finished: dict[str, Result] = {}

    def close(self) -> None:
        self.backend.close()

    def apply(self, op: dict[str, Any], expected: Iterable[str] = ()) -> Answer:
        """``expected`` names the pendings that this line completes: how long to wait, not what to answer."""
        expected = set(expected)
        result = self._guard(lambda: getattr(self, "op_" + op["op"])(op))
        completed = self._collect(op, expected)
        if op["op"] == "await" and result == {"ok": "pending"} and op["pending"] in self.finished:
            result = self.finished[op["pending"]]
        state = {name: self._numbers(handle) for name, handle in self.handles.items()}
        return Answer(result, state, completed)

    # -- pendings

    def _collect(self, op: dict[str, Any], expected: set[str]) -> list[tuple[str, Result]]:
        self.backend.settle(self.adds, expected & self.adds.keys())
        done: dict[str, Result] = {}
        for name, pending in list(self.adds.items()):
            if pending.done():
                done[name] = self._guard(functools.partial(pending.result, 0))
                del self.adds[name]
        # Whatever is not an add is finished when the recording says so or asks: who comes first is not compared.
        asked = expected | ({op["pending"]} if op["op"] == "await" else set())
        for name in sorted(asked & self.background.keys()):
            pending, form = self.background[name]
            if name in expected:
                self.backend.wait(pending, 20.0)
            if pending.done():
                done[name] = self._guard(functools.partial(_formed, pending, form))
                del self.background[name]
        self.finished.update(done)
        return sorted(done.items())

    def _guard(self, call: Callable[[], Any]) -> Result:
        try:
            value = call()
        except _Known as known:
            return known.result
        except errors.LedgerError as failure:
            return {"error": failure.code}
        except IndexError:
            return {"error": None, "exception": "IndexError"}
        except Exception as failure:
            # Not an answer that anything recorded compares equal to; shown, and the replay goes on.
            return {"error": None, "exception": f"{type(failure).__name__}: {failure}"}
        return {"ok": value}

    def _add(self, op: dict[str, Any], start: Callable[[], Any]) -> Any:
        name = op.get("pending")
        pending = start()
        if name is None:
            self.backend.wait(pending, 10.0)
            return pending.result(0)
        self.adds[name] = pending
        return "pending"

    def _call(self, op: dict[str, Any], call: Callable[[], Any], form: Callable[[Any], Any], lazy: bool = False) -> Any:
        name = op.get("pending")
        if name is None:
            return form(call())
        self.background[name] = (self.backend.run(name, call, lazy), form)
        return "pending"

    def op_await(self, op: dict[str, Any]) -> Any:
        name = op["pending"]
        if name in self.finished:
            raise _Known(self.finished[name])
        pending = self.adds[name] if name in self.adds else self.background.get(name, (None, None))[0]
        if pending is None:
            raise _Known({"error": None, "exception": f"no pending {name}"})
        self.backend.wait(pending, op["timeout_ms"] / 1000)
        return "pending"

    # -- names and values

    def ledger_id(self, symbol: Any) -> int | None:
        if symbol is None or isinstance(symbol, int):
            return symbol
        if symbol in self.ids:
            return self.ids[symbol]
        explicit = re.fullmatch(r"X(\d+)", symbol)
        if explicit:
            return EXPLICIT_BASE + int(explicit.group(1))
        # Its creation was refused here and not in the recording.
        raise _Known({"error": None, "exception": f"no ledger {symbol}"})

    def symbol(self, ledger_id: int) -> str:
        if ledger_id in self.symbols:
            return self.symbols[ledger_id]
        if EXPLICIT_BASE < ledger_id < EXPLICIT_BASE + 1000:
            return f"X{ledger_id - EXPLICIT_BASE}"
        return str(ledger_id)

    def _new_ledger(self, op: dict[str, Any], handle: Any, kind: str) -> str:
        ledger_id = handle.id
        if op.get("ledger") is None:
            self.generated += 1
            symbol = f"L{self.generated}"
            self.ids[symbol] = ledger_id
            self.symbols[ledger_id] = symbol
        self.backend.bookies.shapes[ledger_id] = self._shape(op)
        self._new_handle(op, handle, kind)
        return self.symbol(ledger_id)

    def _shape(self, op: dict[str, Any]) -> Shape:
        return Shape(
            op.get("ensemble", 3),
            op.get("write_quorum", 2),
            op.get("ack_quorum", 2),
            bool(op.get("deferred_sync")),
        )

    def _new_handle(self, op: dict[str, Any], handle: Any, kind: str) -> None:
        if "handle" in op:
            self.handles[op["handle"]] = handle
            self.kinds[op["handle"]] = kind
            self.handle_clients[op["handle"]] = op["client"]

    def _handle(self, op: dict[str, Any]) -> Any:
        if op["handle"] not in self.handles:
            raise _Known({"error": None, "exception": f"no handle {op['handle']}"})
        return self.handles[op["handle"]]

    def _numbers(self, handle: Any) -> list[Any]:
        return [handle.last_add_confirmed, handle.last_add_pushed, handle.length, handle.is_closed()]

    def _entry(self, entry: Any) -> dict[str, Any]:
        return {
            "entry": entry.entry_id,
            "data": shown(entry.data),
            "length": entry.length,
            "cumulative_length": entry.cumulative_length,
        }

    def _entries(self, entries: Iterable[Any]) -> list[dict[str, Any]]:
        return [self._entry(entry) for entry in entries]

    # -- ledgers

    def _create_arguments(self, op: dict[str, Any]) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for name in ("ensemble", "write_quorum", "ack_quorum", "digest", "deferred_sync"):
            if name in op:
                arguments[name] = op[name]
        if "write_flags" in op:  # only ever null; deferred sync is the one flag there is
            arguments["deferred_sync"] = op["write_flags"]
        if "password" in op:
            arguments["password"] = None if op["password"] is None else op["password"].encode()
        if "custom_metadata" in op:
            given = op["custom_metadata"]
            arguments["custom_metadata"] = None if given is None else decoded(given)
        return arguments

    def op_create(self, op: dict[str, Any]) -> str:
        handle = self.backend.creator(op["client"]).create_ledger(**self._create_arguments(op))
        return self._new_ledger(op, handle, "writer")

    def op_create_adv(self, op: dict[str, Any]) -> str:
        arguments = self._create_arguments(op)
        if "ledger" in op:
            arguments["ledger_id"] = self.ledger_id(op["ledger"])
        handle = self.backend.creator(op["client"]).create_ledger_adv(**arguments)
        return self._new_ledger(op, handle, "adv")

    def op_open(self, op: dict[str, Any]) -> Any:
        arguments: dict[str, Any] = {"ledger_id": self.ledger_id(op.get("ledger"))}
        if "recovery" in op:
            arguments["recovery"] = op["recovery"]
        if "password" in op:
            arguments["password"] = None if op["password"] is None else op["password"].encode()
        if "digest" in op:
            arguments["digest"] = op["digest"]
        client = self.backend.client(op["client"])

        def opened(handle: Any) -> str:
            self._new_handle(op, handle, "reader")
            return self.symbol(handle.id)

        return self._call(op, lambda: client.open_ledger(**arguments), opened)

    def op_delete(self, op: dict[str, Any]) -> None:
        # The recorded metadata driver takes the deletion of a missing ledger for done.
        self.backend.client(op["client"]).delete_ledger(self.ledger_id(op.get("ledger")), missing_ok=True)

    def op_list(self, op: dict[str, Any]) -> list[str]:
        return [self.symbol(ledger_id) for ledger_id in self.backend.client(op["client"]).list_ledgers()]

    def op_list_remove(self, op: dict[str, Any]) -> None:
        ids = self.backend.client(op["client"]).list_ledgers()
        if not hasattr(ids, "remove"):
            raise _Known({"error": None, "exception": "unsupported"})

    def op_list_all_twice(self, op: dict[str, Any]) -> Any:
        ids = self.backend.client(op["client"]).list_ledgers()
        first, second = list(ids), list(ids)
        if first and not second:
            raise _Known({"error": None, "exception": "used up"})
        return [first, second]

    def op_metadata(self, op: dict[str, Any]) -> dict[str, Any]:
        metadata = self.backend.client(op["client"]).ledger_metadata(self.ledger_id(op["ledger"]))
        digest = metadata.digest_type
        return {
            "state": metadata.state,
            "ensemble": metadata.ensemble_size,
            "write_quorum": metadata.write_quorum_size,
            "ack_quorum": metadata.ack_quorum_size,
            "length": metadata.length,
            "last_entry": metadata.last_entry_id,
            "has_password": metadata.has_password,
            "password": metadata.password.decode() if metadata.has_password else None,
            "digest": None if digest is None else shown_digest(digest),
            "format": metadata.format_version,
            "ctime_set": has_ctime(metadata),
            "custom_metadata": encoded(metadata.custom_metadata),
            "ensembles": [{"first_entry": first, "size": size_of(where)} for first, where in metadata.ensembles],
            "version": metadata.version,
        }

    def op_is_closed(self, op: dict[str, Any]) -> bool:
        return bool(self.backend.client(op["client"]).is_closed(self.ledger_id(op["ledger"])))

    def op_metadata_write(self, op: dict[str, Any]) -> int:
        client = self.backend.client(op["client"])
        metadata = client.ledger_metadata(self.ledger_id(op["ledger"]))
        version = metadata.version
        if "custom_metadata" in op:
            changed = metadata.replace(custom_metadata=decoded(op["custom_metadata"]))
        elif "last_entry" in op:
            changed = metadata.replace(state="CLOSED", last_entry_id=op["last_entry"], length=op["length"])
        else:
            changed = metadata.replace(state="IN_RECOVERY")
        expected = None if op.get("version_any") else version + op.get("version_offset", 0)
        return int(client.write_ledger_metadata(changed, expected_version=expected))

    # -- writing

    def op_append(self, op: dict[str, Any]) -> Any:
        data = sliced(op)
        handle = self._handle(op)
        if self.kinds[op["handle"]] != "writer":
            return handle.append(data)
        return self._add(op, lambda: handle.append_async(data))

    def op_append_many(self, op: dict[str, Any]) -> list[Result]:
        handle = self._handle(op)
        payloads = [payload(data) for data in op["data"]]
        result = self._guard(lambda: list(handle.append_many(payloads)))
        if "ok" in result:
            return [{"ok": entry_id} for entry_id in result["ok"]]
        # All of them went out together, so all of them fail for the same reason.
        return [result for _ in payloads]

    def op_write(self, op: dict[str, Any]) -> Any:
        data = sliced(op)
        handle = self._handle(op)
        if self.kinds[op["handle"]] != "adv":
            return handle.write(op["entry"], data)
        return self._add(op, lambda: handle.write_async(op["entry"], data))

    def op_force(self, op: dict[str, Any]) -> None:
        self._handle(op).force()

    def op_close(self, op: dict[str, Any]) -> Any:
        handle = self._handle(op)
        return self._call(op, handle.close, lambda value: None)

    # -- reading

    def op_read(self, op: dict[str, Any]) -> Any:
        handle = self._handle(op)
        return self._call(op, lambda: handle.read(op["first"], op["last"]), self._entries)

    def op_read_unconfirmed(self, op: dict[str, Any]) -> Any:
        handle = self._handle(op)
        return self._call(op, lambda: handle.read_unconfirmed(op["first"], op["last"]), self._entries)

    def op_batch_read(self, op: dict[str, Any]) -> Any:
        handle = self._handle(op)
        start, max_count, max_size = op["start"], op["max_count"], op["max_size"]
        if self._single_reads(op) and max_count > 0:
            last = start + max_count - 1
            if 0 <= start <= handle.last_add_confirmed:
                last = min(last, handle.last_add_confirmed)
            return self._call(op, lambda: handle.read(start, last), self._entries)
        return self._call(op, lambda: handle.batch_read(start, max_count, max_size), self._entries)

    def op_batch_read_unconfirmed(self, op: dict[str, Any]) -> Any:
        handle = self._handle(op)
        start, max_count, max_size = op["start"], op["max_count"], op["max_size"]
        if op.get("api") == "callback":
            # This form does not look at the size, and takes what is negative for no limit.
            max_size = max(max_size, 0)
        if self._single_reads(op) and max_size >= 0:
            return self._call(op, lambda: handle.read_unconfirmed(start, start + max_count - 1), self._entries)
        return self._call(op, lambda: handle.batch_read_unconfirmed(start, max_count, max_size), self._entries)

    def _single_reads(self, op: dict[str, Any]) -> bool:
        """Whether batch reads are turned off for the client: it reads entry by entry then, of any size."""
        name = self.handle_clients[op["handle"]]
        settings = self.header.get("clients", {}).get(name, self.header.get("settings", {}))
        return settings.get("batch_read_enabled") is False

    def op_read_last_entry(self, op: dict[str, Any]) -> Any:
        handle = self._handle(op)
        if op.get("api") != "async":
            return self._entry(handle.read_last_entry())
        # The asynchronous form asks for the LAC first when the handle is a reader, and reads that entry.
        if self.kinds[op["handle"]] == "reader":
            last = handle.read_last_confirmed()
            if last < 0:
                raise errors.NoSuchEntryError
            return self._entries(handle.read_unconfirmed(last, last))
        return [self._entry(handle.read_last_entry())]

    def op_read_lac(self, op: dict[str, Any]) -> int:
        return int(self._handle(op).read_last_confirmed())

    def op_try_read_lac(self, op: dict[str, Any]) -> int:
        return int(self._handle(op).try_read_last_confirmed())

    def op_read_explicit_lac(self, op: dict[str, Any]) -> int:
        return int(self._handle(op).read_explicit_last_confirmed())

    def op_wait_entry(self, op: dict[str, Any]) -> Any:
        handle = self._handle(op)
        timeout = op["timeout_ms"] / 1000

        def form(answer: Any) -> dict[str, Any]:
            lac, entry = answer
            return {"lac": lac, "entry": None if entry is None else self._entry(entry)}

        timeout = min(timeout, LONG_POLL_SECONDS if op.get("pending") is None else PENDING_POLL_SECONDS)
        return self._call(op, lambda: handle.wait_entry(op["entry"], timeout), form, lazy=True)

    def op_handle_lac(self, op: dict[str, Any]) -> dict[str, Any]:
        handle = self._handle(op)
        lac, lap, length, closed = self._numbers(handle)
        metadata = handle.metadata
        return {
            "last_add_confirmed": lac,
            "last_add_pushed": lap,
            "length": length,
            "closed": closed,
            "fragments": len(metadata.ensembles),
            "bookies": max(size_of(where) for _, where in metadata.ensembles),
            "id": self.symbol(handle.id),
            "custom_metadata": encoded(metadata.custom_metadata),
        }

    def op_stored(self, op: dict[str, Any]) -> list[dict[str, Any]]:
        ledger_id = self.ledger_id(op["ledger"])
        assert ledger_id is not None
        entries = []
        for entry_id in range(op["first"], op["last"] + 1):
            found = self.backend.stored(ledger_id, entry_id)
            if found is None:
                entries.append({"entry": entry_id, "present": False})
            else:
                lac, cumulative_length, size = found
                entries.append(
                    {
                        "entry": entry_id,
                        "present": True,
                        "lac": lac,
                        "cumulative_length": cumulative_length,
                        "stored_size": size,
                    }
                )
        return entries

    # -- the bookies

    def op_bookie_hold(self, op: dict[str, Any]) -> None:
        self.backend.bookies.hold(self._ledger(op), op["mode"], op.get("index"))
        self.backend.bookies_changed()

    def op_bookie_release(self, op: dict[str, Any]) -> None:
        self.backend.bookies.holds.clear()
        self.backend.release()

    def op_bookie_fault(self, op: dict[str, Any]) -> None:
        self.backend.bookies.fault(self._ledger(op), op["kind"], op.get("index"))
        self.backend.bookies_changed()

    def op_bookie_faults_off(self, op: dict[str, Any]) -> None:
        self.backend.bookies.faults.clear()
        self.backend.bookies_changed()

    def op_bookie_stop(self, op: dict[str, Any]) -> None:
        self.backend.bookies.stop(self.ledger_id(op.get("ledger")), op.get("index"))
        self.backend.bookies_changed()

    def op_bookie_start(self, op: dict[str, Any]) -> None:
        self.backend.bookies.start()
        self.backend.bookies_changed()

    def op_bookie_restart(self, op: dict[str, Any]) -> None:
        self.backend.restart()

    def op_bookie_read_only(self, op: dict[str, Any]) -> None:
        self.backend.bookies.read_only = op.get("on", True)
        self.backend.bookies_changed()

    def op_client_close(self, op: dict[str, Any]) -> None:
        self.backend.client(op["client"]).close()

    def op_sleep(self, op: dict[str, Any]) -> None:
        self.backend.sleep(op["ms"] / 1000)

    def _ledger(self, op: dict[str, Any]) -> int:
        ledger_id = self.ledger_id(op["ledger"])
        assert ledger_id is not None
        return ledger_id


# Of the recorded 10 to 1000 ms, in which nothing else happens, and of 20 s, in which what was waited for happens.
LONG_POLL_SECONDS = 0.003
PENDING_POLL_SECONDS = 2.0


class _Known(Exception):  # noqa: N818 - carries an answer, not a failure
    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


def _formed(pending: Any, form: Callable[[Any], Any]) -> Any:
    return form(pending.result(0))


@functools.lru_cache(maxsize=64)
def _seeded(seed: str, size: int) -> bytes:
    blocks = [hashlib.sha256(f"{seed}:{block}".encode()).digest() for block in range((size + 31) // 32)]
    return b"".join(blocks)[:size]


def payload(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode()
    return _seeded(data["seed"], data["len"])


def sliced(op: dict[str, Any]) -> bytes:
    """The payload; with offset and count, the part that they name, checked as an array's bounds are."""
    data = payload(op["data"])
    if "offset" not in op:
        return data
    offset, count = op["offset"], op["count"]
    if offset < 0 or count < 0 or offset + count > len(data):
        raise IndexError(offset)
    return data[offset : offset + count]


def shown(data: bytes) -> Any:
    data = bytes(data)
    if len(data) <= SHOWN_TEXT and all(0x20 <= byte < 0x7F for byte in data):
        return data.decode()
    return {"len": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def decoded(custom_metadata: dict[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in custom_metadata.items()}


def encoded(custom_metadata: dict[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in custom_metadata.items()}


def shown_digest(digest: str) -> str:
    name = digest.upper()
    return "MAC" if name in ("HMAC", "MAC") else name


def has_ctime(metadata: Any) -> bool:
    known = getattr(metadata, "has_ctime", None)
    return bool(metadata.ctime >= 0) if known is None else bool(known)


def size_of(where: Any) -> int:
    return where if isinstance(where, int) else len(where)
