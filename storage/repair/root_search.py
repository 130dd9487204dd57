"""Which state of a damaged file is the last one, where its header does not say so.

Every commit leaves a page that all its trees hang on, until that page is used anew: a file may have as many of them as
it has pages. They have most of their trees in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from operator import itemgetter

from bookstand.storage.format import schema, sealed_record
from bookstand.storage.lmdb.meta_page import META_PAGES
from bookstand.storage.lmdb.pages import NO_PAGE, Leaf, Node, PageReader, Tree, parse_page
from bookstand.storage.lmdb.tree_walk import MAX_DEPTH, TreeGap, trees_at, unsealed, walk

# So many states, the newest by their age, are looked at as a whole.
_MOST_ROOTS = 16


def newest_intact_root(file: PageReader, roots: Iterable[int], told: int) -> tuple[int, dict[bytes, Tree]]:
    """The newest that is whole; the one that the header leads to, ``told``, if it is newer; where there is neither, the
    newest."""
    ages = _Ages(file)
    aged = ((ages.of(trees), root) for root in roots if (trees := trees_at(file, root)))
    newest = [root for _, root in nlargest(_MOST_ROOTS, aged, key=itemgetter(0))]
    for root in newest:
        if root == told or _is_whole(file, root):
            return root, trees_at(file, root)
    best = told if trees_at(file, told) else next(iter(newest), NO_PAGE)
    return best, trees_at(file, best)


def _is_whole(file: PageReader, root: int) -> bool:
    breaks: list[TreeGap] = []
    trees = trees_at(file, root, breaks.append)
    if breaks or len(trees) < len(schema.DATABASES):
        return False
    return not any(breaks for tree in trees.values() for _ in walk(file, tree.root, breaks.append)) and not breaks


class _Ages:
    """How old states are. What was found below a page is kept, so that all states together cost one look at each page
    of the file, and not one at each page of each of them."""

    def __init__(self, file: PageReader) -> None:
        self._file = file
        self._below: dict[bytes, dict[int, int]] = {name: {} for name in (schema.META, schema.LEDGERS, schema.NODES)}

    def of(self, trees: dict[bytes, Tree]) -> tuple[int, int, int]:
        """Later commits have higher ids, versions and numbers of entries, by and large."""
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
        # What leads back to a page above it ends there.
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
