"""Clusters made for a test: a bookie with the ledgers that it wants, and the metadata about them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from bookstand import Store
from bookstand.disk.disks import Disks
from bookstand.disk.metadata.dump import DumpNode, MetadataDump, ledger_path
from bookstand.errors import LedgerError
from bookstand.ledger.handles.reader import LedgerReader
from bookstand.managed_ledger.records import (
    CursorInfo,
    LedgerInfo,
    ManagedLedgerInfo,
    encode_cursor_info,
    encode_ledger_info,
)
from bookstand.managed_ledger.topic_name import cursor_node_of, ledger_labels, node_of
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import decode
from bookstand.storage.format.ledger_metadata import CLOSED, OPEN, LedgerMetadata, serialize
from tests.disk.made import Bookie, entries

CRC32C = digest_for("crc32c", b"")
TOPIC = "persistent://acme/orders/made"
Change = Callable[[int, list[bytes]], list[bytes]]


def _all_of(reader: LedgerReader) -> Iterator[bytes]:
    """Entries that nobody has confirmed too."""
    for entry_id in itertools.count():
        try:
            yield reader.read_unconfirmed(entry_id, entry_id)[0].data
        except LedgerError:
            return


class Cluster:
    """One bookie; what is said is written when the disks are opened."""

    def __init__(self, folder: Path) -> None:
        self._bookie = Bookie(folder, "made:3181")
        self._folder = folder
        self._stored: list[bytes] = []
        self.nodes: dict[str, DumpNode] = {}

    def ledger(
        self,
        ledger_id: int,
        payloads: Iterable[bytes],
        *,
        custom: Mapping[str, bytes] | None = None,
        closed: bool = True,
        without: Iterable[int] = (),
    ) -> None:
        """A ledger in the metadata, and its entries on the disk but those ``without``."""
        stored = entries(CRC32C, ledger_id, payloads)
        length = sum(len(decode(CRC32C, ledger_id, number, one)[2]) for number, one in enumerate(stored))
        metadata = LedgerMetadata(
            ledger_id,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=[(0, ["made:3181"])],
            state=CLOSED if closed else OPEN,
            last_entry_id=len(stored) - 1 if closed else None,
            length=length if closed else None,
            digest_type="crc32c",
            password=b"",
            custom_metadata=custom,
        )
        self.node(ledger_path(ledger_id), serialize(metadata))
        self._stored += [one for number, one in enumerate(stored) if number not in set(without)]

    def node(self, path: str, value: bytes, mtime: int = 0) -> None:
        self.nodes[path] = DumpNode(path, value, 0, 0, mtime)

    def topic(self, ledgers: Mapping[int, Iterable[bytes]], name: str = TOPIC) -> None:
        """A topic with these ledgers."""
        infos = []
        for ledger_id, payloads in ledgers.items():
            kept = list(payloads)
            self.ledger(ledger_id, kept, custom=ledger_labels(name))
            infos.append(LedgerInfo(ledger_id, len(kept), sum(map(len, kept)), 1))
        self.node(node_of(name), encode_ledger_info(ManagedLedgerInfo(infos)))

    def cursor(self, name: str, info: CursorInfo, topic: str = TOPIC) -> None:
        self.node(cursor_node_of(topic, name), encode_cursor_info(info))

    def copy(self, store: Store, cursor: str, change: Change = lambda _, payloads: payloads) -> None:
        """What a store has of :data:`TOPIC` and one of its cursors; ``change`` may damage the entries of a ledger."""
        for ledger_id in store.list_ledgers():
            metadata = store.ledger_metadata(ledger_id)
            with contextlib.closing(store.open_ledger(ledger_id, recovery=False)) as reader:
                payloads = list(_all_of(reader))
            self.ledger(ledger_id, change(ledger_id, payloads), custom=metadata.custom_metadata)
        for node in (node_of(TOPIC), cursor_node_of(TOPIC, cursor)):
            self.node(node, store.nodes.get(node)[0])

    def open(self, *, metadata: bool = True) -> Disks:
        self._bookie.log(0, self._stored)
        self._bookie.journal(0, [])
        dump = MetadataDump(self.nodes, lambda damage: None) if metadata else None
        return Disks.open([self._folder], dump)
