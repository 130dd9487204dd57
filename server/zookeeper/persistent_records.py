"""Sealed records of the server in the store's ``meta``, committed together with the values that they belong to.

Each znode has a record under its path, with another byte in place of the first slash. That includes ledgers, and znodes
that exist only as ancestors of others. A znode's value and version are not part of it but of the ledger metadata or
node with its path. ``seal`` is the seal of that value record as the server last saw it; a difference reveals a foreign
write.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bookstand.errors import StoreDamagedError
from bookstand.proto.struct_layout import Layout
from bookstand.server.zookeeper.protocol.jute import JuteError
from bookstand.server.zookeeper.protocol.protocol import Permission
from bookstand.server.zookeeper.protocol.records import ACLS, Acl, Stat
from bookstand.storage.format import schema, sealed_record

PASSWORD_BYTES = 16
SERVER = Layout(
    "what is under `zookeeper` in `meta`", ("zxid", "q", "the last one"), ("next session", "q", "its number")
)
SESSION = Layout(
    "what is under `session-` and the session's id in `meta`",
    ("time-out", "i", "milliseconds"),
    ("password", f"{PASSWORD_BYTES}s", ""),
)
ZNODE = Layout(
    "what is under a znode's path in `meta`, `:` in place of its first slash",
    ("flags", "B", "bit 0: a node or a ledger holds the value; 1: the value is null"),
    ("czxid", "q", ""),
    ("mzxid", "q", ""),
    ("pzxid", "q", ""),
    ("ctime", "q", "milliseconds since 1970"),
    ("mtime", "q", "milliseconds since 1970"),
    ("creates", "q", "children that were ever created"),
    ("aversion", "i", ""),
    ("owner", "q", "the session of an ephemeral"),
    ("children", "i", "how many there are"),
    ("seal", "I", "of the value's record, as the server last saw it"),
    ("ACL", "the rest", "as on the wire; nothing for world:anyone with all permissions"),
)
_SERVER, _SESSION, _ZNODE = SERVER.struct, SESSION.struct, ZNODE.struct
_SESSION_ID = struct.Struct(">q")

ALL = int(Permission.READ | Permission.WRITE | Permission.CREATE | Permission.DELETE | Permission.ADMIN)
OPEN_ACL = (Acl(ALL, "world", "anyone"),)

# ZooKeeper encodes containers and TTLs (in the lower 40 bits) as special owners, which clients do not see.
CONTAINER_OWNER = -(1 << 63)
_TTL_MASK = 0xFF << 56
MAX_TTL = (1 << 40) - 1
_INT32 = 1 << 32

_HAS_RECORD = 1
_NULL_VALUE = 2


class Server(NamedTuple):
    """State of the server."""

    zxid: int
    next_session: int


class Session(NamedTuple):
    """Persistent part of a session."""

    timeout: int
    password: bytes


class Znode(NamedTuple):
    """A znode without its value. ``has_record``: a node or a ledger holds the value; otherwise the value is empty.

    ``creates`` counts all children ever created and thus numbers sequential children. ``owner`` is the session of an
    ephemeral, or encodes :attr:`is_container` or :attr:`ttl`.
    """

    has_record: bool
    null_value: bool
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    creates: int
    aversion: int
    owner: int
    children: int
    seal: int
    acl: Sequence[Acl]

    def stat(self, version: int, data_length: int) -> Stat:
        # The cversion that ZooKeeper shows counts the creations and deletions of children.
        cversion = _int32(2 * self.creates - self.children)
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            version,
            cversion,
            self.aversion,
            max(self.owner, 0),
            data_length,
            self.children,
            self.pzxid,
        )

    @property
    def is_ephemeral(self) -> bool:
        return self.owner > 0

    @property
    def is_container(self) -> bool:
        return self.owner == CONTAINER_OWNER

    @property
    def ttl(self) -> int | None:
        """Milliseconds after the last change at which the znode expires if it has no children."""
        owner = self.owner % (1 << 64)
        return owner & MAX_TTL if owner >> 56 == 0xFF else None

    @property
    def is_mortal(self) -> bool:
        """True for a container or a znode with a TTL, which the server removes automatically."""
        return self.is_container or self.ttl is not None


_ACL_COST = 8
"""Reading a byte of an access control list takes as long as reading so many of a value."""


def cost_of(sealed: bytes | None, value: bytes | None) -> int:
    """About how much reading a znode takes, in bytes of a value."""
    size = len(sealed or b"")
    return size + _ACL_COST * max(0, size - sealed_record.CRC_BYTES - _ZNODE.size) + len(value or b"")


def new_znode(zxid: int, now: int, owner: int = 0, acl: Sequence[Acl] = OPEN_ACL) -> Znode:
    return Znode(False, False, zxid, zxid, zxid, now, now, 0, 0, owner, 0, 0, acl)


def _built_in(children: int = 0, aversion: int = 0, acl: Sequence[Acl] = OPEN_ACL) -> Znode:
    return new_znode(0, 0, 0, acl)._replace(children=children, aversion=aversion)


BUILT_IN = {
    "/": _built_in(children=1),
    "/zookeeper": _built_in(children=2),
    "/zookeeper/config": _built_in(aversion=-1, acl=(Acl(int(Permission.READ), "world", "anyone"),)),
    "/zookeeper/quota": _built_in(),
}
"""Initial znodes, as in ZooKeeper."""


def ttl_owner(ttl: int) -> int:
    """Owner that encodes a TTL."""
    return (_TTL_MASK | ttl) - (1 << 64)


def _int32(number: int) -> int:
    return (number + (_INT32 >> 1)) % _INT32 - (_INT32 >> 1)


def next_version(version: int) -> int:
    """Increment a version. -2 is followed by 0, because -1 matches any version."""
    following = _int32(version + 1)
    return 0 if following == -1 else following


def pack_znode(key: bytes, znode: Znode) -> bytes:
    flags = (_HAS_RECORD if znode.has_record else 0) | (_NULL_VALUE if znode.null_value else 0)
    numbers = _ZNODE.pack(flags, *znode[2:-1])
    return sealed_record.seal(key, numbers if znode.acl == OPEN_ACL else numbers + ACLS.encode(znode.acl))


def unpack_znode(key: bytes, sealed: bytes) -> Znode:
    return parse_znode(key, sealed_record.unseal(schema.META, key, sealed))


def parse_znode(key: bytes, body: bytes) -> Znode:
    try:
        flags, *numbers = _ZNODE.unpack_from(body)
        acl = OPEN_ACL if len(body) == _ZNODE.size else tuple(ACLS.decode(body, _ZNODE.size) or ())
    except (struct.error, JuteError) as error:
        raise _damaged(key, error) from error
    return Znode._make((bool(flags & _HAS_RECORD), bool(flags & _NULL_VALUE), *numbers, acl))


def pack_server(server: Server) -> bytes:
    return sealed_record.seal(schema.META_SERVER, _SERVER.pack(*server))


def parse_server(body: bytes) -> Server:
    try:
        return Server(*_SERVER.unpack(body))
    except struct.error as error:
        raise _damaged(schema.META_SERVER, error) from error


def session_key(session_id: int) -> bytes:
    return schema.META_SESSION + _SESSION_ID.pack(session_id)


def session_of(key: bytes) -> int:
    """Session id in the key of a session's record."""
    try:
        (session_id,) = _SESSION_ID.unpack(key.removeprefix(schema.META_SESSION))
    except struct.error as error:
        raise _damaged(key, error) from error
    return int(session_id)


def pack_session(key: bytes, session: Session) -> bytes:
    return sealed_record.seal(key, _SESSION.pack(*session))


def parse_session(key: bytes, body: bytes) -> Session:
    try:
        return Session(*_SESSION.unpack(body))
    except struct.error as error:
        raise _damaged(key, error) from error


def _damaged(key: bytes, error: Exception) -> StoreDamagedError:
    return StoreDamagedError(f"{sealed_record.describe(schema.META, key)} is damaged: {error}")
