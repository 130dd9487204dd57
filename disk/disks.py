"""Read access to the disks of bookies, with or without a dump of the cluster's metadata."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from types import TracebackType

from bookstand.disk.bookies.copy_catalog import Catalog, Progress
from bookstand.disk.bookies.discovery import BookieDisk, find_bookies
from bookstand.disk.bookies.disk_ledger import DiskLedger, StoredEntry
from bookstand.disk.damage import Damage
from bookstand.disk.format.entry_block import Digests, KnownDigests, TryAllDigests
from bookstand.disk.metadata.dump import MetadataDump
from bookstand.errors import IncorrectParameterError, NoSuchLedgerError
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.digest import master_key

__all__ = ["DiskLedger", "Disks", "StoredEntry", "digests_of"]

# Number of ledgers cached with their extents.
_KEPT_LEDGERS = 64


class Disks:
    """Disks opened for reading: a context manager, created by :meth:`open`. ``damage`` grows as data is read."""

    def __init__(
        self,
        bookies: list[BookieDisk],
        dump: MetadataDump | None,
        catalog: Catalog,
        damage: list[Damage],
        passwords: Sequence[bytes],
        limits: ExpansionLimits = DEFAULT,
    ) -> None:
        self.bookies = bookies
        self.dump = dump
        self.catalog = catalog
        self.damage = damage
        self.limits = limits
        self._passwords = passwords
        self._kept: OrderedDict[int, DiskLedger] = OrderedDict()
        self._compare_keys()

    @classmethod
    def open(
        cls,
        paths: Iterable[str | os.PathLike[str]],
        metadata: MetadataDump | str | os.PathLike[str] | None = None,
        passwords: Sequence[bytes] = (),
        *,
        folder: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        limits: ExpansionLimits = DEFAULT,
    ) -> Disks:
        """Scan all files of the bookies at or below ``paths``.

        ``metadata``: a dump or its path. ``passwords``: candidates for ledgers whose password is not in the metadata;
        the empty password, which Pulsar uses, is always tried. ``folder``: where temporary files for sorting are
        created (:meth:`Catalog.build`).
        """
        if isinstance(passwords, bytes | str) or not all(isinstance(password, bytes) for password in passwords):
            raise IncorrectParameterError("passwords are given as a list of bytes")
        passwords = tuple(dict.fromkeys((*passwords, b"")))
        damage: list[Damage] = []
        bookies = find_bookies(paths, damage.append)
        dump = metadata
        if not (dump is None or isinstance(dump, MetadataDump)):
            dump = MetadataDump.open(dump, damage.append, limits)
        digests = digests_of(dump, passwords)
        catalog = Catalog.build(bookies, digests, damage.append, folder=folder, progress=progress)
        try:
            return cls(bookies, dump, catalog, damage, passwords, limits)
        except BaseException:
            catalog.close()
            raise

    def __enter__(self) -> Disks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._kept.clear()
        self.catalog.close()

    @property
    def ledger_ids(self) -> list[int]:
        """Ids of the ledgers in the metadata or with entries on the disks, ascending."""
        found = self.catalog.ledger_ids
        return found if self.dump is None else sorted({*found, *self.dump.ledgers})

    def ledger(self, ledger_id: int) -> DiskLedger:
        """Return a ledger, or raise :class:`NoSuchLedgerError`."""
        kept = self._kept.pop(ledger_id, None)
        if kept is None:
            metadata = None if self.dump is None else self.dump.ledgers.get(ledger_id)
            if metadata is None and not self._is_on_disks(ledger_id):
                raise NoSuchLedgerError(f"ledger {ledger_id} is neither on the disks nor in the metadata")
            kept = DiskLedger(ledger_id, metadata, self.catalog, self.damage.append, self._passwords)
            if len(self._kept) >= _KEPT_LEDGERS:
                self._kept.popitem(last=False)
        self._kept[ledger_id] = kept
        return kept

    def _is_on_disks(self, ledger_id: int) -> bool:
        """Check for any trace of a ledger: one without entries may have been fenced or have a master key."""
        specials = (self.catalog.fenced, self.catalog.master_keys, self.catalog.explicit_lacs)
        return any(ledger_id in known for known in specials) or self.catalog.has(ledger_id)

    def _compare_keys(self) -> None:
        """Report ledgers whose master key on the bookies does not match the password in the metadata."""
        if self.dump is None:
            return
        for ledger_id, key in self.catalog.master_keys.items():
            metadata = self.dump.ledgers.get(ledger_id)
            if metadata is not None and metadata.has_password and master_key(metadata.password) != key:
                what = "the master key that its bookies have is not that of the password in the metadata"
                self.damage.append(Damage(self.dump.ledger_path(ledger_id), -1, what, ledger_id))


def digests_of(dump: MetadataDump | None, passwords: Sequence[bytes]) -> Digests:
    """Return the digests to check entries by: the metadata's, or all of them for other ledgers."""
    if dump is None:
        return TryAllDigests(passwords)
    known = {
        ledger_id: (metadata.digest_type, metadata.password)
        for ledger_id, metadata in dump.ledgers.items()
        if metadata.digest_type is not None
    }
    return KnownDigests(known, passwords)
