"""The page on the command line: its examples print what it says they do, and its tables name every field of JSON."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand.tools.cli.exit_codes import MEANINGS
from bookstand.tools.main import COMMANDS
from tests.tools.kit import lay_out, run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text()
LEFT_OUT = "…"
COLUMNS = 80
DUMP = "--metadata metadata.jsonl.gz"


@pytest.fixture
def here(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the examples look at, in which others may be written."""
    lay_out(bench, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def section(title: str) -> str:
    """Of the page, below a heading of the second level."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


# -- examples ----------------------------------------------------------------------------------------------------------


def examples() -> list[tuple[str, list[str]]]:
    """Each command with the lines that it is said to print, in their order."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def printed(command: str) -> list[str]:
    program, *words = shlex.split(command)
    assert program == "bookstand"
    result = run(*words, columns=COLUMNS)
    return (result.out + result.err).splitlines()


def pattern(lines: list[str]) -> str:
    return "".join(r"(?:.*\n)*" if line == LEFT_OUT else re.escape(line) + "\n" for line in lines)


@pytest.mark.long
def test_examples_print_what_they_are_said_to(here: Path) -> None:
    """In their order, for what one writes the next one finds."""
    found = examples()
    for command, lines in found:
        text = "".join(f"{line.rstrip()}\n" for line in printed(command))
        assert re.fullmatch(pattern(lines), text), f"$ {command}\n{text}"
    assert [name for name in COMMANDS if not any(line.startswith(f"bookstand {name} ") for line, _ in found)] == []
    assert len(found) > 20


def test_exit_codes_and_commands_are_those_that_there_are() -> None:
    assert dict(re.findall(r"^\| (\d+) \| (.*) \|$", section("Exit codes"), re.MULTILINE)) == {
        str(code): meaning for code, meaning in MEANINGS.items()
    }
    assert re.findall(r"^\| \[`([\w -]+)`\]", PAGE, re.MULTILINE) == list(COMMANDS)


# -- fields ------------------------------------------------------------------------------------------------------------


def described(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `([\w.\[\]]+)` \| (.*) \|$", text, re.MULTILINE))


EVERY = described(section("JSON"))
# Of lines each has one.
EVERY |= {name.replace("damage[]", "damage"): what for name, what in EVERY.items()}
NODE = "--node /managed-ledgers/acme/shop/persistent/orders"
RUNS = {
    "ls": [
        *(
            "ls my-store",
            "ls my-store --topics",
            "ls my-store --nodes",
            "ls my-store --files",
            "ls damaged-store",
            "ls nothing",
        ),
        *(f"ls bookie {DUMP} {what}" for what in ("", "--topics", "--files", "--contents", "--records")),
    ],
    "show": [
        *(f"show my-store {what}" for what in ("", "0", "1:0", "1:2", "2:7", "3:70", "4:0", "5:0", "orders", NODE)),
        *(f"show bookie {what} {DUMP}" for what in ("", "5:3", "14:3", "terminated", "--node /ledgers/00/0000/L0005")),
        f"show my-store {NODE}/audit",
        "show my-store 77",
    ],
    "cat": [
        *("cat my-store 0 1", "cat my-store orders --messages", "cat damaged-store 2 --last 8", "cat my-store 77"),
        f"cat bookie plain batched big {DUMP} --messages",
    ],
    "verify": ["verify my-store", f"verify bookie {DUMP}", "verify damaged-store", "verify damaged-bookie"],
    "cursors": [
        *("cursors my-store", f"cursors bookie {DUMP}", "cursors my-store orders --cursor audit --history"),
        "cursors my-store orders --cursor audit --at-marker 5:1",
    ],
    "delayed": ["delayed my-store", f"delayed bookie {DUMP}"],
    "stats": ["stats my-store", f"stats bookie {DUMP}", "stats damaged-store"],
    "report": ["report my-store", f"report bookie {DUMP} --at 1", "report damaged-store"],
    "import-bookie": [f"import-bookie bookie other {DUMP} --dry-run", "import-bookie damaged-bookie other --dry-run"],
    "migrate cursors": [
        "migrate cursors my-store --to snapshot --dry-run",
        "migrate cursors damaged-states --to snapshot --dry-run",
    ],
    "migrate snapshots": [
        "migrate snapshots my-store --least 9 --dry-run",
        "migrate snapshots damaged-states --least 9 --dry-run",
    ],
    "export-bookie": ["export-bookie my-store other --dry-run", "export-bookie damaged-store other --dry-run"],
    "backup": ["backup my-store copy"],
    "compact": ["compact my-store --dry-run", "compact my-store"],
    "repair": ["repair damaged-store some", "repair empty all --dry-run"],
    "upgrade": ["upgrade my-store", "upgrade old-store"],
    "serve": ["serve my-store --zookeeper 0 --bookies 1 --admin 0 --metrics 0 --fault delay@read=0.01"],
    "demo": ["demo --messages 5000"],
}
# What the recorded disks and the store have no case of.
RARE = {"message.wrong"}


def fields(value: Any, known: dict[str, str], path: str = "") -> Iterator[str]:
    """The paths of all that there is, as the tables have them. What is told by name is not gone into."""
    if isinstance(value, list):
        for one in value:
            yield from fields(one, known, f"{path}[]") if isinstance(one, dict) else ()
    elif isinstance(value, dict):
        by_name = known.get(path, "").startswith("by ")
        for name, one in value.items():
            below = f"{path}.{name}" if path else name
            if not by_name or is_described(below, known):
                yield below
                yield from fields(one, known, below)


def is_described(name: str, known: dict[str, str]) -> bool:
    """By itself, or by the fields that it has."""
    return name in known or any(other.startswith((f"{name}.", f"{name}[]")) for other in known)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_is_described_and_every_described_one_is_there(here: Path, command: str) -> None:
    own = described(section(command))
    if command == "show":
        # What ``ls`` says of a ledger, ``show`` says, too.
        own |= {
            name.replace("ledgers[]", "ledger"): what
            for name, what in described(section("ls")).items()
            if name.startswith("ledgers[].")
        }
    known = EVERY | own
    seen: set[str] = set()
    for line in RUNS[command]:
        result = run(*line.split(), "--json")
        documents = result.lines if command == "cat" or "--records" in line else [result.json]
        for document in documents:
            found = set(fields(document, known))
            seen |= found
            assert [name for name in found if not is_described(name, known)] == []
    assert set(own) - seen - RARE - {name for name in own if name.endswith("[]")} == set()
