"""Every record that a damaged data file still has, past LMDB.

The trees are followed from the header down, and every page that cannot be followed becomes a :class:`Break`: keys that
may be missing. What belongs there is then looked for on every page of the file, used or given up long ago; a record
that was found so may be an older one than the last, or one that was deleted since. Nothing is changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from bookstand.errors import StoreDamagedError
from bookstand.storage import keys, record
from bookstand.storage.environment import check_format
from bookstand.storage.meta_page import META_PAGES
from bookstand.storage.metadata import begins_like_metadata
from bookstand.storage.pages import NO_PAGE, Branch, Leaf, Node, PageFile, Tree, number_of, parse_page, parse_tree
from bookstand.storage.state import STATE_BYTES

_DEEPEST = 32
# So many states of the file are compared where its header does not say which is the last.
_MOST_ROOTS = 16
_LEAVES_KEPT = 64
_TOLD_EVERY = 4_096
# No release will ever have a format of such a number: it is damage.
_NO_FORMAT = 1 << 8

Progress = Callable[[int, int], None]
"""Told how many bytes of the file of how many have been looked at."""


class Break(NamedTuple):
    """Of keys from ``low`` up to ``high`` (None: to the last), not included, some may be missing."""

    low: bytes
    high: bytes | None
    page: int | None
    why: str


class Spans:
    """The keys of some breaks, without those that lie in others."""

    def __init__(self, breaks: list[Break]) -> None:
        self._lows: list[bytes] = []
        self._highs: list[bytes | None] = []
        for low, high, *_ in sorted(breaks, key=itemgetter(0)):
            last = self._highs[-1] if self._highs else b""
            if self._highs and (last is None or low <= last):
                self._highs[-1] = None if last is None or high is None else max(last, high)
            else:
                self._lows.append(low)
                self._highs.append(high)

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._lows, key) - 1
        if place < 0:
            return False
        high = self._highs[place]
        return high is None or key < high


class Found(NamedTuple):
    key: bytes
    in_place: Node | None
    elsewhere: list[Node]
    """What was found under the key on pages that do not belong to the tree, or not there."""


def walk(file: PageFile, root: int, report: Callable[[Break], None]) -> Iterator[Node]:
    """The records of a tree, by ascending keys. Whatever a page says, no key comes twice: each may only have the keys
    that those above it leave to it."""
    waiting: list[tuple[bytes, bytes | None, int, int]] = [] if root == NO_PAGE else [(b"", None, root, 0)]
    while waiting:
        low, high, number, depth = waiting.pop()
        page = None if number < META_PAGES or depth == _DEEPEST else file.page(number)
        found = None if page is None else parse_page(page)
        if page is not None and found is not None and number_of(page) != number:
            report(Break(low, high, number, f"says that it is page {number_of(page)}"))
        if isinstance(found, Leaf):
            yield from _in_order(found, low, high, number, report)
        elif isinstance(found, Branch) and found.children:
            waiting += reversed(_below(found, low, high, number, depth, report))
        else:
            report(Break(low, high, number, "is not to be had" if page is None else "is no page of a tree"))


def _in_order(leaf: Leaf, low: bytes, high: bytes | None, number: int, report: Callable[[Break], None]) -> list[Node]:
    good: list[Node] = []
    stray: list[bytes] = []
    for node in leaf.nodes:
        behind = good[-1].key if good else None
        fits = low <= node.key and (high is None or node.key < high) and (behind is None or behind < node.key)
        if fits:
            good.append(node)
        else:
            stray.append(node.key)
    if leaf.broken or stray or not leaf.nodes:
        highest = None if high is None else max([high, *(key + b"\0" for key in stray)])
        report(Break(min([low, *stray]), highest, number, "has records that cannot be in their place"))
    return good


def _below(
    branch: Branch, low: bytes, high: bytes | None, number: int, depth: int, report: Callable[[Break], None]
) -> list[tuple[bytes, bytes | None, int, int]]:
    starts = [(low, branch.children[0][1])]
    for key, page in branch.children[1:]:
        if starts[-1][0] < key and (high is None or key < high):
            starts.append((key, page))
    if branch.broken or len(starts) < len(branch.children):
        report(Break(low, high, number, "has branches that cannot be in their place"))
    ends = [*(start for start, _ in starts[1:]), high]
    return [(start, end, page, depth + 1) for (start, page), end in zip(starts, ends, strict=True)]


class Salvage:
    """A data file of which nothing is believed. Close it in the end; a context manager."""

    def __init__(self, path: str, progress: Progress | None = None) -> None:
        self.path = path
        self.file = PageFile(path)
        try:
            self._progress = progress
            self.commit: int | None = None
            """The number of the commit that the trees are of, if the header tells."""
            self.doubts: list[str] = []
            """What is wrong with the file as a whole."""
            self.is_of_others = False
            """Whether its header leads to what is not bookstand's."""
            self.breaks: dict[bytes, list[Break]] = {}
            # Where records were found that are not in their place: which node of which page.
            self._elsewhere: dict[bytes, dict[bytes, list[tuple[int, int]]]] = {name: {} for name in keys.DATABASES}
            self._leaf = lru_cache(_LEAVES_KEPT)(self._leaf_at)
            self.trees = self._newest_trees()
            self._check_format()
            for name in keys.DATABASES:
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

    def records(self, database: bytes) -> Iterator[Found]:
        """By ascending keys."""
        tree = self.trees.get(database)
        root = NO_PAGE if tree is None else tree.root
        in_place = ((node.key, 0, node) for node in walk(self.file, root, lambda _: None))
        elsewhere = self._elsewhere[database]
        others = ((key, 1, self._leaf(page)[place]) for key in sorted(elsewhere) for page, place in elsewhere[key])
        for key, some in groupby(merge(in_place, others, key=itemgetter(0, 1)), key=itemgetter(0)):
            nodes = [(rank, node) for _, rank, node in some]
            first = nodes[0][1] if nodes[0][0] == 0 else None
            yield Found(key, first, [node for rank, node in nodes if rank])

    def value(self, node: Node) -> bytes | None:
        return self.file.value(node)

    def sealed(self, database: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
        """The bodies of the records under each key that are as they were sealed: that in its place, or else all
        others."""
        for key, in_place, elsewhere in self.records(database):
            body = None if in_place is None else self._unsealed(database, key, in_place)
            others = elsewhere if body is None else []
            bodies = [body, *(self._unsealed(database, key, node) for node in others)]
            yield key, [one for one in bodies if one is not None]

    def _unsealed(self, database: bytes, key: bytes, node: Node) -> bytes | None:
        value = self.file.value(node)
        try:
            return None if value is None else record.unseal(database, key, value)
        except StoreDamagedError:
            return None

    # -- the trees ---------------------------------------------------------------------------------------------------

    def _newest_trees(self) -> dict[bytes, Tree]:
        metas = [meta for meta in self.file.metas if meta is not None]
        numbers = sorted(meta.transaction for meta in metas)
        in_turn = len(metas) == META_PAGES and (numbers == [0, 0] or numbers[1] == numbers[0] + 1)
        newest = max(metas, default=None)
        if in_turn and newest is not None:
            self.commit = newest.transaction
            breaks: list[Break] = []
            trees = self._trees(newest.root, breaks.append)
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
        root, trees = self._best(sorted({*of_metas, *self._possible_roots()}), newest.root if newest else NO_PAGE)
        self.commit = of_metas.get(root)
        return trees

    def _trees(self, root: int, report: Callable[[Break], None] = lambda _: None) -> dict[bytes, Tree]:
        """By their names, as far as they can be read. One that is larger than the file is none."""
        found = {}
        for node in walk(self.file, root, report):
            tree = parse_tree(node.value) if node.is_tree and node.key in keys.DATABASES else None
            if tree is not None and (tree.root == NO_PAGE or META_PAGES <= tree.root < self.file.pages):
                found[node.key] = tree
        return found

    def _possible_roots(self) -> Iterator[int]:
        """Pages that look as if all others hung on them: of the last commit, and of earlier ones."""
        for number, leaf in self._leaves():
            names = {node.key for node in leaf.nodes if node.is_tree}
            if names and names <= set(keys.DATABASES):
                yield number

    def _best(self, roots: list[int], told: int) -> tuple[int, dict[bytes, Tree]]:
        """The newest that is whole; the one that the header leads to if it is newer; where there is neither, the
        newest."""
        candidates = [(self._age(trees), root, trees) for root in roots if (trees := self._trees(root))]
        candidates.sort(key=itemgetter(0), reverse=True)
        for number, (_, root, trees) in enumerate(candidates):
            if root == told or (number < _MOST_ROOTS and self._is_whole(trees)):
                return root, trees
        return candidates[0][1:] if candidates else (NO_PAGE, {})

    def _is_whole(self, trees: dict[bytes, Tree]) -> bool:
        breaks: list[Break] = []
        for tree in trees.values():
            for _ in walk(self.file, tree.root, breaks.append):
                if breaks:
                    return False
        return not breaks and len(trees) == len(keys.DATABASES)

    def _age(self, trees: dict[bytes, Tree]) -> tuple[int, int, int]:
        """Later commits have higher ids, versions and numbers of entries, by and large."""
        ids = versions = 0
        for name, tree in trees.items():
            if name in (keys.META, keys.LEDGERS, keys.NODES):
                for node in walk(self.file, tree.root, lambda _: None):
                    body = self._unsealed(name, node.key, node)
                    if body is None:
                        continue
                    if name != keys.META:
                        versions += 1 + int.from_bytes(body[: record.VERSION.size], "big", signed=True)
                    elif node.key in (keys.META_NEXT_LEDGER, keys.META_NEXT_INCARNATION):
                        ids += int.from_bytes(body, "big")
        entries = trees.get(keys.ENTRIES)
        return ids, versions, 0 if entries is None else entries.records

    def _check_format(self) -> None:
        for key, in_place, _ in self.records(keys.META):
            value = b"" if in_place is None else in_place.value
            if key == keys.META_FORMAT and 0 < int.from_bytes(value, "big") < _NO_FORMAT:
                check_format(self.path, value)

    # -- what is not in its place ------------------------------------------------------------------------------------

    def _look_for_breaks(self, name: bytes) -> None:
        found = self.breaks[name] = []
        tree = self.trees.get(name)
        if tree is None:
            found.append(Break(b"", None, None, "the page that tells where it begins is not to be had"))
            return
        for count, _ in enumerate(walk(self.file, tree.root, found.append)):
            if not count % _TOLD_EVERY:
                self._tell(self.file.bytes_read)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(min(done, self.file.bytes), self.file.bytes)

    def _look_everywhere(self) -> None:
        spans = {name: Spans(breaks) for name, breaks in self.breaks.items()}
        for number, leaf in self._leaves():
            for place, node in enumerate(leaf.nodes):
                name = self._database_of(node)
                if name is not None and node.key in spans[name]:
                    self._elsewhere[name].setdefault(node.key, []).append((number, place))

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
            number += 1 if page is None else self.file.extent(page, number)
            self._tell(number * self.file.page_size)

    def _database_of(self, node: Node) -> bytes | None:
        """Whose record it is, by what is in it. Entries say which they are, and the others are sealed with their key;
        whether the rest of an entry is right is seen when it is taken."""
        key = node.key
        if node.is_tree:
            return None
        if len(key) == keys.ENTRY_KEY.size and self.file.begins(node, len(key)) == key:
            return keys.ENTRIES
        body = self._unsealed(keys.META, key, node)
        if body is None:
            return None
        if key.startswith(b"/"):
            return keys.NODES
        if key in keys.META_RECORDS or key.startswith(keys.META_DELETED):
            return keys.META
        if len(key) != keys.LEDGER_KEY.size:
            return None
        if begins_like_metadata(body[record.VERSION.size :]):
            return keys.LEDGERS
        return keys.STATE if len(body) == STATE_BYTES else None
