"""The site: it is built without a warning, is read without a network, and has all that it is to have."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import bookstand
import bookstand.testing
from bookstand.proto.struct_layout import Layout, MessageFields
from tests.docs.steps import ROOT
from website import benchmark_tables, errors, generated, layouts, links, markup, messages, package_diagram, settings

DOCS = ROOT / "docs"
FORMATS = (DOCS / "reference" / "formats.md").read_text()
REFERENCE = "".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
PAGES = sorted(DOCS.rglob("*.md"))
# Rooms whose bytes are stored somewhere.
STORED = ("proto", "storage", "ledger", "managed_ledger", "cursor", "delivery", "disk", "server.zookeeper")
# What these pack stays in memory.
IN_MEMORY = {"delivery.time_index.block_codec", "delivery.time_index.index", "storage.repair.record_index"}


# -- the build ---------------------------------------------------------------------------------------------------------


def build(config: Path, to: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(to)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>")
    imports = re.compile(r"(?:@import|url\()[^;)]*(?:https?:)?//[^;)]*")
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        assert loads.findall(page.read_text()) == [], page
    for sheet in site.rglob("*.css"):
        assert imports.findall(sheet.read_text()) == [], sheet


def test_every_page_is_there_with_what_it_asked_for(site: Path) -> None:
    for page in [*(page.relative_to(DOCS) for page in PAGES), Path("index.md"), Path("changelog.md")]:
        text = (site / page.with_suffix(".html")).read_text()
        assert "generated:" not in text, page
    drawn = (site / "reference" / "formats.html").read_text().count('<svg class="drawing"')
    assert drawn == sum(isinstance(layout, Layout) for _, layout in all_layouts())
    assert "source/storage/format/entry_codec.py.html" in (site / "reference" / "formats.html").read_text()


@pytest.mark.parametrize("broken", ["[a](nowhere.md)", "[a](#nowhere)", "[a](good.md#nowhere)", "[a](/good.md)"])
def test_a_link_to_nowhere_ends_the_build(tmp_path: Path, broken: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "good.md").write_text("# Good\n")
    (tmp_path / "docs" / "index.md").write_text(f"# Index\n\n{broken}\n")
    config = tmp_path / "mkdocs.yml"
    own = {"docs_dir": tmp_path / "docs", "nav": "[index.md, good.md]", "hooks": "[]", "plugins": "[]"}
    lines = [f"INHERIT: {ROOT / 'mkdocs.yml'}", *(f"{name}: {value}" for name, value in own.items())]
    config.write_text("\n".join(lines) + "\n")
    done = build(config, tmp_path / "site")
    assert done.returncode != 0, done.stderr
    (tmp_path / "docs" / "index.md").write_text("# Index\n\n[a](good.md#good)\n")
    assert build(config, tmp_path / "site").returncode == 0


# -- formats -----------------------------------------------------------------------------------------------------------


def stored_modules() -> Iterator[tuple[str, ModuleType]]:
    for room in STORED:
        package = importlib.import_module(f"bookstand.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield found.name.removeprefix("bookstand."), importlib.import_module(found.name)


def all_layouts() -> list[tuple[str, Layout | MessageFields]]:
    return [(name, layout) for name, _ in stored_modules() for layout in layouts.layouts_of(name)]


def asked(what: str) -> set[str]:
    return {word for made, words in generated.directives(FORMATS) if made == what for word in words}


def test_every_layout_is_on_the_page() -> None:
    assert len(all_layouts()) > 20
    assert {name for name, _ in all_layouts()} == asked("layouts")


def test_every_schema_is_on_the_page() -> None:
    schemas = {path.stem for path in (ROOT / "proto").glob("*.proto")}
    assert schemas == asked("messages")


def test_whatever_packs_several_fields_is_a_layout() -> None:
    drawn = {id(layout.struct) for _, layout in all_layouts() if isinstance(layout, Layout)}
    for name, module in stored_modules():
        if name in IN_MEMORY:
            continue
        for called, value in vars(module).items():
            if isinstance(value, struct.Struct) and id(value) not in drawn:
                assert re.fullmatch(r"[<>][a-zA-Z]", value.format), f"{name}.{called} packs {value.format}"


def test_a_layout_is_drawn_with_all_of_its_fields() -> None:
    page = layouts.layouts("storage.format.ledger_state")
    from bookstand.storage.format.ledger_state import STATE

    for name, _, _ in STATE.fields:
        assert page.count(name) >= 2, name
    rows = re.findall(r"^\| (\d+) \| (\d+)(?: bytes|, u?int64) \|", page, re.MULTILINE)
    ends = [int(at) + int(size) for at, size in rows]
    assert [int(at) for at, _ in rows] == [0, *ends[:-1]]
    assert ends[-1] == STATE.struct.size


def test_a_message_has_the_comments_of_its_schema() -> None:
    page = messages.messages("cursor_record")
    assert "| 1012 | `pageEntries` | uint64 | Number of page entries that the flush wrote. |" in page
    with pytest.raises(ValueError, match="has no message Nothing"):
        messages.messages("cursor_record", "Nothing")


# -- rooms -------------------------------------------------------------------------------------------------------------


def test_boxes_are_what_the_package_consists_of() -> None:
    there = {
        path.stem
        for path in (ROOT / "bookstand").iterdir()
        if path.is_dir() or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert set(package_diagram.imports()) == (there - {"__pycache__"}) | {"bookstand"}
    page = package_diagram.packages()
    for room in package_diagram.imports():
        assert f">{room}</text>" in page


def test_arrows_go_down_in_the_contract() -> None:
    layer_of = {room: number for number, layer in enumerate(package_diagram.contract()) for room in layer}
    assert package_diagram.arrows()
    for room, other in package_diagram.arrows():
        if {room, other} <= layer_of.keys():
            assert layer_of[room] < layer_of[other], (room, other)
    assert set(package_diagram.imports()) - layer_of.keys() == {"bookstand", "demo"}


def test_the_architecture_names_the_rooms_and_their_order() -> None:
    page = (DOCS / "architecture.md").read_text()
    listed = re.findall(r"^\| `(\w+)/` \| \S", page.partition("## The rooms")[2].partition("\n## ")[0], re.MULTILINE)
    assert sorted(listed) == sorted(
        ["bookstand", *(path.name for path in (ROOT / "bookstand").iterdir() if path.is_symlink())]
    )
    assert package_diagram.in_a_line() in page


# -- reference ---------------------------------------------------------------------------------------------------------


def test_every_error_says_when_it_is_raised() -> None:
    assert [errors.path_of(kind) for kind in errors.classes() if not errors.description(kind)] == []
    page = "".join(errors.errors(family) for family in errors.FAMILIES)
    for kind in errors.classes():
        name = re.escape(markup.breakable_name(errors.path_of(kind)))
        assert len(re.findall(rf"^\| {name} \|", page, re.MULTILINE)) == 1, kind


INJECTED_ONLY = [kind for kind in errors.classes() if "Raised by injected faults only" in errors.description(kind)]


def test_errors_documented_as_injected_only_are_raised_nowhere() -> None:
    assert len(INJECTED_ONLY) > 10
    rooms_of_a_store = ("storage", "ledger", "managed_ledger", "cursor", "delivery", "disk", "pipeline", "tools")
    source = "".join(path.read_text() for room in rooms_of_a_store for path in (ROOT / room).rglob("*.py"))
    assert [kind.__name__ for kind in INJECTED_ONLY if re.search(rf"\b{kind.__name__}\(", source)] == []
    with bookstand.temporary() as store, pytest.raises(bookstand.errors.IncorrectParameterError):
        store.create_ledger(ensemble=1, write_quorum=2)


@pytest.mark.parametrize("kind", INJECTED_ONLY, ids=lambda kind: kind.__name__)
def test_faults_can_inject_it(kind: type[bookstand.LedgerError]) -> None:
    with bookstand.testing.Faults() as faults, bookstand.temporary(hooks=faults) as store:
        faults.fail("append", kind.code)
        with pytest.raises(kind):
            store.create_ledger().append(b"first")


def test_every_public_name_is_in_the_reference() -> None:
    wanted = {*bookstand.__all__, *bookstand.testing.__all__}
    assert {name for name in wanted if not re.search(rf"\b{name}\b", REFERENCE)} == set()


def test_every_name_of_the_reference_is_there_and_says_what_it_is() -> None:
    for path in re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE):
        assert settings.lookup(path).docstring is not None, path


def test_every_setting_says_what_it_does() -> None:
    for page in PAGES:
        for what, words in generated.directives(page.read_text()):
            if what == "settings":
                rows = re.findall(r"^\| (<code>.*)$", settings.settings(*words), re.MULTILINE)
                assert rows
                assert [row for row in rows if not row.split(" | ")[1].strip()] == []


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_every_row_of_the_benchmarks_is_told_measured_or_not() -> None:
    from benchmarks.rows import ROWS

    page = benchmark_tables.benchmarks()
    for row in ROWS:
        assert f"| `{row.row}` |" in page


def test_unknown_directive_is_rejected() -> None:
    with pytest.raises(ValueError, match="not 'nothing'"):
        generated.expand("<!-- generated: nothing -->\n")
    assert generated.expand("`<!-- generated: nothing -->` in a line\n").startswith("`<!--")


def test_links_out_of_the_pages_lead_to_sources() -> None:
    assert links.rebase_into_docs("[a](docs/x.md#y) [b](examples/z.py) [c](https://d)") == (
        "[a](x.md#y) [b](../examples/z.py) [c](https://d)"
    )
    assert links.link_to_sources("[a](../../storage/format/entry_codec.py) [b](x.md)", "reference/formats.md") == (
        "[a](../source/storage/format/entry_codec.py.md) [b](x.md)"
    )
    assert links.sources({"reference/formats.md": "[a](../../storage/format/entry_codec.py) [b](../x.md)"}) == [
        "storage/format/entry_codec.py"
    ]
    assert "```python\n" in links.source_page("storage/format/entry_codec.py")
