"""Every command of the table on a store of every condition, and on what is no store: its answer or a clear error, and
the exit code that is documented. A command that is added is added to ``CALLS``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bookstand.tools.cli.exit_codes import DAMAGE, FINE, MEANINGS, NOT_THERE
from bookstand.tools.main import COMMANDS
from tests.page_damage import spoil_free_list, zero_leaf
from tests.tools import kit
from tests.tools.kit import run


class Call(NamedTuple):
    """What follows the place, and how the command ends there if not as all others."""

    more: tuple[str, ...] = ()
    codes: dict[str, int] = {}
    """By place: other codes than :data:`CODES` has."""
    before: tuple[str, ...] = ()


CODES = {
    "healthy": FINE,
    "empty": FINE,
    "damaged": DAMAGE,
    "cut": DAMAGE,
    "zeroed": DAMAGE,
    "free-list": DAMAGE,
    "newer": NOT_THERE,
    "folder": NOT_THERE,
    "text": NOT_THERE,
    "nothing": NOT_THERE,
    "empty-file": NOT_THERE,
}
"""By place: a store with something of everything; one without ledgers; one with damaged and lost entries; one whose
file was cut short, of which a page is zeros, and whose list of free pages has one in use; one of a newer format; and
what is no store."""

SPOILT = {"cut": kit.cut_file, "zeroed": zero_leaf, "free-list": spoil_free_list, "newer": kit.make_newer}
STORES = ("healthy", "empty", "damaged", *SPOILT)

# What reads no entries, or others, does not see what is wrong with these.
_UNSEEN = {"damaged": FINE}

CALLS: dict[str, Call | None] = {
    "ls": Call(codes=_UNSEEN),
    "show": Call(codes=_UNSEEN),
    "cat": Call(("2",), {"empty": NOT_THERE}),
    "verify": Call(),
    "cursors": Call(codes=_UNSEEN),
    "delayed": Call(),
    "stats": Call(),
    "report": Call(("--output", "page.html")),
    # A store is no bookie.
    "import-bookie": Call(("new",), dict.fromkeys(STORES, NOT_THERE)),
    "export-bookie": Call(("new",)),
    "migrate cursors": Call(codes=_UNSEEN),
    "migrate snapshots": Call(codes=_UNSEEN),
    "backup": Call(("new",), _UNSEEN),
    "compact": Call(codes=_UNSEEN),
    "repair": Call(("new",)),
    "upgrade": Call(codes=_UNSEEN),
    # A store that is not there is made.
    "serve": Call(("--zookeeper", "0"), {**_UNSEEN, "nothing": FINE}),
    # Makes a store of its own.
    "demo": None,
}
CASES = [(command, place) for command, call in CALLS.items() if call is not None for place in CODES]


def test_no_command_is_missing() -> None:
    assert list(CALLS) == list(COMMANDS)


@pytest.fixture
def places(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One's own, for some commands write."""
    for name, source in (("healthy", "my-store"), ("empty", "empty"), ("damaged", "damaged-store")):
        kit.copied(bench / source, tmp_path / name)
    for name, change in SPOILT.items():
        change(kit.copied(bench / "my-store", tmp_path / name))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "text").write_text("no store\n")
    (tmp_path / "empty-file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "place"), CASES)
def test_command(places: Path, command: str, place: str) -> None:
    call = CALLS[command]
    assert call is not None
    code = call.codes.get(place, CODES[place])
    assert code in MEANINGS
    words = (*command.split(), *call.before, place, *call.more)
    result = run(*words)
    assert result.code == code, result.out + result.err
    assert "Traceback" not in result.out + result.err
    if code == FINE:
        assert result.out
        assert result.err == ""
    elif code == DAMAGE:
        assert "damage" in result.out + result.err or "lost" in result.out
    else:
        assert result.out == "" or result.out.startswith("store ")
        assert result.err.count("\n") == 1
        assert place in result.err or call.more[0] in result.err


@pytest.mark.parametrize(("command", "place"), CASES)
def test_command_as_json(places: Path, command: str, place: str) -> None:
    call = CALLS[command]
    assert call is not None
    code = call.codes.get(place, CODES[place])
    result = run(*command.split(), *call.before, place, *call.more, "--json")
    assert result.code == code, result.out + result.err
    documents: list[dict[str, Any]] = result.lines if command == "cat" else [result.json]
    error = documents[-1].get("error")
    if code in (FINE, DAMAGE) and error is None:
        assert command == "cat" or documents[0]["kind"]
    else:
        assert error is not None
        assert error["exit_code"] == code
        assert f"bookstand: {error['message']}\n" == result.err


@pytest.mark.parametrize("command", [command for command, call in CALLS.items() if call is not None])
def test_nothing_is_written_where_there_is_nothing_to_read(places: Path, command: str) -> None:
    call = CALLS[command]
    assert call is not None
    before = sorted(places.rglob("*"))
    for place in ("folder", "text", "nothing", "empty-file", "newer"):
        if call.codes.get(place) == FINE:
            continue
        run(*command.split(), *call.before, place, *call.more)
    after = [path for path in sorted(places.rglob("*")) if path.name != "lock.mdb"]
    assert after == [path for path in before if path.name != "lock.mdb"]
