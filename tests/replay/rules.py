"""The differences to the recordings of BookKeeper that are argued, one narrow rule for each.

A rule looks at the first difference of a scenario and says whether it is the one it stands for: which operation it
shows in, what was recorded and what came instead, and what had to happen before. The reasons are in
docs/differences.md, under the same names. ``surprise`` is the number of the surprise in the recordings' description, or
``several bookies`` where the recordings show which of several machines answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.replay.bookies import Shape
from tests.replay.driver import payload, shown

if TYPE_CHECKING:
    from tests.replay.lockstep import Candidate, Difference

SEVERAL_BOOKIES = "several bookies"
LAC, LAP, LENGTH = 0, 1, 2
BATCHES = ("batch_read", "batch_read_unconfirmed")
READS = ("read", "read_unconfirmed", "read_last_entry", *BATCHES)
LAC_READS = ("read_lac", "try_read_lac", "read_explicit_lac", "wait_entry")
ABSENT = (-7, -13)
MOST_BYTES = 5 << 20
MOST_ENTRIES = 256  # that a recorded ledger has


class Rule(NamedTuple):
    name: str
    surprise: str
    ops: tuple[str, ...]
    holds: Callable[[Difference], bool]

    def applies(self, found: Difference) -> bool:
        return found.op["op"] in self.ops and self.holds(found)


# -- looking at a difference


def _code(result: dict[str, Any]) -> Any:
    return result.get("error")


def _java(result: dict[str, Any]) -> str | None:
    exception = result.get("exception")
    return None if exception is None else str(exception).removeprefix("java.lang.").removeprefix("java.io.")


def _settings(found: Difference) -> dict[str, Any]:
    op, driver = found.op, found.driver
    name = op.get("client") or driver.handle_clients.get(op.get("handle", ""))
    settings = found.header.get("clients", {}).get(name, found.header.get("settings", {}))
    return dict(settings)


def _v2(found: Difference) -> bool:
    return _settings(found).get("wire") == "v2"


def _ledger(found: Difference) -> int | None:
    op, driver = found.op, found.driver
    if "handle" in op and op["handle"] in driver.handles:
        return int(driver.handles[op["handle"]].id)
    return driver.ledger_id(op["ledger"]) if "ledger" in op else None


def _shape(found: Difference) -> Shape | None:
    ledger = _ledger(found)
    return None if ledger is None else found.driver.backend.bookies.shapes.get(ledger)


def _ids(result: dict[str, Any]) -> list[int] | None:
    """The entries that a read gave."""
    value = result.get("ok")
    if not isinstance(value, list):
        return None
    return [entry["entry"] for entry in value]


def _is_start_of(part: list[Any] | None, whole: list[Any] | None) -> bool:
    return part is not None and whole is not None and len(part) < len(whole) and whole[: len(part)] == part


def _result_only(found: Difference) -> bool:
    return found.result and not found.state and not found.completed


def _happened(found: Difference, name: str) -> bool:
    return any(line["op"] == name for line in found.history[:-1])


def _started(found: Difference, pending: str) -> dict[str, Any]:
    """The line that started a pending operation."""
    return next(line for line in found.history if line.get("pending") == pending and line["op"] != "await")


# -- 1, 2: batch reads


def _batch_never_completes(found: Difference) -> bool:
    op, got = found.op, found.got
    if op["op"] == "await":
        started = _started(found, op["pending"])
        return (
            started["op"] in BATCHES
            and op["result"] == {"ok": "pending"}
            and (_ids(got.result) is not None or _code(got.result) in (-13, -14))
        )
    return (
        op["max_count"] < 0
        and _java(op["result"]) == "IllegalArgumentException"
        and (got.result == {"ok": "pending"} or _ids(got.result) is not None)
        and _result_only(found)
    )


def _real_batch(found: Difference) -> bool:
    shape = _shape(found)
    return _v2(found) and shape is not None and shape.ensemble == shape.write_quorum


def _batch_beyond_lac(found: Difference) -> bool:
    recorded, got = _ids(found.op["result"]), _ids(found.got.result)
    if not (_real_batch(found) and _result_only(found) and got and _is_start_of(got, recorded)):
        return False
    return bool(got[-1] == found.got.state[found.op["handle"]][LAC])


def _batch_cut_short(found: Difference) -> bool:
    return (
        _real_batch(found)
        and _result_only(found)
        and found.op["max_size"] > 0
        and len(_ids(found.op["result"]) or ()) == 1
        and _is_start_of(_ids(found.op["result"]), _ids(found.got.result))
    )


def _batch_striped(found: Difference) -> bool:
    shape = _shape(found)
    batches = _settings(found).get("batch_read_enabled") is not False
    if not (batches and shape is not None and shape.ensemble != shape.write_quorum and _result_only(found)):
        return False
    op, got = found.op, _ids(found.got.result)
    if got is None:
        return False
    code = _code(op["result"])
    if op["op"] == "batch_read_unconfirmed" and code in ABSENT:
        # Asked for more than there is: one by one that fails, a batch ends there.
        return bool(op["max_count"] == 0 or len(got) < op["max_count"])
    if op["op"] == "batch_read_unconfirmed" and code == -14:
        return bool(op["max_count"] <= 0)
    # One by one the size does not count.
    return op["max_size"] > 0 and _is_start_of(got, _ids(op["result"]))


# -- 1: adds that never complete


def _deferred_rewrite(found: Difference) -> bool:
    """An id that was acknowledged but not forced was written again, and adds wait for ever since, or forces forget."""
    op = found.op
    handle = op["handle"]
    created = next(line for line in found.history if line.get("handle") == handle)
    if not (created["op"] == "create_adv" and created.get("deferred_sync")) or found.result:
        return False
    names = {line["pending"]: line["entry"] for line in found.history if _is_write(line, handle)}
    acknowledged = [
        names[name]
        for line in found.history
        for name, result in line.get("completed", ())
        if name in names and "ok" in result
    ]
    written = [line["entry"] for line in found.history if _is_write(line, handle)]
    if not any(written.count(entry) > 1 for entry in acknowledged):
        return False
    if op["op"] == "write":
        # More adds complete here, and nothing else differs.
        more = {name for name, _ in found.got.completed} > {name for name, _ in op.get("completed", ())}
        return more and not found.state
    if op["op"] == "force":
        return _ahead(found, handle)
    late = {name for name, result in op.get("completed", ()) if _code(result) == -11}
    return bool(late - {name for name, _ in found.got.completed}) and set(found.state) <= {handle}


def _is_write(line: dict[str, Any], handle: str) -> bool:
    return line["op"] == "write" and line["handle"] == handle and "pending" in line


# -- 9, 24: long polls


def _wait(found: Difference) -> tuple[Any, Any] | None:
    """What a wait for an entry, or the await of one, was recorded to give, and gave."""
    op = found.op
    if op["op"] == "await" and _started(found, op["pending"])["op"] != "wait_entry":
        return None
    recorded, got = op["result"].get("ok"), found.got.result.get("ok")
    if not isinstance(recorded, dict) or not isinstance(got, dict):
        return None
    return recorded, got


def _long_poll_meets_close(found: Difference) -> bool:
    answers = _wait(found)
    if answers is None or found.op["op"] != "await":
        return False
    recorded, got = answers
    started = _started(found, found.op["pending"])
    closed = found.got.state[started["handle"]][3]
    return bool(closed and recorded["entry"] is None and (got["entry"] is not None or got["lac"] > recorded["lac"]))


def _long_poll_without_entry(found: Difference) -> bool:
    answers = _wait(found)
    if answers is None:
        return False
    recorded, got = answers
    started = _started(found, found.op["pending"]) if found.op["op"] == "await" else found.op
    return bool(
        recorded["entry"] is None
        and got["entry"] is not None
        and recorded["lac"] == got["lac"]
        and started["entry"] == got["entry"]["entry"] <= got["lac"]
    )


# -- 12, 13, 18, 19, 23: exceptions and codes


def _closed_client(found: Difference) -> bool:
    op = found.op
    recorded = _java(op["result"]) == "IOException" if op["op"] == "list" else _code(op["result"]) == -15
    return _result_only(found) and _happened(found, "client_close") and recorded and _code(found.got.result) == -19


def _open_with_null(found: Difference) -> bool:
    op = found.op
    if _java(op["result"]) != "NullPointerException":
        return False
    if "password" in op and op["password"] is None:
        return found.got.result == {"error": -14}
    return "digest" in op and op["digest"] is None and ("ok" in found.got.result or _code(found.got.result) == -14)


def _limbo(found: Difference) -> bool:
    faults = found.driver.backend.bookies.faults
    return (
        any(kind == "read_unknown" for _, _, kind in faults)
        and _result_only(found)
        and (_code(found.op["result"]), _code(found.got.result)) == (-999, -108)
    )


def _version_any(found: Difference) -> bool:
    return found.op.get("version_any") is True and _code(found.op["result"]) == -17 and "ok" in found.got.result


def _entry_over_frame(found: Difference) -> bool:
    op = found.op
    data = op["data"]
    size = len(data.encode()) if isinstance(data, str) else data["len"]
    limit = _settings(found).get("frame_bytes", MOST_BYTES)
    refused = op["result"] == {"ok": "pending"} or _code(op["result"]) == -6
    return size >= limit and refused and found.got.result == {"error": -14}


# -- 15: explicit LAC


def _explicit_lac_kept(found: Difference) -> bool:
    op = found.op
    if not (_settings(found).get("explicit_lac_interval_ms") and _happened(found, "bookie_restart")):
        return False
    return not found.result and op.get("recovery") is False and _ahead(found, op.get("handle"))


def _ahead(found: Difference, handle: str | None) -> bool:
    """Only the LAC and LAP of this one handle differ, and they are ahead of what was recorded."""
    if handle is None or found.completed or set(found.state) != {handle} or not set(found.state[handle]) <= {LAC, LAP}:
        return False
    recorded, got = found.op["state"][handle], found.got.state[handle]
    return all(got[place] > recorded[place] for place in found.state[handle])


# -- 20: an id that is used again


def _id_used_again(found: Difference) -> bool:
    op = found.op
    name = op.get("ledger")
    if name is None:
        created = [line for line in found.history if "handle" in line and line["handle"] == op.get("handle")]
        name = created[0].get("ledger") if created else None
    creations = [
        line
        for line in found.history[:-1]
        if line["op"] == "create_adv" and line.get("ledger") == name and "ok" in line["result"]
    ]
    if name is None or len(creations) < 2:
        return False
    recorded, got = op["result"], found.got.result
    if op["op"] in READS:
        # The old entries were still there; here they are gone with the old ledger.
        return ("ok" in recorded or _code(recorded) == -5) and _code(got) in ABSENT
    if op["op"] == "write":
        # So were the old fence, the old key and the old ids. The other way round for the old ledger's handle.
        return (_code(recorded) in (-101, -102, -22) and ("ok" in got)) or ("ok" in recorded and _code(got) == -101)
    if op["op"] == "open":
        return "ok" in recorded and "ok" in got and set(found.state) <= {op.get("handle")}
    return "ok" in recorded and "ok" in got  # the LAC that the old entries carry


# -- several bookies


def _bookie_replaced(found: Difference) -> bool:
    recorded, got = found.op["result"].get("ok"), found.got.result.get("ok")
    if not (_happened(found, "bookie_stop") and isinstance(recorded, dict) and isinstance(got, dict)):
        return False
    if found.op["op"] == "handle_lac":
        allowed = {"fragments", "bookies"}
        more = recorded["fragments"] > 1
    else:
        allowed = {"ensembles", "version"}
        more = len(recorded["ensembles"]) > 1
    return more and all(recorded[name] == value for name, value in got.items() if name not in allowed)


def _striped_lac(found: Difference) -> bool:
    """Which bookies an operation asked decides which LAC it heard of; the difference is in LACs only."""
    shape = _shape(found)
    op = found.op
    handle = op.get("handle")
    if shape is None or shape.ensemble == shape.write_quorum or handle is None or found.completed:
        return False
    if op["op"] == "open" and op.get("recovery") is not False:
        return False
    places = found.state.get(handle, [])
    if not set(found.state) <= {handle} or not set(places) <= ({LAC, LAP, LENGTH} if _v2(found) else {LAC, LAP}):
        return False
    ledger = _ledger(found)
    assert ledger is not None
    numbers, before = op["state"][handle], found.before.get(handle, ())
    heard = [numbers[place] for place in places if place != LENGTH]
    if found.result:
        told = _heard_in_result(found, ledger)
        if told is None:
            return False
        heard.append(told)
    newest = _newest_on_single_bookies(found.driver, ledger, shape)
    lengths = {length for _, _, length in newest} | set(before[LENGTH : LENGTH + 1])
    known = _known_to_single_bookies(found.driver, ledger, shape) | set(before[: LAP + 1])
    return all(number in known for number in heard) and (LENGTH not in places or numbers[LENGTH] in lengths)


def _heard_in_result(found: Difference, ledger: int) -> int | None:
    """The LAC that the recorded result tells of, if that is all in which it differs."""
    op = found.op
    recorded, got = op["result"].get("ok"), found.got.result.get("ok")
    if op["op"] == "wait_entry" and isinstance(got, dict):
        if _code(op["result"]) in ABSENT:
            # A bookie was asked that has nothing of the ledger.
            return -1 if got["entry"] is None and got["lac"] == -1 else None
        if not isinstance(recorded, dict):
            return None
        came = got["entry"] is not None and recorded["lac"] < op["entry"] == got["entry"]["entry"] <= got["lac"]
        same = recorded["entry"] == got["entry"] or (recorded["entry"] is None and came)
        return int(recorded["lac"]) if same else None
    if op["op"] in ("read_lac", "try_read_lac", "read_explicit_lac") and isinstance(got, int):
        return recorded if isinstance(recorded, int) else None
    if op["op"] == "read_last_entry" and isinstance(recorded, list | dict) and isinstance(got, list | dict):
        (one,), (other,) = ([each] if isinstance(each, dict) else each for each in (recorded, got))
        same = one == _appended(found, ledger, one["entry"])
        return int(one["entry"]) if one["entry"] < other["entry"] and same else None
    return None


def _appended(found: Difference, ledger: int, entry_id: int) -> dict[str, Any] | None:
    """An entry as a read gives it, by what was appended."""
    stored = found.driver.backend.stored(ledger, entry_id)
    for line in found.history:
        if line["op"] not in ("append", "append_many") or found.driver.handles[line["handle"]].id != ledger:
            continue
        results = line["result"]["ok"] if line["op"] == "append_many" and "ok" in line["result"] else [line["result"]]
        payloads = line["data"] if line["op"] == "append_many" else [line["data"]]
        for result, given in zip(results, payloads, strict=True):
            if result.get("ok") == entry_id and stored is not None:
                data = payload(given)
                numbers = {"length": len(data), "cumulative_length": stored[1]}
                return {"entry": entry_id, "data": shown(data), **numbers}
    return None


def _striped_lac_late(found: Difference) -> bool:
    """Who asks all bookies for the LAC goes on as soon as enough of them have answered; what another one says raises it
    during whatever is done next with another handle. Only where there are several bookies."""
    if not found.driver.has_several_bookies or found.result or found.completed or len(found.state) != 1:
        return False
    ((handle, places),) = found.state.items()
    asked = [line["op"] for line in found.history if line.get("handle") == handle]
    if handle == found.op.get("handle") or not set(places) <= {LAC, LAP} or asked[-1] not in ("open", *LAC_READS):
        return False
    ledger = int(found.driver.handles[handle].id)
    shape = found.driver.backend.bookies.shapes[ledger]
    if shape.ensemble == shape.write_quorum:
        return False
    known = _known_to_single_bookies(found.driver, ledger, shape)
    told, recorded = found.got.state[handle], found.op["state"][handle]
    return all(recorded[place] < told[place] and told[place] in known for place in places)


def _newest_on_single_bookies(driver: Candidate, ledger: int, shape: Shape) -> set[tuple[int, int, int]]:
    """Of each bookie the newest entry: its id, the LAC in it and its cumulative length."""
    newest: dict[int, tuple[int, int, int]] = {}
    for entry_id in range(MOST_ENTRIES):
        stored = driver.backend.stored(ledger, entry_id)
        if stored is not None:
            newest.update(dict.fromkeys(shape.write_set(entry_id), (entry_id, stored[0], stored[1])))
    return set(newest.values())


def _known_to_single_bookies(driver: Candidate, ledger: int, shape: Shape) -> set[int]:
    """The LACs that the bookies could have told of, each by itself: of all its entries, and of the newest of them."""
    backend = driver.backend
    lacs: dict[int, list[int]] = {index: [] for index in shape.everywhere()}
    for entry_id in range(MOST_ENTRIES):
        stored = backend.stored(ledger, entry_id)
        if stored is not None:
            for index in shape.write_set(entry_id):
                lacs[index].append(stored[0])
    return {-1, *(max(some) for some in lacs.values() if some), *(some[-1] for some in lacs.values() if some)}


def _opportunistic_striping(found: Difference) -> bool:
    op = found.op
    return (
        _settings(found).get("opportunistic_striping") is True
        and op.get("ensemble", 3) > found.driver.backend.bookies.total
        and "ok" in op["result"]
        and found.got.result == {"error": -6}
    )


def _force_needs_all(found: Difference) -> bool:
    """A bookie is down, of whichever ledger's it is; what was acknowledged is durable all the same."""
    bookies = found.driver.backend.bookies
    return (
        (bookies.all_stopped or bool(bookies.stopped))
        and _code(found.op["result"]) == -8
        and (found.got.result == {"ok": None} or (_v2(found) and _code(found.got.result) == -100))
        and not found.completed
        and (not found.state or _ahead(found, found.op["handle"]))
    )


def _no_bookie_left(found: Difference) -> bool:
    return (
        found.driver.backend.bookies.available == 0
        and _code(found.op["result"]) == -6
        and "ok" in found.got.result
        and not found.completed
    )


RULES: tuple[Rule, ...] = (
    Rule("batch-never-completes", "1", ("await", *BATCHES), _batch_never_completes),
    Rule("batch-beyond-lac", "2", ("batch_read",), _batch_beyond_lac),
    Rule("batch-cut-short", "1", BATCHES, _batch_cut_short),
    Rule("deferred-rewrite", "1", ("write", "force", "close"), _deferred_rewrite),
    Rule("batch-striped", "several bookies", BATCHES, _batch_striped),
    Rule("long-poll-meets-close", "9", ("await",), _long_poll_meets_close),
    Rule("long-poll-without-entry", "24", ("await", "wait_entry"), _long_poll_without_entry),
    Rule("closed-client", "12", ("list", "force"), _closed_client),
    Rule("open-with-null", "13", ("open",), _open_with_null),
    Rule("explicit-lac-kept", "15", ("open",), _explicit_lac_kept),
    Rule("limbo", "18", READS, _limbo),
    Rule("version-any", "19", ("metadata_write",), _version_any),
    Rule("id-used-again", "20", ("open", "write", *READS, *LAC_READS), _id_used_again),
    Rule("entry-over-frame", "23", ("append", "write"), _entry_over_frame),
    Rule("bookie-replaced", SEVERAL_BOOKIES, ("handle_lac", "metadata"), _bookie_replaced),
    Rule("striped-lac", SEVERAL_BOOKIES, ("open", *READS, *LAC_READS), _striped_lac),
    Rule("striped-lac-late", SEVERAL_BOOKIES, ("append", "write", *READS), _striped_lac_late),
    Rule("force-needs-all", SEVERAL_BOOKIES, ("force",), _force_needs_all),
    Rule("no-bookie-left", SEVERAL_BOOKIES, ("create", "create_adv"), _no_bookie_left),
    Rule("opportunistic-striping", SEVERAL_BOOKIES, ("create", "create_adv"), _opportunistic_striping),
)
