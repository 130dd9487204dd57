"""The trees of a data file of which nothing is believed: what hangs on a page, and where it cannot be followed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import NamedTuple

from bookstand.errors import StoreDamagedError
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.lmdb.meta_page import META_PAGES
from bookstand.storage.lmdb.pages import (
    NO_PAGE,
    Branch,
    Leaf,
    Node,
    PageReader,
    Tree,
    page_number,
    parse_page,
    parse_tree,
)

MAX_DEPTH = 32
"""No tree is deeper: what leads on is damage."""


class TreeGap(NamedTuple):
    """Of keys from ``low`` up to ``high`` (None: to the last), not included, some may be missing."""

    low: bytes
    high: bytes | None
    page: int | None
    why: str


class KeyRanges:
    """The keys of some breaks, without those that lie in others."""

    def __init__(self, breaks: list[TreeGap]) -> None:
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


def walk(file: PageReader, root: int, report: Callable[[TreeGap], None]) -> Iterator[Node]:
    """The records of a tree, by ascending keys. Whatever a page says, no key comes twice: each may only have the keys
    that those above it leave to it."""
    waiting: list[tuple[bytes, bytes | None, int, int]] = [] if root == NO_PAGE else [(b"", None, root, 0)]
    while waiting:
        low, high, number, depth = waiting.pop()
        page = None if number < META_PAGES or depth == MAX_DEPTH else file.page(number)
        found = None if page is None else parse_page(page)
        if page is not None and found is not None and page_number(page) != number:
            report(TreeGap(low, high, number, f"says that it is page {page_number(page)}"))
        if isinstance(found, Leaf):
            yield from _in_order(found, low, high, number, report)
        elif isinstance(found, Branch) and found.children:
            waiting += reversed(_below(found, low, high, number, depth, report))
        else:
            report(TreeGap(low, high, number, "is not to be had" if page is None else "is no page of a tree"))


def _in_order(leaf: Leaf, low: bytes, high: bytes | None, number: int, report: Callable[[TreeGap], None]) -> list[Node]:
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
        report(TreeGap(min([low, *stray]), highest, number, "has records that cannot be in their place"))
    return good


def _below(
    branch: Branch, low: bytes, high: bytes | None, number: int, depth: int, report: Callable[[TreeGap], None]
) -> list[tuple[bytes, bytes | None, int, int]]:
    starts = [(low, branch.children[0][1])]
    for key, page in branch.children[1:]:
        if starts[-1][0] < key and (high is None or key < high):
            starts.append((key, page))
    if branch.broken or len(starts) < len(branch.children):
        report(TreeGap(low, high, number, "has branches that cannot be in their place"))
    ends = [*(start for start, _ in starts[1:]), high]
    return [(start, end, page, depth + 1) for (start, page), end in zip(starts, ends, strict=True)]


def trees_at(file: PageReader, root: int, report: Callable[[TreeGap], None] = lambda _: None) -> dict[bytes, Tree]:
    """The trees whose records hang on a page by their names, as far as they can be read. One that begins behind the end
    of the file is none."""
    breaks: list[TreeGap] = []
    found = {}
    for node in walk(file, root, breaks.append):
        tree = parse_tree(node.value) if node.is_tree and node.key in schema.DATABASES else None
        if tree is not None and (tree.root == NO_PAGE or META_PAGES <= tree.root < file.pages):
            found[node.key] = tree
    for one in breaks:
        report(one)
    if not breaks and set(schema.DATABASES) - found.keys() == {schema.COPIES}:
        # Stores made before there were servers have none.
        found[schema.COPIES] = Tree(0, NO_PAGE)
    return found


def unsealed(file: PageReader, database: bytes, key: bytes, node: Node) -> bytes | None:
    """The body of a record; None if it is not to be had as it was sealed."""
    value = file.value(node)
    try:
        return None if value is None else sealed_record.unseal(database, key, value)
    except StoreDamagedError:
        return None
