"""Access control lists: kept, checked, and refused where they name nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookstand.server.zookeeper.persistent_records import ALL, OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.acls import digest_identity
from bookstand.server.zookeeper.protocol.protocol import Code, Op, Permission
from tests.server.zookeeper.kit import Client, ClosedError

SECRET = b"user:secret"
OWN = (records.Acl(ALL, *digest_identity(SECRET)),)
READ_ONLY = (records.Acl(int(Permission.READ), "world", "anyone"),)


def prove(client: Client, credentials: bytes = SECRET, scheme: str = "digest") -> Any:
    return client.call(Op.AUTH, records.Auth(0, scheme, credentials), xid=-4)


def test_the_digest_is_zookeeper_s() -> None:
    assert digest_identity(b"super:test") == ("digest", "super:D/InIHSb7yEEbrWz8b9l71RjZJU=")


def test_who_has_proved_to_know_it_may(connect: Callable[..., Client]) -> None:
    owner, other = connect(), connect()
    prove(owner)
    assert owner.create("/a", b"x", acl=OWN) == "/a"
    assert owner.create("/a/b") == "/a/b"
    for request in (
        lambda c: c.get("/a"),
        lambda c: c.set("/a", b"y"),
        lambda c: c.children("/a"),
        lambda c: c.create("/a/c"),
        lambda c: c.delete("/a/b"),
        lambda c: c.call(Op.GET_ACL, "/a"),
        lambda c: c.call(Op.SET_ACL, records.SetAcl("/a", OPEN_ACL, -1)),
    ):
        assert request(other) == Code.NO_AUTH
    # Whether it is there, everybody may know.
    assert other.exists("/a").data_length == 1
    assert other.multi((Op.CHECK, records.Check("/a", -1))) == [Code.NO_AUTH]
    prove(other)
    assert other.get("/a")[0] == b"x"


def test_lists_are_changed_with_a_version_of_their_own(client: Client) -> None:
    client.create("/a")
    assert client.call(Op.GET_ACL, "/a")[0] == list(OPEN_ACL)
    prove(client)
    stat = client.call(Op.SET_ACL, records.SetAcl("/a", [records.Acl(ALL, "auth", None)], 0))
    assert (stat.aversion, stat.version) == (1, 0)
    assert client.call(Op.GET_ACL, "/a")[0] == list(OWN)
    assert client.call(Op.SET_ACL, records.SetAcl("/a", OPEN_ACL, 0)) == Code.BAD_VERSION
    assert client.call(Op.SET_ACL, records.SetAcl("/no", OPEN_ACL, 0)) == Code.NO_NODE


def test_digests_are_shown_to_those_who_may_change_them(connect: Callable[..., Client]) -> None:
    owner, other = connect(), connect()
    prove(owner)
    owner.create("/a", acl=[*OWN, *READ_ONLY])
    assert owner.call(Op.GET_ACL, "/a")[0] == [*OWN, *READ_ONLY]
    assert other.call(Op.GET_ACL, "/a")[0] == [OWN[0]._replace(id="user:x"), *READ_ONLY]


def test_addresses(client: Client) -> None:
    here, elsewhere = records.Acl(ALL, "ip", "127.0.0.0/8"), records.Acl(ALL, "ip", "192.0.2.1")
    assert client.create("/here", acl=[here]) == "/here"
    assert client.set("/here", b"").version == 1
    client.create("/elsewhere", acl=[elsewhere, *READ_ONLY])
    assert client.set("/elsewhere", b"") == Code.NO_AUTH


@pytest.mark.parametrize(
    "acl",
    [
        [],
        None,
        [records.Acl(ALL, "world", "somebody")],
        [records.Acl(ALL, "digest", "nohash")],
        [records.Acl(ALL, "ip", "nowhere")],
        [records.Acl(ALL, "auth", "")],
        [records.Acl(ALL, "unheard-of", "x")],
        [records.Acl(ALL, None, None)],
    ],
)
def test_lists_that_name_nobody(client: Client, acl: Any) -> None:
    assert client.create("/a", acl=acl) == Code.INVALID_ACL
    assert client.call(Op.SET_ACL, records.SetAcl("/", acl, -1)) == Code.INVALID_ACL


def test_the_same_twice_is_kept_once(client: Client) -> None:
    client.create("/a", acl=[*OPEN_ACL, *OPEN_ACL])
    assert client.call(Op.GET_ACL, "/a")[0] == list(OPEN_ACL)


def test_a_proof_of_an_unknown_kind_ends_the_connection(client: Client) -> None:
    assert prove(client, b"x", "unheard-of") == Code.AUTH_FAILED
    with pytest.raises(ClosedError):
        client.frame()


def test_who_am_i(client: Client) -> None:
    prove(client)
    assert client.call(Op.WHO_AM_I) == [("ip", "127.0.0.1"), ("digest", "user")]


def test_lists_outlive_the_server(store: Any) -> None:
    from tests.server.zookeeper.kit import Serving, clients

    with Serving(store.storage) as serving, clients(serving.port) as (client,):
        prove(client)
        client.create("/a", acl=OWN)
    with Serving(store.storage) as serving, clients(serving.port) as (client,):
        assert client.get("/a") == Code.NO_AUTH
