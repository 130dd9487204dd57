"""MkDocs hooks: add pages for files outside docs/, and expand the directives of pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
# MkDocs loads this file by its path, so the package must be made importable.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from website import generated, links  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ASSETS = ("site.css", "favicon.svg", "iframe-worker.js")
# Pages of the repository's root, with their names on the site.
FROM_THE_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(ROOT / "website" / name)))
    for name, page in FROM_THE_ROOT.items():
        files.append(File.generated(config, page, content=links.rebase_into_docs((ROOT / name).read_text())))
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for source in links.sources(pages):
        files.append(File.generated(config, links.page_of(source), content=links.source_page(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return links.link_to_sources(generated.expand(markdown), page.file.src_uri)
