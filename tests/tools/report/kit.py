"""Reports as tests look at them: the facts, and the page as a tree."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib

from bookstand.tools.report.collect import collect
from bookstand.tools.report.model import Report
from bookstand.tools.report.page import page
from bookstand.tools.view.targets import open_view
from tests.tools.kit import START

NOW = START + 600_000


@dataclass(frozen=True)
class Page:
    text: str

    @cached_property
    def tree(self) -> Element:
        """As a browser would have it; whatever is not as it should be is an error."""
        tree: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(self.text)
        for one in tree.iter():
            # Pictures have a namespace of their own.
            one.tag = str(one.tag).rpartition("}")[2]
        return tree

    @cached_property
    def data(self) -> Any:
        """What the page's script is given."""
        return json.loads(self.one("script", id="data").text or "")

    def all(self, tag: str, **attributes: str) -> list[Element]:
        return [one for one in self.tree.iter(tag) if attributes.items() <= one.attrib.items()]

    def one(self, tag: str, **attributes: str) -> Element:
        (found,) = self.all(tag, **attributes)
        return found

    def words(self, tag: str, **attributes: str) -> str:
        """With one space where a browser shows one."""
        return re.sub("[ \n]+", " ", "".join(self.one(tag, **attributes).itertext())).strip()

    def rows(self, table: str) -> list[list[Any]]:
        """The rows of a table that the script draws."""
        columns = []
        for column in self.data["tables"][table]["columns"]:
            texts = column.get("texts")
            columns.append([texts[value] if texts else value for value in column["values"]])
        return [list(row) for row in zip(*columns, strict=True)]


def report_on(path: Path, *, at: int | None = NOW, verify: bool = True, **options: Any) -> Report:
    with open_view(str(path), **options) as view:
        return collect(view, at, verify)


def page_on(path: Path, **options: Any) -> Page:
    return Page(page(report_on(path, **options)))
