"""Power cuts of real file systems on a logging block device; and that these cuts find a store that does not sync."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.soak import defects
from tests.soak.block_device import (
    FILE_SYSTEMS,
    SECTOR,
    Cut,
    FileSystem,
    Recording,
    Write,
    cuts_of,
    missing,
    run,
    write_image,
)


def usable(system: FileSystem) -> None:
    reason = missing(system)
    if reason is not None:
        pytest.skip(f"{system.name}: {reason}")


@pytest.mark.parametrize("system", FILE_SYSTEMS, ids=lambda system: system.name)
def test_no_power_cut_of_a_real_file_system_loses_what_was_acknowledged(counts: Any, system: FileSystem) -> None:
    usable(system)
    done = run(100, system, cuts=5)
    counts.add("block_device", done.cases, len(done.problems))
    assert done.problems == []


def test_power_cuts_find_a_store_that_does_not_sync() -> None:
    system = FILE_SYSTEMS[0]
    usable(system)
    hits: list[None] = []
    with defects.switched_on("no sync", lambda: hits.append(None)):
        done = run(100, system, cuts=8)
    assert hits
    assert done.problems != []


# -- images ------------------------------------------------------------------------------------------------------------


def image(tmp_path: Path, log: list[Write | None], length: int, kept: str) -> bytes:
    base = tmp_path / "base"
    base.write_bytes(bytes(4 * SECTOR))
    write_image(Recording(base, log, []), Cut(length, kept, 1), tmp_path / "cut")
    return (tmp_path / "cut").read_bytes()


LOG: list[Write | None] = [Write(0, b"a" * SECTOR), None, Write(SECTOR, b"b" * 2 * SECTOR), Write(0, b"c")]


@pytest.mark.parametrize("kept", ["none", "all", "writes", "sectors"])
def test_a_cut_after_a_flush_has_all_writes_before_it(tmp_path: Path, kept: str) -> None:
    assert image(tmp_path, LOG, 2, kept) == b"a" * SECTOR + bytes(3 * SECTOR)


def test_a_cut_has_none_or_all_writes_after_the_last_flush(tmp_path: Path) -> None:
    assert image(tmp_path, LOG, 4, "none") == b"a" * SECTOR + bytes(3 * SECTOR)
    assert image(tmp_path, LOG, 4, "all") == b"c" + b"a" * (SECTOR - 1) + b"b" * 2 * SECTOR + bytes(SECTOR)


def test_a_cut_may_tear_a_write_between_sectors_only(tmp_path: Path) -> None:
    log: list[Write | None] = [Write(0, b"x" * 4 * SECTOR)]
    seen = set()
    for seed in range(40):
        base = tmp_path / "base"
        base.write_bytes(bytes(4 * SECTOR))
        write_image(Recording(base, log, []), Cut(1, "sectors", seed), tmp_path / "cut")
        found = (tmp_path / "cut").read_bytes()
        sectors = [found[at : at + SECTOR] for at in range(0, len(found), SECTOR)]
        assert set(sectors) <= {bytes(SECTOR), b"x" * SECTOR}
        seen.add(found)
    assert len(seen) > 4


def test_cuts_are_repeated_by_their_seed() -> None:
    recording = Recording(Path("base"), LOG, [(2, "first"), (4, "second")])
    assert cuts_of(recording, 10, 7) == cuts_of(recording, 10, 7)
    assert all(0 <= cut.length <= len(LOG) for cut in cuts_of(recording, 50, 8))
