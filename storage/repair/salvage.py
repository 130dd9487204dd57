"""Salvage of every record in a damaged data file, without LMDB.

The trees are followed from the meta pages. Every page that cannot be followed becomes a :class:`TreeGap`, a range of
keys that may be missing. Records in that range are then searched on all pages of the file, including free ones. A
record found this way may be outdated, or may have been deleted since. The file is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.ledger_metadata import has_metadata_header
from bookstand.storage.format.ledger_state import STATE_BYTES
from bookstand.storage.lmdb.environment import check_format
from bookstand.storage.lmdb.meta_page import META_PAGES
from bookstand.storage.lmdb.pages import NO_PAGE, Leaf, Node, PageReader, Tree, parse_page
from bookstand.storage.lmdb.tree_walk import KeyRanges, TreeGap, trees_at, unsealed, walk
from bookstand.storage.repair.record_index import RecordIndex
from bookstand.storage.repair.root_search import newest_intact_root
from bookstand.storage.served import bookie_replica

_CACHED_LEAVES = 64
_RECORDS_PER_REPORT = 4_096
# No release will have such a format number: it is damage.
_INVALID_FORMAT = 1 << 8

Progress = Callable[[int, int], None]
"""Receives the number of bytes processed so far, and the size of the file."""


class SalvagedRecord(NamedTuple):
    key: bytes
    in_place: Node | None
    elsewhere: list[Node]
    """Records with that key on pages outside the tree, or misplaced on its pages."""


class Salvage:
    """An untrusted data file. A context manager; close it afterwards."""

    def __init__(self, path: str, progress: Progress | None = None) -> None:
        self.path = path
        self.file = PageReader(path)
        try:
            self._progress = progress
            self.commit: int | None = None
            """Number of the commit that the trees belong to, if known."""
            self.doubts: list[str] = []
            """Defects of the file as a whole."""
            self.is_foreign = False
            """True if the meta pages lead to data of another program."""
            self.gaps: dict[bytes, list[TreeGap]] = {}
            # Misplaced records, as node index and page number.
            self._elsewhere = {name: RecordIndex() for name in schema.DATABASES}
            self._leaf = lru_cache(_CACHED_LEAVES)(self._leaf_at)
            self.trees = self._newest_trees()
            self._check_format()
            for name in schema.DATABASES:
                self._find_gaps(name)
            if any(self.gaps.values()):
                self._scan_all_pages()
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> Salvage:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    # -- records -----------------------------------------------------------------------------------------------------

    def records(self, database: bytes) -> Iterator[SalvagedRecord]:
        tree = self.trees.get(database)
        root = NO_PAGE if tree is None else tree.root
        in_place = ((node.key, 0, node) for node in walk(self.file, root, lambda _: None))
        others = ((key, 1, self._leaf(page)[index]) for key, page, index in self._elsewhere[database])
        for key, some in groupby(merge(in_place, others, key=itemgetter(0, 1)), key=itemgetter(0)):
            nodes = [(rank, node) for _, rank, node in some]
            first = nodes[0][1] if nodes[0][0] == 0 else None
            yield SalvagedRecord(key, first, [node for rank, node in nodes if rank])

    def value(self, node: Node) -> bytes | None:
        return self.file.value(node)

    def sealed(self, database: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
        """Each key with its :meth:`bodies`."""
        for found in self.records(database):
            yield found.key, self.bodies(database, found)

    def bodies(self, database: bytes, found: SalvagedRecord) -> list[bytes]:
        """Bodies of the valid sealed records under a key: the one in the tree, or else all others."""
        for nodes in ([] if found.in_place is None else [found.in_place], found.elsewhere):
            bodies = [body for node in nodes if (body := unsealed(self.file, database, found.key, node)) is not None]
            if bodies:
                return bodies
        return []

    # -- the trees ---------------------------------------------------------------------------------------------------

    def _newest_trees(self) -> dict[bytes, Tree]:
        metas = [meta for meta in self.file.metas if meta is not None]
        numbers = sorted(meta.transaction for meta in metas)
        in_turn = len(metas) == META_PAGES and (numbers == [0, 0] or numbers[1] == numbers[0] + 1)
        newest = max(metas, default=None)
        if in_turn and newest is not None:
            self.commit = newest.transaction
            gaps: list[TreeGap] = []
            trees = trees_at(self.file, newest.root, gaps.append)
            if trees and not gaps:
                # Trees that it does not name are searched page by page.
                return trees
            self.is_foreign = not gaps and not trees
        if in_turn:
            self.doubts.append("the root page of the main tree is damaged")
        elif metas:
            commits = ", ".join(str(number) for number in numbers)
            self.doubts.append(f"{len(metas)} of its {META_PAGES} meta pages can be read, with commit {commits}")
        else:
            self.doubts.append("neither of its meta pages can be read")
        of_metas = {meta.root: meta.transaction for meta in metas}
        roots = sorted({*of_metas, *self._possible_roots()})
        root, trees = newest_intact_root(self.file, roots, newest.root if newest else NO_PAGE)
        self.commit = of_metas.get(root)
        return trees

    def _possible_roots(self) -> Iterator[int]:
        """Pages that look like root pages, of the newest commit or of earlier ones."""
        for number, leaf in self._leaves():
            names = {node.key for node in leaf.nodes if node.is_tree}
            if names and names <= set(schema.DATABASES):
                yield number

    def _check_format(self) -> None:
        for key, in_place, _ in self.records(schema.META):
            value = b"" if in_place is None else in_place.value
            if key == schema.META_FORMAT and 0 < int.from_bytes(value, "big") < _INVALID_FORMAT:
                check_format(self.path, value)

    # -- misplaced records -------------------------------------------------------------------------------------------

    def _find_gaps(self, name: bytes) -> None:
        gaps = self.gaps[name] = []
        tree = self.trees.get(name)
        if tree is None:
            gaps.append(TreeGap(b"", None, None, "the page with the record of its tree cannot be read"))
            return
        for count, _ in enumerate(walk(self.file, tree.root, gaps.append)):
            if not count % _RECORDS_PER_REPORT:
                self._report_progress(self.file.bytes_read)

    def _report_progress(self, done: int) -> None:
        if self._progress is not None:
            self._progress(min(done, self.file.bytes), self.file.bytes)

    def _scan_all_pages(self) -> None:
        ranges = {name: KeyRanges(gaps) for name, gaps in self.gaps.items()}
        for number, leaf in self._leaves():
            for index, node in enumerate(leaf.nodes):
                name = self._database_of(node)
                if name is not None and node.key in ranges[name]:
                    self._elsewhere[name].add(node.key, number, index)
        for record_index in self._elsewhere.values():
            record_index.sort()

    def _leaf_at(self, number: int) -> list[Node]:
        page = self.file.page(number)
        found = None if page is None else parse_page(page)
        return found.nodes if isinstance(found, Leaf) else []

    def _leaves(self) -> Iterator[tuple[int, Leaf]]:
        number = META_PAGES
        while number < self.file.pages:
            page = self.file.page(number)
            found = None if page is None else parse_page(page)
            if isinstance(found, Leaf):
                yield number, found
            # The content of a large value is not decoded as pages.
            number += 1 if page is None else self.file.overflow_page_count(page, number)
            self._report_progress(number * self.file.page_size)

    def _database_of(self, node: Node) -> bytes | None:
        """Sub-database of a record, recognized by its content: entries begin with their ids, other records are sealed
        with their key. An entry is verified when it is copied."""
        key = node.key
        if node.is_tree:
            return None
        if len(key) == schema.ENTRY_KEY.size and self.file.value_prefix(node, len(key)) == key:
            return schema.ENTRIES
        if len(key) == schema.COPY_ENTRY.size and bookie_replica.may_be_override(
            key, self.file.value_prefix(node, bookie_replica.OVERRIDE_BYTES)
        ):
            return schema.COPIES
        body = unsealed(self.file, schema.META, key, node)
        if body is None:
            return None
        if len(key) == schema.COPY_LEDGER.size and bookie_replica.may_be_replica_state(key, body):
            return schema.COPIES
        if key.startswith(b"/"):
            return schema.NODES
        if key in (*schema.META_RECORDS, schema.META_WRITERS) or key.startswith(
            (schema.META_DELETED, *schema.META_OF_SERVERS)
        ):
            return schema.META
        if len(key) != schema.LEDGER_KEY.size:
            return None
        if has_metadata_header(body[sealed_record.VERSION.size :]):
            return schema.LEDGERS
        return schema.STATE if len(body) == STATE_BYTES else None
