"""``docs/spark.md`` says of tables and options what the code says: ``python -m tests.pipeline.test_docs`` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from bookstand.pipeline.query import OPTIONS
from bookstand.pipeline.schemas import TABLES, Table

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
    lines += [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
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


if __name__ == "__main__":
    PAGE.write_text(_TABLES.sub(lambda _: all_described(), PAGE.read_text()))
