"""Dumps of the metadata store: every node of the recorded ones as the original reads it, and damaged ones."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookstand.disk.damage import Damage
from bookstand.disk.metadata.dump import DumpNode, MetadataDump, ledger_id_of, ledger_path, write_dump
from bookstand.errors import IncorrectParameterError, NoSuchNodeError, StoreError
from bookstand.managed_ledger.records import (
    CursorInfo,
    LedgerInfo,
    ManagedLedgerInfo,
    encode_cursor_info,
    encode_ledger_info,
)
from bookstand.storage.format.ledger_metadata import LedgerMetadata, serialize
from tests.disk.recordings import RECORDINGS, dump_path, truth

ODD_TOPIC = "persistent://acme/orders/odd name+ü%2F:x"
ODD_CURSOR = "sub/1 ü%+"


def opened(path: Path) -> tuple[MetadataDump, list[Damage]]:
    damage: list[Damage] = []
    return MetadataDump.open(path, damage.append), damage


def recorded_lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(dump_path(name), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_lines(path: Path, *lines: object) -> Path:
    path.write_bytes(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))
    return path


def line(path: str, value: bytes = b"", **more: Any) -> dict[str, Any]:
    return {"path": path, "value": base64.b64encode(value).decode(), "version": 0, "ctime": 5, "mtime": 5, **more}


def ledger_bytes(ledger_id: int) -> bytes:
    return serialize(
        LedgerMetadata(
            ledger_id,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=[(0, ["bookie-0"])],
            digest_type="crc32c",
            password=b"",
        )
    )


def record(*ledger_ids: int) -> bytes:
    return encode_ledger_info(ManagedLedgerInfo([LedgerInfo(ledger_id) for ledger_id in ledger_ids]))


# -- recorded dumps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_node_is_there(name: str) -> None:
    dump, damage = opened(dump_path(name))
    assert damage == []
    assert list(dump.nodes.values()) == [
        DumpNode(n["path"], base64.b64decode(n["value"]), n["version"], n["ctime"], n["mtime"])
        for n in recorded_lines(name)
    ]


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name != "f"])
def test_ledgers_are_as_the_original_reads_them(name: str) -> None:
    dump, damage = opened(dump_path(name))
    expected = {said["ledger_id"]: said["metadata"] for said in truth(name, "ledgers")}
    assert {ledger_id: described(ledger) for ledger_id, ledger in dump.ledgers.items()} == expected
    assert list(dump.ledgers) == sorted(expected)
    assert {ledger_path(ledger_id) for ledger_id in expected} <= dump.nodes.keys()
    assert damage == []


def test_ledgers_of_a_dump_from_before_recovery_agree_with_what_recovery_left() -> None:
    dump, damage = opened(dump_path("f"))
    later = {said["ledger_id"]: said["metadata"] for said in truth("f", "ledgers")}
    both = dump.ledgers.keys() & later.keys()
    assert len(both) > 10
    assert any(dump.ledgers[ledger_id].state == "OPEN" for ledger_id in both)
    for ledger_id in both:
        ours = described(dump.ledgers[ledger_id])
        if ours["state"] != "CLOSED":
            changed = ("state", "last_entry", "length", "ensembles", "ctoken")
            ours |= {field: later[ledger_id][field] for field in changed}
        assert ours == later[ledger_id]
    assert damage == []


def described(ledger: LedgerMetadata) -> dict[str, Any]:
    assert ledger.digest_type is not None
    return {
        "format_version": ledger.format_version,
        "state": ledger.state,
        "ensemble_size": ledger.ensemble_size,
        "write_quorum": ledger.write_quorum_size,
        "ack_quorum": ledger.ack_quorum_size,
        "last_entry": ledger.last_entry_id,
        "length": ledger.length,
        "digest": "MAC" if ledger.digest_type == "hmac" else ledger.digest_type.upper(),
        "has_password": ledger.has_password,
        "password": base64.b64encode(ledger.password).decode(),
        "ctime": ledger.ctime,
        "ctoken": ledger.ctoken,
        "ensembles": [{"first_entry": first, "bookies": list(bookies)} for first, bookies in ledger.ensembles],
        "custom_metadata": {key: base64.b64encode(value).decode() for key, value in ledger.custom_metadata.items()},
    }


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name != "f"])
def test_topics_and_cursors_are_as_the_original_reads_them(name: str) -> None:
    dump, damage = opened(dump_path(name))
    topics = {said["topic"]: said for said in truth(name, "topics")}
    cursors: dict[str, dict[str, dict[str, Any]]] = {}
    for said in truth(name, "cursors-live"):
        cursors.setdefault(said["topic"], {})[said["subscription"]] = said
    assert dump.topics == sorted(topics)
    for topic, said in topics.items():
        info = dump.topic_info(topic)
        for ledger, expected in zip(info.ledgers, said["ledgers"], strict=True):
            assert ledger.ledger_id == expected["ledger_id"]
            assert (ledger.entries, ledger.size) == (expected.get("entries", 0), expected.get("size", 0))
            assert ledger.timestamp == expected.get("timestamp", 0)
        assert dict(info.properties) == said.get("properties", {})
        terminated = said.get("terminated_position")
        assert info.terminated == (None if terminated is None else tuple(terminated))
        assert len(dump.cursors(topic)) == len(said["cursors"])
        for cursor, live in cursors.get(topic, {}).items():
            stored = dump.cursor_info(topic, cursor)
            assert dict(stored.cursor_properties) == live["cursor_properties"]
    assert damage == []


def test_odd_names_are_decoded() -> None:
    dump, _ = opened(dump_path("a"))
    assert dump.topic_info(ODD_TOPIC).ledgers
    assert dump.cursors(ODD_TOPIC) == [ODD_CURSOR]
    assert dump.cursor_info(ODD_TOPIC, ODD_CURSOR).mark_delete is not None


@pytest.mark.parametrize(("name", "codecs"), [("b", {3, 4}), ("c", {1, 3}), ("d", {1, 2})])
def test_records_of_every_codec_are_read(name: str, codecs: set[int]) -> None:
    """The recordings hold them: a header of 4778, its size, and field 1 with the codec's number."""
    dump, damage = opened(dump_path(name))
    packed = [node for node in dump.nodes.values() if node.value.startswith(b"\x47\x78")]
    assert {node.value[7] for node in packed} == codecs
    known = {topic for topic in dump.topics if dump.topic_info(topic).ledgers}
    known_cursors = [dump.cursor_info(topic, cursor) for topic in dump.topics for cursor in dump.cursors(topic)]
    nodes = [path for path in dump.nodes if path.count("/") >= 5 and path.startswith("/managed-ledgers/")]
    assert len(known) + len(known_cursors) == len(nodes)
    assert damage == []


def test_partitioned_topics_and_bookies() -> None:
    dump, damage = opened(dump_path("d"))
    assert dump.partitioned == {
        "persistent://acme/orders/part": 3,
        "persistent://pulsar/system/transaction_coordinator_assign": 16,
    }
    assert dump.bookies == ["bookie-0", "bookie-1", "bookie-2"]
    assert damage == []


# -- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (12, "/ledgers/00/0000/L0012"),
        (2**31 - 2, "/ledgers/21/4748/L3646"),
        (2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (1099511640132, "/ledgers/000/0001/0995/1164/L0132"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_the_two_forms_of_a_ledgers_path(ledger_id: int, path: str) -> None:
    assert ledger_path(ledger_id) == path
    assert ledger_id_of(path) == ledger_id


@given(st.integers(0, 2**63 - 1) | st.integers(2**31 - 100, 2**31 + 100))
def test_ledger_paths_there_and_back(ledger_id: int) -> None:
    assert ledger_id_of(ledger_path(ledger_id)) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers",
        "/ledgers/00/0000",
        "/ledgers/LAYOUT",
        "/ledgers/idgen-long/L0012",
        "/ledgers/00/0000/L012",
        "/ledgers/00/0000/L00123",
        "/ledgers/00/0000/L0012/x",
        "/ledgers/00/0000/L0012\n",
        "/ledgers/٠٠/0000/L0012",
        "/ledgers/922/3372/0368/5477/L5808",
        "/ledgers/underreplication/ledgers/0000/0000/0000/0012/urL0012",
    ],
)
def test_paths_that_are_no_ledgers(path: str) -> None:
    assert ledger_id_of(path) is None


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_ids_that_are_no_ledgers(ledger_id: int) -> None:
    with pytest.raises(IncorrectParameterError, match="ledger id"):
        ledger_path(ledger_id)


def test_small_ids_in_the_long_form_are_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "dump.jsonl", line("/ledgers/000/0000/0000/0000/L0012", ledger_bytes(12), ctime=77))
    dump, damage = opened(path)
    assert list(dump.ledgers) == [12]
    assert dump.ledgers[12].ctime == 77
    assert damage == []


@pytest.mark.parametrize("swap", [False, True])
def test_of_two_nodes_of_a_ledger_the_usual_one_counts(tmp_path: Path, swap: bool) -> None:
    lines = [
        line("/ledgers/000/0000/0000/0000/L0012", ledger_bytes(12), ctime=1),
        line("/ledgers/00/0000/L0012", ledger_bytes(12), ctime=2),
    ]
    dump, damage = opened(write_lines(tmp_path / "dump.jsonl", *lines[:: -1 if swap else 1]))
    assert dump.ledgers[12].ctime == 2
    assert [d.ledger_id for d in damage] == [12]


# -- names that are not Pulsar's -------------------------------------------------------------------------------------


def test_a_topic_of_one_level_is_none_of_the_tenants(tmp_path: Path) -> None:
    cursor = encode_cursor_info(CursorInfo(-1))
    path = write_lines(
        tmp_path / "dump.jsonl",
        line("/managed-ledgers/acme"),
        line("/managed-ledgers/my+topic%2Fx", record(1)),
        line("/managed-ledgers/my+topic%2Fx/c%2F1", cursor),
    )
    dump, damage = opened(path)
    assert dump.topics == ["my topic/x"]
    assert dump.cursors("my topic/x") == ["c/1"]
    assert damage == []


def test_a_cursor_without_its_topic_is_reported(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "dump.jsonl", line("/managed-ledgers/t/n/persistent/lost/c", b"\x08\x01"))
    dump, damage = opened(path)
    assert dump.topics == []
    assert dump.cursors("persistent://t/n/lost") == []
    where = f"{path} at 0: line 1: node /managed-ledgers/t/n/persistent/lost/c"
    assert [str(d) for d in damage] == [f"{where}: it is neither a topic's node nor below one's"]


# -- damaged dumps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"not json\n", "it is no node"),
        (b"[1]\n", "it is no node"),
        (b'{"path": "/x"}\n', "it is no node"),
        (b'{"path": 7, "value": ""}\n', "begins with a slash"),
        (b'{"path": "x", "value": ""}\n', "begins with a slash"),
        (b'{"path": "/\\ud800", "value": ""}\n', "is text"),
        (b'{"path": "/x", "value": "@@"}\n', "node /x: its value is not base64"),
        (b'{"path": "/x", "value": "\xc3\xbc"}\n', "node /x: its value is not base64"),
        (b'{"path": "/x", "value": 5}\n', "node /x: its value is not base64"),
        (b'{"path": "/x", "value": "", "ctime": "1"}\n', "the ctime"),
        (b'{"path": "/x", "value": "", "version": true}\n', "the version"),
        (b'{"path": "/x", "value": "", "mtime": 9223372036854775808}\n', "the mtime"),
        (b"\xff\xfe\n", "it is no node"),
        (b"[" * 100_000 + b"\n", "it is no node"),
    ],
)
def test_a_damaged_line_costs_its_node_only(tmp_path: Path, bad: bytes, says: str) -> None:
    first = json.dumps(line("/a", b"1")).encode() + b"\n"
    path = write_lines(tmp_path / "dump.jsonl", first, bad, line("/b", b"2"), b"\n", b'{"path":"/c","value":null}')
    dump, damage = opened(path)
    assert {node.path: node.value for node in dump.nodes.values()} == {"/a": b"1", "/b": b"2", "/c": b""}
    (one,) = damage
    assert (one.file, one.offset) == (str(path), len(first))
    assert one.what.startswith("line 2: ")
    assert says in one.what


def test_damaged_records_cost_themselves_only(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "dump.jsonl",
        line("/ledgers/00/0000/L0001", b"BookieMetadataFormatVersion\t3\n\xff"),
        line("/ledgers/00/0000/L0002", ledger_bytes(2)),
        line("/ledgers/00/0000/Lx", b"x"),
        line("/ledgers/00/0000/L123", b"x"),
        line("/managed-ledgers/t/n/persistent/bad", b"\x0a\xff"),
        line("/managed-ledgers/t/n/persistent/bad/c", encode_cursor_info(CursorInfo(-1))),
        line("/managed-ledgers/t/n/persistent/good", record(1, 2)),
        line("/managed-ledgers/t/n/persistent/good/c1", b"\x47\x78\x00\x00\x00\x09"),
        line("/managed-ledgers/t/n/persistent/good/c2", encode_cursor_info(CursorInfo(4))),
        line("/admin/partitioned-topics/t/n/persistent/p", b'{"partitions":"3"}'),
        line("/admin/partitioned-topics/t/n/persistent/q", b'{"partitions":2}'),
    )
    dump, damage = opened(path)
    good, bad = "persistent://t/n/good", "persistent://t/n/bad"
    for _ in range(2):
        assert list(dump.ledgers) == [2]
        assert (dump.topics, dump.unreadable_topics) == ([good], [bad])
        assert (dump.cursors(good), dump.cursors(bad)) == (["c2"], ["c"])
        assert dump.cursor_info(good, "c2").cursor_ledger_id == 4
        assert dump.partitioned == {"persistent://t/n/q": 2}
    lines = sorted(int(d.what.split(":")[0].removeprefix("line ")) for d in damage)
    assert lines == [1, 4, 5, 8, 10], "each once, though asked for twice"
    assert any("node /managed-ledgers/t/n/persistent/good/c1" in d.what for d in damage)
    with pytest.raises(NoSuchNodeError, match="bad"):
        dump.topic_info(bad)
    with pytest.raises(NoSuchNodeError, match="c1"):
        dump.cursor_info(good, "c1")


@pytest.mark.parametrize("newer_first", [False, True])
def test_of_two_lines_of_a_path_the_newer_counts(tmp_path: Path, newer_first: bool) -> None:
    lines = [line("/a", b"old", version=1), line("/a", b"new", version=2)]
    path = write_lines(tmp_path / "dump.jsonl", *lines[:: -1 if newer_first else 1])
    dump, damage = opened(path)
    assert dump.nodes["/a"].value == b"new"
    assert [d.what for d in damage] == [f"line 2: node /a is in line 1 of {path}, too; the newer one counts"]


def test_two_nodes_of_one_topic_are_reported(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "dump.jsonl",
        line("/managed-ledgers/t/n/persistent/a%2Fb", record(1)),
        line("/managed-ledgers/t/n/persistent/a%2fb", record(2)),
    )
    dump, damage = opened(path)
    assert [info.ledger_id for info in dump.topic_info("persistent://t/n/a/b").ledgers] == [1]
    assert any("another node" in d.what for d in damage)


def test_a_dump_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    nodes = [DumpNode(f"/n{i}", os.urandom(300)) for i in range(2000)]
    whole, cut = tmp_path / "whole.gz", tmp_path / "cut.gz"
    write_dump(whole, nodes)
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    dump, damage = opened(cut)
    assert 800 < len(dump.nodes) < 1200
    assert list(dump.nodes.values()) == nodes[: len(dump.nodes)]
    assert "cannot be read" in damage[-1].what


def test_a_line_without_end_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookstand.disk.metadata.dump_file._MAX_LINE", 1000)
    path = write_lines(tmp_path / "dump.jsonl", line("/a"), b"x" * 3500 + b"\n", line("/b"))
    dump, damage = opened(path)
    assert list(dump.nodes) == ["/a", "/b"]
    assert [d.what for d in damage] == ["line 2: it is longer than 1000 bytes"]


RECORDED = gzip.decompress(dump_path("d").read_bytes())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(RECORDED) - 1), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=8
    )
)
@example([(0, b"\n", 1)])
def test_mutated_dumps_are_read_or_reported(tmp_path_factory: pytest.TempPathFactory, changes: list[Any]) -> None:
    mutated = RECORDED
    for at, new, removed in changes:
        mutated = mutated[:at] + new + mutated[at + removed :]
    path = tmp_path_factory.mktemp("mutated") / "dump.jsonl"
    path.write_bytes(mutated)
    dump, damage = opened(path)
    untouched = set(mutated.split(b"\n")) & set(RECORDED.split(b"\n")) - {b""}
    read = {(n.path, n.value, n.version, n.ctime, n.mtime) for n in dump.nodes.values()}
    lost = 0
    for text in untouched:
        n = json.loads(text)
        lost += (n["path"], base64.b64decode(n["value"]), n["version"], n["ctime"], n["mtime"]) not in read
    assert lost <= len(damage), "a node is replaced only by one of the same path, which is reported"
    for topic in dump.topics:
        assert isinstance(dump.topic_info(topic), ManagedLedgerInfo)
        assert all(isinstance(dump.cursor_info(topic, cursor), CursorInfo) for cursor in dump.cursors(topic))
    assert dump.ledgers.keys() <= {ledger_id_of(path) for path in dump.nodes}
    assert all(count >= 0 for count in dump.partitioned.values())
    assert all(str(d) for d in damage)


# -- where dumps lie -------------------------------------------------------------------------------------------------


def test_a_folder_of_dumps(tmp_path: Path) -> None:
    write_dump(tmp_path / "part-0.jsonl.gz", [DumpNode("/a", b"1")])
    write_dump(tmp_path / "part-1.jsonl", [DumpNode("/b", b"2")])
    (tmp_path / "readme.txt").write_text("no dump")
    dump, damage = opened(tmp_path)
    assert {path: node.value for path, node in dump.nodes.items()} == {"/a": b"1", "/b": b"2"}
    assert damage == []


def test_a_dump_from_a_pipe() -> None:
    program = "import sys; from bookstand.disk.metadata.dump import MetadataDump as M; "
    program += "d = M.open('/dev/stdin', print); print(len(d.nodes), len(d.ledgers))"
    with subprocess.Popen(["cat", str(dump_path("a"))], stdout=subprocess.PIPE) as cat:
        answer = subprocess.run([sys.executable, "-c", program], stdin=cat.stdout, capture_output=True, check=True)
    assert answer.stdout.split() == [b"%d" % len(recorded_lines("a")), b"%d" % len(truth("a", "ledgers"))]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "nothing.gz", "no metadata dump"),
        (lambda folder: folder, "no file ends in"),
        (lambda folder: folder / "x\0y", "no metadata dump"),
    ],
)
def test_no_dump_there(tmp_path: Path, make: Callable[[Path], Path], says: str) -> None:
    with pytest.raises(IncorrectParameterError, match=says):
        opened(make(tmp_path))


# -- writing ---------------------------------------------------------------------------------------------------------

PATHS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda text: "/" + text)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
NODES = st.lists(
    st.builds(DumpNode, PATHS, st.binary(max_size=50), NUMBERS, NUMBERS, NUMBERS),
    max_size=8,
    unique_by=lambda n: n.path,
)


@settings(max_examples=50, deadline=None)
@given(NODES, st.sampled_from(["dump.jsonl", "dump.jsonl.gz"]))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, nodes: list[DumpNode], name: str) -> None:
    path = tmp_path_factory.mktemp("written") / name
    write_dump(path, nodes)
    dump, damage = opened(path)
    assert list(dump.nodes.values()) == nodes
    assert damage == []


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recorded_dump_is_written_as_it_was(tmp_path: Path, name: str) -> None:
    dump, _ = opened(dump_path(name))
    path = tmp_path / "again.jsonl.gz"
    write_dump(path, dump.nodes.values())
    assert recorded_lines(name) == [json.loads(text) for text in gzip.decompress(path.read_bytes()).splitlines()]


def test_a_dump_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    write_dump(path, [DumpNode("/old", b"")])
    before = path.read_bytes()
    with pytest.raises(IncorrectParameterError, match="slash"):
        write_dump(path, [DumpNode("/new", b""), DumpNode("wrong", b"")])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["dump.jsonl"]
    assert path.stat().st_mode & 0o077 == 0, "passwords stand in it"
    with pytest.raises(StoreError, match="cannot be written"):
        write_dump(tmp_path / "missing" / "dump.jsonl", [])
