"""ZooKeeper (channels ``zk…`` of recordings). The requests are sent over sockets to a server over a new store, in the
recorded order, each once what was answered before it has been answered here as well. A sample is an answer or an event:
it is the recorded one field for field, once session ids, passwords and zxids are mapped. Of times only whether there is
one is compared, of children which there are, not their order (it is a Java hash set's), nor that of deletions at the
end of a session (the same). Zxids must be in the recorded order, and a znode's those of the writes that made and
changed it. One more sample of each recording is the store afterwards: its check finds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bookstand
from bookstand.server.loop_thread import LoopThread
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import XID_EVENT, EventType, Op
from bookstand.server.zookeeper.server import ZooKeeperServer
from bookstand.storage.clock import SystemClock
from tests.replay.outcome import Outcome
from tests.replay.wire_bookie import Peer
from tests.replay.wire_frames import Line, lines
from tests.server.zookeeper.kit import multi_parts

CHANNELS = "zk"

# A sample differs by what a client did that was not recorded: the bookie's znode has been set once, which no recorded
# request did, and the zxids of the recording have a gap there.
UNRECORDED = "unrecorded-client"
_SET_BY_OTHERS = "/ledgers/available/"


class Zxids:
    """Recorded zxids, and what they are here."""

    def __init__(self) -> None:
        self._here: dict[int, int] = {}

    def here(self, recorded: int) -> int:
        """For what a client has seen: its newest write, or one before that."""
        return max((here for seen, here in self._here.items() if seen <= recorded), default=0)

    def learn(self, recorded: int, here: int) -> str:
        """What is wrong with this pair."""
        if not recorded:
            return "" if not here else f"zxid {here:#x}, not 0"
        known = self._here.setdefault(recorded, here)
        if known != here:
            return f"zxid {here:#x}, not {known:#x} (recorded {recorded:#x})"
        for other, there in self._here.items():
            if (other < recorded and there > here) or (other > recorded and there < here):
                return f"zxid {here:#x} for {recorded:#x}, but {there:#x} for {other:#x}"
        return ""


class Conversation:
    """One recorded connection, and the one here."""

    def __init__(self, replay: Replay, peer: Peer, recorded: list[bytes]) -> None:
        self._replay = replay
        self.peer = peer
        self._greeted = False
        # Deletions that are recorded and were not told yet.
        self._deletions = Counter(frame for frame in recorded if _is_deletion(frame))
        self._asked: dict[int, list[tuple[Line, int, bytes]]] = {}

    def send(self, line: Line) -> None:
        octets = line.octets
        if not self._greeted:
            self._greeted = True
            octets = self._replay.map_greeting(octets)
            self._asked[_GREETING] = [(line, _GREETING, octets)]
        else:
            header = records.REQUEST_HEADER.decode(octets)
            octets = self._replay.map_request(header.type, octets)
            self._asked.setdefault(header.xid, []).append((line, header.type, octets))
        self.peer.send(len(octets).to_bytes(4, "big") + octets)

    def compare(self, line: Line) -> Outcome:
        """The next frame from here with a recorded one."""
        xid = _GREETING if _GREETING in self._asked else records.REPLY_HEADER.decode(line.octets).xid
        if xid != XID_EVENT and not self._asked.get(xid):
            return self._replay.outcome(line.number, f"{line.summary}: nobody asked for it")
        frame = self.peer.frame()
        if frame is None:
            return self._replay.outcome(line.number, f"{line.summary}: the connection is closed")
        if xid == _GREETING:
            ((asked, _, _),) = self._asked.pop(_GREETING)
            return self._replay.outcome(asked.number, self._replay.compare_greeting(line.octets, frame))
        if XID_EVENT in (xid, records.REPLY_HEADER.decode(frame).xid):
            return self._replay.outcome(line.number, self._compare_events(line.octets, frame))
        asked, op, request = self._asked[xid].pop(0)
        return self._replay.compare_answers(asked, op, request, line, frame)

    def _compare_events(self, recorded: bytes, here: bytes) -> str:
        if _is_deletion(recorded) and _is_deletion(here):
            path = records.EVENT.decode(here, 16).path
            same = (frame for frame in self._deletions.elements() if frame[4:12] == recorded[4:12])
            recorded = next((frame for frame in same if records.EVENT.decode(frame, 16).path == path), recorded)
            self._deletions[recorded] -= 1
        return self._replay.compare_events(recorded, here)


_GREETING = 1 << 40


def _is_deletion(frame: bytes) -> bool:
    return frame[:4] == b"\xff\xff\xff\xff" and records.EVENT.decode(frame, 16).type == EventType.DELETED


class Replay:
    """One recording."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._zxids = Zxids()
        self._sessions: dict[int, tuple[int, bytes]] = {}

    def outcome(self, number: int, detail: str) -> Outcome:
        return Outcome(f"{self._name}:{number}", "different" if detail else "equal", detail)

    # -- mapping requests --------------------------------------------------------------------------------------------

    def map_greeting(self, octets: bytes) -> bytes:
        request, end = records.CONNECT_REQUEST.read(octets, 0)
        session_id, password = self._sessions.get(request.session_id, (request.session_id, request.password))
        mapped = request._replace(
            last_zxid_seen=self._zxids.here(request.last_zxid_seen), session_id=session_id, password=password
        )
        return records.CONNECT_REQUEST.encode(mapped) + octets[end:]

    def map_request(self, op: int, octets: bytes) -> bytes:
        if op not in (Op.SET_WATCHES, Op.SET_WATCHES2):
            return octets
        codec = records.REQUESTS[op]
        request = codec.decode(octets, records.HEADER_BYTES)
        mapped = request._replace(relative_zxid=self._zxids.here(request.relative_zxid))
        return octets[: records.HEADER_BYTES] + codec.encode(mapped)

    # -- comparing answers -------------------------------------------------------------------------------------------

    def compare_greeting(self, recorded: bytes, here: bytes) -> str:
        theirs, ours = records.CONNECT_RESPONSE.decode(recorded), records.CONNECT_RESPONSE.decode(here)
        if theirs.session_id:
            self._sessions.setdefault(theirs.session_id, (ours.session_id, ours.password or b""))
        theirs = theirs._replace(session_id=self._sessions.get(theirs.session_id, (0, b""))[0], password=None)
        return _difference("greeting", theirs, ours._replace(password=None)) or _difference(
            "length", len(recorded), len(here)
        )

    def compare_events(self, recorded: bytes, here: bytes) -> str:
        theirs, ours = records.REPLY_HEADER.decode(recorded), records.REPLY_HEADER.decode(here)
        if theirs.xid != ours.xid:
            return f"xid {ours.xid}, not {theirs.xid}"
        return self._zxids.learn(theirs.zxid, ours.zxid) or _difference(
            "event", records.EVENT.decode(recorded, 16), records.EVENT.decode(here, 16)
        )

    def compare_answers(self, asked: Line, op: int, request: bytes, line: Line, frame: bytes) -> Outcome:
        recorded, here = records.REPLY_HEADER.decode(line.octets), records.REPLY_HEADER.decode(frame)
        detail = _difference("xid and error", (recorded.xid, recorded.error), (here.xid, here.error))
        detail = detail or self._zxids.learn(recorded.zxid, here.zxid)
        argued = ""
        if not detail and not recorded.error:
            theirs, ours = _results(op, line.octets), _results(op, frame)
            detail = _difference("results", len(theirs), len(ours))
            for number, (their, our) in enumerate(zip(theirs, ours, strict=False)):
                if not detail:
                    detail = self._compare_result(their, our)
                    if detail and _of_a_bookie(op, request, number) and not self._compare_result(*_unset(their, our)):
                        argued, detail = f"{UNRECORDED}: {detail}", ""
        if argued and not detail:
            return Outcome(f"{self._name}:{asked.number}", "argued", argued)
        return self.outcome(asked.number, f"{asked.summary}: {detail}" if detail else "")

    def _compare_result(self, theirs: Any, ours: Any) -> str:
        if isinstance(theirs, records.Stat) and isinstance(ours, records.Stat):
            return self._compare_stats(theirs, ours)
        if isinstance(theirs, tuple) and isinstance(ours, tuple) and len(theirs) == len(ours):
            return next(filter(None, map(self._compare_result, theirs, ours)), "")
        if isinstance(theirs, list) and isinstance(ours, list):
            return _difference("children", sorted(theirs), sorted(ours))
        return _difference("result", theirs, ours)

    def _compare_stats(self, theirs: records.Stat, ours: records.Stat) -> str:
        for field in ("czxid", "mzxid", "pzxid"):
            wrong = self._zxids.learn(getattr(theirs, field), getattr(ours, field))
            if wrong:
                return f"{field}: {wrong}"
        owner = self._sessions.get(theirs.ephemeral_owner, (theirs.ephemeral_owner, b""))[0]
        return _difference("stat", _plain(theirs._replace(ephemeral_owner=owner)), _plain(ours))


def _plain(stat: records.Stat) -> records.Stat:
    return stat._replace(czxid=0, mzxid=0, pzxid=0, ctime=int(bool(stat.ctime)), mtime=int(bool(stat.mtime)))


def _difference(what: str, theirs: object, ours: object) -> str:
    return "" if theirs == ours else f"{what}: {ours!r}, not {theirs!r}"


def _results(op: int, frame: bytes) -> list[Any]:
    """What an answer holds, in parts."""
    body = frame[16:]
    if op in (Op.MULTI, Op.MULTI_READ):
        return multi_parts(body)
    codec = records.RESULTS.get(records.WITH_STAT.get(Op(op), Op(op))) if op != Op.PING else None
    return [body] if codec is None else [codec.decode(body)]


def _of_a_bookie(op: int, request: bytes, number: int) -> bool:
    """Whether a part of a request is about a bookie that is available."""
    if op == Op.MULTI_READ:
        body = records.read_multi(request, records.HEADER_BYTES, records.IN_MULTI_READ)[number][1]
    elif op == Op.GET_DATA:
        body = records.REQUESTS[op].decode(request, records.HEADER_BYTES)
    else:
        return False
    return str(body.path).startswith(_SET_BY_OTHERS)


def _unset(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """A znode's data and stat, both without what setting it once more changes of them."""
    if isinstance(theirs, tuple) and isinstance(ours, tuple) and len(theirs) == len(ours) == 2:
        (their_data, their_stat), (our_data, our_stat) = theirs, ours
        if isinstance(their_stat, records.Stat) and isinstance(our_stat, records.Stat):
            if (their_stat.version, our_stat.version) == (1, 0) and len(their_data) == len(our_data):
                return their_stat._replace(version=0, mzxid=0), our_stat._replace(mzxid=0)
        elif isinstance(their_data, records.MultiHeader) and their_data == our_data:
            return _unset(their_stat, our_stat)
    return theirs, ours


def replay_recording(path: Path) -> Iterator[Outcome]:
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    recorded = list(lines(path, CHANNELS))
    if not recorded:
        return
    with ExitStack() as stack:
        store = stack.enter_context(bookstand.temporary())
        server = ZooKeeperServer(store.storage, SystemClock(), port=0)
        stack.enter_context(LoopThread(server))
        replay = Replay(name)
        conversations: dict[tuple[str, int], Conversation] = {}
        for line in recorded:
            if line.event == "open":
                peer = Peer(server.address)
                stack.enter_context(peer)
                answers = [other.octets for other in recorded if (other.event, other.place) == ("answered", line.place)]
                conversations[line.place] = Conversation(replay, peer, answers)
            elif line.event == "sent":
                conversations[line.place].send(line)
            elif line.event == "answered":
                yield conversations[line.place].compare(line)
            elif line.event == "left":
                conversations[line.place].peer.socket.close()
        report = store.verify()
        yield Outcome(
            f"{name}: the store of znodes", "equal" if report.ok else "different", "" if report.ok else str(report)
        )
