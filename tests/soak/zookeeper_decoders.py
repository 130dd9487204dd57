"""Decoders of ZooKeeper's protocol, of what its server keeps, and a server itself: the table's part that is theirs."""

from __future__ import annotations

import asyncio
import random
import weakref
from pathlib import Path
from typing import Any

from bookstand.errors import MalformedError
from bookstand.server.framing import SCRATCH_BYTES, split
from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.batch import InitializeTree
from bookstand.server.zookeeper.connection import ZooKeeperConnection
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.jute import BOOL, Codec, JuteError
from bookstand.server.zookeeper.protocol.protocol import MAX_FRAME, CreateMode, Op, WatchMode
from bookstand.server.zookeeper.request_rounds import RoundScheduler
from bookstand.server.zookeeper.state import State
from bookstand.storage.clock import SystemClock
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.storage import open_storage
from tests.server.test_framing import frames_of
from tests.server.zookeeper.kit import multi_body
from tests.soak.decoder import Decoder
from tests.soak.server_decoders import FRAMES_SHARE, Transport

# Of the client that is served beside those that are tried. No mutation comes to it by chance.
_OTHERS_PATH = "/of-the-others"

GREETING = records.CONNECT_REQUEST.encode(records.ConnectRequest(0, 0, 10_000, 0, bytes(16))) + BOOL.encode(False)


def all_of_them(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    return _of_records(rng) | _of_what_is_kept(rng) | _of_a_server(rng, folder)


def _requests(rng: random.Random) -> list[tuple[Op, Any]]:
    """One of each kind."""
    path = rng.choice(("/a", "/a/b", "/c"))
    data = rng.choice((None, b"", rng.randbytes(rng.randrange(1, 30))))
    acl = rng.choice((OPEN_ACL, (records.Acl(31, "ip", "127.0.0.1"), records.Acl(1, "digest", "u:x"))))
    create = records.Create(path, data, acl, rng.choice(list(CreateMode)[:4]))
    watch = records.PathAndWatch(path, rng.random() < 0.5)
    paths = [path, "/d"]
    return [
        (Op.CREATE, create),
        (Op.CREATE2, create),
        (Op.CREATE_CONTAINER, create._replace(mode=CreateMode.CONTAINER)),
        (Op.CREATE_TTL, records.CreateTtl(path, data, acl, CreateMode.PERSISTENT_WITH_TTL, rng.randrange(1, 9_999))),
        (Op.DELETE, records.Delete(path, rng.choice((-1, 0)))),
        (Op.EXISTS, watch),
        (Op.GET_DATA, watch),
        (Op.SET_DATA, records.SetData(path, data, -1)),
        (Op.GET_ACL, path),
        (Op.SET_ACL, records.SetAcl(path, acl, -1)),
        (Op.GET_CHILDREN2, watch),
        (Op.CHECK_WATCHES, records.PathAndNumber(path, 3)),
        (Op.REMOVE_WATCHES, records.PathAndNumber(path, 3)),
        (Op.AUTH, records.Auth(0, "digest", b"user:pw")),
        (Op.SET_WATCHES, records.SetWatches(rng.randrange(9), paths, [], paths)),
        (Op.SET_WATCHES2, records.SetWatches2(rng.randrange(9), paths, paths, [], ["/"], paths)),
        (Op.ADD_WATCH, records.PathAndNumber(path, WatchMode.PERSISTENT_RECURSIVE)),
    ]


def _multi(rng: random.Random) -> list[tuple[Op, Any]]:
    return [(op, body) for op, body in _requests(rng) if op in records.IN_MULTI]


def _of_records(rng: random.Random) -> dict[str, Decoder]:
    def decoder(codec: Codec[Any], samples: list[Any]) -> Decoder:
        return Decoder([codec.encode(sample) for sample in samples], codec.decode, codec.encode, refusals=JuteError)

    found = {f"request {op.name.lower()}": (records.REQUESTS[op], [body]) for op, body in _requests(rng)}
    table = {name: decoder(codec, samples)._replace(share=0.2) for name, (codec, samples) in found.items()}
    stat = records.Stat(*[rng.randrange(99) for _ in records.Stat._fields])
    table["answer with a stat"] = decoder(records.RESULTS[Op.GET_DATA], [(b"abc", stat), (None, stat)])
    table["greeting"] = decoder(records.CONNECT_REQUEST, [records.ConnectRequest(0, 5, 30_000, 7, bytes(16))])
    table["multi"] = Decoder(
        [multi_body(_multi(rng)), multi_body([])],
        lambda data: records.read_multi(data, 0, records.IN_MULTI),
        multi_body,
        refusals=JuteError,
    )
    return table


def _of_what_is_kept(rng: random.Random) -> dict[str, Decoder]:
    key, session_key = b"/a", persistent_records.session_key(77)
    znode = persistent_records.new_znode(
        rng.randrange(99), 5, rng.choice((0, 77, persistent_records.CONTAINER_OWNER, persistent_records.ttl_owner(9)))
    )
    listed = znode._replace(acl=(records.Acl(1, "world", "anyone"),), children=3, seal=0xFFFFFFFF)

    def below(packed: bytes) -> bytes:
        """What lies below the seal must hold by itself."""
        return packed[4:]

    return {
        "znode": Decoder(
            [below(persistent_records.pack_znode(key, one)) for one in (znode, listed)],
            lambda data: persistent_records.parse_znode(key, data),
            lambda value: below(persistent_records.pack_znode(key, value)),
        ),
        "znode under its seal": Decoder(
            [persistent_records.pack_znode(key, znode)],
            lambda data: sealed_record.unseal(schema.META, key, data),
            digested=True,
        ),
        "session": Decoder(
            [
                below(
                    persistent_records.pack_session(session_key, persistent_records.Session(30_000, rng.randbytes(16)))
                )
            ],
            lambda data: persistent_records.parse_session(session_key, data),
            lambda value: below(persistent_records.pack_session(session_key, value)),
        ),
        "server's record": Decoder(
            [below(persistent_records.pack_server(persistent_records.Server(5, 1 << 56)))],
            persistent_records.parse_server,
            lambda value: below(persistent_records.pack_server(value)),
        ),
    }


class _Served:
    """A server without sockets: octets in, answers out. Whatever one client sends, another one's session goes on."""

    def __init__(self, folder: Path) -> None:
        self._storage = open_storage(folder, durability="none", map_size=32 << 20)
        self._storage.apply(WriteBatch(InitializeTree(1 << 56)))
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._state = State(self._storage, SystemClock(), 2_000)
        self._state.restore(self._state.restored())
        self._failures: list[BaseException] = []
        self._rounds = RoundScheduler(self._state, self._loop, self._failures.append)
        self._others = self._connection()
        self._send(self._others[0], GREETING)
        self._go_on()
        self._others[1].answers.clear()
        self._others_writes = 0

    def request(self, body: bytes) -> bytes:
        """What a new session's request is answered; then the session ends, and all that is its."""
        last = records.REQUEST_HEADER.encode(records.RequestHeader(-7, Op.CLOSE_SESSION))
        answers = self.frames(GREETING, body, last)
        if answers[-16:-12] != last[:4]:
            raise MalformedError("the connection was closed")
        return answers

    def frames(self, *bodies: bytes) -> bytes:
        connection, transport = self._connection()
        self._send(connection, *bodies)
        self._send_others()
        self._go_on()
        connection.connection_lost(None)
        assert not self._failures
        assert not self._rounds.busy
        self._check_others()
        assert self._state.held_bytes == 0
        if not transport.answers:
            raise MalformedError("the connection was closed")
        return bytes(transport.answers)

    def _connection(self) -> tuple[ZooKeeperConnection, Transport]:
        made = ZooKeeperConnection(self._state, self._rounds, self._scratch), Transport()
        made[0].connection_made(made[1])
        return made

    def _send(self, connection: ZooKeeperConnection, *bodies: bytes) -> None:
        data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
        self._scratch[: len(data)] = data
        connection.buffer_updated(len(data))

    def _go_on(self) -> None:
        for _ in range(12):
            # Greeting, request and end are a commit each, and each is told in a turn of its own.
            self._storage.flush()
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def _send_others(self) -> None:
        """It writes a znode of its own, and reads it."""
        self._others_writes += 1
        data = b"%d" % self._others_writes
        write, body = Op.SET_DATA, records.SetData(_OTHERS_PATH, data, -1)
        if self._others_writes == 1:
            write, body = Op.CREATE, records.Create(_OTHERS_PATH, data, OPEN_ACL, CreateMode.PERSISTENT)
        asked = [(write, body), (Op.GET_DATA, records.PathAndWatch(_OTHERS_PATH, False))]
        self._send(self._others[0], *(_request(7, op, body) for op, body in asked))

    def _check_others(self) -> None:
        octets = self._others[1].answers
        written, read = frames_of(split(bytes(octets), MAX_FRAME)[0])
        octets.clear()
        assert records.REPLY_HEADER.decode(written).error == 0
        assert records.REPLY_HEADER.decode(read).error == 0
        data, _ = records.RESULTS[Op.GET_DATA].decode(read[16:])
        assert data == b"%d" % self._others_writes


def _request(xid: int, op: Op, body: Any) -> bytes:
    return records.REQUEST_HEADER.encode(records.RequestHeader(xid, op)) + records.REQUESTS[op].encode(body)


def _of_a_server(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    served = _Served(folder / "zookeeper")
    header = records.REQUEST_HEADER
    frames = [_request(7, op, body) for op, body in _requests(rng)]
    frames.append(header.encode(records.RequestHeader(8, Op.MULTI)) + multi_body(_multi(rng)))
    frames.append(header.encode(records.RequestHeader(9, Op.GET_EPHEMERALS)) + records.STRING.encode("/"))
    frames.append(header.encode(records.RequestHeader(9, Op.GET_ALL_CHILDREN_NUMBER)) + records.STRING.encode("/"))
    greeting = records.ConnectRequest(0, 0, 10_000, 0, bytes(16))
    greetings = [
        records.CONNECT_REQUEST.encode(greeting) + BOOL.encode(False),
        records.CONNECT_REQUEST.encode(greeting),
    ]
    return {
        "requests to a ZooKeeper server": Decoder(frames, served.request, share=FRAMES_SHARE),
        "greetings to a ZooKeeper server": Decoder(greetings, served.frames),
    }
