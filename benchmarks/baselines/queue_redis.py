"""A delayed queue on Redis (`appendfsync always`, a Unix socket): sorted sets by time, payloads in a hash.

Each batch is one script, and thus one atomic step and one fsync.
Tried and not faster: pipelines in MULTI instead of scripts; payloads as members of the sets.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.baselines.servers import Server
from benchmarks.measure import Missing

Message = tuple[bytes, bytes]  # id, payload

# ARGV: due, payloads. Ids have a fixed length, so that messages with the same time stay in order.
_PUBLISH = """
local count = #ARGV - 1
local before = redis.call('INCRBY', 'ids', count) - count
local payloads, times = {}, {}
for i = 1, count do
  local id = string.format('%012d', before + i)
  payloads[2 * i - 1], payloads[2 * i] = id, ARGV[i + 1]
  times[2 * i - 1], times[2 * i] = ARGV[1], id
end
redis.call('HSET', 'payloads', unpack(payloads))
redis.call('ZADD', 'waiting', unpack(times))
"""

# ARGV: now, count, end of the leases.
_RECEIVE = """
local function move(ids, from, to, time)
  local times = {}
  for i, id in ipairs(ids) do times[2 * i - 1], times[2 * i] = time, id end
  redis.call('ZREM', from, unpack(ids))
  redis.call('ZADD', to, unpack(times))
end
local expired = redis.call('ZRANGEBYSCORE', 'in-flight', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #expired > 0 then move(expired, 'in-flight', 'waiting', ARGV[1]) end
local due = redis.call('ZRANGEBYSCORE', 'waiting', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due == 0 then return {due, due} end
move(due, 'waiting', 'in-flight', ARGV[3])
return {due, redis.call('HMGET', 'payloads', unpack(due))}
"""
_ACK = "redis.call('ZREM', 'in-flight', unpack(ARGV)) redis.call('HDEL', 'payloads', unpack(ARGV))"

_RECEIVE_BY_SCORE = """
local due = redis.call('ZRANGEBYSCORE', 'waiting', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due == 0 then return {due, due} end
local times = {}
for i, id in ipairs(due) do times[2 * i - 1], times[2 * i] = ARGV[3], id end
redis.call('ZADD', 'waiting', unpack(times))
return {due, redis.call('HMGET', 'payloads', unpack(due))}
"""
_ACK_BY_SCORE = "redis.call('ZREM', 'waiting', unpack(ARGV)) redis.call('HDEL', 'payloads', unpack(ARGV))"


class RedisQueue:
    """redis-py without hiredis, with parser and packer in Python.

    A received message moves to another set, ordered by the end of its lease, and back when the lease has expired.
    """

    RECEIVE, ACK = _RECEIVE, _ACK
    HIREDIS = False

    def __init__(self, directory: Path, lease_millis: int = 60_000) -> None:
        try:
            import redis

            settings = _in_c() if self.HIREDIS else _in_python()
        except ImportError as error:
            raise Missing(f"redis-py cannot be used ({error})") from error
        self._lease = lease_millis
        self._server = Server("redis-server", lambda socket: _arguments(socket, directory), directory)
        self._pool = redis.ConnectionPool(
            connection_class=redis.UnixDomainSocketConnection, path=self._server.socket, protocol=2, **settings
        )
        self._redis = redis.Redis(connection_pool=self._pool)
        self._wait_until_loaded()
        self._publish, self._receive, self._ack = map(self._redis.register_script, (_PUBLISH, self.RECEIVE, self.ACK))

    def publish(self, payloads: list[bytes], delay_millis: int = 0) -> None:
        self._publish(args=[_now() + delay_millis, *payloads])

    def receive(self, count: int) -> list[Message]:
        now = _now()
        ids, payloads = self._receive(args=(now, count, now + self._lease))
        return list(zip(ids, payloads, strict=True))

    def payloads(self, messages: list[Message]) -> list[bytes]:
        return [message[1] for message in messages]

    def ack(self, messages: list[Message]) -> None:
        self._ack(args=[message[0] for message in messages])

    def left(self) -> int:
        return int(self._redis.hlen("payloads"))

    def server_cpu(self) -> float:
        return self._server.cpu()

    def close(self) -> None:
        self._pool.disconnect()
        self._server.stop()

    def _wait_until_loaded(self) -> None:
        info: Any = self._redis.info("persistence")
        while info["loading"]:
            time.sleep(0.01)
            info = self._redis.info("persistence")


class RedisQueueFastest(RedisQueue):
    """A single sorted set, in which a lease is a later delivery time, and hiredis as parser and packer."""

    RECEIVE, ACK = _RECEIVE_BY_SCORE, _ACK_BY_SCORE
    HIREDIS = True


def _in_c() -> dict[str, Any]:
    """Return redis-py's classes for hiredis. Raises ImportError without hiredis."""
    from redis._parsers import _HiredisParser
    from redis.connection import HiredisRespSerializer

    return {"parser_class": _HiredisParser, "command_packer": HiredisRespSerializer()}


def _in_python() -> dict[str, Any]:
    """Return redis-py's classes without hiredis."""
    from redis._parsers import Encoder, _RESP2Parser
    from redis.connection import PythonRespSerializer

    encode = Encoder("utf-8", "strict", False).encode
    return {"parser_class": _RESP2Parser, "command_packer": PythonRespSerializer(6_000, encode)}


def _arguments(socket: str, directory: Path) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": socket,
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


def _now() -> int:
    return time.time_ns() // 1_000_000
