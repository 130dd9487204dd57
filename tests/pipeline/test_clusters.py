"""Several clusters' disks at once: each has its own name and metadata in every table and every job."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.errors import IncorrectParameterError, NotAStoreError, StoreNotFoundError
from bookstand.ledger.cluster.cookie import Cookie, serialize
from bookstand.pipeline.execution.cli import FINE, WRONG_USE, main
from bookstand.pipeline.tables.query import places_of, query
from bookstand.pipeline.tables.schemas import TABLES
from bookstand.pipeline.tables.sources import BOOKIE, STORE, bookies, clusters, places
from bookstand.pipeline.tables.tables import read
from tests.disk.recordings import dump_path
from tests.pipeline import kit


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Clusters whose ledgers have the same ids, and other files beside them."""
    folder = tmp_path / "copies"
    kit.clusters(folder, "one", "two", "three")
    (folder / "README.txt").write_text("three clusters")
    (folder / "empty").mkdir()
    return folder


def rows(paths: object, table: str, metadata: str | None = None) -> list[dict[str, Any]]:
    options = {"paths": json.dumps(paths)} if isinstance(paths, list) else {"path": str(paths)}
    if metadata is not None:
        options["metadata"] = metadata
    asked = query(table, unsealed=table == "delayed_index")
    return [row for batch in read(places_of(BOOKIE, options), asked) for row in batch.to_pylist()]


@pytest.fixture
def recorded(tmp_path: Path, unpacked: Callable[[str], Path]) -> Path:
    """Recorded clusters, each in a folder with its dump."""
    for name in "bd":
        folder = tmp_path / "recorded" / name
        folder.mkdir(parents=True)
        for one in unpacked(name).iterdir():
            (folder / one.name).symlink_to(one)
        shutil.copy(dump_path(name), folder)
    return tmp_path / "recorded"


@pytest.mark.parametrize("table", TABLES)
def test_clusters_of_a_glob_have_their_names_in_every_table(copies: Path, table: str, request: Any) -> None:
    if table in ("acks", "delayed_buckets"):
        copies = request.getfixturevalue("recorded")
    folders = [folder for folder in copies.iterdir() if (folder / "metadata.jsonl.gz").exists()]
    alone = {str(one): rows(one, table, str(one / "metadata.jsonl.gz")) for one in folders}
    assert all(alone.values())
    for paths in (str(copies / "*"), [str(one) for one in folders], str(copies)):
        together: dict[str, list[Any]] = {}
        for row in rows(paths, table):
            together.setdefault(row["place"], []).append(row)
        assert together == alone


def cookies(folder: Path, instance: str, bookie: str = "made:3181") -> None:
    for current in folder.rglob("current"):
        (current / "VERSION").write_bytes(serialize(Cookie(bookie, ("journal",), ("ledgers",), instance)))


def test_which_disks_are_of_one_cluster(copies: Path) -> None:
    def found(*paths: Path) -> list[tuple[str, ...]]:
        return [tuple(str(Path(one).relative_to(copies)) for one in place.paths) for place in clusters(list(paths))]

    own = "made:3181"
    # Bookies' own folders, side by side; what is above each is another cluster, whose dump is its own.
    shutil.copytree(copies / "one" / own, copies / "one" / "other")
    cookies(copies / "one" / "other", "i", "other")
    assert found(copies / "one" / "*") == [(f"one/{own}", "one/other")]
    assert [place.metadata for place in clusters(copies / "one" / "*")] == [str(copies / "one" / "metadata.jsonl.gz")]
    for name in ("one", "two", "three"):
        cookies(copies / name / own, name)
    cookies(copies / "one" / "other", "one", "other")
    assert found(copies / "*" / "*") == [(f"one/{own}", "one/other"), (f"three/{own}",), (f"two/{own}",)]
    # Two disks of one cluster, mounted at different places.
    cookies(copies / "three", "two")
    assert found(copies / "three" / own, copies / "two" / own) == [(f"three/{own}", f"two/{own}")]
    # Two copies of the same bookies, and two folders with some of the bookies of a cluster each.
    assert found(copies / "two", copies / "three") == [("two",), ("three",)]
    cookies(copies / "three", "two", "third")
    assert found(copies / "two", copies / "three") == [("two", "three")]
    # Without cookies, what is side by side.
    for cookie in copies.rglob("VERSION"):
        cookie.unlink()
    assert found(copies / "two" / own, copies / "three" / own) == [(f"two/{own}",), (f"three/{own}",)]
    # A dump is of one cluster.
    dump = str(copies / "one" / "metadata.jsonl.gz")
    assert [len(place.paths) for place in clusters([copies / "two" / own, copies / "three" / own], dump)] == [2]
    for name in ("one", "two"):
        cookies(copies / name, name)
    with pytest.raises(IncorrectParameterError, match="the disks are of 2"):
        clusters([copies / "one", copies / "two"], dump)


def test_stores_and_clusters_by_one_glob(copies: Path) -> None:
    kit.fill(copies / "store", topics=1)
    found = places(str(copies / "*"))
    assert [(place.kind, Path(place.name).name) for place in found] == [
        (STORE, "store"),
        *((BOOKIE, name) for name in ("one", "three", "two")),
    ]
    assert {place.metadata for place in found} == {
        None,
        *(str(copies / name / "metadata.jsonl.gz") for name in ("one", "two", "three")),
    }
    (copies / "one").rename(copies / "[a]*")
    assert [place.name for place in places(str(copies / "[a]*"))] == [str(copies / "[a]*")]
    for wrong, error in ((copies / "empty", NotAStoreError), (copies / "e*", StoreNotFoundError)):
        with pytest.raises(error):
            places(str(wrong))


def test_jobs_name_each_cluster(copies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {str(copies / name) for name in ("one", "two", "three")}
    glob = str(copies / "*")

    def told(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == FINE
        return json.loads(capsys.readouterr().out)

    for job in ("verify", "stats"):
        results = told(job, glob)["results"]
        assert {one["unit"] for one in results} == names
        assert all(one["counts"]["topics"] == 1 for one in results)
        alone = {name: told(job, name)["results"][0] for name in sorted(names)}
        assert {one["unit"]: one for one in results} == alone
    told("export", glob, "--output", str(tmp_path / "tables"))
    places_in: dict[str, set[str]] = {}
    for file, columns in kit.parquet(tmp_path / "tables").items():
        places_in.setdefault(file.split("/")[0], set()).update(columns["place"])
    assert places_in["ledgers"] == places_in["messages"] == places_in["cursors"] == names
    assert {one["unit"] for one in told("import", glob, "--output", str(tmp_path / "stores"))["results"]} == {
        "one",
        "two",
        "three",
    }
    for number, name in enumerate(("one", "two", "three")):
        with bookstand.open(tmp_path / "stores" / name, read_only=True) as store:
            assert list(store.list_ledgers()) == [number, number + 1, number + 2]
    one_dump = ["--metadata", str(copies / "one" / "metadata.jsonl.gz")]
    assert main(["import", glob, *one_dump, "--output", str(tmp_path / "more")]) == WRONG_USE
    assert not (tmp_path / "more").exists()


def test_recorded_disks_stay_one_cluster(unpacked: Callable[[str], Path]) -> None:
    folder = unpacked("a")
    (place,) = clusters(folder)
    assert place.paths == (str(folder),)
    assert place == bookies(folder)
    inner = [one for one in sorted(folder.iterdir()) if one.is_dir()]
    (place,) = clusters(inner)
    assert place.paths == tuple(map(str, inner))
