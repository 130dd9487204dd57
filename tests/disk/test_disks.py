"""The recorded disks as a whole, entry by entry against what the original's clients said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from bookstand.disk.disks import DiskLedger, Disks
from bookstand.disk.metadata.dump import DumpNode, MetadataDump, ledger_path
from bookstand.errors import IllegalOperationError, IncorrectParameterError, NoSuchLedgerError
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.ledger_metadata import LedgerMetadata, serialize
from tests.disk.made import Bookie, entries, ledger_key
from tests.disk.recordings import RECORDINGS, dump_path, truth

KILLED_WHILE_WRITING = "f"
SETTLED = [name for name in RECORDINGS if name != KILLED_WHILE_WRITING]

NAMES = {"CRC32C": "crc32c", "CRC32": "crc32", "MAC": "hmac", "DUMMY": "dummy"}

Opener = Callable[..., Disks]


@pytest.fixture(scope="module")
def opened(unpacked: Callable[[str], Path]) -> Iterator[Opener]:
    """``opened(recording, with_metadata)``; each is opened once."""
    every: list[Disks] = []

    @cache
    def open_(name: str, with_metadata: bool = True) -> Disks:
        every.append(Disks.open([unpacked(name)], dump_path(name) if with_metadata else None))
        return every[-1]

    yield open_
    for disks in every:
        disks.close()


def shown(ledger: DiskLedger, beyond: bool = False) -> dict[int, tuple[int, int, str]]:
    return {
        entry.entry_id: (len(entry.payload), entry.cumulative_length, sha256(entry.payload).hexdigest())
        for entry in ledger.entries(beyond=beyond)
    }


def told(ledger: dict[str, Any]) -> dict[int, tuple[int, int, str]]:
    return {said["entry"]: (said["len"], said["cumulative_length"], said["sha256"]) for said in ledger["entries"]}


def named(name: str, app: str) -> list[dict[str, Any]]:
    """The recording's ledgers of this custom metadata."""
    import base64

    value = base64.b64encode(app.encode()).decode()
    return [told for told in truth(name, "ledgers") if told["metadata"]["custom_metadata"].get("app") == value]


# -- with metadata ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTLED)
def test_every_entry_of_every_ledger(name: str, opened: Opener) -> None:
    disks = opened(name)
    afterwards = {said["ledger_id"]: said for said in truth(name, "ledgers-after-restart")}
    for said in truth(name, "ledgers"):
        ledger = disks.ledger(said["ledger_id"])
        extent, metadata = ledger.extent, said["metadata"]
        closed = metadata["state"] == "CLOSED"
        assert shown(ledger, beyond=not closed) == told(said), ledger
        assert (extent.state, extent.lac) == (metadata["state"], said["lac"]), ledger
        recovered = said if closed else afterwards.get(ledger.id, {})
        if closed:
            assert (extent.last_entry, extent.length) == (metadata["last_entry"], said["length"]), ledger
        elif recovered.get("state") == "CLOSED":
            assert (extent.last_entry, extent.length) == (recovered["last_entry"], recovered["length"]), ledger
            assert not extent.doubts
        assert not extent.missing
        assert not extent.too_few
        assert ledger.digest_name == NAMES[metadata["digest"]]
        assert all(entry.checked == (ledger.digest_name != "dummy") for entry in ledger.entries())
    assert not [found for found in disks.damage if found.ledger_id >= 0]


@pytest.mark.parametrize("name", SETTLED)
def test_deleted_ledgers_are_still_there(name: str, opened: Opener) -> None:
    disks = opened(name)
    on_disks = set(disks.catalog.ledger_ids)
    seen = 0
    for group in truth(name, "deleted"):
        for said in group["ledgers"]:
            if said["entries"]:
                assert shown(disks.ledger(said["ledger_id"]), beyond=True) == told(said)
                seen += 1
            else:
                assert said["ledger_id"] not in on_disks
    assert seen


@pytest.mark.parametrize("name", [name for name in SETTLED if name != "e"])
def test_special_ledgers(name: str, opened: Opener) -> None:
    disks = opened(name)
    (fenced,), (rewritten,) = named(name, "fenced"), named(name, "rewritten-by-recovery")
    assert {ledger_id for ledger_id in disks.ledger_ids if disks.ledger(ledger_id).fenced} == {
        fenced["ledger_id"],
        rewritten["ledger_id"],
    }
    copies = disks.catalog.copies(rewritten["ledger_id"])
    assert len(set(zip(copies.entry_ids.tolist(), copies.lacs.tolist(), strict=True))) > len(rewritten["entries"])
    (explicit,) = named(name, "explicit-lac")
    assert disks.catalog.explicit_lacs[explicit["ledger_id"]] == 4
    for said in named(name, "foreign"):
        password = f"pw-{said['metadata']['digest']}".encode()
        assert disks.ledger(said["ledger_id"]).master_key == master_key(password)
    (gap,) = (said for said in truth(name, "ledgers") if not said["metadata"]["custom_metadata"])
    ledger = disks.ledger(gap["ledger_id"])
    assert [entry.entry_id for entry in ledger.entries()] == [0, 1]
    assert [entry.entry_id for entry in ledger.entries(1, 7, beyond=True)] == [1, 3]
    assert "behind a gap at 2, up to 3" in ledger.extent.doubts[0]


def test_a_bookie_has_its_own_copies(opened: Opener) -> None:
    """Of three bookies two have each entry; after a clean stop none has lost one."""
    disks = opened("d")
    assert [bookie.name for bookie in disks.bookies] == ["bookie-0", "bookie-1", "bookie-2"]
    for said in truth("d", "ledgers"):
        copies = disks.catalog.copies(said["ledger_id"])
        assert (disks.catalog.holders(copies) >= said["metadata"]["write_quorum"]).all()


# -- killed while writing --------------------------------------------------------------------------------------------


def test_ends_lie_within_their_bounds(opened: Opener) -> None:
    disks = opened(KILLED_WHILE_WRITING)
    open_ones = 0
    for said in truth(KILLED_WHILE_WRITING, "ledgers"):
        if said["ledger_id"] not in disks.ledger_ids:
            assert not said["entries"]  # one of the restart
            continue
        ledger = disks.ledger(said["ledger_id"])
        extent, end = ledger.extent, said["metadata"]["last_entry"]
        assert told(said).items() <= shown(ledger).items(), ledger
        if extent.state == "CLOSED":
            assert (extent.last_entry, extent.length) == (end, said["length"])
            continue
        open_ones += 1
        assert max(extent.enough, extent.lac) <= end <= extent.gapless == extent.last_entry, ledger
        assert (end < extent.last_entry) <= bool(extent.doubts), ledger
    assert open_ones > 8


def test_the_numbers_of_two_ledgers(opened: Opener) -> None:
    disks = opened(KILLED_WHILE_WRITING)
    (two, _), (three,) = named("f", "busy-322"), named("f", "busy-333")
    extent = disks.ledger(two["ledger_id"]).extent
    assert (extent.lac, extent.enough, extent.gapless, extent.highest) == (600, 604, 697, 793)
    assert extent.too_few[:2] == [(605, 605), (607, 608)]
    extent = disks.ledger(three["ledger_id"]).extent
    assert (extent.lac, extent.enough, extent.gapless, extent.highest) == (500, 505, 618, 618)
    assert extent.too_few == [(506, 618)]


def test_everything_acknowledged_is_there(opened: Opener) -> None:
    disks = opened(KILLED_WHILE_WRITING)
    entries_of = cache(lambda ledger_id: set(shown(disks.ledger(ledger_id))))
    acked = truth(KILLED_WHILE_WRITING, "acked")
    assert len(acked) > 4000
    for said in acked:
        # Writers of ledgers were told an entry; producers an id: ledger, entry, and place in the batch.
        ledger_id, entry_id = (
            (said["ledger"], said["entry"]) if "ledger" in said else map(int, said["id"].split(":")[:2])
        )
        assert entry_id in entries_of(ledger_id), said


def test_what_a_missing_bookie_has_is_not_known(unpacked: Callable[[str], Path]) -> None:
    (said, _) = named("f", "busy-322")
    some = [unpacked("f") / "bookie-1", unpacked("f") / "bookie-2"]
    with Disks.open(some, dump_path("f")) as disks:
        extent = disks.ledger(said["ledger_id"]).extent
        assert "there is no disk of bookie-0" in extent.doubts[-1]
        assert extent.lac <= extent.last_entry < 697


def test_one_of_three_bookies_is_missing(unpacked: Callable[[str], Path], opened: Opener) -> None:
    """Every entry of two copies has one left. Which of them have lost the other is named."""
    complete = opened("d")
    with Disks.open([unpacked("d") / "bookie-0", unpacked("d") / "bookie-2"], dump_path("d")) as disks:
        lost = 0
        for said in truth("d", "ledgers"):
            ledger = disks.ledger(said["ledger_id"])
            assert shown(ledger, beyond=ledger.extent.state != "CLOSED") == told(said), ledger
            assert ("bookie-1" in str(ledger.extent.doubts)) == ("bookie-1" in str(said["metadata"]["ensembles"]))
            holders: dict[int, set[str]] = {}
            copies = complete.catalog.copies(ledger.id)
            for entry, file in zip(copies.entry_ids.tolist(), copies.files.tolist(), strict=True):
                bookie = complete.bookies[complete.catalog.files[file].bookie].name
                if bookie != "bookie-1":
                    holders.setdefault(entry, set()).add(bookie)
            few = [entry for first, last in ledger.extent.too_few for entry in range(first, last + 1)]
            end = ledger.extent.last_entry
            assert few == sorted(entry for entry, bookies in holders.items() if len(bookies) < 2 and entry <= end)
            lost += len(few)
        assert lost > 500


# -- without metadata ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_without_metadata(name: str, opened: Opener) -> None:
    """All entries, by whichever digest; where ledgers end is what cannot be told."""
    disks, known = opened(name, False), opened(name)
    assert disks.ledger_ids == known.catalog.ledger_ids
    for said in truth(name, "ledgers"):
        if not said["entries"]:
            continue
        ledger = disks.ledger(said["ledger_id"])
        found = shown(ledger, beyond=True)
        assert told(said).items() <= found.items(), ledger
        assert len(found) == len(told(said)) or name == KILLED_WHILE_WRITING
        assert ledger.digest_name == NAMES[said["metadata"]["digest"]]
        assert ledger.fenced == known.ledger(ledger.id).fenced
        assert ledger.extent.state == "UNKNOWN"
        assert ledger.extent.last_entry == ledger.extent.gapless == known.ledger(ledger.id).extent.gapless
        checkable = ledger.digest_name not in ("hmac", "dummy")
        assert {entry.checked for entry in ledger.entries()} == {checkable}
        assert any("no digest" in doubt for doubt in ledger.extent.doubts) == (not checkable)
    assert not [found for found in disks.damage if found.ledger_id >= 0]


def test_a_password_opens_an_hmac(unpacked: Callable[[str], Path]) -> None:
    (said,) = (said for said in named("b", "foreign") if said["metadata"]["digest"] == "MAC")
    with Disks.open([unpacked("b")], passwords=[b"pw-MAC"]) as disks:
        ledger = disks.ledger(said["ledger_id"])
        assert shown(ledger) == told(said)
        assert all(entry.checked for entry in ledger.entries())


# -- the room's front door -------------------------------------------------------------------------------------------


def test_ledgers_that_are_not_there(opened: Opener) -> None:
    with pytest.raises(NoSuchLedgerError, match="ledger 12345678 is neither"):
        opened("a").ledger(12345678)
    with pytest.raises(IncorrectParameterError, match="no entries from -1"):
        opened("a").ledger(0).entries(-1)


def test_a_password_that_is_not_the_bookies_is_reported(tmp_path: Path) -> None:
    digest = digest_for("crc32c", b"")
    about = LedgerMetadata(
        1,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        ensembles=[(0, ["b0"])],
        digest_type="crc32c",
        password=b"pw",
    )
    node = DumpNode(ledger_path(1), serialize(about), 0, 0, 0)
    for password in (b"pw", b"other"):
        Bookie(tmp_path, "b0").journal(1, [ledger_key(1, master_key(password)), *entries(digest, 1, [b"one"])])
        with Disks.open([tmp_path], MetadataDump({node.path: node}, pytest.fail)) as disks:
            assert [entry.payload for entry in disks.ledger(1).entries()] == [b"one"]
            said = [str(damage) for damage in disks.damage if "master key" in damage.what]
            assert len(said) == (password == b"other")
            assert all(node.path in line for line in said)


def test_passwords_are_bytes(tmp_path: Path) -> None:
    for passwords in ("pw", b"pw", ["pw"]):
        with pytest.raises(IncorrectParameterError, match="list of bytes"):
            Disks.open([tmp_path], passwords=passwords)  # type: ignore[arg-type]


def test_closed_disks_say_so(tmp_path: Path) -> None:
    Bookie(tmp_path, "b0").log(0, entries(digest_for("crc32c", b""), 1, [b"one"]))
    with Disks.open([tmp_path]) as disks:
        ledger = disks.ledger(1)
        assert [entry.payload for entry in ledger.entries()] == [b"one"]
    for question in (lambda: disks.ledger_ids, lambda: list(ledger.entries(beyond=True)), lambda: disks.ledger(1)):
        with pytest.raises(IllegalOperationError, match="closed"):
            question()


def test_many_ledgers_are_not_kept(tmp_path: Path) -> None:
    digest = digest_for("crc32c", b"")
    Bookie(tmp_path, "b0").log(0, (entry for ledger in range(300) for entry in entries(digest, ledger, [b"x"])))
    with Disks.open([tmp_path]) as disks:
        first = disks.ledger(0)
        assert disks.ledger(0) is first
        assert [disks.ledger(ledger_id).extent.last_entry for ledger_id in disks.ledger_ids] == [0] * 300
        assert disks.ledger(0) is not first
