"""Constants of ZooKeeper's protocol: operations, error codes, create modes, types of events and watches."""

from __future__ import annotations

from enum import IntEnum, IntFlag

MAX_FRAME = 0xFFFFF
"""Default of ``jute.maxbuffer``: a longer frame closes the connection."""


class Op(IntEnum):
    """Operation of a request."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    # Only in the response to a multi.
    ERROR = -1


# Reserved xids. A client has at most one outstanding request with each of them.
XID_EVENT = -1
XID_PING = -2
XID_AUTH = -4
XID_SET_WATCHES = -8


class Code(IntEnum):
    """Result codes."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    THROTTLED_OP = -127


class CreateMode(IntEnum):
    """Kinds of znodes to create."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4
    PERSISTENT_WITH_TTL = 5
    PERSISTENT_SEQUENTIAL_WITH_TTL = 6


EPHEMERAL_MODES = frozenset({CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL})
SEQUENTIAL_MODES = frozenset(
    {
        CreateMode.PERSISTENT_SEQUENTIAL,
        CreateMode.EPHEMERAL_SEQUENTIAL,
        CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL,
    }
)
TTL_MODES = frozenset({CreateMode.PERSISTENT_WITH_TTL, CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL})


class EventType(IntEnum):
    """Types of watch events."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


# KeeperState of events.
SYNC_CONNECTED = 3


class WatchMode(IntEnum):
    """Modes of ``addWatch``."""

    PERSISTENT = 0
    PERSISTENT_RECURSIVE = 1


class WatcherType(IntEnum):
    """Types of watches for ``removeWatches`` and ``checkWatches``."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    PERSISTENT_RECURSIVE = 5


class Permission(IntFlag):
    """Permissions of an ACL entry."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16


ANY_VERSION = -1


class ZooKeeperError(Exception):
    """A request failed with a result code. Clients receive the code; the message, which names the path, is for logs."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
