"""What a store, a handle or a payload must not be: each answered by an error of ours that says so."""

from __future__ import annotations

import array
import contextlib
import ctypes
import hashlib
import json
import mmap
import os
from collections.abc import Callable
from typing import Any

import lmdb
import numpy
import pytest

import bookstand
from bookstand import errors
from bookstand.storage.format.entry_batch import SMALLEST_BATCH
from tests.kit import data_file, raw, refused, run_python

# -- payloads --------------------------------------------------------------------------------------------------------


def mapped() -> mmap.mmap:
    area = mmap.mmap(-1, 5)
    area.write(b"hello")
    return area


PAYLOADS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"hello",
    "no bytes": lambda: b"",
    "bytes subclass": lambda: type("Mine", (bytes,), {})(b"hello"),
    "bytearray": lambda: bytearray(b"hello"),
    "memoryview": lambda: memoryview(b"hello"),
    "writable memoryview": lambda: memoryview(bytearray(b"hello")),
    "slice": lambda: memoryview(b"say hello twice")[4:9],
    "every second byte": lambda: memoryview(b"h.e.l.l.o.")[::2],
    "backwards": lambda: memoryview(b"olleh")[::-1],
    "two dimensions": lambda: memoryview(b"abcdef").cast("B", (2, 3)),
    "no elements": lambda: memoryview(b"abcdef")[3:3],
    "items of four bytes": lambda: memoryview(array.array("i", [1, -2, 3])),
    "items of four bytes, strided": lambda: memoryview(array.array("i", [1, -2, 3, 4]))[::2],
    "array of shorts": lambda: array.array("h", [1, 2, 3]),
    "array of doubles": lambda: array.array("d", [1.5, -2.5]),
    "empty array": lambda: array.array("i"),
    "mmap": mapped,
    "ctypes": lambda: (ctypes.c_int * 3)(1, 2, 3),
    "numpy": lambda: numpy.arange(6, dtype=numpy.int64),
    "numpy, strided": lambda: numpy.arange(12, dtype=numpy.int32)[::3],
    "numpy, by columns": lambda: numpy.asfortranarray(numpy.arange(6, dtype=numpy.int16).reshape(2, 3)),
    "numpy, transposed": lambda: numpy.arange(6, dtype=numpy.uint8).reshape(2, 3).T,
    "numpy scalar array": lambda: numpy.array(7, dtype=numpy.int64),
}


@pytest.mark.parametrize("kind", list(PAYLOADS))
@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
def test_every_kind_of_buffer(store, kind, digest):
    payload = PAYLOADS[kind]()
    expected = memoryview(payload).tobytes()
    writer = store.create_ledger(digest=digest)
    assert writer.append(payload) == 0
    assert writer.append_async(payload).result(60) == 1
    assert writer.append_many([payload, payload]) == range(2, 4)
    adv = store.create_ledger_adv(digest=digest)
    assert adv.write(0, payload) == 0
    assert adv.write_async(1, payload).result(60) == 1
    assert writer.length == 4 * len(expected)
    for entry in [*writer.read(0, 3), *adv.read(0, 1)]:
        assert entry.data == expected
        assert entry.length == len(expected)
        assert type(entry.data) is bytes


def others_like(payload: Any) -> list[list[bytes]]:
    """Batches of bytes among which a payload of other bytes or items does not stand out."""
    sizes = {5}
    for size_of in (len, lambda it: memoryview(it).nbytes):
        with contextlib.suppress(TypeError, ValueError):
            sizes.add(size_of(payload))
    return [[b"x" * size] * SMALLEST_BATCH for size in sorted(sizes)]


@pytest.mark.parametrize("kind", list(PAYLOADS))
@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac"])
def test_every_kind_of_buffer_among_many_bytes(store, kind, digest):
    """Where many payloads have one size, what they are is not asked of each."""
    payload = PAYLOADS[kind]()
    expected = memoryview(payload).tobytes()
    writer = store.create_ledger(digest=digest)
    for others in others_like(payload):
        first = writer.last_add_confirmed + 1
        assert writer.append_many([*others, payload, *others]) == range(first, first + 2 * len(others) + 1)
        assert [entry.data for entry in writer.read(first, writer.last_add_confirmed)] == [*others, expected, *others]
    assert store.verify().ok


def test_a_buffer_may_be_changed_once_it_was_submitted(store):
    writer = store.create_ledger()
    buffer = bytearray(b"before")
    pending = []
    for _ in range(20):
        pending.append(writer.append_async(buffer))
        buffer[:] = b"after!"
        pending.append(writer.append_async(memoryview(buffer)))
        buffer[:] = b"before"
    buffer += b"resizable: nothing keeps it"
    for one in pending:
        one.result(60)
    assert [entry.data for entry in writer] == [b"before", b"after!"] * 20


def test_append_many_copies_as_it_goes(store):
    writer = store.create_ledger()
    buffer = bytearray(1)

    def numbers():
        for i in range(100):
            buffer[0] = i
            yield buffer

    assert writer.append_many(numbers()) == range(100)
    assert [entry.data for entry in writer] == [bytes((i,)) for i in range(100)]


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


NO_PAYLOADS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "text": lambda: "text",
    "empty text": lambda: "",
    "number": lambda: 5,
    "list": lambda: [1, 2, 3],
    "object": object,
    "float": lambda: 1.5,
    "dict": dict,
    "released view": released,
}


@pytest.mark.parametrize("kind", list(NO_PAYLOADS))
def test_what_is_no_payload(store, kind):
    payload = NO_PAYLOADS[kind]()
    writer, adv = store.create_ledger(), store.create_ledger_adv()
    writer.append(b"a")
    for call in (
        lambda: writer.append(payload),
        lambda: writer.append_async(payload).result(60),
        lambda: writer.append_many([payload]),
        lambda: adv.write(0, payload),
        lambda: adv.write_async(0, payload).result(60),
    ):
        with refused(-14) as caught:
            call()
        assert caught.type is errors.IncorrectParameterError
    for others in others_like(payload):
        with refused(-14) as caught:
            writer.append_many([*others, payload, *others])
        assert caught.type is errors.IncorrectParameterError
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (0, 0, 1)
    assert (adv.last_add_confirmed, adv.length) == (-1, 0)
    assert writer.append(b"b") == 1
    assert adv.write(0, b"c") == 0
    assert (writer.is_closed(), adv.is_closed()) == (False, False)


@pytest.mark.parametrize(
    "iterable", [None, 5, b"bytes are a sequence of numbers", "text", bytearray(b"ab"), [b"a", None]]
)
def test_append_many_of_what_is_no_series_of_payloads(store, iterable):
    writer = store.create_ledger()
    with refused(-14):
        writer.append_many(iterable)
    assert writer.append(b"still open") == writer.last_add_confirmed
    assert len(writer.read(0, writer.last_add_confirmed)) == writer.last_add_confirmed + 1


def test_an_iterable_that_raises(store):
    writer = store.create_ledger()
    writer.append(b"a")

    def payloads():
        yield b"b"
        raise KeyError("of the caller")

    with pytest.raises(KeyError):
        writer.append_many(payloads())
    last = writer.append(b"c")
    assert last in (1, 2)
    assert writer.last_add_confirmed == last
    assert [entry.data for entry in writer][-1] == b"c"


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_an_entry_over_the_limit(open_store):
    store = open_store(max_entry_bytes=1000)
    writer, adv = store.create_ledger(), store.create_ledger_adv()
    writer.append(b"a")
    for size in (1001, 5000):
        payload = bytes(size)
        for call in (
            lambda payload=payload: writer.append(payload),
            lambda payload=payload: writer.append_async(payload).result(60),
            lambda payload=payload: writer.append_many([b"b", payload, b"c"]),
            lambda payload=payload: adv.write(0, payload),
            lambda payload=payload: adv.write_async(0, payload).result(60),
        ):
            with refused(-14) as caught:
                call()
            assert caught.type is errors.EntryTooLargeError
            assert "1000" in str(caught.value) or "1,000" in str(caught.value)
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length, writer.is_closed()) == (0, 0, 1, False)
    assert (adv.last_add_confirmed, adv.length) == (-1, 0)
    assert writer.append(bytes(900)) == 1
    assert adv.write(0, bytes(900)) == 0


def test_the_default_limit_is_five_mebibytes(store):
    writer = store.create_ledger()
    with refused(-14) as caught:
        writer.append(bytes((5 << 20) + 1))
    assert caught.type is errors.EntryTooLargeError
    payload = os.urandom((5 << 20) - 256)
    assert writer.append(payload) == 0
    assert writer.read(0, 0)[0].data == payload


def test_a_limit_of_one_client_is_not_that_of_another(open_store):
    small, large = open_store(max_entry_bytes=100), open_store()
    writer = large.create_ledger()
    writer.append(bytes(1000))
    writer.close()
    assert [entry.length for entry in small.open_ledger(writer.id)] == [1000]


# -- ids and arguments -----------------------------------------------------------------------------------------------

NO_IDS = [-1, -(2**63), 2**63, 2**64, 1.5, "1", b"1", Ellipsis]


@pytest.mark.parametrize("ledger_id", NO_IDS, ids=repr)
def test_ledger_ids_that_are_none(store, ledger_id):
    calls = {
        "open": lambda: store.open_ledger(ledger_id),
        "open without recovery": lambda: store.open_ledger(ledger_id, recovery=False),
        "delete": lambda: store.delete_ledger(ledger_id),
        "metadata": lambda: store.ledger_metadata(ledger_id),
        "is_closed": lambda: store.is_closed(ledger_id),
        "create": lambda: store.create_ledger_adv(ledger_id),
    }
    for what, call in calls.items():
        with pytest.raises(errors.LedgerError) as caught:
            call()
        assert caught.value.code in (-14, -25), what
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("entry_id", [2**63, 2**64, 1.5, "1", b"1", None, Ellipsis], ids=repr)
def test_entry_ids_that_are_none(store, entry_id):
    writer = store.create_ledger_adv()
    writer.write(0, b"a")
    for call in (
        lambda: writer.write(entry_id, b"x"),
        lambda: writer.write_async(entry_id, b"x").result(60),
        lambda: writer.read(entry_id, entry_id),
        lambda: writer.read_unconfirmed(0, entry_id),
        lambda: writer.batch_read(entry_id, 1, 0),
        lambda: writer.batch_read_unconfirmed(entry_id, 1, 0),
        lambda: writer.wait_entry(entry_id, 0.01),
    ):
        with pytest.raises(errors.LedgerError) as caught:
            call()
        assert caught.value.code in (-14, -1, -13), repr(caught.value)
    assert writer.write(1, b"b") == 1


@pytest.mark.parametrize(
    "options",
    [
        {"digest": "md5"},
        {"digest": 5},
        {"digest": ""},
        {"password": 5},
        {"password": ["pw"]},
        {"ensemble": "1"},
        {"write_quorum": 1.5},
        {"custom_metadata": 5},
        {"custom_metadata": [("a", b"b")]},
        {"custom_metadata": {"a": "text"}},
        {"custom_metadata": {"a": None}},
        {"custom_metadata": {1: b"b"}},
        {"custom_metadata": {b"a": b"b"}},
        {"ensemble": 2**40, "write_quorum": 1, "ack_quorum": 1},
        {"ensemble": 2**31 - 1},
        {"ensemble": 4},
    ],
    ids=repr,
)
def test_arguments_of_creation(store, options):
    for create in (store.create_ledger, store.create_ledger_adv):
        with refused(-14, -6):
            create(**options)
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("options", [{"password": 5}, {"digest": "md5"}, {"digest": 5}], ids=repr)
def test_arguments_of_opening(store, options):
    writer = store.create_ledger()
    with refused(-14):
        store.open_ledger(writer.id, **options)
    assert writer.append(b"not fenced") == 0


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "sometimes"},
        {"durability": None},
        {"check": "slow"},
        {"wire": "v4"},
        {"wire": None},
        {"max_entry_bytes": 0},
        {"max_entry_bytes": -1},
        {"max_entry_bytes": "5"},
        {"bookies": 0},
        {"bookies": -3},
        {"metadata_format": 0},
        {"metadata_format": 4},
        {"explicit_lac_interval": -1},
        {"add_quorum_timeout": -1},
    ],
    ids=repr,
)
def test_arguments_of_a_store(store_path, options):
    with pytest.raises(errors.BookstandError):
        bookstand.open(store_path, **options)
    assert not store_path.exists()


# -- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"a text file\n", bytes(4096), os.urandom(20000)], ids=["empty", "text", "zeros", "noise"]
)
@pytest.mark.parametrize("options", [{}, {"create": False}, {"read_only": True}], ids=repr)
def test_a_path_that_is_a_file(tmp_path, content, options):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(errors.StoreError) as caught:
        bookstand.open(path, **options)
    assert isinstance(caught.value, errors.NotAStoreError)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=repr)
def test_a_path_with_nothing(tmp_path, options):
    path = tmp_path / "nothing"
    with pytest.raises(errors.StoreNotFoundError) as caught:
        bookstand.open(path, **options)
    assert str(path) in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_path_under_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.StoreError):
        bookstand.open(tmp_path / "file" / "store")


def test_a_directory_of_something_else(tmp_path):
    (tmp_path / "thesis.txt").write_text("chapter one")
    (tmp_path / "data").mkdir()
    with pytest.raises(errors.NotAStoreError):
        bookstand.open(tmp_path, create=False)
    assert sorted(os.listdir(tmp_path)) == ["data", "thesis.txt"]


def test_an_lmdb_file_of_another_program(tmp_path, store_path):
    with bookstand.open(store_path) as store:
        store.create_ledger()
    name = data_file(store_path).relative_to(store_path)
    alien = tmp_path / "alien"
    (alien / name).parent.mkdir(parents=True, exist_ok=True)
    environment = lmdb.open(str(alien / name), subdir=False, lib_version=0)
    with environment.begin(write=True) as transaction:
        transaction.put(b"not", b"ours")
    environment.close()
    before = hashlib.sha256((alien / name).read_bytes()).digest()
    for options in ({}, {"create": False}, {"read_only": True}):
        with pytest.raises(errors.NotAStoreError):
            bookstand.open(alien, **options)
    assert hashlib.sha256((alien / name).read_bytes()).digest() == before


@pytest.mark.parametrize(
    "path", [None, 5, "", "nul\0byte", b"\xff\xfe" * 3000], ids=["None", "5", "empty", "nul", "long"]
)
def test_what_is_no_path(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.BookstandError):
        bookstand.open(path)
    assert os.listdir(tmp_path) == []


def test_paths_of_every_type(tmp_path):
    class Mine:
        def __fspath__(self) -> str:
            return str(tmp_path / "mine")

    for path in (str(tmp_path / "text"), os.fsencode(tmp_path / "bytes"), tmp_path / "path", Mine()):
        with bookstand.open(path) as store:
            assert store.create_ledger().append(b"a") == 0
            assert store.verify().ok
    assert sorted(os.listdir(tmp_path)) == ["bytes", "mine", "path", "text"]


@pytest.mark.damaged
def test_a_store_of_a_newer_format(store_path):
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"a")
    with raw(store_path, write=True) as database:
        meta = database(b"meta")
        version = meta[b"format"]
        meta[b"format"] = (int.from_bytes(version, "big") + 100).to_bytes(len(version), "big")
    before = hashlib.sha256(data_file(store_path).read_bytes()).digest()
    for options in ({}, {"create": False}, {"read_only": True}, {"check": "full"}, {"check": "subprocess"}):
        with pytest.raises(errors.StoreFormatError) as caught:
            bookstand.open(store_path, **options)
        assert "newer" in str(caught.value)
    assert hashlib.sha256(data_file(store_path).read_bytes()).digest() == before


@pytest.mark.damaged
def test_a_store_of_an_older_format(store_path):
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"a")
    with raw(store_path, write=True) as database:
        meta = database(b"meta")
        version = meta[b"format"]
        meta[b"format"] = (int.from_bytes(version, "big") - 1).to_bytes(len(version), "big")
    for options in ({}, {"read_only": True}, {"check": "full"}):
        with pytest.raises(
            errors.StoreFormatError, match=r"has format \d+, .* export it with the version that wrote it"
        ):
            bookstand.open(store_path, **options)


@pytest.mark.damaged
@pytest.mark.parametrize("value", [b"", b"\xff" * 40, b"text"], ids=repr)
def test_a_store_with_a_format_that_makes_no_sense(store_path, value):
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"a")
    with raw(store_path, write=True) as database:
        database(b"meta")[b"format"] = value
    with pytest.raises(errors.StoreError):
        bookstand.open(store_path)


# -- a closed store --------------------------------------------------------------------------------------------------


def every_call(store, writer, adv, reader, tmp_path) -> dict[str, Callable[[], Any]]:
    """Every method that a closed store or a handle of one has to refuse."""
    metadata = writer.metadata
    return {
        "create_ledger": lambda: store.create_ledger(),
        "create_ledger_adv": lambda: store.create_ledger_adv(),
        "create_ledger_adv with an id": lambda: store.create_ledger_adv(500),
        "open_ledger": lambda: store.open_ledger(writer.id),
        "open_ledger without recovery": lambda: store.open_ledger(writer.id, recovery=False),
        "delete_ledger": lambda: store.delete_ledger(writer.id),
        "delete_ledger, missing_ok": lambda: store.delete_ledger(writer.id, missing_ok=True),
        "list_ledgers": lambda: list(store.list_ledgers()),
        "ledger_metadata": lambda: store.ledger_metadata(writer.id),
        "write_ledger_metadata": lambda: store.write_ledger_metadata(metadata),
        "is_closed": lambda: store.is_closed(writer.id),
        "nodes.get": lambda: store.nodes.get("/a"),
        "nodes.put": lambda: store.nodes.put("/a", b"x"),
        "nodes.delete": lambda: store.nodes.delete("/a"),
        "nodes.children": lambda: list(store.nodes.children("/")),
        "transaction": lambda: commit_a_node(store),
        "verify": lambda: store.verify(),
        "backup": lambda: store.backup(tmp_path / "backup"),
        "compact": lambda: store.compact(),
        "writer.append": lambda: writer.append(b"x"),
        "writer.append_async": lambda: writer.append_async(b"x").result(60),
        "writer.append_many": lambda: writer.append_many([b"x"]),
        "writer.force": lambda: writer.force(),
        "writer.force_async": lambda: writer.force_async().result(60),
        "writer.close": lambda: writer.close(),
        "writer.close_async": lambda: writer.close_async().result(60),
        "writer.read": lambda: writer.read(0, 0),
        "writer.read_unconfirmed": lambda: writer.read_unconfirmed(0, 0),
        "writer.batch_read": lambda: writer.batch_read(0, 1, 0),
        "writer.batch_read_unconfirmed": lambda: writer.batch_read_unconfirmed(0, 1, 0),
        "writer.read_last_entry": lambda: writer.read_last_entry(),
        "writer.read_last_confirmed": lambda: writer.read_last_confirmed(),
        "writer.try_read_last_confirmed": lambda: writer.try_read_last_confirmed(),
        "writer.read_explicit_last_confirmed": lambda: writer.read_explicit_last_confirmed(),
        "iteration": lambda: list(writer),
        "adv.write": lambda: adv.write(1, b"x"),
        "adv.write_async": lambda: adv.write_async(1, b"x").result(60),
        "adv.close": lambda: adv.close(),
        "reader.read": lambda: reader.read(0, 0),
        "reader.read_unconfirmed": lambda: reader.read_unconfirmed(0, 0),
        "reader.batch_read": lambda: reader.batch_read(0, 1, 0),
        "reader.read_last_entry": lambda: reader.read_last_entry(),
        "reader.read_last_confirmed": lambda: reader.read_last_confirmed(),
        "reader.wait_entry": lambda: reader.wait_entry(5, 600),
        "reader.iteration": lambda: list(reader),
        "reader.follow": lambda: list(reader.follow()),
    }


def commit_a_node(store) -> None:
    with store.transaction() as transaction:
        transaction.put_node("/a", b"x")


def in_use(store):
    writer, adv = store.create_ledger(), store.create_ledger_adv()
    for i in range(3):
        writer.append(b"%d" % i)
    adv.write(0, b"0")
    reader = store.open_ledger(writer.id, recovery=False)
    return writer, adv, reader


def test_a_closed_store_refuses_every_call(open_store, tmp_path):
    store = open_store()
    writer, adv, reader = in_use(store)
    calls = every_call(store, writer, adv, reader, tmp_path)
    store.close()
    store.close()
    for what, call in calls.items():
        with pytest.raises(errors.BookstandError) as caught:
            call()
        assert getattr(caught.value, "code", None) == -19, f"{what}: {caught.value!r}"
    # What needs no store is still known.
    assert (writer.id, writer.last_add_confirmed, writer.length) == (writer.id, 2, 3)
    assert (reader.id, reader.last_add_confirmed) == (writer.id, 1)
    assert not (tmp_path / "backup").exists()


def test_iterators_of_a_closed_store(open_store):
    store = open_store()
    writer, _, reader = in_use(store)
    entries, ledgers = iter(writer), store.list_ledgers()
    next(entries)
    next(ledgers)
    store.close()
    for iterator in (entries, ledgers, iter(reader)):
        with refused(-19):
            list(iterator)


def test_other_clients_are_not_closed_with_one(open_store):
    first, second = open_store(), open_store()
    writer = second.create_ledger()
    first.close()
    assert writer.append(b"a") == 0
    assert [entry.data for entry in writer] == [b"a"]


# -- forks -----------------------------------------------------------------------------------------------------------

FORK = """
import json, os, sys
sys.path.insert(0, sys.argv[2])
import bookstand
from tests.ledger.test_bad_input import every_call, in_use
from pathlib import Path

path = Path(sys.argv[1])
store = bookstand.open(path)
writer, adv, reader = in_use(store)
calls = every_call(store, writer, adv, reader, path.parent)
entries, ledgers = iter(writer), store.list_ledgers()
next(entries); next(ledgers)
calls["a started iteration"] = lambda: list(entries)
calls["a started list"] = lambda: list(ledgers)
out, into = os.pipe()
child = os.fork()
if not child:
    answers = {}
    try:
        for what, call in calls.items():
            try:
                answers[what] = ["no refusal", repr(call())]
            except bookstand.BookstandError as error:
                answers[what] = ["refused", type(error).__name__]
            except BaseException as error:
                answers[what] = ["leaked", repr(error)]
        try:
            store.close()
            answers["close"] = ["fine", ""]
        except bookstand.BookstandError as error:
            answers["close"] = ["refused", type(error).__name__]
        except BaseException as error:
            answers["close"] = ["leaked", repr(error)]
        try:
            with bookstand.open(path) as own:
                mine = own.create_ledger()
                mine.append(b"child")
                answers["own"] = ["fine", str(mine.id)]
        except BaseException as error:
            answers["own"] = ["failed", repr(error)]
    finally:
        os.write(into, json.dumps(answers).encode())
        os._exit(0)
os.close(into)
with os.fdopen(out) as stream:
    answers = json.load(stream)
assert os.waitpid(child, 0)[1] == 0
# The parent never notices.
assert writer.append(b"parent") == 3
assert [entry.data for entry in writer] == [b"0", b"1", b"2", b"parent"]
assert [entry.data for entry in entries][:2] == [b"1", b"2"]
if answers["own"][0] == "fine":
    assert [entry.data for entry in store.open_ledger(int(answers["own"][1]))] == [b"child"]
report = store.verify()
assert report.ok, report.problems
store.close()
print(json.dumps(answers))
"""


def test_use_after_fork(store_path):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = run_python(FORK, store_path, root)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers.pop("own")[0] == "fine", answers
    assert answers.pop("close")[0] in ("fine", "refused")
    wrong = {what: answer for what, answer in answers.items() if answer != ["refused", "ForkedStoreError"]}
    assert not wrong
    with bookstand.open(store_path, create=False) as store:
        assert store.verify().ok


# -- nodes, copies, and what lmdb would say --------------------------------------------------------------------------


def test_nodes(store):
    assert store.nodes.put("/a", b"one", expected_version=-1) == 0
    with refused(-17, -20):
        store.nodes.put("/a", b"again", expected_version=-1)
    assert store.nodes.get("/a") == (b"one", 0)
    assert store.nodes.put("/a", b"two", expected_version=0) == 1
    with refused(-17):
        store.nodes.put("/a", b"three", expected_version=0)
    with refused(-17):
        store.nodes.delete("/a", expected_version=0)
    assert store.nodes.put("/a", b"three") == 2
    assert store.nodes.get("/a") == (b"three", 2)
    store.nodes.delete("/a", expected_version=2)
    with pytest.raises(errors.BookstandError):
        store.nodes.get("/a")
    with pytest.raises(errors.BookstandError):
        store.nodes.delete("/a")


NODE_PATHS = {
    "empty": "",
    "None": None,
    "number": 5,
    "bytes": b"/a",
    "long": "/" + "x" * 600,
    "wide": "/" + "é" * 300,
    "nul": "/nul\0byte",
}


@pytest.mark.parametrize("path", list(NODE_PATHS.values()), ids=list(NODE_PATHS))
def test_node_paths(store, path):
    for call in (
        lambda: store.nodes.get(path),
        lambda: store.nodes.delete(path),
        lambda: store.nodes.put(path, None),
        lambda: store.nodes.put(path, "text"),
    ):
        with pytest.raises(errors.BookstandError):
            call()
    # A path that is taken has to come back as it was; one that is not, is refused by us.
    try:
        store.nodes.put(path, b"value")
    except errors.BookstandError:
        return
    assert store.nodes.get(path)[0] == b"value"


def test_a_large_node(store):
    value = os.urandom(3 << 20)
    store.nodes.put("/large", value)
    assert store.nodes.get("/large") == (value, 0)


def test_large_custom_metadata(store):
    custom = {"k" * 1000: os.urandom(100_000)}
    writer = store.create_ledger(custom_metadata=custom)
    assert dict(store.ledger_metadata(writer.id).custom_metadata) == custom


def test_a_backup_where_something_is_already(store, tmp_path, store_path):
    writer = store.create_ledger()
    writer.append(b"a")
    taken = tmp_path / "taken"
    taken.write_text("something else")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("chapter one")
    for destination in (taken, full, store_path, tmp_path / "no" / "such" / "directory", None, 5):
        with pytest.raises(errors.BookstandError):
            store.backup(destination)
    assert taken.read_text() == "something else"
    assert os.listdir(full) == ["thesis.txt"]
    store.backup(tmp_path / "copy")
    with bookstand.open(tmp_path / "copy", create=False) as copy:
        assert [entry.data for entry in copy.open_ledger(writer.id)] == [b"a"]
        assert copy.verify().ok
    assert writer.append(b"b") == 1


def test_metadata_that_makes_no_sense(store):
    writer = store.create_ledger()
    writer.append(b"a")
    metadata = store.ledger_metadata(writer.id)
    for bad in (None, 5, b"bytes", "text"):
        with refused(-14):
            store.write_ledger_metadata(bad)
    for changes in (
        {"state": "HALF OPEN"},
        {"state": "OPEN", "last_entry_id": 5, "length": 5},
        {"ensembles": ()},
        {"ensembles": ((5, ("a",)), (0, ("b",)))},
        {"ensembles": ((0, ("a", "b")),)},
        {"no_such_field": 1},
    ):
        with pytest.raises(errors.BookstandError):
            store.write_ledger_metadata(metadata.replace(**changes), expected_version=metadata.version)
    assert store.ledger_metadata(writer.id) == metadata
    assert writer.append(b"b") == 1


def test_many_readers_of_one_store(open_store):
    """More iterations at once than LMDB has reader slots."""
    store = open_store()
    writer = store.create_ledger()
    writer.append_many(b"%d" % i for i in range(500))
    iterators = [iter(writer) for _ in range(300)]
    assert [next(iterator).data for iterator in iterators] == [b"0"] * 300
    assert [next(iterator).data for iterator in iterators] == [b"1"] * 300
    assert writer.append(b"not in the way") == 500


def test_a_transaction_that_is_refused_changes_nothing(store):
    writer = store.create_ledger()
    store.nodes.put("/a", b"one")

    def refused_by_the_store() -> None:
        with store.transaction() as transaction:
            transaction.put_node("/b", b"x")
            transaction.put_node("/a", b"two", expected_version=7)

    def left_by_the_caller() -> None:
        with store.transaction() as transaction:
            transaction.put_node("/b", b"x")
            raise KeyError("of the caller")

    with refused(-17):
        refused_by_the_store()
    with pytest.raises(KeyError):
        left_by_the_caller()
    with pytest.raises(errors.BookstandError):
        store.nodes.get("/b")
    assert store.nodes.get("/a") == (b"one", 0)
    assert writer.append(b"a") == 0


def test_temporary_stores():
    with bookstand.temporary() as store:
        writer = store.create_ledger()
        assert writer.append(b"a") == 0
        assert store.verify().ok
    with refused(-19):
        store.create_ledger()


def test_the_errors_are_one_family():
    for name in dir(errors):
        thing = getattr(errors, name)
        if isinstance(thing, type) and issubclass(thing, Exception):
            assert issubclass(thing, errors.BookstandError), name
    assert bookstand.BookstandError is errors.BookstandError
    assert bookstand.errors.by_code(-101) is errors.LedgerFencedError
    assert bookstand.errors.by_code(-12345).code == -999
