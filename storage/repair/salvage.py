"""Every record that a damaged data file still has, past LMDB.

The trees are followed from the header down, and every page that cannot be followed becomes a :class:`TreeGap`: keys
that may be missing. What belongs there is then looked for on every page of the file, used or given up long ago; a
record that was found so may be an older one than the last, or one that was deleted since. Nothing is changed.
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

_LEAVES_KEPT = 64
_TOLD_EVERY = 4_096
# No release will ever have a format of such a number: it is damage.
_NO_FORMAT = 1 << 8

Progress = Callable[[int, int], None]
"""Told how many bytes of the file of how many have been looked at."""


class SalvagedRecord(NamedTuple):
    key: bytes
    in_place: Node | None
    elsewhere: list[Node]
    """What was found under the key on pages that do not belong to the tree, or not there."""


class Salvage:
    """A data file of which nothing is believed. Close it in the end; a context manager."""

    def __init__(self, path: str, progress: Progress | None = None) -> None:
        self.path = path
        self.file = PageReader(path)
        try:
            self._progress = progress
            self.commit: int | None = None
            """The number of the commit that the trees are of, if the header tells."""
            self.doubts: list[str] = []
            """What is wrong with the file as a whole."""
            self.is_of_others = False
            """Whether its header leads to what is not bookstand's."""
            self.breaks: dict[bytes, list[TreeGap]] = {}
            # Where records were found that are not in their place: which node of which page.
            self._elsewhere = {name: RecordIndex() for name in schema.DATABASES}
            self._leaf = lru_cache(_LEAVES_KEPT)(self._leaf_at)
            self.trees = self._newest_trees()
            self._check_format()
            for name in schema.DATABASES:
                self._look_for_breaks(name)
            if any(self.breaks.values()):
                self._look_everywhere()
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> Salvage:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    # -- what there is -----------------------------------------------------------------------------------------------

    def records(self, database: bytes) -> Iterator[SalvagedRecord]:
        """By ascending keys."""
        tree = self.trees.get(database)
        root = NO_PAGE if tree is None else tree.root
        in_place = ((node.key, 0, node) for node in walk(self.file, root, lambda _: None))
        others = ((key, 1, self._leaf(page)[place]) for key, page, place in self._elsewhere[database])
        for key, some in groupby(merge(in_place, others, key=itemgetter(0, 1)), key=itemgetter(0)):
            nodes = [(rank, node) for _, rank, node in some]
            first = nodes[0][1] if nodes[0][0] == 0 else None
            yield SalvagedRecord(key, first, [node for rank, node in nodes if rank])

    def value(self, node: Node) -> bytes | None:
        return self.file.value(node)

    def sealed(self, database: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
        """Of each key the :meth:`bodies`."""
        for found in self.records(database):
            yield found.key, self.bodies(database, found)

    def bodies(self, database: bytes, found: SalvagedRecord) -> list[bytes]:
        """Of the records under a key that are as they were sealed: that in its place, or else all others."""
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
            breaks: list[TreeGap] = []
            trees = trees_at(self.file, newest.root, breaks.append)
            if trees and not breaks:
                # Those that it does not name are looked for page by page.
                return trees
            self.is_of_others = not breaks and not trees
        if in_turn:
            self.doubts.append("the page that all others hang on cannot be read as it is")
        elif metas:
            told = ", ".join(str(number) for number in numbers)
            self.doubts.append(f"of its two header pages {len(metas)} can be read, and told of is commit {told}")
        else:
            self.doubts.append("none of its two header pages can be read")
        of_metas = {meta.root: meta.transaction for meta in metas}
        roots = sorted({*of_metas, *self._possible_roots()})
        root, trees = newest_intact_root(self.file, roots, newest.root if newest else NO_PAGE)
        self.commit = of_metas.get(root)
        return trees

    def _possible_roots(self) -> Iterator[int]:
        """Pages that look as if all others hung on them: of the last commit, and of earlier ones."""
        for number, leaf in self._leaves():
            names = {node.key for node in leaf.nodes if node.is_tree}
            if names and names <= set(schema.DATABASES):
                yield number

    def _check_format(self) -> None:
        for key, in_place, _ in self.records(schema.META):
            value = b"" if in_place is None else in_place.value
            if key == schema.META_FORMAT and 0 < int.from_bytes(value, "big") < _NO_FORMAT:
                check_format(self.path, value)

    # -- what is not in its place ------------------------------------------------------------------------------------

    def _look_for_breaks(self, name: bytes) -> None:
        found = self.breaks[name] = []
        tree = self.trees.get(name)
        if tree is None:
            found.append(TreeGap(b"", None, None, "the page that tells where it begins is not to be had"))
            return
        for count, _ in enumerate(walk(self.file, tree.root, found.append)):
            if not count % _TOLD_EVERY:
                self._tell(self.file.bytes_read)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(min(done, self.file.bytes), self.file.bytes)

    def _look_everywhere(self) -> None:
        spans = {name: KeyRanges(breaks) for name, breaks in self.breaks.items()}
        for number, leaf in self._leaves():
            for place, node in enumerate(leaf.nodes):
                name = self._database_of(node)
                if name is not None and node.key in spans[name]:
                    self._elsewhere[name].add(node.key, number, place)
        for places in self._elsewhere.values():
            places.sort()

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
            # What a value holds is not taken for pages.
            number += 1 if page is None else self.file.overflow_page_count(page, number)
            self._tell(number * self.file.page_size)

    def _database_of(self, node: Node) -> bytes | None:
        """Whose record it is, by what is in it. Entries say which they are, and the others are sealed with their key;
        whether the rest of an entry is right is seen when it is taken."""
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
