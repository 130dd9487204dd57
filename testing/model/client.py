"""Clients of a cluster, which create, open and delete ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bookstand.testing.model.reader import Reader
from bookstand.testing.model.servers import Bookie, Metadata, Servers
from bookstand.testing.model.session import Session
from bookstand.testing.model.values import (
    DEFAULT_DIGEST,
    DIGEST_MISMATCH,
    INCORRECT_PARAMETER,
    LEDGER_EXISTS,
    MISSING,
    NO_SUCH_LEDGER,
    NOT_ENOUGH_BOOKIES,
    UNAUTHORIZED,
    Missing,
    digest_name,
    error,
)
from bookstand.testing.model.writer import Writer, WriterAdv


class Cluster(Servers):
    """The metadata service and the bookies, shared by all clients."""

    def client(self, **settings: Any) -> Client:
        return Client(self, **settings)


class Client(Session):
    def create_ledger(self, **arguments: Any) -> Writer:
        return Writer(self, self._create(None, **arguments), arguments)

    def create_ledger_adv(self, ledger_id: int | Missing = MISSING, **arguments: Any) -> WriterAdv:
        if not isinstance(ledger_id, Missing) and ledger_id < 0:
            raise error(INCORRECT_PARAMETER)
        chosen = None if isinstance(ledger_id, Missing) else ledger_id
        return WriterAdv(self, self._create(chosen, **arguments), arguments)

    def _create(
        self,
        ledger_id: int | None,
        *,
        ensemble: int = 3,
        write_quorum: int = 2,
        ack_quorum: int = 2,
        digest: str | None = DEFAULT_DIGEST,
        password: bytes | Missing | None = MISSING,
        custom_metadata: dict[str, bytes] | Missing | None = MISSING,
        deferred_sync: bool | None = False,
    ) -> Metadata:
        self.check_open()
        if write_quorum > ensemble or ack_quorum > write_quorum or ack_quorum <= 0:
            raise error(INCORRECT_PARAMETER)
        if password is None or isinstance(password, Missing):
            raise error(INCORRECT_PARAMETER)
        if digest is None or custom_metadata is None or deferred_sync is None:
            raise error(INCORRECT_PARAMETER)
        cluster = self.cluster
        if ensemble > cluster.bookies:
            raise error(NOT_ENOUGH_BOOKIES)
        if ledger_id is None:
            while cluster.next_id in cluster.metadata:
                cluster.next_id += 1
            ledger_id = cluster.next_id
            cluster.next_id += 1
        elif ledger_id in cluster.metadata:
            raise error(LEDGER_EXISTS)
        # Format 1 has no fields for the password, the digest type and the custom metadata.
        old_format = self.metadata_format < 2
        metadata = Metadata(
            ledger_id=ledger_id,
            ensemble_size=ensemble,
            write_quorum_size=write_quorum,
            ack_quorum_size=ack_quorum,
            digest_type=None if old_format else digest_name(digest),
            password=None if old_format else password,
            custom_metadata={} if old_format or isinstance(custom_metadata, Missing) else dict(custom_metadata),
            format_version=self.metadata_format,
        )
        cluster.metadata[ledger_id] = metadata
        # Creating a ledger collects the remains of an earlier one with this id: entries and fence.
        earlier = cluster.ledgers.get(ledger_id)
        cluster.ledgers[ledger_id] = Bookie(generation=0 if earlier is None else earlier.generation + 1)
        return metadata

    def open_ledger(
        self, ledger_id: int | None, recovery: bool = False, password: bytes | None = b"", digest: str | None = None
    ) -> Reader:
        self.check_open()
        if password is None:
            raise error(INCORRECT_PARAMETER)
        metadata = self.cluster.get(ledger_id)
        if metadata.password is not None and metadata.password != password:
            raise error(UNAUTHORIZED)
        stored_digest = metadata.digest_type
        if (
            not self.digest_autodetect
            and digest is not None
            and stored_digest is not None
            and digest_name(digest) != stored_digest
        ):
            raise error(DIGEST_MISMATCH)
        reader = Reader(self, metadata, watching=not recovery)
        if metadata.is_closed:
            pass
        elif recovery:
            reader.recover()
        else:
            reader.read_last_confirmed_at_open()
        self.cluster.readers.append(reader)
        return reader

    def delete_ledger(self, ledger_id: int | None, missing_ok: bool = False) -> None:
        """Delete the metadata. The entries are collected later, or when the id is reused."""
        self.check_open()
        if ledger_id is None or ledger_id < 0:
            raise error(INCORRECT_PARAMETER)
        if ledger_id not in self.cluster.metadata:
            if missing_ok:
                return
            raise error(NO_SUCH_LEDGER)
        del self.cluster.metadata[ledger_id]

    def list_ledgers(self) -> Iterator[int]:
        self.check_open()
        return iter(sorted(self.cluster.metadata))

    def ledger_metadata(self, ledger_id: int | None) -> Metadata:
        self.check_open()
        return self.cluster.get(ledger_id)

    def is_closed(self, ledger_id: int | None) -> bool:
        return self.ledger_metadata(ledger_id).is_closed

    def write_ledger_metadata(self, metadata: Metadata, expected_version: int | None = None) -> int:
        self.check_open()
        return self.cluster.put(metadata, expected_version).version
