"""``docs/spark.md`` says of tables and options what the code says: ``python -m tests.pipeline.test_docs`` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.pipeline.tables.query import OPTIONS
from bookstand.pipeline.tables.schemas import TABLES, Table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
_TABLES = re.compile(r"(?<=<!-- tables -->\n).*(?=<!-- end of tables -->)", re.DOTALL)


def described(table: Table) -> str:
    lines = [
        f"### {table.name}",
        "",
        f"{table.meaning[0].upper()}{table.meaning[1:]}.",
        "",
        "| column | type | |",
        "|---|---|---|",
    ]
    lines += [f"| `{column.name}` | `{column.type}` | {column.meaning} |" for column in table.columns]
    return "\n".join([*lines, "", ""])


def all_described() -> str:
    return "\n" + "".join(map(described, TABLES.values()))


def test_the_page_has_every_column_of_every_table() -> None:
    found = _TABLES.search(PAGE.read_text())
    assert found is not None
    assert found[0] == all_described()


def test_the_page_has_every_option() -> None:
    text = PAGE.read_text()
    for names in OPTIONS.values():
        for name in names:
            assert f"`{name}`" in text, name


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_the_programs_run_one_after_the_other(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bookstand.open(tmp_path / "store") as store:
        topic = store.topic("persistent://public/default/orders")
        topic.subscription("billing")
        topic.publish_many([b"an order"] * 7)
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(programs) == 4
    there = {"/var/lib/app/store": tmp_path / "store", "/data/checkpoints": tmp_path / "checkpoints"}
    names: dict[str, Any] = {}
    for program in programs:
        for place, here in there.items():
            program = program.replace(place, str(here))
        exec(program, names)
    assert "billing" not in capsys.readouterr().out  # its backlog is small
    assert spark.table("orders").count() == 7
    spark.sql("DROP TABLE orders")


if __name__ == "__main__":
    PAGE.write_text(_TABLES.sub(lambda _: all_described(), PAGE.read_text()))
