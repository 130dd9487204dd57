"""Search for the newest state of a damaged file whose meta pages do not identify it.

Every commit leaves a root page, to which all trees are attached, until that page is reused. A file may have as many
roots as pages. They share most of their trees.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from operator import itemgetter

from bookstand.storage.format import schema, sealed_record
from bookstand.storage.lmdb.meta_page import META_PAGES
from bookstand.storage.lmdb.pages import NO_PAGE, Leaf, Node, PageReader, Tree, parse_page
from bookstand.storage.lmdb.tree_walk import MAX_DEPTH, TreeGap, trees_at, unsealed, walk

# Number of newest states that are verified completely.
_MAX_ROOTS = 16


def newest_intact_root(file: PageReader, roots: Iterable[int], meta_root: int) -> tuple[int, dict[bytes, Tree]]:
    """Return the newest intact root, or ``meta_root`` of the newest meta page if that is newer, or any newest root."""
    ages = _RootAges(file)
    aged = ((ages.of(trees), root) for root in roots if (trees := trees_at(file, root)))
    newest = [root for _, root in nlargest(_MAX_ROOTS, aged, key=itemgetter(0))]
    for root in newest:
        if root == meta_root or _is_intact(file, root):
            return root, trees_at(file, root)
    best = meta_root if trees_at(file, meta_root) else next(iter(newest), NO_PAGE)
    return best, trees_at(file, best)


def _is_intact(file: PageReader, root: int) -> bool:
    gaps: list[TreeGap] = []
    trees = trees_at(file, root, gaps.append)
    if gaps or len(trees) < len(schema.DATABASES):
        return False
    return not any(gaps for tree in trees.values() for _ in walk(file, tree.root, gaps.append)) and not gaps


class _RootAges:
    """Relative ages of roots. Results are cached per page, so that all roots together read each page only once."""

    def __init__(self, file: PageReader) -> None:
        self._file = file
        self._below: dict[bytes, dict[int, int]] = {name: {} for name in (schema.META, schema.LEDGERS, schema.NODES)}

    def of(self, trees: dict[bytes, Tree]) -> tuple[int, int, int]:
        """Age as a sort key: later commits usually have higher ids, versions and numbers of entries."""
        roots = {name: tree.root for name, tree in trees.items()}
        ids, *versions = (self._sum(name, roots.get(name, NO_PAGE), 0) for name in self._below)
        entries = trees.get(schema.ENTRIES)
        return ids, sum(versions), 0 if entries is None else entries.records

    def _sum(self, database: bytes, number: int, depth: int) -> int:
        known = self._below[database]
        if number in known:
            return known[number]
        page = None if number < META_PAGES or depth == MAX_DEPTH else self._file.page(number)
        found = None if page is None else parse_page(page)
        if found is None:
            return 0
        # Break cycles of damaged pages.
        known[number] = 0
        if isinstance(found, Leaf):
            known[number] = sum(self._worth(database, node) for node in found.nodes)
        else:
            known[number] = sum(self._sum(database, child, depth + 1) for _, child in found.children)
        return known[number]

    def _worth(self, database: bytes, node: Node) -> int:
        if database == schema.META and node.key not in (schema.META_NEXT_LEDGER, schema.META_NEXT_INCARNATION):
            return 0
        body = unsealed(self._file, database, node.key, node)
        if body is None:
            return 0
        if database == schema.META:
            return int.from_bytes(body, "big")
        return 1 + int.from_bytes(body[: sealed_record.VERSION.size], "big", signed=True)
