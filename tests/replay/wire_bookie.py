"""Bookies (channels ``bk…`` of recordings, ``raw-frames.txt``). The requests are sent over sockets to bookies over one
store, in the recorded order, each once what was answered before it has been answered here as well. A sample is a
request: its answer is the recorded one octet for octet, but for the sizes of the machine's disk and the time at which a
last-add-confirmed came; or the connection is closed without one, but for frames over the limit, which are argued. Of
octets that were not kept, the number is compared.
One more sample of each recording is the store afterwards: its check finds nothing, and every entry whose add was
confirmed is in it.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bookstand
from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.protocol import codes
from bookstand.server.bookie.server import BookieServer
from bookstand.server.bookie.shared_state import Limits
from bookstand.server.framing import LENGTH_BYTES
from bookstand.server.loop_thread import LoopThread
from tests.replay.outcome import Outcome
from tests.replay.wire_frames import Line, lines
from tests.server.bookie.kit import Wire

OVER_LIMIT = "frame-over-limit"
"""The rule for frames over the limit (docs/differences.md)."""
CHANNELS = "bk"
RAW_FRAMES = "raw-frames.txt"

_HEADER = re.compile(rb"\x0a.\x08\x03\x10.(?P<transaction>\x18[\x80-\xff]*[\x00-\x7f])", re.DOTALL)
_ADD, _READ, _BATCH_READ = 1, 2, 7
_OF_THE_MACHINE = {
    "getBookieInfoResponse": ("totalDiskCapacity", "freeDiskSpace"),
    "readResponse": ("lacUpdateTimestamp",),
}


class Peer(Wire):
    """One connection: frames are sent on it, and answers taken from it in whatever order they are asked for."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._answers: dict[bytes, deque[bytes]] = defaultdict(deque)
        self.waiting: deque[Line] = deque()

    def send(self, *frames: bytes) -> None:
        try:
            super().send(*frames)
        except OSError:
            # It was closed before all was sent; that there is no answer tells.
            pass

    def answer(self, name: bytes) -> bytes | None:
        """The next answer of that name; None where the connection ends before it."""
        while not self._answers[name]:
            frame = self.frame()
            if frame is None:
                return None
            self._answers[answer_name(frame)].append(frame)
        return self._answers[name].popleft()


def request_name(frame: bytes) -> bytes:
    """What a request and its answer have in common: the transaction of version 3; operation and ids of version 2."""
    header = _HEADER.match(frame)
    if header is not None:
        return header["transaction"]
    operation = frame[1] if len(frame) > 1 else 0
    ids = {_ADD: frame[24:40], _READ: frame[4:20], _BATCH_READ: frame[4:28]}
    return frame[1:2] + ids.get(operation, b"")


def answer_name(frame: bytes) -> bytes:
    header = _HEADER.match(frame)
    if header is not None:
        return header["transaction"]
    ids = {_ADD: frame[8:24], _READ: frame[8:24], _BATCH_READ: frame[8:32]}
    return frame[1:2] + ids.get(frame[1], b"")


def replay_recording(path: Path) -> Iterator[Outcome]:
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    recorded = list(lines(path, CHANNELS))
    if not recorded:
        return
    channels = sorted({line.channel for line in recorded})
    with ExitStack() as stack:
        store = stack.enter_context(bookstand.temporary())
        server = BookieServer(store.storage, ports=[0] * len(channels))
        stack.enter_context(LoopThread(server))
        addresses = dict(zip(channels, server.addresses, strict=True))
        confirmed: set[tuple[int, int]] = set()
        yield from _replay(name, recorded, addresses, confirmed)
        yield Outcome(f"{name}: the store", *_look_at(store, confirmed))


def _replay(
    name: str, recorded: list[Line], addresses: dict[str, tuple[str, int]], confirmed: set[tuple[int, int]]
) -> Iterator[Outcome]:
    peers: dict[tuple[str, int], Peer] = {}
    with ExitStack() as stack:
        for line in recorded:
            peer = peers.get(line.place)
            if peer is None:
                peer = peers[line.place] = Peer(addresses[line.channel])
                stack.enter_context(peer)
            if line.event == "sent":
                # What was not kept of an entry is not looked at by a bookie.
                octets = line.octets + bytes(line.length - len(line.octets))
                peer.send(octets if line.raw else line.length.to_bytes(4, "big") + octets)
                peer.waiting.append(line)
            elif line.event == "answered":
                asked = _asked(peer, line)
                detail = _difference(line, peer.answer(answer_name(line.octets))) if asked else "nobody asked for it"
                if not detail and _adds(line):
                    confirmed.add(_ids(line.octets))
                number = line.number if asked is None else asked.number
                yield Outcome(f"{name}:{number}", "different" if detail else "equal", detail)
            elif peer.waiting and line.event in ("left", "closed"):
                while peer.waiting:
                    asked = peer.waiting.popleft()
                    answer = peer.frame()
                    yield Outcome(f"{name}:{asked.number}", *_not_closed(asked, answer))


def _not_closed(asked: Line, answer: bytes | None) -> tuple[Any, str]:
    """The verdict on a request for which the original closed the connection."""
    if answer is None:
        return "equal", ""
    size = int.from_bytes(asked.octets[:LENGTH_BYTES], "big") if asked.raw else asked.length
    if size + LENGTH_BYTES > Limits.frame_bytes and _is_bad_request(answer):
        return "argued", f"{OVER_LIMIT}: {size} bytes: refused, not closed"
    return "different", f"{asked.summary}: answered {answer.hex()[:80]}, not closed"


def _is_bad_request(frame: bytes) -> bool:
    if frame[:1] == b"\n":
        return bool(messages.Response.FromString(frame).status == messages.EBADREQ)
    return int.from_bytes(frame[4:8], "big", signed=True) == codes.BAD_REQUEST


def _asked(peer: Peer, line: Line) -> Line | None:
    """The request that an answer belongs to."""
    name = answer_name(line.octets)
    asked = next((one for one in peer.waiting if request_name(one.octets) == name), None)
    if asked is not None:
        peer.waiting.remove(asked)
    return asked


def _adds(answered: Line) -> bool:
    """Whether an add is confirmed of an entry that the store takes."""
    frame = answered.octets
    if frame[:1] == b"\n":
        response = messages.Response.FromString(frame)
        return response.HasField("addResponse") and response.status == messages.EOK
    return frame[1] == _ADD and frame[4:8] == bytes(4) and min(_ids(frame)) >= 0


def _ids(frame: bytes) -> tuple[int, int]:
    if frame[:1] == b"\n":
        added = messages.Response.FromString(frame).addResponse
        return added.ledgerId, added.entryId
    return int.from_bytes(frame[8:16], "big", signed=True), int.from_bytes(frame[16:24], "big", signed=True)


def _difference(recorded: Line, answer: bytes | None) -> str:
    if answer is None:
        return f"{recorded.summary}: closed, not answered"
    wanted = recorded.octets
    if recorded.cut:
        same = len(answer) == recorded.length and answer.startswith(wanted[:100])
    else:
        same = answer == wanted or _without_the_machine(answer) == _without_the_machine(wanted)
    return "" if same else f"{recorded.summary}: answered {answer.hex()[:2000]}, not {wanted.hex()[:2000]}"


def _without_the_machine(frame: bytes) -> Any:
    """An answer of version 3 without what depends on the machine and the time; whether it tells of it remains."""
    if frame[:1] != b"\n":
        return frame
    response = messages.Response.FromString(frame)
    for message, names in _OF_THE_MACHINE.items():
        for name in names:
            if response.HasField(message) and getattr(response, message).HasField(name):  # type: ignore[arg-type]
                setattr(getattr(response, message), name, 1)
    return response.SerializeToString()


def _look_at(store: bookstand.Store, confirmed: set[tuple[int, int]]) -> tuple[Any, str]:
    problems = [problem.message for problem in store.verify().problems]
    problems += [
        f"entry {ledger_id}:{entry_id} is not in the store"
        for ledger_id, entry_id in sorted(confirmed)
        if store.storage.entry_as_stored(ledger_id, entry_id) is None
    ]
    return ("different", "; ".join(problems[:5])) if problems else ("equal", "")


# -- the list of odd frames --------------------------------------------------------------------------------------------

_IN_LIST = re.compile(r"(?P<what>.*?) +(?P<request>[0-9a-f]*) -> (?P<answer>[0-9a-f]+|closed)")
_ONLY_LENGTH = re.compile(r"length (?P<mebibytes>\d+) MiB -> closed")
# The list has no more of longer answers.
_LONGEST_IN_LIST = 80


def replay_raw_frames(path: Path) -> Iterator[Outcome]:
    """Each on a connection of its own, one after the other."""
    with bookstand.temporary() as store:
        server = BookieServer(store.storage, ports=[0])
        with LoopThread(server):
            for number, text in enumerate(path.read_text().splitlines(), 1):
                if text.strip():
                    detail = _try(text, server.addresses[0])
                    yield Outcome(f"raw-frames:{number}", "different" if detail else "equal", detail)


def _try(text: str, address: tuple[str, int]) -> str:
    huge, listed = _ONLY_LENGTH.fullmatch(text), _IN_LIST.fullmatch(text)
    with Peer(address) as peer:
        if huge is not None:
            peer.send((int(huge["mebibytes"]) << 20).to_bytes(4, "big"))
            wanted = "closed"
        elif listed is not None:
            request = bytes.fromhex(listed["request"])
            peer.send(len(request).to_bytes(4, "big") + request)
            wanted = listed["answer"]
        else:
            return f"{text!r} cannot be read"
        frame = peer.frame()
        answer = "closed" if frame is None else frame[:_LONGEST_IN_LIST].hex()
        return "" if answer == wanted else f"{text.split(' ->')[0]}: {answer}, not {wanted}"
