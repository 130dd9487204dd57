"""Damage of twelve kinds, and that the campaign would notice what it looks for."""

from __future__ import annotations

import ast
import struct
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.storage.format import schema
from tests import kit
from tests.counts import Counts
from tests.soak import damaged_files
from tests.storage import trials

ROUNDS = 8
SHAPE = trials.Shape((40, 12, 2, 3), (2,), 8, 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
def test_damage_is_noticed_and_ends_no_process(seed: int, counts: Counts) -> None:
    done = damaged_files.one_round(seed)
    counts.add("damaged_files", done.cases, len(done.problems), [seed] if done.problems else [])
    assert done.cases >= 2_000 / ROUNDS
    assert not done.problems, "\n".join(done.problems)


@pytest.fixture
def made(memory_path: Path) -> tuple[Path, list[trials.Content], list[bytes]]:
    images: list[bytes] = []
    history = trials.make(memory_path / "store", SHAPE, images)
    return memory_path, history, images


def test_there_are_twelve_kinds_and_no_two_cases_are_alike(made: tuple[Path, list[Any], list[bytes]]) -> None:
    folder, _, images = made
    image = (folder / "store" / "data.mdb").read_bytes()
    cases = damaged_files.cases(3, damaged_files.Target(image, images), each_kind=15)
    assert len(damaged_files.KINDS) == 12
    assert {case.kind for case in cases} == set(damaged_files.KINDS)
    changed = {trials.edited(image, case.damage) for case in cases}
    # The last of the images is the file as it is.
    assert len(changed) == len(cases) == 11 * 15 + min(15, len(images) - 1)
    assert image not in changed
    assert cases == damaged_files.cases(3, damaged_files.Target(image, images), each_kind=15)


def test_editing_bytes_is_editing_a_file(made: tuple[Path, list[Any], list[bytes]]) -> None:
    folder, _, images = made
    image = (folder / "store" / "data.mdb").read_bytes()
    for case in damaged_files.cases(5, damaged_files.Target(image, images), each_kind=3):
        file = folder / "edited"
        file.write_bytes(image)
        trials.edit(str(file), case.damage)
        assert file.read_bytes() == trials.edited(image, case.damage), case


@pytest.mark.parametrize("check", ["full", "fast"])
def test_a_store_without_damage(made: tuple[Path, list[Any], list[bytes]], check: str) -> None:
    folder, history, _ = made
    (result,) = trials.trials(folder / "store", [[]], folder / "t", SHAPE, check=check, witness=True, then_write=True)
    assert (result["right"], result["lost"], result["whole"], result["written"]) == (SHAPE.entries, 0, True, True)
    assert trials.fault(result, True, SHAPE, history) is None


def test_an_earlier_state_of_the_whole_file(made: tuple[Path, list[Any], list[bytes]]) -> None:
    """Only the witness can tell; without one it must be exactly what once was there."""
    folder, history, images = made
    damages = [[["cut", 0], ["write", 0, image.hex()]] for image in images[:-1]]
    results = trials.trials(folder / "store", damages, folder / "without", SHAPE, check="full")
    for result in results:
        assert result["opened"]
        assert not result["whole"]
        assert trials.rolled_back(result, SHAPE, history)
        assert trials.fault(result, False, SHAPE, history) is None
        assert trials.fault(result, True, SHAPE, history) == "rolled back past the witness"
    for result in trials.trials(folder / "store", damages, folder / "with", SHAPE, check="full", witness=True):
        assert result["error"] == "StoreRolledBackError"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"signal": 7}, "killed"),
        ({"signal": 24}, "no end"),
        ({"leaked": "KeyError('x')"}, "an error that is not ours"),
        ({"wrong": 1}, "wrong payload"),
        ({"codes": [-13]}, "absence instead of damage"),
        ({"codes": [-7], "problems": 3}, "absence instead of damage"),
        ({"lost": 1, "codes": [-5]}, "lost without a problem in verify()"),
        ({"spoilt": True}, "reading was another after writing"),
        ({"lost": 1, "codes": [-5], "problems": 1}, None),
        ({"opened": False, "error": "StoreDamagedError"}, None),
    ],
)
def test_the_campaign_notices(told: dict[str, Any], why: str | None) -> None:
    """It is worth nothing if it cannot fail."""
    counts = [39, *SHAPE.ledgers[1:]]
    content = {"counts": counts, "closed": [0, 2], "nodes": SHAPE.nodes}
    result = trials._nothing() | {"opened": True, "content": content} | told | {"signal": told.get("signal", 0)}
    assert trials.fault(result, False, SHAPE, []) == why


# -- what it found ---------------------------------------------------------------------------------------------------

VERIFY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (5, 6))
import bookstand
try:
    with bookstand.open(sys.argv[1], check=sys.argv[2]) as store:
        print("problems", len(store.verify().problems))
except bookstand.errors.StoreDamagedError as error:
    print("refused", error)
"""


@pytest.mark.parametrize("check", ["fast", "full"])
@pytest.mark.parametrize("where", ["leaf", "branch"])
def test_keys_out_of_their_order_do_not_lead_in_circles(memory_path: Path, where: str, check: str) -> None:
    """A leaf begins with a key that is smaller than all before it, or a branch sends all searches to the leaf before:
    what looks for the next ledger finds one that it has had. ``lmdb.verify`` does not see the second."""
    path = memory_path / "store"
    with bookstand.open(path) as store:
        for number in range(60):
            writer = store.create_ledger()
            if number % 2 == 0:
                writer.append(bytes(1_200))
        # Only pages that are in use.
        store.compact()
    image = bytearray((path / "data.mdb").read_bytes())
    pages = range(2, len(image) // trials.PAGE)
    if where == "leaf":
        found = [key for page in pages if (key := key_of_an_entry(image, page, LEAF, 0))]
        # Neither the first leaf nor the last.
        at = sorted(found, key=lambda at: bytes(image[at : at + schema.ENTRY_KEY.size]))[len(found) // 2]
        damaged = schema.ENTRY_KEY.pack(0, 0)
    else:
        (at,) = [key for page in pages if (key := key_of_an_entry(image, page, BRANCH, -1))]
        damaged = schema.ENTRY_KEY.pack(1 << 50, 0)
    image[at : at + schema.ENTRY_KEY.size] = damaged
    (path / "data.mdb").write_bytes(image)
    ended = kit.run_python(VERIFY, path, check)
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-500:])
    assert ended.stdout.split()[0] == "refused" or int(ended.stdout.split()[1])


def key_of_an_entry(image: bytearray, page: int, kind: int, place: int) -> int | None:
    """Where a key lies in a page of that kind; None if the page is another, or its keys are not those of entries."""
    begin = page * trials.PAGE
    flags, lower = struct.unpack_from("<HH", image, begin + 10)
    nodes = (lower - PAGE_HEADER) // 2
    if flags != kind or nodes < 2:
        return None
    node = begin + struct.unpack_from("<H", image, begin + PAGE_HEADER + 2 * (place % nodes))[0]
    (key_size,) = struct.unpack_from("<H", image, node + 6)
    return node + NODE_HEADER if key_size == schema.ENTRY_KEY.size else None


# How LMDB lays out its pages.
BRANCH, LEAF = 1, 2
PAGE_HEADER, NODE_HEADER = 16, 8


def test_a_page_of_nodes_as_it_once_was(memory_path: Path) -> None:
    """A write that never arrived, to a page that held these nodes before: each of them is sealed, none is missing."""
    path = memory_path / "store"
    with bookstand.open(path, witness=True) as store:
        for number in range(60):
            store.nodes.put(f"/node/{number}", b"x" * 40)
        for number in range(40):
            store.nodes.put(f"/node/{number}", b"value %d" % number)
            if number == 10:
                earlier = (path / "data.mdb").read_bytes()
        now = {name: store.nodes.get(f"/node/{name}") for name in store.nodes.children("/node")}
    image = (path / "data.mdb").read_bytes()
    pages = [slice(start, start + trials.PAGE) for start in range(2 * trials.PAGE, len(earlier), trials.PAGE)]
    for page in pages:
        if image[page] != earlier[page]:
            (path / "data.mdb").write_bytes(image[: page.start] + earlier[page] + image[page.stop :])
            ended = kit.run_python(NODES, path)
            assert ended.returncode == 0, (ended.returncode, ended.stderr[-500:])
            if ended.stdout.startswith("{"):
                assert ast.literal_eval(ended.stdout) == now


NODES = """
import sys, bookstand
try:
    with bookstand.open(sys.argv[1], check="full", witness=True) as store:
        print({name: store.nodes.get(f"/node/{name}") for name in store.nodes.children("/node")})
except bookstand.errors.StoreDamagedError as error:
    print("refused", error)
"""
