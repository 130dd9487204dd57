"""Access control lists: client identities, validation, and permission checks."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from bookstand.server.zookeeper.protocol.protocol import Code, Permission, ZooKeeperError
from bookstand.server.zookeeper.protocol.records import Acl

# (scheme, id) of a client: its IP address, or a digest of authenticated credentials.
Identity = tuple[str, str]

MOST_BYTES = 16 << 10
"""Of an access control list. It is read and compared each time that its znode is looked up."""
_ENTRY_BYTES = 12


def digest_identity(credentials: bytes) -> Identity:
    """Identity for ``user:password`` credentials."""
    user = credentials.partition(b":")[0].decode("utf-8", "replace")
    return "digest", f"{user}:{base64.b64encode(hashlib.sha1(credentials).digest()).decode()}"


def fix_acl(path: str, acl: Sequence[Acl] | None, identities: Iterable[Identity]) -> tuple[Acl, ...]:
    """Validate a list for storage: remove duplicates, and replace ``auth`` by the client's authenticated ids."""
    if not acl:
        raise _invalid(path, "it is empty")
    identities = list(identities)
    fixed: dict[Acl, None] = {}
    size = 0
    for entry in acl:
        for meant in _meant(path, entry, identities):
            if meant in fixed:
                continue
            size += _ENTRY_BYTES + sum(len(text.encode()) for text in meant[1:] if text)
            if size > MOST_BYTES:
                raise _invalid(path, f"it has more than {MOST_BYTES} bytes")
            fixed[meant] = None
    return tuple(fixed)


def _meant(path: str, entry: Acl, identities: Sequence[Identity]) -> Sequence[Acl]:
    scheme, name = entry.scheme, entry.id
    if scheme == "auth":
        proved = [Acl(entry.permissions, *identity) for identity in identities if identity[0] == "digest"]
        if not proved:
            raise _invalid(path, "scheme auth requires an authenticated connection")
        return proved
    if scheme is None or name is None or not _is_valid(scheme, name):
        raise _invalid(path, f"{scheme}:{name} is not a valid identity")
    return (entry,)


def _invalid(path: str, why: str) -> ZooKeeperError:
    return ZooKeeperError(Code.INVALID_ACL, f"the access control list for {path!r} is not valid: {why}")


def _is_valid(scheme: str, name: str) -> bool:
    if scheme == "world":
        return name == "anyone"
    if scheme == "digest":
        return name.count(":") == 1
    if scheme == "ip":
        try:
            ip_network(name, strict=False)
        except ValueError:
            return False
        return True
    return False


def allows(acl: Sequence[Acl], wanted: Permission, identities: Iterable[Identity]) -> bool:
    """True if the list grants at least one of the permissions to at least one of the identities."""
    for entry in acl:
        if entry.permissions & wanted:
            if entry.scheme == "world":
                return True
            if any(_matches(entry, identity) for identity in identities):
                return True
    return False


def check_allowed(path: str, acl: Sequence[Acl], wanted: Permission, identities: Iterable[Identity]) -> None:
    if not allows(acl, wanted, identities):
        raise ZooKeeperError(Code.NO_AUTH, f"{path!r}: no permission to {wanted.name}")


def _matches(entry: Acl, identity: Identity) -> bool:
    scheme, name = identity
    if entry.scheme != scheme or entry.id is None:
        return False
    if scheme == "ip":
        return _address(name) in _network(entry.id)
    return entry.id == name


@lru_cache(maxsize=1 << 10)
def _address(name: str) -> IPv4Address | IPv6Address:
    return ip_address(name)


@lru_cache(maxsize=1 << 10)
def _network(name: str) -> IPv4Network | IPv6Network:
    return ip_network(name, strict=False)


def without_secrets(acl: Sequence[Acl]) -> list[Acl]:
    """Mask digests, for readers without ADMIN permission."""
    return [
        entry._replace(id=f"{entry.id.partition(':')[0]}:x") if entry.scheme == "digest" and entry.id else entry
        for entry in acl
    ]
