"""Recorded disks are all equal to what the originals said. A truth that is changed is noticed, and nothing else is."""

from __future__ import annotations

import copy
import json
import lzma
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replay import disk
from tests.replay.__main__ import main
from tests.replay.areas import AREAS
from tests.replay.disk_recordings import read_lines
from tests.replay.outcome import Outcome

RECORDED = Path(__file__).resolve().parent.parent / "data" / "bookie"
NAMES = ["a", "b", "c", "d", "f", "damaged"]

Line = dict[str, Any]
Change = Callable[[list[Line]], str]
"""Changes lines of a truth, and tells the sample that is different then."""


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_all_samples_are_equal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["disk", str(RECORDED / name), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (counts["argued"], counts["different"]) == (0, 0)
    assert counts["equal"] > (50 if name == "damaged" else 1_000)


def test_few_may_be_argued() -> None:
    assert AREAS["disk"].argued_at_most == 0.02


def test_no_sample_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("nothing to see")
    assert main(["disk", str(tmp_path)]) != 0
    assert "no sample" in (said := capsys.readouterr()).out + said.err


# -- changed truths ----------------------------------------------------------------------------------------------------


def changed(name: str, below: Path, changes: dict[str, list[Change]]) -> tuple[list[Outcome], set[str]]:
    """What a copy of a recording gives whose truth was changed, and which samples are to be different."""
    folder = below / name
    shutil.copytree(RECORDED / name, folder)
    expected = set()
    for stem, some in changes.items():
        (path,) = (folder / "truth").glob(f"{stem}.jsonl*")
        lines = list(read_lines(path))
        expected |= {f"{name}/{change(lines)}" for change in some}
        path.unlink()
        path.with_name(f"{stem}.jsonl.xz").write_bytes(
            lzma.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), preset=0)
        )
    return list(disk.replay([folder])), expected


def _ledger(number: int, change: Callable[[Line], None], where: str = "ledgers") -> Change:
    def apply(lines: list[Line]) -> str:
        found = lines if where == "ledgers" else [one for line in lines for one in line["ledgers"]]
        some = [line for line in found if len(line["entries"]) > 3 and "error" not in line["entries"][1]]
        change(some[number])
        return f"{where}/{some[number]['ledger_id']}"

    return apply


def _topic(number: int, change: Callable[[Line], None]) -> Change:
    def apply(lines: list[Line]) -> str:
        change(lines[number])
        return f"topics/{lines[number]['topic']}"

    return apply


def _message(number: int, change: Callable[[Line], None]) -> Change:
    def apply(lines: list[Line]) -> str:
        line = lines[number]
        change(line)
        return f"messages/{line['topic']}/{line['ledger']}:{line['entry']}"

    return apply


def _subscription(kind: str, name: str, change: Callable[[Line], None]) -> Change:
    def apply(lines: list[Line]) -> str:
        (line,) = (one for one in lines if one["subscription"] == name)
        change(line)
        return f"{kind}/{line['topic']}/{name}"

    return apply


def _set(path: tuple[Any, ...], value: Any) -> Callable[[Line], None]:
    """A value deep in a line; a function of the one before."""

    def apply(line: Line) -> None:
        at: Any = line
        for step in path[:-1]:
            at = at[step]
        new = value(at.get(path[-1]) if isinstance(at, dict) else at[path[-1]]) if callable(value) else value
        assert copy.deepcopy(new) != (at.get(path[-1]) if isinstance(at, dict) else at[path[-1]])
        at[path[-1]] = new

    return apply


def _one_more(number: int) -> int:
    return number + 1


def _other(text: str) -> str:
    return ("0" if text[0] != "0" else "1") + text[1:]


def test_whatever_is_changed_is_different_and_nothing_else(tmp_path: Path) -> None:
    outcomes, expected = changed(
        "d",
        tmp_path,
        {
            "ledgers": [
                _ledger(0, _set(("entries", 1, "sha256"), _other)),
                _ledger(1, _set(("entries", 2, "len"), _one_more)),
                _ledger(2, _set(("entries", 3, "cumulative_length"), _one_more)),
                _ledger(3, lambda line: line["entries"].pop()),
                _ledger(4, _set(("metadata", "last_entry"), _one_more)),
                _ledger(5, _set(("metadata", "length"), _one_more)),
                _ledger(6, _set(("metadata", "digest"), "CRC32")),
                _ledger(7, _set(("metadata", "custom_metadata", "application"), "eA==")),
                _ledger(8, _set(("metadata", "ensembles", 0, "bookies", 0), "bookie-9")),
                _ledger(9, _set(("lac",), _one_more)),
                _ledger(10, _set(("length",), _one_more)),
            ],
            "deleted": [_ledger(0, _set(("entries", 1, "sha256"), _other), "deleted")],
            "topics": [
                _topic(0, _set(("entries",), _one_more)),
                _topic(1, _set(("ledgers", 0, "ledger_id"), 4_000)),
                _topic(2, _set(("cursors",), ["somebody"])),
            ],
            "messages": [
                _message(0, _set(("payload_sha256",), _other)),
                _message(40, _set(("checksum",), _one_more)),
                _message(80, _set(("metadata", "sequence_id"), _one_more)),
                _message(-1, _set(("messages", 0, "sha256"), _other)),
            ],
            "cursors": [
                _subscription("cursors", "f", _set(("individually_deleted",), [])),
                _subscription("cursors", "s-cum", _set(("mark_delete", 1), lambda at: at - 5)),
                _subscription("cursors", "b-idx", _set(("batch_deleted",), [[6, 20, [1]]])),
            ],
            "delayed": [
                _subscription("delayed", "d1", _set(("buckets", 0, "segments", 0, "indexes", 0, 0), _one_more))
            ],
        },
    )
    assert {one.name for one in outcomes if one.verdict != "equal"} == expected
    assert all(one.detail for one in outcomes if one.verdict == "different")
    assert len(expected) == 23


def test_what_was_acknowledged_has_to_be_there(tmp_path: Path) -> None:
    def never_written(lines: list[Line]) -> str:
        (line,) = (one for one in lines[-1:] if "entry" in one)
        lines.append({**line, "entry": 1_000_000})
        return f"acked/{line['ledger']}:1000000"

    outcomes, expected = changed("f", tmp_path, {"acked": [never_written]})
    assert {one.name for one in outcomes if one.verdict != "equal"} == expected


def test_what_is_found_in_a_damaged_file_is_known_beforehand(tmp_path: Path) -> None:
    """Of a log that is whole the map has to be the original's."""
    folder = tmp_path / "damaged"
    shutil.copytree(RECORDED / "damaged", folder)
    (path,) = folder.glob("expected.jsonl*")
    lines = list(read_lines(path))
    (line,) = (one for one in lines if (one["kind"], one["case"]) == ("entrylog", "intact"))
    line["ledgers_map"]["5"] += 1
    path.unlink()
    (folder / "expected.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with tarfile.open(folder / "cases.tar.xz") as archive:
        assert any("intact" in name for name in archive.getnames())
    different = [one.name for one in disk.replay([folder]) if one.verdict != "equal"]
    assert different == ["damaged/entrylog/intact"]
