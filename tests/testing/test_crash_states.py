"""Which states a power cut may leave of a recording, and which it may not."""

from __future__ import annotations

import pytest

from bookstand.errors import IncorrectParameterError
from bookstand.testing.crash import recording as kinds
from bookstand.testing.crash.recording import Operation, Recording
from bookstand.testing.crash.states import PAGE, SECTOR, Case, TornWrite, Walk, crash_states

OLD, NEW = b"o" * PAGE, b"n" * PAGE


def write(number, data, *, file=1, path="s/f", synchronous=False, at=0):
    return Operation(kinds.WRITE, path, file, number * PAGE + at, data, synchronous)


SYNC = Operation(kinds.SYNC, "s/f", 1)
# A folder and a file in it that are durable, with one page.
BEGUN = [
    Operation(kinds.MKDIR, "s"),
    Operation(kinds.SYNC_FOLDER, ""),
    Operation(kinds.CREATE, "s/f", 1),
    Operation(kinds.SYNC_FOLDER, "s"),
    write(0, OLD),
    SYNC,
]
ACK = Operation(kinds.ACKNOWLEDGE)


def images(operations, begun=BEGUN, after=None, **options):
    """What the file ``s/f`` may hold (None: it is not there) from the end of ``begun`` on."""
    recording = Recording("s", operations=[*begun, *operations], acknowledged=range(20))
    # A state that looks the same at an earlier cut is told of that one: what there was at the end of ``begun`` is.
    found = {recording.files(len(begun)).get("s/f")} if after is None else set()
    for state in crash_states(recording, **options):
        if state.case.cut >= len(begun) and (after is None or state.acknowledged >= after):
            content = image_of(recording, state.case).get("s/f")
            found.add(None if content is None else content.to_bytes())
    return found


def image_of(recording, case):
    walk = Walk(recording)
    walk.advance_to(case.cut)
    return walk.image(case)


def whole(*pages):
    return b"".join(pages)


def torn(first, then, sectors):
    return then[: sectors * SECTOR] + first[sectors * SECTOR :]


def test_synced_writes_are_there():
    assert images([write(0, NEW), SYNC, ACK], after=1) == {NEW}


def test_unsynced_writes_may_be_missing_after_the_acknowledgment():
    found = images([write(0, NEW), ACK], after=1)
    assert {OLD, NEW} <= found


def test_all_subsets_of_unsynced_pages():
    pages = [bytes((65 + number,)) * PAGE for number in range(4)]
    found = images([*(write(number, page) for number, page in enumerate(pages)), SYNC])
    zeros = bytes(PAGE)
    for subset in range(16):
        held = [page if subset >> number & 1 else zeros for number, page in enumerate(pages)]
        held[0] = pages[0] if subset & 1 else OLD
        # The file is as long as the last page that arrived.
        last = max((number for number in range(4) if subset >> number & 1), default=0)
        assert whole(*held[: last + 1]) in found, subset


def test_a_page_may_be_torn_between_sectors():
    found = images([write(0, NEW), SYNC])
    for sectors in range(9):
        assert torn(OLD, NEW, sectors) in found
        assert torn(NEW, OLD, sectors) in found
    assert all(len(set(one[n : n + SECTOR])) == 1 for one in found for n in range(0, PAGE, SECTOR)), "torn in a sector"


def test_a_write_within_a_sector_may_be_torn_after_any_byte():
    found = images([write(0, b"n" * 120, at=32, synchronous=True), ACK])
    assert found == {OLD[:32] + b"n" * size + OLD[32 + size :] for size in range(121)}


def test_a_synchronous_write_is_durable_once_it_has_returned():
    assert images([write(0, b"n" * 120, at=32, synchronous=True), ACK], after=1) == {OLD[:32] + b"n" * 120 + OLD[152:]}


def test_a_synchronous_write_takes_its_own_page_along_and_no_other():
    early = write(0, b"first", at=2000)
    other = write(1, NEW)
    last = write(0, b"n" * 8, at=32, synchronous=True)
    found = images([early, other, last, ACK], after=1)
    page = bytearray(OLD)
    page[2000:2005], page[32:40] = b"first", b"n" * 8
    assert {one[:PAGE] for one in found} == {bytes(page)}
    assert {len(one) for one in found} >= {PAGE, 2 * PAGE}, "nothing has synced the other page"


def test_of_many_unsynced_pages_each_may_be_missing_alone():
    pages = [bytes((65 + number,)) * PAGE for number in range(12)]
    found = images([*(write(number, page) for number, page in enumerate(pages)), ACK], after=1)
    full = whole(*pages)
    assert full in found
    for number in range(11):
        assert full[: number * PAGE] + (bytes(PAGE) if number else OLD) + full[(number + 1) * PAGE :] in found


def test_names_need_their_folder_synced():
    created = [Operation(kinds.MKDIR, "s"), Operation(kinds.SYNC_FOLDER, ""), Operation(kinds.CREATE, "s/f", 1)]
    written = [*created, write(0, NEW), SYNC, ACK]
    assert images([], begun=written, after=1) == {None, NEW}, "syncing a file does not sync its name"
    assert images([], begun=[*written, Operation(kinds.SYNC_FOLDER, "s"), ACK], after=2) == {NEW}


def test_what_is_in_a_lost_folder_is_lost():
    lost = [
        Operation(kinds.MKDIR, "s"),
        Operation(kinds.CREATE, "s/f", 1),
        write(0, NEW),
        SYNC,
        Operation(kinds.SYNC_FOLDER, "s"),
        ACK,
    ]
    assert images([], begun=lost, after=1) == {None, NEW}


RENAMED = [
    Operation(kinds.CREATE, "s/new", 2),
    write(0, NEW, file=2, path="s/new"),
    Operation(kinds.SYNC, "s/new", 2),
    Operation(kinds.RENAME, "s/new", 2, target="s/f"),
]


def test_a_renaming_replaces_a_file_or_does_not():
    assert images([*RENAMED, ACK], after=1) == {OLD, NEW}
    assert images([*RENAMED, Operation(kinds.SYNC_FOLDER, "s"), ACK], after=1) == {NEW}


def test_a_renaming_without_sync_of_the_file_may_show_an_empty_one():
    found = images([*(one for one in RENAMED if one.kind != kinds.SYNC), ACK], after=1)
    assert {b"", OLD, NEW} <= found


def test_a_durable_renaming_leaves_no_old_name():
    moved = [
        Operation(kinds.MKDIR, "s/w"),
        Operation(kinds.CREATE, "s/w/f", 2),
        write(0, NEW, file=2, path="s/w/f"),
        Operation(kinds.SYNC, "s/w/f", 2),
        Operation(kinds.RENAME, "s/w/f", 2, target="s/f"),
        Operation(kinds.SYNC_FOLDER, "s"),
        ACK,
    ]
    recording = Recording("s", operations=[*BEGUN, *moved], acknowledged=[1])
    last = [state for state in crash_states(recording) if state.acknowledged]
    assert last
    for state in last:
        image = image_of(recording, state.case)
        assert image["s/f"].to_bytes() == NEW
        assert "s/w/f" not in image


def test_removed_files_may_be_back_until_their_folder_is_synced():
    assert images([Operation(kinds.UNLINK, "s/f"), ACK], after=1) == {None, OLD}
    assert images([Operation(kinds.UNLINK, "s/f"), Operation(kinds.SYNC_FOLDER, "s"), ACK], after=1) == {None}


def test_truncations_wait_for_a_sync():
    begun = [*BEGUN, write(1, NEW), SYNC]
    found = images([Operation(kinds.TRUNCATE, "s/f", 1, PAGE), ACK], begun=begun, after=1)
    assert found == {OLD, OLD + NEW}
    assert images([Operation(kinds.TRUNCATE, "s/f", 1, 10), SYNC, ACK], after=1) == {OLD[:10]}


def test_a_file_may_be_longer_than_what_arrived():
    assert OLD + bytes(PAGE) in images([write(1, NEW)])


def test_states_are_distinct_and_come_with_the_most_that_was_promised():
    recording = Recording("s", operations=[*BEGUN, write(0, NEW), SYNC, ACK, ACK, ACK], acknowledged=[1, 2, 3])
    states = crash_states(recording)
    assert len({state.digest for state in states}) == len(states)
    final = [state for state in states if image_of(recording, state.case).get("s/f") is not None]
    assert [one.acknowledged for one in final if image_of(recording, one.case)["s/f"].to_bytes() == NEW] == [3]
    # None of the states before it can arise once it was promised.
    assert [one.acknowledged for one in final].count(3) == 1


def test_digests_tell_images_apart():
    recording = Recording("s", operations=[*BEGUN, *(write(n, NEW) for n in range(7)), SYNC])
    states = crash_states(recording)
    seen = set()
    for state in states:
        image = image_of(recording, state.case)
        seen.add(tuple((path, content and (content.size, content.to_bytes())) for path, content in image.items()))
    assert len(seen) == len(states)


def test_limit_and_seed():
    recording = Recording("s", operations=[*BEGUN, *(write(n, NEW) for n in range(9)), SYNC])
    some = crash_states(recording, seed=3, limit=20)
    assert len(some) == 20
    assert some == crash_states(recording, seed=3, limit=20)
    assert some != crash_states(recording, seed=4, limit=20)
    assert [state.case.cut for state in some] == sorted(state.case.cut for state in some)
    for wrong in (0, -1):
        with pytest.raises(IncorrectParameterError):
            crash_states(recording, limit=wrong)


def test_the_lock_file_is_always_as_it_was():
    lock = [Operation(kinds.CREATE, "s/lock.mdb", 9), Operation(kinds.SYNC_FOLDER, "s")]
    written = Operation(kinds.WRITE, "s/lock.mdb", 9, 0, b"x" * 64)
    recording = Recording("s", operations=[*BEGUN, *lock, written, ACK], acknowledged=[1])
    (state,) = [state for state in crash_states(recording) if state.acknowledged]
    assert image_of(recording, state.case)["s/lock.mdb"].to_bytes() == b"x" * 64


def test_writes_are_split_into_pages():
    recording = Recording("s")
    recording.add(Operation(kinds.WRITE, "s/f", 1, PAGE - 10, b"a" * 10 + b"b" * PAGE + b"c"))
    assert [(one.offset, one.data[:1], len(one.data)) for one in recording.operations] == [
        (PAGE - 10, b"a", 10),
        (PAGE, b"b", PAGE),
        (2 * PAGE, b"c", 1),
    ]


@pytest.mark.parametrize(
    "case",
    [
        Case(0),
        Case(17, (3, 5)),
        Case(9, (), (TornWrite(8, "s", 0xFE), TornWrite(7, "b", 119))),
        Case(9, (1,), (TornWrite(8, "s", 0),)),
    ],
)
def test_cases_as_text(case):
    assert Case.parse(str(case)) == case


@pytest.mark.parametrize("text", ["", "cut=", "cut=1;tear=5", "cut=1;tear=x:s1", "drop=1", "cut=1;drop=1;more"])
def test_what_is_no_case(text):
    with pytest.raises(IncorrectParameterError):
        Case.parse(text)


def test_recordings_can_be_kept():
    recording = Recording("s", "observed", [*BEGUN, *RENAMED, ACK], [["added", 1, "ü"]])
    again = Recording.from_bytes(recording.to_bytes())
    assert (again.operations, again.acknowledged) == (recording.operations, recording.acknowledged)
    assert (again.store, again.recorder, again.shape) == ("s", "observed", recording.shape)
    with pytest.raises(IncorrectParameterError):
        Recording.from_bytes(b"something else")
    with pytest.raises(IncorrectParameterError):
        Recording("s", acknowledged=[object()]).to_bytes()
    with pytest.raises(IncorrectParameterError):
        recording.add(Operation("format", "s"))


def test_a_recording_replayed():
    recording = Recording("s", operations=[*BEGUN, *RENAMED, Operation(kinds.TRUNCATE, "s/f", 2, 5)])
    assert recording.files() == {"s": None, "s/f": b"nnnnn"}
    assert recording.files(len(BEGUN)) == {"s": None, "s/f": OLD}
    assert recording.acknowledged_by(99) == []
