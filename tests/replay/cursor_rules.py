"""The differences to the recordings of Pulsar's cursors that are argued, one narrow rule for each.

A rule looks at the first difference of a scenario and says whether it is the one it stands for: the operation in which
it shows, which fields of a cursor differ, what exactly was recorded, and what had to happen before. What came instead
is not its affair: that has to be what the plain model says, to the last field. Several of the original's surprises may
show in one recovery, so each rule names the fields that it explains, and a difference is argued if they are all
explained. ``surprise`` is the number under which the recordings' own description lists the behaviour. The reasons are
in docs/differences.md, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tests.replay.cursor_compare import Recorded, Series, shown
from tests.replay.cursor_driver import AFTER, TAKEN_OVER, Answer, CursorView, Place, place_of

Config = dict[str, Any]

RESULT = ""  # in place of a cursor's name: fields of the answer itself
COUNTS = frozenset(("backlog", "entries", "has_more"))
ACKED = COUNTS | {"acked"}
PLACE = COUNTS | {"next", "read"}
STATE = ACKED | PLACE | {"batches", "properties"}
REFUSAL = frozenset(("ok", "error"))
NOT_OPENED = REFUSAL | {"cursors", "ledgers", "open"}
CHANGES = ("ack", "ack_each", "ack_batch", "mark_delete", "mark_delete_batch", "reset", "skip", "clear_backlog")


class Step(NamedTuple):
    """A line of the recording that has passed, with the state after it."""

    op: dict[str, Any]
    recorded: Recorded


class Difference(NamedTuple):
    """What a rule may look at."""

    op: dict[str, Any]
    recorded: Recorded
    got: Answer
    whole: Answer  # the model's answer without limits: what there was to recover
    fields: dict[str, frozenset[str]]  # what differs, by cursor
    before: list[Step]
    config: Config  # as of the last open

    def shown(self, cursor: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """A cursor as recorded, as it came, and with all that there was to recover."""
        return tuple(  # type: ignore[return-value]
            shown(answer.cursors[cursor], Series(answer.ledgers or ()))
            for answer in (self.recorded, self.got, self.whole)
        )


class Rule(NamedTuple):
    name: str
    surprise: int
    ops: tuple[str, ...]
    explains: frozenset[str]
    holds: Callable[[Difference, str], bool]


def rules_for(found: Difference) -> tuple[Rule, ...]:
    """Those that together explain everything that differs; none if something is left."""
    applied: dict[str, Rule] = {}
    for cursor, fields in found.fields.items():
        if cursor != RESULT and found.op["op"] == "open" and not _is_consistent(found, cursor):
            return ()
        left = set(fields)
        for rule in RULES:
            if left & rule.explains and found.op["op"] in rule.ops and rule.holds(found, cursor):
                left -= rule.explains
                applied[rule.name] = rule
        if left:
            return ()
    return tuple(applied.values())


def _is_consistent(found: Difference, cursor: str) -> bool:
    """Whether the recorded counts are those of the recorded sets. Ranges that the mark-delete position has passed are
    counted again by the original (2)."""
    view = found.recorded.cursors[cursor]
    ledgers = found.recorded.ledgers or ()
    state = shown(view, Series(ledgers))
    there = [(number, entry) for number, entries in ledgers for entry in range(entries)]
    behind = [place for place in there if state["next"] is not None and place >= state["next"]]
    left = len(behind) - len(set(behind) & view.acked)
    stale = len(view.acked) - len(state["acked"])
    return (
        state["read"] == state["next"]
        and state["has_more"] == bool(behind)
        and left - stale <= view.backlog <= left
        and left - stale <= view.entries <= left
    )


# -- what happened before --------------------------------------------------------------------------------------------


def _session(found: Difference) -> list[Step]:
    """The lines since the last open, without the crash or close that ended it."""
    steps = [step for step in found.before if step.op["op"] != "dump"]
    last = max((at for at, step in enumerate(steps) if step.op["op"] == "open"), default=-1)
    return steps[last + 1 :]


def _ended_by(found: Difference, how: str) -> bool:
    return any(step.op["op"] == how for step in _session(found))


def _of(steps: Iterable[Step], cursor: str) -> Iterator[tuple[Step, CursorView | None, CursorView | None]]:
    """Each line with the cursor's recorded state before and after it."""
    before: CursorView | None = None
    for step in steps:
        after = step.recorded.cursors.get(cursor)
        yield step, before, after
        before = after


def _last_of(found: Difference, op: str, cursor: str) -> tuple[Step, CursorView | None, CursorView | None] | None:
    steps = [found_ for found_ in _of(found.before, cursor) if found_[0].op["op"] == op]
    return next((one for one in reversed(steps) if one[0].op.get("cursor") == cursor), None)


def _runs(places: Iterable[Place]) -> list[list[Place]]:
    runs: list[list[Place]] = []
    for ledger, entry in sorted(places):
        if runs and runs[-1][-1] == (ledger, entry - 1):
            runs[-1].append((ledger, entry))
        else:
            runs.append([(ledger, entry)])
    return runs


def _lowest(places: Iterable[Place], count: int) -> list[Place]:
    return [place for run in _runs(places)[:count] for place in run]


def _is_kept(recorded: list[Place], written: Iterable[Place], config: Config) -> bool:
    """Whether that is what the original keeps of these acknowledgments, by its limits."""
    places = sorted(written)
    names = ("maxUnackedRangesToPersist", "maxUnackedRangesToPersistInMetadataStore")
    limits = [config[name] + 1 for name in names if name in config]
    return (
        recorded == places
        or any(recorded == _lowest(places, limit) for limit in limits)
        or _are_whole_ledgers(recorded, places, config)
    )


def _are_whole_ledgers(recorded: list[Place], written: list[Place], config: Config) -> bool:
    """Of each ledger all or nothing; the last one was taken while the number of entries was not above the limit."""
    if not config.get("persistIndividualAckAsLongArray") or not config.get("unackedRangesOpenCacheSetEnabled", True):
        return False
    limit = config.get("maxUnackedRangesToPersist", 10_000)
    kept = {ledger for ledger, _ in recorded}
    sizes = [sum(1 for ledger, _ in recorded if ledger == one) for one in kept]
    return (
        recorded == [place for place in written if place[0] in kept]
        and bool(sizes)
        and (recorded == written or sum(sizes) > limit)
        and sum(sizes) - max(sizes) <= limit
    )


def _behind(places: Iterable[Place], state: dict[str, Any]) -> list[Place]:
    return [place for place in sorted(places) if state["next"] is not None and place >= state["next"]]


def _left(op: dict[str, Any]) -> tuple[int, ...]:
    """The messages of a batch that an operation leaves."""
    return tuple(sorted(set(range(op["batch_size"])) - set(op["acked"])))


def _throttled(found: Difference) -> bool:
    return bool(found.config.get("throttleMarkDelete"))


# -- 1: a reset that is followed by a crash --------------------------------------------------------------------------


def _old_acks_return(found: Difference, cursor: str) -> bool:
    """What is recorded is the position of the last reset, with the sets from before it."""
    last = _last_of(found, "reset", cursor)
    if last is None or last[1] is None or not _ended_by(found, "crash"):
        return False
    recorded, got, _ = found.shown(cursor)
    old = last[1]
    limit = found.config.get("maxBatchDeletedIndexToPersist", 10_000)
    batches = {
        place: left for place, left in sorted(old.batches.items())[:limit] if place in _behind(old.batches, recorded)
    }
    # What is not there may be the set that came with the reset, and parts that were not written after it.
    seed = {place_of(last[0].op["position"])} if last[0].op.get("acked") else set()
    gone = got["batches"].keys() - recorded["batches"].keys()
    return (
        bool(
            set(recorded["acked"]) - set(got["acked"])
            or recorded["batches"].items() - got["batches"].items()
            or gone & seed
        )
        and _is_kept(recorded["acked"], _behind(old.acked, recorded), found.config)
        and recorded["batches"] == batches
        and gone <= seed | _unwritten(found, cursor)[0] | (batches.keys() & gone)
    )


# -- 2, 3, 4: batches that are acknowledged in part ------------------------------------------------------------------


def _batches_forgotten(found: Difference, cursor: str) -> bool:
    """After a clean close that put the state into the record, no batch is known."""
    recorded, got, whole = found.shown(cursor)
    closed = _ended_by(found, "close")
    return (
        closed
        and not recorded["batches"]
        and bool(got["batches"])
        and got["batches"].items() <= whole["batches"].items()
    )


def _part_not_written(found: Difference, cursor: str) -> bool:
    """The batches that are missing or older were acknowledged in part while no entry was acknowledged beyond the
    mark-delete position, and nothing was written after that."""
    if not _ended_by(found, "crash"):
        return False
    recorded, got, _ = found.shown(cursor)
    unwritten, written = _unwritten(found, cursor)
    differing = {
        place
        for place in {*recorded["batches"], *got["batches"]}
        if recorded["batches"].get(place) != got["batches"].get(place)
    }
    return differing <= unwritten and all(
        recorded["batches"].get(place) == (None if written is None else written.batches.get(place))
        for place in differing
    )


def _unwritten(found: Difference, cursor: str) -> tuple[set[Place], CursorView | None]:
    """The batches of acknowledgments after the last write, and the state of that write."""
    unwritten: set[Place] = set()
    written: CursorView | None = None
    for step, before, after in _of(_session(found), cursor):
        op = step.op
        if written is None:
            written = before
        if op.get("cursor") != cursor or after is None or op["op"] not in CHANGES:
            continue
        moved = before is None or after.mark_delete != before.mark_delete or after.properties != before.properties
        if op["op"] in ("ack", "ack_each", "ack_batch") and not after.acked and not moved:
            if op["op"] == "ack_batch":
                unwritten.add(place_of(op["position"]))
        elif step.recorded.result["ok"]:
            unwritten.clear()
            written = after
    return unwritten, written


def _property_not_written(found: Difference, cursor: str) -> bool:
    """A long property was set, and after it there was nothing but acknowledgments that found nothing to do."""
    if not _ended_by(found, "crash"):
        return False
    written: dict[str, int] | None = None
    for step, before, after in _of(_session(found), cursor):
        if step.op.get("cursor") != cursor or before is None or after is None:
            continue
        if step.op["op"] in ("put_property", "remove_property"):
            written = before.properties if written is None else written
        elif step.op["op"] in CHANGES and step.recorded.result["ok"] and _writes(before, after):
            written = None
    return written is not None and found.recorded.cursors[cursor].properties == written


def _writes(before: CursorView, after: CursorView) -> bool:
    return before._replace(batches={}) != after._replace(batches={}) or bool(after.acked)


def _first_write_was_a_part(found: Difference, cursor: str) -> bool:
    """Throttled: the only write was that of an acknowledgment of part of a batch, which the original does not write;
    its only write was a later one."""
    if not (_throttled(found) and _ended_by(found, "crash")):
        return False
    recorded, _, whole = found.shown(cursor)
    series = Series(found.recorded.ledgers or ())
    names = ("next", "acked", "batches", "properties")
    steps = [
        (step.op, shown(after, series))
        for step, before, after in _of(_session(found), cursor)
        if step.op.get("cursor") == cursor and step.op["op"] in CHANGES and after is not None and before is not None
    ]
    if not steps or steps[0][0]["op"] != "ack_batch" or steps[0][1]["acked"]:
        return False
    later = next((state for _, state in steps if state["acked"] or state["next"] != steps[0][1]["next"]), None)
    return (
        later is not None
        and all(steps[0][1][name] == whole[name] for name in names)
        and all(later[name] == recorded[name] for name in ("next", "batches", "properties"))
        and _is_kept(recorded["acked"], later["acked"], found.config)
    )


def _passed_batches_count(found: Difference, cursor: str) -> bool:
    """Sets of batches that the mark-delete position has passed were written too, and took the room of others."""
    limit = found.config.get("maxBatchDeletedIndexToPersist", 10_000)
    recorded, got, whole = found.shown(cursor)
    planted = [entry for step in found.before for entry in step.op.get("entries", ())[-1:] if isinstance(entry, dict)]
    sets = [place_of(at) for at, _ in planted[-1].get("batch", ())] if planted else []
    stale = max(_stale_before(found, cursor), sum(1 for at in sets if recorded["next"] and at < recorded["next"]))
    return (
        stale > 0
        and recorded["batches"].items() < got["batches"].items() <= whole["batches"].items()
        and len(recorded["batches"]) + stale >= limit
    )


def _stale_before(found: Difference, cursor: str) -> int:
    """How many sets the state before the end of the session held at or below the mark-delete position, at most."""
    found_ = 0
    for step, _, after in _of(_session(found), cursor):
        if after is not None and step.recorded.ledgers is not None:
            found_ = len(after.batches) - len(shown(after, Series(step.recorded.ledgers))["batches"])
    return found_


# -- 5, 6: limits ----------------------------------------------------------------------------------------------------


def _one_range_more(found: Difference, cursor: str) -> bool:
    recorded, got, whole = found.shown(cursor)
    names = ("maxUnackedRangesToPersist", "maxUnackedRangesToPersistInMetadataStore")
    return any(
        recorded["acked"] == _lowest(whole["acked"], found.config[name] + 1) != got["acked"]
        for name in names
        if name in found.config
    )


def _whole_ledgers(found: Difference, cursor: str) -> bool:
    recorded, _, whole = found.shown(cursor)
    return _are_whole_ledgers(recorded["acked"], whole["acked"], found.config)


# -- 9, 10, 11, 13: recovery -----------------------------------------------------------------------------------------


def _planted(found: Difference) -> dict[str, Any] | None:
    planted = [step.op for step in _session(found) if step.op["op"] == "plant_cursor_ledger"]
    return planted[-1] if planted else None


def _goes_back_further(found: Difference, cursor: str) -> bool:
    planted = _planted(found)
    if planted is None or not (planted.get("delete_ledger") or not planted["entries"]):
        return False
    recorded, got, _ = found.shown(cursor)
    views = [after for _, _, after in _of(found.before, cursor) if after is not None]
    return (
        recorded["next"] is not None
        and recorded["properties"] == {}
        and not recorded["acked"]
        and (got["next"] is None or recorded["next"] <= got["next"])
        and any(view.properties == got["properties"] for view in views)
        and any(Series(found.recorded.ledgers or ()).behind(view.mark_delete) == recorded["next"] for view in views)
    )


def _unreadable_entry(found: Difference, cursor: str) -> bool:
    planted = _planted(found)
    return (
        planted is not None
        and len(planted["entries"]) > 1
        and (isinstance(planted["entries"][-1], str) or planted["entries"][-1].get("cut", 0) > 0)
        and found.recorded.result == {"ok": False, "error": "unreadable entry"}
        and found.got.result["ok"]
    )


def _compressed_properties(found: Difference, cursor: str) -> bool:
    """A record with a property was written under a codec."""
    codecs = [
        step.op.get("config", {}).get("managedCursorInfoCompressionType")
        for step in found.before
        if step.op["op"] == "open"
    ]
    configured = any(
        codec not in (None, "NONE") for codec in [found.config.get("managedCursorInfoCompressionType"), *codecs]
    )
    held = any(
        view.properties or view.cursor_properties for step in found.before for view in step.recorded.cursors.values()
    )
    return (
        configured
        and held
        and found.recorded.result == {"ok": False, "error": "unreadable record"}
        and found.got.result["ok"]
    )


def _acks_behind_the_topic(found: Difference, cursor: str) -> bool:
    """Entries are acknowledged that the topic does not have, in its ledgers or in others; they do not count."""
    recorded, got, _ = found.shown(cursor)
    more = set(recorded["acked"]) - set(got["acked"])
    counts = dict(found.recorded.ledgers or ())
    planted = _planted(found) or {"entries": ()}
    ends = {place_of(upper) for entry in planted["entries"] for _, upper in entry.get("ranges", ())}
    return bool(more) and all(
        entry >= counts[ledger] if ledger in counts else ledger == AFTER and (ledger, entry) in ends
        for ledger, entry in more
    )


# -- 15: cumulative acknowledgments in a batch -----------------------------------------------------------------------


def _set_replaced(found: Difference, cursor: str) -> bool:
    """The set that was recorded is the one given, although fewer messages had been left before."""
    op = found.op
    if cursor != op["cursor"] or not found.before:
        return False
    place, left = place_of(op["position"]), _left(op)
    series = Series(found.recorded.ledgers or ())
    old, new = found.before[-1].recorded.cursors[cursor], found.recorded.cursors[cursor]
    before = old.batches.get(place)
    state = shown(new, series)
    there = [(number, entry) for number, entries in found.recorded.ledgers or () for entry in range(entries)]
    read = max(place, old.read)
    unread = [one for one in there if one >= read and one not in new.acked]
    return (
        before is not None
        and not set(left) <= set(before)
        and min(left) > min(before)
        and state["next"] == place
        and state["read"] == series.at_or_behind(read)
        and state["backlog"] == sum(1 for one in there if one >= place and one not in new.acked)
        and (state["entries"], state["has_more"]) == (len(unread), series.at_or_behind(read) is not None)
        and state["acked"] == _behind(old.acked, state)
        and state["batches"] == {**{at: old.batches[at] for at in _behind(old.batches, state)}, place: left}
    )


def _whole_batch(found: Difference, cursor: str) -> bool:
    """Nothing of the batch is left, and the recorded set is empty, or that from before; where the entry is marked
    already, the acknowledgment was refused."""
    op = found.op
    if cursor not in (RESULT, op["cursor"]) or "batch_size" not in op or _left(op) or not found.before:
        return False
    place = place_of(op["position"])
    series = Series(found.recorded.ledgers or ())
    old, new = found.before[-1].recorded.cursors[op["cursor"]], found.recorded.cursors[op["cursor"]]
    state = shown(new, series)
    if not found.recorded.result["ok"]:
        return (
            found.recorded.result["error"] == "marked already"
            and found.got.result["ok"]
            and series.behind(place) == series.behind(old.mark_delete)
            and state == shown(old, series)
        )
    reset = op["op"] == "reset"
    kept = old._replace(acked=frozenset(), batches={}, read=place) if reset else old
    there = [(number, entry) for number, entries in found.recorded.ledgers or () for entry in range(entries)]
    read = max(place, kept.read)
    unread = [one for one in there if one >= read and one not in kept.acked]
    others = {at: kept.batches[at] for at in _behind(kept.batches, state) if at != place}
    sets = [others] if new.batches == others else [{**others, place: left} for left in ((), kept.batches.get(place))]
    switched_off = not found.config.get("deletionAtBatchIndexLevelEnabled", True)
    return (
        "properties" not in found.fields[cursor]
        and state["next"] == place
        and state["read"] == series.at_or_behind(read)
        and state["backlog"] == sum(1 for one in there if one >= place and one not in kept.acked)
        and (state["entries"], state["has_more"]) == (len(unread), series.at_or_behind(read) is not None)
        and state["acked"] == _behind(kept.acked, state)
        and any(state["batches"] == one for one in sets)
        and (place in state["batches"]) != switched_off
    )


# -- 16: positions that do not move ----------------------------------------------------------------------------------


def _position_stays_below(found: Difference, cursor: str) -> bool:
    """The recorded position stays below entries that are acknowledged: of a list that was refused, of a range that was
    put into the set, or recovered. So may the read position, which passes them when it reads."""
    op = found.op
    if op["op"] != "open" and cursor != op["cursor"]:
        return False
    if op["op"] == "ack" and (found.recorded.result["ok"] or found.got.result["ok"]):
        return False
    recorded, got, _ = found.shown(cursor)
    series = Series(found.recorded.ledgers or ())
    acked = set(recorded["acked"])
    behind = recorded["next"]
    passed = []
    while behind is not None and behind in acked:
        passed.append(behind)
        behind = series.behind(behind)
    last = passed[-1] if passed else None
    reads_late = last is not None and recorded["read"] is not None and recorded["read"] <= last
    return (
        last is not None
        and got["next"] == behind
        and got["acked"] == sorted(acked - set(passed))
        and got["read"] == (behind if reads_late else recorded["read"])
        and recorded["has_more"] == (reads_late or got["has_more"])
    )


def _passed_ranges_count(found: Difference, cursor: str) -> bool:
    """The recorded backlog lacks entries of ranges that the recorded position has passed."""
    recorded, got, _ = found.shown(cursor)
    stale = len(found.recorded.cursors[cursor].acked) - len(recorded["acked"])
    return got["backlog"] - stale <= recorded["backlog"] < got["backlog"]


def _set_beside_entry(found: Difference, cursor: str) -> bool:
    """Beside an acknowledged entry there is the set of what was left of it."""
    recorded, got, _ = found.shown(cursor)
    acked = set(recorded["acked"])
    beside = {place: left for place, left in recorded["batches"].items() if place in acked}
    others = {place: left for place, left in recorded["batches"].items() if place not in acked}
    before = _sets_before(found, cursor)
    return bool(beside) and others == got["batches"] and all(before.get(at) == left for at, left in beside.items())


def _sets_before(found: Difference, cursor: str) -> dict[Place, tuple[int, ...]]:
    """What was left of batches before the operation; before a recovery, what was planted, or the last state."""
    planted = _planted(found)
    if found.op["op"] == "open" and planted is not None:
        states = [entry for entry in planted["entries"] if isinstance(entry, dict)]
        return {place_of(at): tuple(left) for at, left in states[-1].get("batch", ())} if states else {}
    views = [after for _, _, after in _of(found.before, cursor) if after is not None]
    return views[-1].batches if views else {}


# -- 17, 25: positions -----------------------------------------------------------------------------------------------


def _is_as_marked(found: Difference, missing: int) -> bool:
    """Whether the recorded state is that after a mark-delete, ``missing`` being the entries it went too far."""
    op, cursor = found.op, found.op["cursor"]
    old, new = found.before[-1].recorded.cursors[cursor], found.recorded.cursors[cursor]
    ledgers = found.recorded.ledgers or ()
    state = shown(new, Series(ledgers))
    place = place_of(op["position"])
    there = [(number, entry) for number, entries in ledgers for entry in range(entries) if (number, entry) > place]
    left = len(set(there) - old.acked)
    return (
        state["next"] == state["read"] == Series(ledgers).behind(place)
        and (state["backlog"], state["entries"], state["has_more"]) == (left - missing, left, bool(there))
        and state["acked"] == _behind(old.acked, state)
        and state["batches"] == {at: old.batches[at] for at in _behind(old.batches, state)}
        and new.properties == (op.get("properties") or {})
        and new.cursor_properties == old.cursor_properties
    )


def _behind_a_ledger(found: Difference, cursor: str) -> bool:
    """An entry that a ledger, not the last one, does not have: accepted there."""
    op = found.op
    counts = dict((found.recorded.ledgers or ())[:-1])
    places = [place_of(name) for name in op.get("positions", [op.get("position")]) if name is not None]
    view = found.recorded.cursors[op["cursor"]]
    beyond = [(ledger, entry) for ledger, entry in places if ledger in counts and entry >= counts[ledger]]
    return (
        bool(beyond)
        and all(place in view.acked or place <= view.mark_delete for place in beyond)
        and (op["op"] != "mark_delete" or _is_as_marked(found, beyond[-1][1] + 1 - counts[beyond[-1][0]]))
        and found.recorded.result["ok"]
        and (found.got.result.get("error") == "no such position" or found.got.result.get("failed", 0) > 0)
        and (op["op"].startswith("mark_delete") or _is_as_acknowledged(found, places, counts))
        and _is_trimmed_for(found, beyond[-1])
    )


def _is_as_acknowledged(found: Difference, places: list[Place], counts: dict[int, int]) -> bool:
    """Whether the recorded state is that after acknowledging these entries. An entry behind the end of a ledger is
    acknowledged with all that would be before it."""
    cursor = found.op["cursor"]
    old, new = found.before[-1].recorded.cursors[cursor], found.recorded.cursors[cursor]
    ledgers = found.recorded.ledgers or ()
    state = shown(new, Series(ledgers))
    there = [(number, entry) for number, entries in ledgers for entry in range(entries)]
    behind = [place for place in there if state["next"] is not None and place >= state["next"]]
    passed = [place for place in there if old.mark_delete < place <= new.mark_delete]
    unread = [place for place in there if place >= new.read]
    more = new.acked - old.acked - set(places)
    return (
        all(ledger in counts and entry >= counts[ledger] for ledger, entry in more)
        and {place for place in old.acked if place > new.mark_delete} <= new.acked
        and all(place in old.acked or place in places for place in passed)
        and state["backlog"] == len(behind) - len(new.acked)
        and state["entries"] == len(unread) - sum(1 for place in new.acked if place >= new.read)
        and state["has_more"] == bool(unread)
        and state["batches"] == {at: old.batches[at] for at in _behind(old.batches, state) if at not in places}
        and (new.properties, new.cursor_properties) == (old.properties, old.cursor_properties)
    )


def _is_trimmed_for(found: Difference, place: Place) -> bool:
    """Whether the recorded ledgers are those that a mark-delete position there leaves, if they are others."""
    if "ledgers" not in found.fields.get(RESULT, ()):
        return True
    left = tuple(one for one in found.got.ledgers or () if one[0] >= place[0])
    return found.op["op"] == "mark_delete" and found.recorded.ledgers in (left, left[1:])


def _moved_by_trimming(found: Difference, cursor: str) -> bool:
    """The original's position had become the place before the next ledger's first entry; the refused one is the entry
    before, so that no entry lies between."""
    op = found.op
    view = found.before[-1].recorded.cursors.get(op["cursor"])
    if view is None or found.recorded.ledgers is None or found.recorded.result.get("error") != "marked already":
        return False
    series = Series(found.recorded.ledgers)
    place = place_of(op["position"])
    behind = series.at_or_behind(place) if op["op"] == "mark_delete_batch" else series.behind(place)
    kept = found.recorded.cursors[op["cursor"]].properties == view.properties
    return kept and view.mark_delete[1] == -1 and found.got.result["ok"] and behind == series.behind(view.mark_delete)


# -- 20: throttled flushes -------------------------------------------------------------------------------------------


def _flush_wants_token(found: Difference, cursor: str) -> bool:
    """What there was to recover is the state of the last flush; what is recorded, that of an earlier operation."""
    if not _throttled(found) or not _ended_by(found, "crash"):
        return False
    series = Series(found.recorded.ledgers or ())
    earlier: list[tuple[dict[str, Any], Iterable[Place]]] = []
    flushed: dict[str, Any] | None = None
    seen: list[tuple[dict[str, Any], Iterable[Place]]] = []
    for step, before, after in _of(_session(found), cursor):
        if step.op.get("cursor") != cursor or after is None:
            continue
        state = shown(after, series)
        reset = step.op["op"] == "reset" and before is not None
        seen.append((state, before.acked if reset and before is not None else after.acked))
        if step.op["op"] == "flush":
            flushed, earlier = state, list(seen)
        elif reset:
            flushed = None
    recorded, _, whole = found.shown(cursor)
    names = ("next", "acked", "batches", "properties")
    return (
        flushed is not None
        and all(flushed[name] == whole[name] for name in names)
        and any(
            state["next"] == recorded["next"]
            and state["properties"] == recorded["properties"]
            and recorded["batches"].items() <= state["batches"].items()
            and _is_kept(recorded["acked"], _behind(acked, recorded), found.config)
            for state, acked in earlier
        )
    )


# -- 21, 22: nothing can be written ----------------------------------------------------------------------------------


def _written_into_record(found: Difference, cursor: str) -> bool:
    quorums = [step.op["n"] for step in found.before if step.op["op"] == "quorum"]
    return (
        bool(quorums)
        and quorums[-1] > 1
        and found.recorded.result == {"ok": False, "error": "not written"}
        and found.got.result["ok"]
    )


def _taken_over(found: Difference, cursor: str) -> bool:
    """Somebody else has written the record; here that ends the cursor, there it may be noticed later."""
    bumped = any(step.op["op"] == "bump_cursor_info" for step in _session(found))
    told = found.recorded.result.get("error", TAKEN_OVER) == TAKEN_OVER == found.got.result.get("error")
    return bumped and told and (found.op["op"] != "mark_delete" or _is_as_marked(found, 0))


STAYING = frozenset(("next", "read", "acked", "has_more"))
ACKS = ("ack", "ack_each", "ack_batch", "mark_delete", "mark_delete_batch")

RULES: tuple[Rule, ...] = (
    Rule("flush-wants-token", 20, ("open",), STATE, _flush_wants_token),
    Rule("first-write-was-a-part", 4, ("open",), STATE, _first_write_was_a_part),
    Rule("old-acks-return", 1, ("open",), ACKED | PLACE | {"batches"}, _old_acks_return),
    Rule("one-range-more", 5, ("open",), ACKED, _one_range_more),
    Rule("whole-ledgers", 6, ("open",), ACKED, _whole_ledgers),
    Rule("batches-forgotten", 3, ("open",), frozenset(("batches",)), _batches_forgotten),
    Rule("part-not-written", 4, ("open",), frozenset(("batches",)), _part_not_written),
    Rule("property-not-written", 4, ("open",), frozenset(("properties",)), _property_not_written),
    Rule("passed-batches-count", 2, ("open",), frozenset(("batches",)), _passed_batches_count),
    Rule("goes-back-further", 9, ("open",), PLACE | {"properties"}, _goes_back_further),
    Rule("unreadable-entry", 10, ("open",), NOT_OPENED, _unreadable_entry),
    Rule("compressed-properties", 11, ("open",), NOT_OPENED, _compressed_properties),
    Rule("acks-behind-the-topic", 13, ("open",), ACKED, _acks_behind_the_topic),
    Rule("set-replaced", 15, ("mark_delete_batch",), ACKED | PLACE | {"batches"}, _set_replaced),
    Rule("whole-batch", 15, ("mark_delete_batch", "reset"), REFUSAL | STATE, _whole_batch),
    Rule("position-stays-below", 16, ("ack", "add_range", "open"), STAYING, _position_stays_below),
    Rule("passed-ranges-count", 2, ("add_range", "open"), frozenset(("backlog",)), _passed_ranges_count),
    Rule("set-beside-entry", 2, ("add_range", "open"), frozenset(("batches",)), _set_beside_entry),
    Rule("behind-a-ledger", 17, ACKS, REFUSAL | STATE | {"failed", "ledgers"}, _behind_a_ledger),
    Rule("moved-by-trimming", 25, ("mark_delete", "mark_delete_batch"), REFUSAL | {"properties"}, _moved_by_trimming),
    Rule("written-into-record", 21, ("ack", "mark_delete"), REFUSAL, _written_into_record),
    Rule("taken-over", 22, CHANGES, REFUSAL | {"open"}, _taken_over),
)
