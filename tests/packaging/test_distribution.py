"""What is shipped: the wheel has what the tree has, under one name, and installs on its own."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.kit import ROOT, copied_tree

ROOMS = sorted(link.name for link in (ROOT / "bookstand").iterdir() if link.is_symlink())
SHIPPED = (".py", ".pyi", ".proto", ".typed", ".c", ".jinja", ".css", ".js")


def tree_files() -> set[str]:
    """Names that the tree's files have once they are imported."""
    files = set()
    for folder, name in [(ROOT / "bookstand", "bookstand"), *((ROOT / room, f"bookstand/{room}") for room in ROOMS)]:
        for path in folder.rglob("*"):
            inside = path.relative_to(folder)
            elsewhere = inside.parts[0] in ROOMS or "__pycache__" in inside.parts
            if path.is_file() and path.suffix in SHIPPED and not elsewhere:
                files.add(f"{name}/{inside}")
    return files


def build(source: Path, to: Path, kind: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(to), str(source)],
        check=True,
        capture_output=True,
        text=True,
    )
    (built,) = to.iterdir()
    return built


@pytest.fixture(scope="module")
def copy_of_the_tree(tmp_path_factory) -> Path:
    return copied_tree(tmp_path_factory.mktemp("tree") / "bookstand")


@pytest.fixture(scope="module")
def wheel(copy_of_the_tree, tmp_path_factory) -> Path:
    return build(copy_of_the_tree, tmp_path_factory.mktemp("wheel"), "wheel")


def shipped_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_every_room_is_linked():
    assert [
        *(
            "cursor",
            "delivery",
            "disk",
            "ledger",
            "managed_ledger",
            "pipeline",
            "proto",
            "server",
            "storage",
            "testing",
            "tools",
        ),
    ] == ROOMS
    for room in ROOMS:
        link = ROOT / "bookstand" / room
        assert link.readlink() == Path("..") / room


def test_the_wheel_has_what_the_tree_has(wheel):
    shipped = shipped_in(wheel)
    assert shipped == tree_files()
    assert "bookstand/py.typed" in shipped
    assert {name.split("/")[0] for name in shipped} == {"bookstand"}


def test_a_wheel_made_from_the_sdist_is_the_same(copy_of_the_tree, wheel, tmp_path):
    sdist = build(copy_of_the_tree, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert shipped_in(build(source, tmp_path / "wheel", "wheel")) == shipped_in(wheel)


def test_an_installed_wheel_works_and_takes_no_common_name(wheel, tmp_path):
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)],
        check=True,
    )
    assert {path.name for path in target.iterdir() if path.suffix != ".dist-info"} == {"bin", "bookstand"}
    assert [path.name for path in (target / "bin").iterdir()] == ["bookstand"]
    program = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
import bookstand
assert bookstand.__file__.startswith(sys.argv[1]), bookstand.__file__
for common in "storage ledger managed_ledger proto cursor delivery disk pipeline server testing tools".split():
    assert importlib.util.find_spec(common) is None, common
with bookstand.temporary() as store:
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    assert [entry.data for entry in writer] == [b"a"]
"""
    subprocess.run([sys.executable, "-c", program, str(target)], check=True, cwd=tmp_path)
