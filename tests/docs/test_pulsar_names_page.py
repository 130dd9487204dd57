"""The page that maps Pulsar's names: it has all of them, and what it names here exists."""

from __future__ import annotations

import json
import re
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bookstand
from bookstand.cursor import metrics as cursor_metrics
from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST, DelayedDeliveryConfig
from bookstand.delivery.tracker.bucket import metrics
from bookstand.managed_ledger.broker_conf import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pulsar-names.md").read_text()
KNOWN: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "pulsar_names.json").read_text())
METRICS = {family.name for family in (*cursor_metrics.FAMILIES.values(), *metrics.FAMILIES)}
CONFIGS = {"topic": "TopicConfig", "cursor": "CursorConfig"}
# A constructor's or a function's parameter stands in parentheses behind it.
TARGET = re.compile(r"([\w.]+)(?:\((\w+)\))?")


class Row(NamedTuple):
    """A line of a table: names of Pulsar, names here, the module that they are in, and the remark."""

    names: list[str]
    here: list[str]
    module: str
    remark: str


def rows() -> list[Row]:
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] not in ("Pulsar", "---"):
            link = re.fullmatch(r"\[([\w/.]+)\]\(\.\./([\w/.]+)\)", cells[2])
            assert cells[2] == "-" or (link and link[1] == link[2]), line
            module = link[1] if link else ""
            found.append(Row(*(re.findall(r"`([^`]+)`", cell) for cell in cells[:2]), module, cells[3]))
    return found


ROWS = rows()
NAMED = {name for row in ROWS for name in row.names}


def exists(target: str, module: str) -> bool:
    match = TARGET.fullmatch(target)
    assert match, target
    first, *rest = match[1].split(".")
    if target in METRICS or f"{target}_total" in METRICS:
        return True
    if module.endswith(".proto"):
        schema = import_module(f"bookstand.proto.{Path(module).stem}_pb2").DESCRIPTOR
        message = schema.message_types_by_name.get(first)
        return message is not None and all(field in message.fields_by_name for field in rest)
    folder = module.removesuffix(".py").replace("/", ".").removeprefix("bookstand.")
    at: Any = import_module("bookstand" if folder == "__init__" else f"bookstand.{folder}")
    for name in (first, *rest):
        if not hasattr(at, name) and name not in getattr(at, "__dataclass_fields__", {}):
            return False
        at = getattr(at, name, None)
    return match[2] is None or match[2] in signature(at).parameters


@pytest.mark.parametrize("document", KNOWN)
def test_every_name_is_on_the_page(document: str) -> None:
    assert [name for name in KNOWN[document]["names"] if name not in NAMED] == []


def test_every_key_that_is_read_is_on_the_page_with_its_field() -> None:
    for key, setting in SETTINGS.items():
        target = f"{CONFIGS[setting.config]}.{setting.field}"
        assert [row for row in ROWS if key in row.names and target in row.here], key


def test_every_name_on_the_page_is_one_of_pulsars() -> None:
    known = {name for document in KNOWN.values() for name in document["names"]} | SETTINGS.keys()
    assert known >= NAMED


def test_names_that_are_left_out_have_a_reason_and_are_not_on_the_page() -> None:
    for document in KNOWN.values():
        assert not set(document["left_out"]) & set(document["names"])
        assert all(document["left_out"].values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ",".join(row.names) or row.remark[:30])
def test_every_name_here_exists(row: Row) -> None:
    assert [target for target in row.here if not exists(target, row.module)] == []
    if not row.here:
        assert len(row.remark) > 10, f"nothing is said of {row.names}"


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert exists("TopicConfig.max_entries_per_ledger", "delivery/topic_config.py")
    assert not exists("TopicConfig.max_entry_per_ledger", "delivery/topic_config.py")
    assert exists(
        "BucketSnapshotStorage.create_bucket_snapshot(bucket_key)", "delivery/tracker/bucket/snapshot/storage.py"
    )
    assert not exists(
        "BucketSnapshotStorage.create_bucket_snapshot(key)", "delivery/tracker/bucket/snapshot/storage.py"
    )
    assert exists("DelayedIndex.timestamp", "proto/delayed_bucket_segment.proto")
    assert not exists("DelayedIndex.time", "proto/delayed_bucket_segment.proto")
    assert exists("open(cluster)", "bookstand/store.py")
    assert not exists("pulsar_cursor_size", "cursor/metrics.py")


def test_names_in_the_text_and_in_remarks_exist() -> None:
    modules = {name.partition(".")[0]: row.module for row in ROWS for name in row.here}
    modules |= dict.fromkeys(bookstand.__all__, "bookstand/__init__.py")
    named = re.findall(r"`([A-Z]\w+\.\w+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
    assert [name for name in named if not exists(name, modules[name.partition(".")[0]])] == []


def test_the_default_of_the_merge_policy_is_the_one_that_the_page_names() -> None:
    assert DelayedDeliveryConfig().delayed_delivery_merge_policy == LEAST_WRITES
    assert f"`{LEAST_WRITES}` is the default" in PAGE
    assert TWO_SMALLEST in PAGE


def test_the_example_reads_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "pulsar-names.md", "exec"), {})


def test_other_pages_lead_to_it() -> None:
    for page in ("README.md", "mkdocs.yml", "docs/topics.md", "docs/time-index.md", "docs/reference/settings.md"):
        assert "pulsar-names.md" in (ROOT / page).read_text(), page
