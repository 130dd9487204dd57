"""Links from pages to files outside docs/. The site has a page for each of these files."""

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


def rebase_into_docs(text: str) -> str:
    """Adjust the relative links of a page that is moved from the root into docs/."""

    def rebase(match: re.Match[str]) -> str:
        target = posixpath.relpath(match[1], DOCS)
        return target + (match[2] or "")

    return _LINK.sub(rebase, text)


def page_of(source: str) -> str:
    """Return the path of the page for a file of the repository."""
    return f"source/{source}.md"


def sources(pages: Mapping[str, str]) -> list[str]:
    """Return the files outside docs/ that pages link to. MkDocs reports broken links."""
    targets = {target for name, text in pages.items() for target in _targets(text, name) if _is_source(target)}
    return sorted(targets)


def _targets(text: str, page: str) -> Iterable[str]:
    return (_in_repository(match[1], page) for match in _LINK.finditer(text))


def _in_repository(target: str, page: str) -> str:
    return posixpath.normpath(posixpath.join(DOCS, posixpath.dirname(page), target))


def _is_source(target: str) -> bool:
    return not target.startswith((f"{DOCS}/", "../")) and (ROOT / target).is_file()


def link_to_sources(text: str, page: str) -> str:
    """Replace links to source files by links to their pages."""

    def replace(match: re.Match[str]) -> str:
        target = _in_repository(match[1], page)
        if not _is_source(target):
            return match[0]
        return posixpath.relpath(page_of(target), posixpath.dirname(page) or ".")

    return _LINK.sub(replace, text)


def source_page(source: str) -> str:
    """Return the content of the page for a file."""
    path = ROOT / source
    text = path.read_text()
    if path.suffix in _AS_THEY_ARE:
        return text
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    language = _LANGUAGES.get(path.suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {source}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
