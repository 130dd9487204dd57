"""Links of pages to files outside docs/. On the site they lead to a page that shows the file."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {".py": "python", ".proto": "protobuf", ".json": "json", ".yml": "yaml"}
_AS_THEY_ARE = (".md", ".svg", ".png")


def moved_into_docs(text: str) -> str:
    """A page of the root as if it were one of docs/."""

    def moved(match: re.Match[str]) -> str:
        target = posixpath.relpath(match[1], DOCS)
        return target + (match[2] or "")

    return _LINK.sub(moved, text)


def page_of(source: str) -> str:
    """The page that shows a file of the repository."""
    return f"source/{source}.md"


def sources(pages: Mapping[str, str]) -> list[str]:
    """The files outside docs/ that pages link to; a link to nothing is left to MkDocs to complain about."""
    found = {target for name, text in pages.items() for target in _targets(text, name) if _is_source(target)}
    return sorted(found)


def _targets(text: str, page: str) -> Iterable[str]:
    return (_in_repository(match[1], page) for match in _LINK.finditer(text))


def _in_repository(target: str, page: str) -> str:
    return posixpath.normpath(posixpath.join(DOCS, posixpath.dirname(page), target))


def _is_source(target: str) -> bool:
    return not target.startswith((f"{DOCS}/", "../")) and (ROOT / target).is_file()


def to_sources(text: str, page: str) -> str:
    """The page with its links to sources leading to their pages."""

    def led(match: re.Match[str]) -> str:
        target = _in_repository(match[1], page)
        if not _is_source(target):
            return match[0]
        return posixpath.relpath(page_of(target), posixpath.dirname(page) or ".")

    return _LINK.sub(led, text)


def source_page(source: str) -> str:
    """The file, as a page."""
    path = ROOT / source
    text = path.read_text()
    if path.suffix in _AS_THEY_ARE:
        return text
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    language = _LANGUAGES.get(path.suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {source}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
