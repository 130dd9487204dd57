"""Validation of znode paths, and their hierarchy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bookstand.server.zookeeper.protocol.protocol import Code, ZooKeeperError
from bookstand.storage.metadata_store import LONGEST_PATH

ROOT = "/"
QUOTAS = "/zookeeper/quota"

# Characters that ZooKeeper rejects: controls, private use, specials, and surrogate pairs of Java strings.
_REFUSED = ((0x00, 0x1F), (0x7F, 0x9F), (0xD800, 0xF8FF), (0xFFF0, 0x10FFFF))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def ancestors_of(path: str) -> Iterator[str]:
    """Yield all ancestors, from the parent to the root."""
    while path != ROOT:
        path = parent_of(path)
        yield path


def check_path(path: str | None, sequential: bool = False) -> str:
    """Return a valid path; raise for an invalid one. ``sequential``: a number will be appended to it."""
    problem = _problem(path, sequential)
    if problem is not None:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"{path!r} is no path of a znode: {problem}")
    assert path is not None
    return path


def distinct(paths: Iterable[str | None] | None) -> list[str]:
    """Validate the paths of a request and remove duplicates. A null list is empty."""
    return [check_path(path) for path in dict.fromkeys(paths or ())]


def is_path(path: str) -> bool:
    return _problem(path, sequential=False) is None


def _problem(path: str | None, sequential: bool) -> str | None:
    if not path:
        return "it is empty"
    if path[0] != "/":
        return "it does not begin with a slash"
    whole = path + "0000000000" if sequential else path
    if whole == ROOT:
        return None
    for name in whole[1:].split("/"):
        if name in ("", ".", ".."):
            return f"it has a level {name!r}"
    if whole.isascii() and whole.isprintable():
        size = len(whole)
    else:
        if any(low <= ord(character) <= high for character in whole for low, high in _REFUSED):
            return "it has a character that is not allowed"
        size = len(whole.encode())
    return f"it has {size} bytes, more than {LONGEST_PATH}" if size > LONGEST_PATH else None
