"""Imports of made disks: what is taken, what is left out, what is refused, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from benchmarks import disk_import
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import (
    IMPORT_NODE,
    ImportConflictError,
    ImportReport,
    ImportUnfinishedError,
    import_disks,
)
from bookstand.disk.metadata.dump import MetadataDump, ledger_path
from bookstand.errors import (
    IncorrectParameterError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    StoreDamagedError,
    UnauthorizedAccessError,
    WriteOnReadOnlyError,
)
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.entry_codec import decode
from bookstand.storage.format.ledger_metadata import CLOSED, IN_RECOVERY, MADE_UP, OPEN, LedgerMetadata, serialize
from bookstand.store import Store
from bookstand.testing import Faults
from tests.disk.cluster import Cluster
from tests.disk.made import Bookie, entries, explicit_lac, fence, ledger_key
from tests.disk.recordings import dump_path, truth

CRC32C = digest_for("crc32c", b"")


@pytest.fixture
def target() -> Iterator[Store]:
    with bookstand.temporary() as store:
        yield store


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path / "disks")
    made.ledger(3, [b"three %d" % number for number in range(10)])
    made.ledger(5, [b"five"] * 4, closed=False)
    made.node("/admin/policies/acme", b"{}")
    made.node("/ledgers", b"")
    made.node("/ledgers/00/0000", b"")
    made.node("/ledgers/LAYOUT", b"2\n")
    return made


def run(made: Cluster, store: Store, *, metadata: bool = True, **options: Any) -> ImportReport:
    with made.open(metadata=metadata) as disks:
        return import_disks(disks, store, **options)


def payloads(store: Store, ledger_id: int, **options: Any) -> list[bytes]:
    return [entry.data for entry in store.open_ledger(ledger_id, **options)]


def metadata_of(ledger_id: int, last: int | None, length: int = 0, **more: Any) -> bytes:
    fields: dict[str, Any] = {"digest_type": "crc32c", "password": b"", "state": OPEN if last is None else CLOSED}
    fields |= {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1, "ensembles": [(0, ["made:3181"])]}
    closed = {} if last is None else {"last_entry_id": last, "length": length}
    return serialize(LedgerMetadata(ledger_id, **(fields | closed | more)))


# -- once and again ----------------------------------------------------------------------------------------------------


def test_an_import(cluster: Cluster, target: Store) -> None:
    told: list[tuple[int, int]] = []
    report = run(cluster, target, progress=lambda done, total: told.append((done, total)))
    assert (report.ledgers, report.entries, report.nodes) == (2, 14, 2)
    assert report.bytes == 14 * 36 + 10 * 7 + 4 * 4 == told[-1][0] == told[-1][1]
    assert list(target.list_ledgers()) == [3, 5]
    assert payloads(target, 3) == [b"three %d" % number for number in range(10)]
    assert target.ledger_metadata(5).state == OPEN
    assert payloads(target, 5, recovery=True) == [b"five"] * 4
    assert sorted(target.storage.node_paths("/")) == ["/admin/policies/acme", "/ledgers/LAYOUT"]
    assert target.create_ledger().id == 6
    assert "2 ledgers, 14 entries" in str(report)
    assert target.verify().ok


def test_a_second_run_changes_nothing(cluster: Cluster, target: Store) -> None:
    first = run(cluster, target)
    commit = target.storage.last_commit
    report = run(cluster, target)
    assert target.storage.last_commit == commit
    assert not report.changed
    assert (report.ledgers_there, report.entries_there, report.nodes_there) == (2, 14, 2)
    assert (report.ledgers, report.entries, report.bytes, report.nodes) == (0, 0, 0, 0)
    assert "existing: 2 ledgers, 14 entries and 2 nodes" in str(report)
    assert first.changed


def test_a_dry_run_changes_nothing_and_says_the_same(cluster: Cluster, tmp_path: Path) -> None:
    bookstand.open(tmp_path / "store").close()
    with bookstand.open(tmp_path / "store", read_only=True) as store:
        with pytest.raises(WriteOnReadOnlyError):
            run(cluster, store)
        commit = store.storage.last_commit
        dry = run(cluster, store, dry_run=True)
        assert store.storage.last_commit == commit
        assert dry.dry_run
        assert "would be imported" in str(dry)
    with bookstand.open(tmp_path / "store") as store:
        report = run(cluster, store)
    numbers = {**dry.as_dict(), "dry_run": False}
    assert numbers == report.as_dict()
    assert json.loads(json.dumps(numbers)) == numbers


def test_only_some_ledgers(cluster: Cluster, target: Store) -> None:
    report = run(cluster, target, ledgers=[5])
    assert (report.ledgers, report.nodes) == (1, 0)
    assert list(target.list_ledgers()) == [5]
    report = run(cluster, target)
    assert (report.ledgers, report.ledgers_there) == (1, 1)
    with pytest.raises(NoSuchLedgerError, match="ledger 4 is neither"):
        run(cluster, target, ledgers=[3, 4])
    with pytest.raises(IncorrectParameterError, match="commit_bytes"):
        run(cluster, target, commit_bytes=0)


def test_ids_are_not_given_twice_while_it_runs(cluster: Cluster, target: Store) -> None:
    created: list[int] = []

    def create(done: int, total: int) -> None:
        created.append(target.create_ledger().id)

    run(cluster, target, progress=create, commit_bytes=1)
    assert created == list(range(6, 6 + len(created)))


# -- conflicts ---------------------------------------------------------------------------------------------------------


def unchanged_by(store: Store, attempt: Callable[[], object], error: type[Exception], match: str) -> None:
    commit = store.storage.last_commit
    with pytest.raises(error, match=match):
        attempt()
    assert store.storage.last_commit == commit


def test_another_ledger_of_that_id(cluster: Cluster, target: Store) -> None:
    target.create_ledger_adv(5).close()
    unchanged_by(target, lambda: run(cluster, target), ImportConflictError, "ledger 5 has other metadata")


def test_another_entry_in_a_ledger_that_is_the_same_otherwise(cluster: Cluster, target: Store, tmp_path: Path) -> None:
    run(cluster, target)
    other = Cluster(tmp_path / "other")
    other.ledger(3, [b"three %d" % (number if number != 6 else 9) for number in range(10)])
    unchanged_by(target, lambda: run(other, target), ImportConflictError, "ledger 3 is another one from entry 6 on")


def test_a_ledger_that_was_recovered_since(cluster: Cluster, target: Store) -> None:
    run(cluster, target)
    target.open_ledger(5, recovery=True)
    unchanged_by(target, lambda: run(cluster, target), ImportConflictError, "ledger 5 has other metadata")


def test_a_ledger_that_was_fenced_since(cluster: Cluster, target: Store) -> None:
    run(cluster, target)
    from bookstand.storage.commit.entry_operations import Fence
    from bookstand.storage.commit.operations import WriteBatch

    target.storage.apply(WriteBatch(Fence(5, master_key(b""))))
    unchanged_by(target, lambda: run(cluster, target), ImportConflictError, "ledger 5 has another state: its fenced")


def test_another_node_of_that_path(cluster: Cluster, target: Store) -> None:
    target.nodes.put("/admin/policies/acme", b"else")
    match = "node /admin/policies/acme has another value"
    unchanged_by(target, lambda: run(cluster, target), ImportConflictError, match)
    unchanged_by(target, lambda: run(cluster, target, dry_run=True), ImportConflictError, match)


def test_conflicts_are_named_together(cluster: Cluster, target: Store) -> None:
    for number in range(20, 30):
        cluster.ledger(number, [b"x"])
        target.create_ledger_adv(number)
    match = "ledger 20 .*; ledger 24 has other metadata; and 5 more"
    unchanged_by(target, lambda: run(cluster, target), ImportConflictError, match)


def test_a_deleted_ledger_makes_way(cluster: Cluster, target: Store) -> None:
    with target.create_ledger_adv(3) as writer:
        writer.write(0, b"of another life")
        writer.write(1, b"and this")
    target.delete_ledger(3)
    assert target.storage.state(3).count == 2  # type: ignore[union-attr]
    run(cluster, target)
    assert payloads(target, 3) == [b"three %d" % number for number in range(10)]
    assert target.verify().ok


def test_a_fence_that_came_before_the_ledger(cluster: Cluster, target: Store) -> None:
    from bookstand.storage.commit.entry_operations import Fence
    from bookstand.storage.commit.operations import WriteBatch

    target.storage.apply(WriteBatch(Fence(3, master_key(b"whose"))))
    run(cluster, target)
    assert not target.storage.state(3).fenced  # type: ignore[union-attr]
    assert len(payloads(target, 3)) == 10


# -- unfinished imports ------------------------------------------------------------------------------------------------


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    pass


def stop_after(commits: int) -> Callable[[int, int], None]:
    told: list[int] = []

    def progress(done: int, total: int) -> None:
        told.append(done)
        if len(told) == commits:
            raise Stopped

    return progress


def test_an_unfinished_import_shows_and_goes_on(cluster: Cluster, target: Store) -> None:
    with pytest.raises(Stopped):
        run(cluster, target, progress=stop_after(4), commit_bytes=100)
    told = json.loads(target.nodes.get(IMPORT_NODE)[0])
    assert (told["at_ledger"], told["of"]) == (3, 590)
    assert 0 < told["bytes"] < 590
    # A ledger is there when it is whole.
    assert list(target.list_ledgers()) == []
    assert target.verify().ok
    report = run(cluster, target)
    assert report.resumed
    assert report.entries_there == told["bytes"] // 43
    assert report.entries + report.entries_there == 14
    assert len(payloads(target, 3)) == 10
    assert IMPORT_NODE not in target.storage.node_paths("/")
    assert target.verify().ok


def test_an_unfinished_import_of_something_else(cluster: Cluster, target: Store) -> None:
    with pytest.raises(Stopped):
        run(cluster, target, progress=stop_after(3), commit_bytes=100)
    cluster.node("/another", b"one")
    match = f"unfinished import of something else.*{IMPORT_NODE}"
    unchanged_by(target, lambda: run(cluster, target), ImportUnfinishedError, match)
    # It can be given up; what it left of a ledger stays in the way, and is named.
    target.nodes.delete(IMPORT_NODE)
    unchanged_by(target, lambda: run(cluster, target), ImportConflictError, "ledger 3 has entries, and no metadata")
    target.storage.collect(3)
    assert run(cluster, target).ledgers == 2


def test_a_second_run_takes_over(cluster: Cluster, target: Store) -> None:
    def overtake(done: int, total: int) -> None:
        if done:
            run(cluster, target)

    with pytest.raises(ImportUnfinishedError, match=r"another import .* has taken over"):
        run(cluster, target, progress=overtake, commit_bytes=100)
    assert not run(cluster, target).changed


def test_a_node_that_came_meanwhile(cluster: Cluster, target: Store) -> None:
    def meddle(done: int, total: int) -> None:
        if not done:
            target.nodes.put("/admin/policies/acme", b"mine")

    with pytest.raises(ImportConflictError, match=r"has changed while .*'/admin/policies/acme' exists already"):
        run(cluster, target, progress=meddle, commit_bytes=1000)


def test_a_full_disk(cluster: Cluster, tmp_path: Path) -> None:
    faults = Faults()
    faults.disk_full(after=3)
    with bookstand.open(tmp_path / "store", durability="none", hooks=faults) as store:
        with pytest.raises(NotEnoughBookiesError, match="stopped at ledger 3, because no space is left"):
            run(cluster, store, commit_bytes=100)
        with pytest.raises(NotEnoughBookiesError, match="stopped, because no space is left"):
            run(cluster, store, commit_bytes=100)
        faults.free_space()
        assert run(cluster, store).resumed
        assert len(payloads(store, 3)) == 10
        assert IMPORT_NODE not in store.storage.node_paths("/")


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_lost_entries_do_not_read_as_never_written(tmp_path: Path, target: Store) -> None:
    made = Cluster(tmp_path)
    made.ledger(1, [b"%d" % number for number in range(10)], without=[4, 8, 9])
    made.ledger(2, [b"%d" % number for number in range(10)], without=range(10))
    report = run(made, target)
    found = {ledger_id: list(ranges) for ledger_id, ranges in report.missing.items()}
    assert found == {1: [(4, 4), (8, 9)], 2: [(0, 9)]}
    assert "ledger 1: entries 4, 8–9 are on none of the disks" in str(report)
    for ledger_id, lost in ((1, (4, 8, 9)), (2, (0, 9))):
        reader = target.open_ledger(ledger_id)
        assert reader.last_add_confirmed == 9
        for entry_id in lost:
            with pytest.raises(StoreDamagedError, match=f"entry {ledger_id}:{entry_id} was stored, but is missing"):
                reader.read(entry_id, entry_id)
    assert target.open_ledger(1).read(5, 7)[0].data == b"5"
    assert (1, 4) in {(one.ledger_id, one.entry_id) for one in target.verify().problems}


def test_entries_behind_the_end_do_not_exist(tmp_path: Path, target: Store) -> None:
    made = Cluster(tmp_path)
    made.ledger(1, [b"%d" % number for number in range(10)])
    made.node(ledger_path(1), metadata_of(1, 6, 7))
    assert run(made, target).entries == 7
    assert target.storage.state(1).last_entry == 6  # type: ignore[union-attr]
    with pytest.raises(NoSuchEntryError):
        target.open_ledger(1).read_unconfirmed(7, 7)


def test_what_bookies_knew(tmp_path: Path, target: Store) -> None:
    bookie = Bookie(tmp_path, "made:3181")
    digest = digest_for("hmac", b"pw")
    stored = entries(digest, 8, [b"a", b"b", b"c", b"d"])
    specials = [ledger_key(8, master_key(b"pw")), *stored[:3], explicit_lac(digest, 8, 2), fence(8), stored[3]]
    bookie.journal(1, specials)
    nodes = Cluster(tmp_path / "nodes")
    nodes.node(ledger_path(8), metadata_of(8, None, digest_type="hmac", password=b"pw", state=IN_RECOVERY))
    with Disks.open([tmp_path], MetadataDump(nodes.nodes, lambda damage: None)) as disks:
        import_disks(disks, target)
    state = target.storage.state(8)
    assert state is not None
    assert (state.fenced, state.explicit_lac, state.master_key) == (True, 2, master_key(b"pw"))
    assert (state.count, state.last_entry, state.unbroken, state.lac, state.digest) == (4, 3, 3, 2, "hmac")
    assert target.open_ledger(8, recovery=False, password=b"pw").last_add_confirmed == 2
    with pytest.raises(UnauthorizedAccessError):
        target.open_ledger(8)
    assert payloads(target, 8, password=b"pw", recovery=True) == [b"a", b"b", b"c", b"d"]
    assert target.verify().ok


def test_nodes_that_no_store_can_hold(cluster: Cluster, target: Store) -> None:
    path = "/long/" + "x" * 600
    cluster.node(path, b"value")
    cluster.node(IMPORT_NODE, b"of the store that this was exported from")
    report = run(cluster, target)
    assert [one.what for one in report.left_out] == [f"node {path}"]
    assert "must not exceed 511 bytes" in str(report)
    assert report.nodes == 2
    assert not run(cluster, target).changed


# -- without metadata --------------------------------------------------------------------------------------------------


def test_deleted_ledgers_are_left_out_or_taken(unpacked: Callable[[str], Path], target: Store) -> None:
    deleted = [
        ledger
        for group in truth("a", "deleted")
        for ledger in group["ledgers"]
        if not ledger["still_in_metadata"] and ledger["entries"]
    ]
    assert deleted
    with Disks.open([unpacked("a")], dump_path("a")) as disks:
        report = import_disks(disks, target, dry_run=True)
        named = {one.what for one in report.left_out}
        assert {f"ledger {ledger['ledger_id']}" for ledger in deleted} <= named
        assert all("not in the metadata" in one.why for one in report.left_out)
        taken = import_disks(disks, target, unlisted=True)
        assert not taken.left_out
        assert taken.ledgers == len(disks.ledger_ids)
    for ledger in deleted:
        metadata = target.ledger_metadata(ledger["ledger_id"])
        assert (metadata.state, metadata.ensembles) == (CLOSED, ((0, ("bookie-0",)),))
        assert MADE_UP in metadata.custom_metadata
        there = [entry for entry in ledger["entries"] if "error" not in entry]
        assert metadata.last_entry_id >= len(there) - 1
        found = list(target.open_ledger(ledger["ledger_id"]))
        assert [entry.cumulative_length for entry in found[: len(there)]] == [
            entry["cumulative_length"] for entry in there
        ]
    assert target.verify().ok


def test_disks_alone(unpacked: Callable[[str], Path], target: Store) -> None:
    """Without a dump every ledger that is found is taken, also those with passwords that nobody told."""
    with Disks.open([unpacked("c")], passwords=[b"pw-MAC"]) as disks:
        report = import_disks(disks, target)
        assert report.nodes == 0
        assert report.ledgers == len(disks.ledger_ids)
    for line in truth("c", "ledgers"):
        if not any("error" not in entry for entry in line["entries"]):
            continue
        ledger_id = line["ledger_id"]
        metadata = target.ledger_metadata(ledger_id)
        # The end is that of what was found: nobody says where the ledger was closed.
        assert metadata.state == CLOSED
        password = b"pw-MAC" if metadata.digest_type == "hmac" else b""
        reader = target.open_ledger(ledger_id, password=password)
        found = {entry.entry_id: entry for entry in reader}
        for entry in line["entries"]:
            if entry["entry"] in found:
                assert found[entry["entry"]].length == entry["len"]
                assert found[entry["entry"]].cumulative_length == entry["cumulative_length"]
    assert target.verify().ok


def test_a_password_that_nobody_told(tmp_path: Path, target: Store) -> None:
    bookie = Bookie(tmp_path, "made:3181")
    stored = entries(digest_for("hmac", b"secret"), 8, [b"a", b"b"])
    bookie.log(0, [*stored, *entries(CRC32C, 9, [b"c"])])
    bookie.journal(1, [ledger_key(8, master_key(b"secret")), ledger_key(9, master_key(b"hidden"))])
    with Disks.open([tmp_path]) as disks:
        import_disks(disks, target)
    # Who knows it can read them.
    assert payloads(target, 8, password=b"secret") == [b"a", b"b"]
    assert payloads(target, 9) == [b"c"]
    assert not target.ledger_metadata(8).has_password
    assert target.verify().ok


def test_ledgers_whose_metadata_is_damaged(cluster: Cluster, target: Store) -> None:
    cluster.ledger(7, [b"x", b"y"])
    cluster.node(ledger_path(7), b"BookieMetadataFormatVersion\t3\nnot so")
    report = run(cluster, target)
    assert [str(one) for one in report.left_out] == ["ledger 7 with 2 entries: the metadata cannot be read"]
    assert run(cluster, target, unlisted=True).ledgers == 1
    assert payloads(target, 7) == [b"x", b"y"]


def test_old_metadata_without_a_digest(tmp_path: Path, target: Store) -> None:
    made = Cluster(tmp_path)
    made.ledger(4, [b"x", b"y"])
    made.node(ledger_path(4), metadata_of(4, 1, 2, format_version=1, digest_type=None, password=None))
    assert run(made, target).ledgers == 1
    assert payloads(target, 4, password=b"whatever") == [b"x", b"y"]
    assert target.ledger_metadata(4).format_version == 1


def test_the_time_that_only_the_metadata_service_knew(cluster: Cluster, target: Store) -> None:
    node = cluster.nodes[ledger_path(3)]
    cluster.nodes[ledger_path(3)] = node._replace(ctime=1_700_000_000_000)
    run(cluster, target)
    assert target.ledger_metadata(3).ctime == 1_700_000_000_000
    assert target.ledger_metadata(3).stores_ctime


def test_a_name_that_no_metadata_can_hold(tmp_path: Path, target: Store) -> None:
    bookie = Bookie(tmp_path, "a bookie, ünnamed")
    bookie.log(0, entries(CRC32C, 1, [b"x"]))
    with Disks.open([tmp_path]) as disks:
        import_disks(disks, target)
    assert target.ledger_metadata(1).ensembles == ((0, ("bookie-0",)),)


# -- any disks ---------------------------------------------------------------------------------------------------------

LEDGER = st.tuples(st.integers(0, 12), st.sets(st.integers(0, 11), max_size=4), st.sampled_from(["closed", "open", ""]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LEDGER, max_size=5), st.integers(1, 400), st.lists(st.integers(1, 6), max_size=4), st.booleans())
def test_whatever_is_there_and_wherever_it_stops(
    tmp_path_factory: pytest.TempPathFactory,
    ledgers: list[tuple[int, set[int], str]],
    commit_bytes: int,
    stops: list[int],
    unlisted: bool,
) -> None:
    made = Cluster(tmp_path_factory.mktemp("any"))
    expected: dict[int, dict[int, bytes]] = {}
    for ledger_id, (count, without, kind) in enumerate(ledgers):
        made.ledger(
            ledger_id, [b"%d" % number * 9 for number in range(count)], closed=kind == "closed", without=without
        )
        held = {number: b"%d" % number * 9 for number in range(count) if number not in without}
        if not kind:
            del made.nodes[ledger_path(ledger_id)]
            if not unlisted or not held:
                continue
        expected[ledger_id] = held
    with bookstand.temporary() as store:
        for commits in stops:
            try:
                run(made, store, progress=stop_after(commits), commit_bytes=commit_bytes, unlisted=unlisted)
            except Stopped:
                continue
        report = run(made, store, commit_bytes=commit_bytes, unlisted=unlisted)
        assert report.entries + report.entries_there == sum(map(len, expected.values()))
        assert list(store.list_ledgers()) == sorted(expected)
        for ledger_id, held in expected.items():
            found = {
                first + number: decode(CRC32C, ledger_id, first + number, stored)[2]
                for first, run_of in store.storage.runs(ledger_id, 1 << 40)
                for number, stored in enumerate(run_of)
            }
            assert found == held
            count, _, kind = ledgers[ledger_id]
            end = store.open_ledger(ledger_id, recovery=True).last_add_confirmed
            if kind == "closed":
                assert end == count - 1
            else:
                # Each entry says that the one before it is confirmed, so that the last one decides.
                assert end == max(held, default=-1)
        # Whoever runs it again after the recoveries is told of them, unless nothing was open.
        if all(kind != "open" for _, _, kind in ledgers):
            assert not run(made, store, unlisted=unlisted).changed


# -- memory ------------------------------------------------------------------------------------------------------------


def test_disks_are_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """The same with a GiB: ``python -m benchmarks PMimport``."""
    told = disk_import.run(tmp_path, 128, 100_000)
    assert told["mib"] >= 128
    assert told["private_mib"] < 64
