"""Table of entries: columnar reads of entries from stores and bookies' disks.

A plan determines the entries to read, so that all tasks use the same end of each ledger. For stores, the plan has
ranges of entries. For disks, it has file, offset and size of the best copy of each entry: planning reads every file
once, and tasks read only these copies and verify them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from zlib import compress, decompress

import numpy as np
from numpy.typing import NDArray

from bookstand.disk.bookies.disk_ledger import DiskLedger
from bookstand.disk.bookies.external_sort import ExternalSorter
from bookstand.disk.damage import Damage
from bookstand.disk.format.digest_check import CandidateEntries as Placed
from bookstand.disk.format.digest_check import DigestChecker, headers
from bookstand.disk.format.entry_block import BAD, GOOD, LENGTH_BYTES, NO_DIGEST, KnownDigests
from bookstand.disk.format.tolerant_file import TolerantFile
from bookstand.disk.store_source import StoreLedger, StoreSource
from bookstand.errors import DigestMismatchError, NoSuchLedgerError
from bookstand.pipeline.tables.arrow import pa
from bookstand.pipeline.tables.partitioning import ROW_BYTES, PlanDamage, Range, ReadPart, split, target_parallelism
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.record_batches import from_columns, from_damage
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source
from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format.digest import Digest, digest_for
from bookstand.storage.format.entry_batch import decode_entries

if TYPE_CHECKING:
    from bookstand.disk.bookies.ledger_end import LedgerEnd
    from bookstand.disk.disks import Disks

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]


class EntryColumns(NamedTuple):
    """Entries in columnar form. Expensive columns are callables, evaluated on demand."""

    ledger_ids: Column | int
    entry_ids: Column
    lacs: Column | Callable[[], Column]
    lengths: Column
    sizes: Column
    checked: NDArray[np.bool_] | bool
    payloads: Callable[[], pa.Array]
    pieces: Callable[[], Sequence[bytes]]
    """Payloads as separate objects."""


Ledgers = Callable[[int], bool]


# -- planning ----------------------------------------------------------------------------------------------------------


def plan(place: DataSource, query: Query) -> list[ReadPart]:
    return plan_entries(place, query, lambda ledger_id: True)


def plan_entries(place: DataSource, query: Query, wanted: Ledgers, disks: Disks | None = None) -> list[ReadPart]:
    """Plan a read of the entries in ledgers that both ``wanted`` and the query select."""
    if disks is None:
        with open_source(place, query.passwords) as found:
            return plan_entries(place, query, wanted, found)
    chosen = [one for one in disks.ledger_ids if query.wanted.has("ledger_id", one) and wanted(one)]
    low, high = query.wanted.range("entry_id")
    low = max(low, 0)
    if place.kind == STORE:
        ranges = []
        for ledger_id in chosen:
            ledger = disks.ledger(ledger_id)
            one = _range(ledger.extent, ledger_id, low, high)
            if one.entries > 0:
                ranges.append(one)
            _report_gaps(place, disks, ledger, low, high)
        parts = parts_of(place, query, ranges)
    else:
        parts = _plan_files(place, query, disks, chosen, low, high)
    damage = [one for one in disks.damage if _concerns(one, query, wanted)]
    return [*parts, ReadPart(place, PlanDamage(tuple(damage)))] if damage else parts


def parts_of(place: DataSource, query: Query, ranges: Sequence[Range]) -> list[ReadPart]:
    """Divide ranges of a store's ledgers into parts."""
    weight = sum(one.weight for one in ranges)
    return [
        ReadPart(place, tuple(part), sum(one.weight for one in part))
        for part in split(ranges, target_parallelism(query, weight))
    ]


def _range(extent: LedgerEnd, ledger_id: int, low: int, high: int) -> Range:
    first, last = low, min(high, extent.last_entry)
    count = max(0, last - first + 1)
    share = extent.length * count // (extent.last_entry + 1) if extent.last_entry >= 0 else 0
    return Range(ledger_id, first, last, share + ROW_BYTES * count)


def _report_gaps(place: DataSource, disks: Disks, ledger: DiskLedger, low: int, high: int) -> None:
    """Report missing entries. In stores, missing entries that were certainly stored are reported by the read."""
    state = getattr(ledger, "state", None)
    for first, last in ledger.extent.missing:
        if last >= low and first <= high and not (state is not None and state.must_exist(first)):
            what = f"entry {first} is nowhere" if first == last else f"entries {first} to {last} are nowhere"
            disks.damage.append(Damage(place.name, -1, what, ledger.id, max(first, low)))


def _concerns(damage: Damage, query: Query, wanted: Ledgers) -> bool:
    """Return True if the damage affects the query. Damage of an unknown ledger may affect any ledger."""
    return damage.ledger_id < 0 or (query.wanted.has("ledger_id", damage.ledger_id) and wanted(damage.ledger_id))


# -- planning for disks ------------------------------------------------------------------------------------------------

_PLACES = {"file": "i8", "offset": "i8", "size": "i8", "ledger": "i8", "good": "?"}


class PackedEntries(NamedTuple):
    """Compressed locations of entries in a file. ``gaps`` are the distances from the end of the previous entry, and
    ``good`` has a bit for each entry whose digest was correct."""

    path: str
    gaps: bytes
    sizes: bytes
    good: bytes


class DiskWork(NamedTuple):
    """Work item: entries of disks. ``digests`` has digest type and password of each ledger, if known. ``slots`` has the
    digest size of each ledger, for entries whose digest could not be identified."""

    stretches: tuple[PackedEntries, ...]
    digests: Mapping[int, tuple[str, bytes | None]]
    slots: Mapping[int, int]


def _plan_files(
    place: DataSource, query: Query, disks: Disks, ledger_ids: Sequence[int], low: int, high: int
) -> list[ReadPart]:
    sorter = ExternalSorter(_PLACES, "file", "offset", lambda rows: np.lexsort((rows["offset"], rows["file"])))
    weight = 0
    try:
        for ledger_id in ledger_ids:
            ledger = disks.ledger(ledger_id)
            _report_gaps(place, disks, ledger, low, high)
            for copies in disks.catalog.blocks(ledger_id, low, min(high, ledger.extent.last_entry)):
                best = copies.rows(copies.firsts())
                weight += int(best.sizes.sum()) + ROW_BYTES * len(best)
                ledgers = np.full(len(best), ledger_id)
                good = best.verdicts == GOOD
                sorter.add(
                    {"file": best.files, "offset": best.offsets, "size": best.sizes, "ledger": ledgers, "good": good}
                )
        share = -(-weight // target_parallelism(query, weight)) if weight else 1
        works: list[_Growing] = []
        for rows in sorter.merged():
            heavy = np.cumsum(rows["size"] + ROW_BYTES)
            start = 0
            while start < len(heavy):
                if not works or works[-1].weight >= share:
                    works.append(_Growing())
                used = int(heavy[start - 1]) if start else 0
                stop = max(start + 1, int(np.searchsorted(heavy, used + share - works[-1].weight, "right")))
                works[-1].add({name: column[start:stop] for name, column in rows.items()})
                start = stop
        return [ReadPart(place, work.done(disks), work.weight) for work in works]
    finally:
        sorter.close()


class _Growing:
    def __init__(self) -> None:
        self.weight = 0
        self._files: dict[int, list[tuple[Column, Column, Mask]]] = {}
        self._ledgers: set[int] = set()

    def add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        self.weight += int(rows["size"].sum()) + ROW_BYTES * len(rows["size"])
        self._ledgers.update(np.unique(rows["ledger"]).tolist())
        starts = np.flatnonzero(np.diff(rows["file"], prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(rows["file"])], strict=True):
            some = rows["offset"][start:stop], rows["size"][start:stop], rows["good"][start:stop]
            self._files.setdefault(int(rows["file"][start]), []).append(some)

    def done(self, disks: Disks) -> DiskWork:
        stretches = []
        for file, parts in self._files.items():
            columns = (np.concatenate(column) for column in zip(*parts, strict=True))
            stretches.append(_packed(str(disks.catalog.files[file].path), *columns))
        digests: dict[int, tuple[str, bytes | None]] = {}
        slots = {}
        for ledger_id in sorted(self._ledgers):
            ledger = disks.ledger(ledger_id)
            metadata = ledger.metadata
            if metadata is not None and metadata.digest_type is not None:
                digests[ledger_id] = metadata.digest_type, metadata.password if metadata.has_password else None
            slots[ledger_id] = digest_for(ledger.digest_name or "dummy", b"").size
        return DiskWork(tuple(stretches), digests, slots)


def _packed(path: str, offsets: Column, sizes: Column, good: Mask) -> PackedEntries:
    ends = offsets + sizes
    gaps = np.diff(offsets, prepend=0)
    gaps[1:] = offsets[1:] - ends[:-1]
    return PackedEntries(
        path, *(compress(part.tobytes(), 1) for part in (gaps, sizes.astype(np.int64), np.packbits(good)))
    )


def _unpacked(stretch: PackedEntries) -> tuple[Column, Column, Mask]:
    """Decompress offsets, sizes and the flags for correct digests."""
    gaps, sizes = (np.frombuffer(decompress(part), np.int64) for part in (stretch.gaps, stretch.sizes))
    good = np.unpackbits(np.frombuffer(decompress(stretch.good), np.uint8), count=len(sizes)).astype(bool)
    return np.cumsum(gaps + sizes) - sizes, sizes, good


# -- reading -----------------------------------------------------------------------------------------------------------


def read(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    for run in runs(part, query):
        if not isinstance(run, EntryColumns):
            yield from from_damage(query, part.place, run)
            continue
        yield from_columns(
            query,
            part.place,
            len(run.entry_ids),
            {
                "ledger_id": run.ledger_ids,
                "entry_id": run.entry_ids,
                "lac": run.lacs,
                "cumulative_length": run.lengths,
                "size": run.sizes,
                "checked": run.checked,
                "payload": run.payloads,
            },
        )


def runs(part: ReadPart, query: Query) -> Iterator[EntryColumns | Sequence[Damage]]:
    """Yield the entries of a part in runs, and damage where it is encountered."""
    if isinstance(part.work, PlanDamage):
        yield part.work.damage
    elif isinstance(part.work, DiskWork):
        yield from _runs_of_files(part.work, query.passwords)
    else:
        with open_source(part.place, query.passwords) as source:
            yield from _runs_of_store(cast("StoreSource", source), part.work)


# -- reading stores ----------------------------------------------------------------------------------------------------


def _runs_of_store(source: StoreSource, ranges: Iterable[Range]) -> Iterator[EntryColumns | Sequence[Damage]]:
    for ledger_id, first, last, _ in ranges:
        seen = len(source.damage)
        try:
            yield from _runs_of_ledger(source, source.ledger(ledger_id), first, last)
        except NoSuchLedgerError:
            source.report("the ledger is gone since the read was planned", ledger_id)
        if len(source.damage) > seen:
            yield source.damage[seen:]


def _runs_of_ledger(source: StoreSource, ledger: StoreLedger, first: int, last: int) -> Iterator[EntryColumns]:
    name = ledger.digest_name or "crc32c"
    passwords = source.passwords if name == "hmac" else [b""]
    if name == "hmac" and ledger.metadata is not None and ledger.metadata.has_password:
        passwords = [ledger.metadata.password]
    digests = [digest_for(name, password) for password in passwords]
    for start, stored in ledger.stored(first, last):
        for digest in digests:
            try:
                lengths, payloads = decode_entries(digest, ledger.id, start, stored)
            except DigestMismatchError:
                continue
            yield _run_of_store(ledger.id, digest, np.arange(start, start + len(stored)), stored, lengths, payloads)
            break
        else:
            # No digest matches the run. Check its entries one by one, which reports the damaged ones.
            good = list(ledger.entries(start, start + len(stored) - 1, beyond=True))
            if good:
                ids, lengths = np.array([one.entry_id for one in good]), [one.cumulative_length for one in good]
                whole = [one.stored for one in good]
                yield _run_of_store(ledger.id, digests[0], ids, whole, lengths, [one.payload for one in good])


def _run_of_store(
    ledger_id: int,
    digest: Digest,
    entry_ids: Column,
    stored: Sequence[bytes],
    lengths: Sequence[int],
    payloads: Sequence[bytes],
) -> EntryColumns:

    def lacs() -> Column:
        heads = b"".join([one[: layout.HEADER_BYTES] for one in stored])
        return np.frombuffer(heads, ">i8").reshape(-1, 4)[:, 2].astype(np.int64)

    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    return EntryColumns(
        ledger_id,
        entry_ids,
        lacs,
        np.array(lengths, np.int64),
        sizes,
        bool(digest.size),
        lambda: pa.array(payloads, pa.binary()),
        lambda: payloads,
    )


# -- reading disks -----------------------------------------------------------------------------------------------------

_READ_BYTES = 4 << 20
# Two entries are read together, with the bytes between them, if their distance is not larger.
_NEAR = 1 << 16


def _runs_of_files(work: DiskWork, passwords: Sequence[bytes]) -> Iterator[EntryColumns | Sequence[Damage]]:
    digests = KnownDigests(work.digests, (*passwords, b""))
    damage: list[Damage] = []
    for stretch in work.stretches:
        with TolerantFile(stretch.path, damage.append) as file:
            judge = DigestChecker(file, digests)
            offsets, sizes, good = _unpacked(stretch)
            for piece in _pieces(offsets, sizes):
                yield from _run_of_file(file, judge, offsets[piece], sizes[piece], good[piece], work.slots)
        if damage:
            yield tuple(damage)
            damage.clear()


def _pieces(offsets: Column, sizes: Column) -> Iterator[slice]:
    ends = offsets + sizes
    far = np.append(np.flatnonzero(offsets[1:] - ends[:-1] > _NEAR) + 1, len(offsets))
    start = 0
    while start < len(offsets):
        stop = max(start + 1, int(np.searchsorted(ends, offsets[start] + _READ_BYTES, "right")))
        stop = min(stop, int(far[np.searchsorted(far, start, "right")]))
        yield slice(start, stop)
        start = stop


def _run_of_file(
    file: TolerantFile, judge: DigestChecker, offsets: Column, sizes: Column, good: Mask, slots: Mapping[int, int]
) -> Iterator[EntryColumns | Sequence[Damage]]:
    begin = int(offsets[0]) - LENGTH_BYTES
    data = file.read(begin, int(offsets[-1] + sizes[-1]) - begin)
    starts = offsets - begin
    there = (starts + sizes <= len(data)) & (sizes >= layout.HEADER_BYTES)
    records = offsets - LENGTH_BYTES
    bad = np.flatnonzero(~there)
    if len(bad):
        what = "the file has ended before it since the read was planned"
        yield [Damage(file.name, at, what) for at in records[bad].tolist()]
        starts, sizes, records, good = starts[there], sizes[there], records[there], good[there]
    if not len(starts):
        return
    octets, fields = headers(data, starts)
    verdicts, found = judge.rows(data, Placed(starts, sizes, octets, fields))
    right = (verdicts == GOOD) | ((verdicts != BAD) & ~good)
    wrong = np.flatnonzero(~right)
    if len(wrong):
        what = "it is not what it was when the read was planned"
        yield [
            Damage(file.name, int(records[row]), what, int(fields[row, 0]), int(fields[row, 1]))
            for row in wrong.tolist()
        ]
        starts, sizes, fields = starts[right], sizes[right], fields[right]
        verdicts, found = verdicts[right], found[right]
    if not len(starts):
        return
    if (found == NO_DIGEST).any():
        told = np.array([slots[ledger_id] for ledger_id in fields[:, 0].tolist()], np.int64)
        found = np.where(found == NO_DIGEST, told, found)
    begins, ends = starts + layout.HEADER_BYTES + found, starts + sizes
    begins = np.minimum(begins, ends)
    ledger_ids, entry_ids, lacs, lengths = (np.ascontiguousarray(fields[:, field]) for field in range(4))
    yield EntryColumns(
        ledger_ids,
        entry_ids,
        lacs,
        lengths,
        ends - begins,
        verdicts == GOOD,
        lambda: _cut(data, begins, ends),
        lambda: [data[start:end] for start, end in zip(begins.tolist(), ends.tolist(), strict=True)],
    )


def _cut(data: bytes, begins: Column, ends: Column) -> pa.Array:
    """Array of slices of ``data``. The bytes between slices are elements too, which ``take`` leaves out."""
    offsets = np.empty(2 * len(begins), np.int32)
    offsets[0::2], offsets[1::2] = begins, ends
    pieces = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, len(offsets), 2)))
