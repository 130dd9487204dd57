"""Walk of a data file's trees that trusts no page: the readable records, and the gaps."""

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
"""Maximum depth of a tree; deeper pages are damage."""


class TreeGap(NamedTuple):
    """A range of keys of which some may be missing: from ``low`` up to, but not including, ``high`` (None: the end)."""

    low: bytes
    high: bytes | None
    page: int | None
    why: str


class KeyRanges:
    """Union of the key ranges of some gaps."""

    def __init__(self, gaps: list[TreeGap]) -> None:
        self._lows: list[bytes] = []
        self._highs: list[bytes | None] = []
        for low, high, *_ in sorted(gaps, key=itemgetter(0)):
            last = self._highs[-1] if self._highs else b""
            if self._highs and (last is None or low <= last):
                self._highs[-1] = None if last is None or high is None else max(last, high)
            else:
                self._lows.append(low)
                self._highs.append(high)

    def __contains__(self, key: bytes) -> bool:
        index = bisect_right(self._lows, key) - 1
        if index < 0:
            return False
        high = self._highs[index]
        return high is None or key < high


def walk(file: PageReader, root: int, report: Callable[[TreeGap], None]) -> Iterator[Node]:
    """Records of a tree in key order. Each page may only have keys within the range of its parents, so no key occurs
    twice, whatever the pages contain."""
    waiting: list[tuple[bytes, bytes | None, int, int]] = [] if root == NO_PAGE else [(b"", None, root, 0)]
    while waiting:
        low, high, number, depth = waiting.pop()
        page = None if number < META_PAGES or depth == MAX_DEPTH else file.page(number)
        found = None if page is None else parse_page(page)
        if page is not None and found is not None and page_number(page) != number:
            report(TreeGap(low, high, number, f"has the number of page {page_number(page)}"))
        if isinstance(found, Leaf):
            yield from _in_order(found, low, high, number, report)
        elif isinstance(found, Branch) and found.children:
            waiting += reversed(_below(found, low, high, number, depth, report))
        else:
            report(TreeGap(low, high, number, "cannot be read" if page is None else "is not a page of a tree"))


def _in_order(leaf: Leaf, low: bytes, high: bytes | None, number: int, report: Callable[[TreeGap], None]) -> list[Node]:
    good: list[Node] = []
    stray: list[bytes] = []
    for node in leaf.nodes:
        previous = good[-1].key if good else None
        fits = low <= node.key and (high is None or node.key < high) and (previous is None or previous < node.key)
        if fits:
            good.append(node)
        else:
            stray.append(node.key)
    if leaf.broken or stray or not leaf.nodes:
        highest = None if high is None else max([high, *(key + b"\0" for key in stray)])
        report(TreeGap(min([low, *stray]), highest, number, "has misplaced records"))
    return good


def _below(
    branch: Branch, low: bytes, high: bytes | None, number: int, depth: int, report: Callable[[TreeGap], None]
) -> list[tuple[bytes, bytes | None, int, int]]:
    starts = [(low, branch.children[0][1])]
    for key, page in branch.children[1:]:
        if starts[-1][0] < key and (high is None or key < high):
            starts.append((key, page))
    if branch.broken or len(starts) < len(branch.children):
        report(TreeGap(low, high, number, "has misplaced branches"))
    ends = [*(start for start, _ in starts[1:]), high]
    return [(start, end, page, depth + 1) for (start, page), end in zip(starts, ends, strict=True)]


def trees_at(file: PageReader, root: int, report: Callable[[TreeGap], None] = lambda _: None) -> dict[bytes, Tree]:
    """Readable trees below a root page, by name. A tree that begins beyond the end of the file is ignored."""
    gaps: list[TreeGap] = []
    found = {}
    for node in walk(file, root, gaps.append):
        tree = parse_tree(node.value) if node.is_tree and node.key in schema.DATABASES else None
        if tree is not None and (tree.root == NO_PAGE or META_PAGES <= tree.root < file.pages):
            found[node.key] = tree
    for one in gaps:
        report(one)
    if not gaps and set(schema.DATABASES) - found.keys() == {schema.COPIES}:
        # Stores made by versions without a server do not have this tree.
        found[schema.COPIES] = Tree(0, NO_PAGE)
    return found


def unsealed(file: PageReader, database: bytes, key: bytes, node: Node) -> bytes | None:
    """Body of a sealed record; None if it cannot be read or its checksum does not match."""
    value = file.value(node)
    try:
        return None if value is None else sealed_record.unseal(database, key, value)
    except StoreDamagedError:
        return None
