"""Registration of a store's bookies in its metadata: the cluster's layout, the cookies and the available bookies.

A bookie that is served has a node below ``available``; the node is not bound to a session. Ledger metadata refers to a
bookie by its id, the address at which it first listened, which its cookie preserves. The node below ``available`` has
its current address, so clients find ledgers after a change of ports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import uuid4

from bookstand.errors import IncorrectParameterError, MalformedError
from bookstand.ledger.cluster.cookie import Cookie, parse, serialize
from bookstand.ledger.cluster.ledger_path import ROOT
from bookstand.ledger.cluster.paths import (
    AVAILABLE,
    COOKIES,
    HIERARCHICAL,
    INSTANCE_ID,
    LAYOUT,
    READ_ONLY,
    service_info,
)
from bookstand.server.bind_errors import Address
from bookstand.storage.commit.node_operations import DeleteNode, PutNode
from bookstand.storage.commit.operations import ANY_VERSION, WriteBatch, WriteSet
from bookstand.storage.format import schema
from bookstand.storage.storage import Storage

_FOLDER = "bookstand/"
"""Prefix of the journal and ledger directory in a cookie of this store; the bookie's number follows."""


class Registration:
    """The registration of one store's bookies, which are numbered from 1. All methods wait for a commit."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names = self._names_in_cookies()
        self._places: dict[str, bytes] = {}
        """Content of each served bookie's node below ``available``, by bookie id."""
        self._gone: set[str] = set()
        self._read_only = False

    def address_before(self, number: int) -> Address | None:
        """Address at which a bookie first listened."""
        name = self._names.get(number)
        if name is None:
            return None
        host, _, port = name.rpartition(":")
        return host, int(port)

    def announce(self, addresses: Sequence[Address]) -> list[str]:
        """Register the bookies at these addresses, in the order of their numbers. Return their names."""
        names = dict(self._names)
        for number, (host, port) in enumerate(addresses, 1):
            listening = f"{host}:{port}"
            other = next((other for other, name in names.items() if name == listening and other != number), None)
            if other is not None:
                raise IncorrectParameterError(
                    f"store {self._storage.path}: {listening} is the name of bookie {other}, and cannot be where "
                    f"bookie {number} listens"
                )
            names.setdefault(number, listening)
        self._places = {names[number]: service_info(*address) for number, address in enumerate(addresses, 1)}
        self._gone, self._read_only = set(), False
        self._storage.apply(WriteBatch(*self._missing(names), self._presence(names)))
        self._names = names
        return list(self._places)

    def set_read_only(self, read_only: bool) -> None:
        """List all bookies as read-only, or as writable."""
        self._read_only = read_only
        self._list()

    def set_gone(self, name: str, gone: bool) -> None:
        """Remove one bookie from the list, or restore it."""
        (self._gone.add if gone else self._gone.discard)(name)
        self._list()

    def withdraw(self) -> None:
        """Remove all bookies from the list."""
        self._places = {}
        self._list()

    def _list(self) -> None:
        self._storage.apply(WriteBatch(self._presence(self._names)))

    def _presence(self, names: Mapping[int, str]) -> _Presence:
        there = {name: place for name, place in self._places.items() if name not in self._gone}
        return _Presence({}, there, names.values()) if self._read_only else _Presence(there, {}, names.values())

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _names_in_cookies(self) -> dict[int, str]:
        names = {}
        for name in self._storage.child_names(schema.NODES, COOKIES):
            found = self._storage.node(f"{COOKIES}/{name}")
            number = None if found is None else _number_in(found[0])
            if number is not None:
                names[number] = name
        return names

    def _missing(self, names: Mapping[int, str]) -> list[PutNode]:
        """Operations that create the missing nodes of a cluster with these bookies."""
        found = self._storage.node(INSTANCE_ID)
        instance = str(uuid4()) if found is None else found[0].decode(errors="replace")
        wanted = {
            ROOT: b"",
            LAYOUT: HIERARCHICAL,
            INSTANCE_ID: instance.encode(),
            AVAILABLE: b"",
            READ_ONLY: b"",
            COOKIES: b"",
            **self._cookies(names, instance),
        }
        return [PutNode(path, value, ANY_VERSION) for path, value in wanted.items() if self._storage.node(path) is None]

    def _cookies(self, names: Mapping[int, str], instance: str) -> dict[str, bytes]:
        """Cookies for the bookies without one."""
        made = {}
        for number, name in names.items():
            if number in self._names:
                continue
            path, folder = f"{COOKIES}/{name}", f"{_FOLDER}{number}"
            if self._storage.node(path) is not None:
                raise IncorrectParameterError(
                    f"store {self._storage.path} has the cookie of another bookie that is called {name}: let bookie "
                    f"{number} listen elsewhere"
                )
            made[path] = serialize(Cookie(name, (folder,), (folder,), instance))
        return made


class _Presence:
    """Operation that lists exactly these bookies. Accepted by a full store, whose bookies must become read-only; the
    new nodes replace removed ones."""

    def __init__(self, available: Mapping[str, bytes], read_only: Mapping[str, bytes], names: Collection[str]) -> None:
        self._wanted = {
            **{f"{AVAILABLE}/{name}": None for name in names},
            **{f"{READ_ONLY}/{name}": None for name in names},
            **{f"{AVAILABLE}/{name}": value for name, value in available.items()},
            **{f"{READ_ONLY}/{name}": value for name, value in read_only.items()},
        }

    def apply(self, staging: WriteSet) -> None:
        for path, value in self._wanted.items():
            found = staging.versioned(schema.NODES, path.encode())
            if value is None and found is not None:
                DeleteNode(path, ANY_VERSION).apply(staging)
            elif value is not None and (found is None or found[0] != value):
                PutNode(path, value, ANY_VERSION).apply(staging)


def _number_in(data: bytes) -> int | None:
    """Number of the store's bookie that a cookie belongs to; None for any other cookie."""
    try:
        (folder,) = parse(data).journal_folders
    except (MalformedError, ValueError):
        return None
    number = folder.removeprefix(_FOLDER)
    return int(number) if folder.startswith(_FOLDER) and number.isdecimal() else None
