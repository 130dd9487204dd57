"""What is printed, looked at: at 80 and 160 columns, and in a pipe. A store that is the same each time, and recorded
disks."""

from __future__ import annotations

from pathlib import Path

import pytest

import bookstand
from bookstand.tools.cli import output
from bookstand.tools.cli.output import Column
from tests.tools import kit
from tests.tools.kit import run
from tests.tools.snapshots import compare

DUMP = "--metadata metadata.jsonl.gz"
AT = "--at 2027-01-15T08:10:00Z"

OF_THE_STORE = {
    "ls": "ls my-store",
    "ls-topics": "ls my-store --topics",
    "ls-nodes": "ls my-store --nodes",
    "ls-files": "ls my-store --files",
    "show": "show my-store",
    "show-ledger": "show my-store 0",
    "show-entry": "show my-store 3:70",
    "show-page": "show my-store 5:0",
    "show-topic": "show my-store orders",
    "show-node": "show my-store --node /managed-ledgers/acme/shop/persistent/orders",
    "show-cursor-node": "show my-store --node /managed-ledgers/acme/shop/persistent/orders/audit",
    "cat": "cat my-store 1",
    "cat-hex": "cat my-store 1 --hex",
    "cat-messages": "cat my-store orders --messages --first 3:68",
    "cursors": "cursors my-store",
    "cursors-topic": "cursors my-store orders",
    "cursors-history": "cursors my-store orders --cursor audit --history",
    "cursors-earlier": "cursors my-store orders --cursor audit --at-marker 5:1",
    "delayed": f"delayed my-store {AT}",
    "delayed-topic": f"delayed my-store orders {AT}",
    "stats": "stats my-store",
    "verify": "verify my-store",
    "migrate-cursors": "migrate cursors my-store --to snapshot --dry-run",
    "migrate-cursors-none": "migrate cursors my-store --dry-run",
    "migrate-snapshots": "migrate snapshots my-store --step-seconds 120 --dry-run",
    "export": "export-bookie my-store new --dry-run",
    "export-topic": "export-bookie my-store new --topic orders --log-bytes 5000 --dry-run",
    "compact-dry": "compact my-store --dry-run",
    "upgrade": "upgrade my-store",
    "repair-dry": "repair my-store new --dry-run",
}
OF_DISKS = {
    "disk-ls": f"ls bookie {DUMP}",
    "disk-ls-topics": f"ls bookie {DUMP} --topics",
    "disk-ls-nodes": f"ls bookie {DUMP} --nodes",
    "disk-ls-files": f"ls bookie {DUMP} --files",
    "disk-ls-contents": f"ls bookie {DUMP} --contents --ledger 5 --ledger 14",
    "disk-show-entry": f"show bookie 5:3 {DUMP}",
    "disk-cursors": f"cursors bookie {DUMP}",
    "disk-delayed": f"delayed bookie {DUMP}",
    "disk-verify": f"verify bookie {DUMP}",
    "disk-import": f"import-bookie bookie new {DUMP} --dry-run",
}
OF_NOTHING = {f"empty-{command}": f"{command} empty" for command in ("ls", "cursors", "stats", "verify")}
OF_NOTHING["empty-delayed"] = f"delayed empty {AT}"


LINES = {**OF_THE_STORE, **OF_DISKS, **OF_NOTHING}
# In a pipe all is as wide as it takes.
CASES = [(name, columns) for name in LINES for columns in (80, 160)]
CASES += [
    (name, None)
    for name in (
        "ls",
        "show-ledger",
        "disk-verify",
        "export-topic",
        "migrate-cursors",
        "compact-dry",
        "upgrade",
        "repair-dry",
    )
]


@pytest.mark.parametrize(("name", "columns"), CASES)
def test_output(here: Path, name: str, columns: int | None) -> None:
    result = run(*LINES[name].split(), columns=columns)
    assert (result.code, result.err) == (0, "")
    compare(name, columns, result.out)


@pytest.mark.parametrize("columns", [80, 160])
def test_damage(own: Path, columns: int) -> None:
    kit.damage_entry(own / "my-store", 2, 7)
    kit.lose_entry(own / "my-store", 3, 5)
    kit.damage_entry(own / "my-store", 5, 6)
    for command in ("verify", "stats"):
        result = run(command, "my-store", columns=columns)
        assert result.code == 1
        compare(f"damaged-{command}", columns, result.out + result.err)


@pytest.mark.parametrize("columns", [80, 160, None])
def test_commands_that_write(own: Path, columns: int | None) -> None:
    kit.copied(own / "my-store", own / "damaged-store")
    kit.damage_entry(own / "damaged-store", 2, 7)
    kit.lose_entry(own / "damaged-store", 3, 5)
    kit.damage_entry(own / "damaged-store", 5, 6)
    cut = kit.copied(own / "my-store", own / "cut-store")
    kit.cut_file(cut)
    kit.fill_old(own / "old-store")
    for name, words, code in (
        ("backup", "backup my-store copy", 0),
        ("compact", "compact my-store", 0),
        ("upgrade-old", "upgrade old-store", 0),
        ("repair", "repair my-store saved", 0),
        ("repair-damaged", "repair damaged-store some", 1),
        ("repair-cut", "repair cut-store few", 1),
    ):
        result = run(*words.split(), columns=columns)
        assert result.code == code, result.err
        compare(name, columns, result.out + result.err)


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "a…def"),
        ("abcdef", 1, "…"),
        ("persistent", 7, "pe…tent"),
        ("日本語の名前", 7, "日…名前"),
        ("", 0, ""),
    ],
)
def test_what_is_too_long_is_cut(text: str, most: int, shown: str) -> None:
    assert output.cut(text, most) == shown
    assert output.cells(output.cut(text, most)) <= most


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (1 << 80, "1048576.0 EiB"),
    ],
)
def test_sizes(size: int, shown: str) -> None:
    assert output.human(size) == shown


@pytest.mark.parametrize(
    ("millis", "shown"),
    [(None, None), (0, None), (-5, None), (1, "1970-01-01T00:00:00.001Z"), (1 << 62, f"{1 << 62} ms")],
)
def test_times(millis: int | None, shown: str | None) -> None:
    assert output.iso(millis) == shown


def test_no_table_is_wider_than_it_may_be(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in it: columns give way, and then they go."""
    columns = (Column("name", "NAME", least=4), Column("long", "LONG", least=4, rank=1), Column("n", "N", right=True))
    rows = [{"name": "n" * length, "long": "日" * (40 - length), "n": length} for length in range(0, 40, 3)]
    for most in range(20, 100, 7):
        monkeypatch.setenv("COLUMNS", str(most))
        output.table(columns, rows)
        assert max(map(output.cells, capsys.readouterr().out.splitlines())) <= most


def test_what_a_name_holds_is_not_obeyed(own: Path) -> None:
    with bookstand.open("my-store") as store:
        store.nodes.put("/odd\x1b[2J\nname", b"\x1b[2J")
    result = run("show", "my-store", "--node", "/")
    assert "odd\\x1b[2J\\nname" in result.out
    assert "\x1b" not in result.out
