"""Where output goes, and how a command ends when that ends first: pipes, full disks, terminals, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bookstand
from bookstand.pipeline.execution.cli import JOBS
from bookstand.tools.cli.exit_codes import FAILED, FINE, INTERRUPTED
from bookstand.tools.main import COMMANDS, SPARK
from tests.kit import PATIENCE
from tests.tools.child import COMMAND, Terminal, environment, finished, start, without_control
from tests.tools.kit import copied, damage_entry

DUMP = ("--metadata", "metadata.jsonl.gz")
RECORDS = ("ls", "bookie", *DUMP, "--records")
# Of each command one that prints something; what runs for long prints its help.
EVERY = {
    "ls": "my-store",
    "show": "my-store",
    "cat": "my-store 0",
    "verify": "my-store",
    "cursors": "my-store",
    "delayed": "my-store",
    "stats": "my-store",
    "report": "my-store --output report.html",
    "import-bookie": "bookie imported --metadata metadata.jsonl.gz --dry-run",
    "export-bookie": "my-store exported",
    "migrate cursors": "my-store --dry-run",
    "migrate snapshots": "my-store --dry-run",
    "backup": "my-store saved",
    "compact": "my-store --dry-run",
    "repair": "my-store repaired --dry-run",
    "upgrade": "my-store",
    "serve": "--help",
    "demo": "--help",
    "spark rebuild-delayed": "my-store --dry-run",
    "spark recut": "my-store --dry-run",
    "spark migrate-cursors": "my-store --dry-run",
    "spark import": "bookie --metadata metadata.jsonl.gz --output stores --dry-run",
    "spark export": "my-store --output tables --table cursors --dry-run",
    "spark verify": "my-store",
    "spark stats": "my-store --json",
}
OTHERS = (
    " ".join((*RECORDS, "--json")),
    "--help",
    "spark verify --help",
    "spark",
    "ls nothing --json",
    "spark stats my-store",
    "cursors my-store",
)

_CLOSED = """
import json, os, sys
from importlib import import_module

import numpy, pyarrow.parquet, rich.progress, typer
from bookstand.disk import disks
from bookstand.pipeline.jobs import export, import_disks, migrate_cursors, rebuild_delayed, recut, stats, verify
from bookstand.tools.main import COMMANDS, main, module_of

for command in COMMANDS:
    import_module(module_of(command))
for closed, words in json.loads(sys.argv[1]):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        reading, writing = os.pipe()
        os.close(reading)
        for descriptor in closed:
            os.dup2(writing, descriptor)
        # As a process of its own ends, with all that Python does then.
        sys.exit(main(words.split()))
    print(json.dumps([words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]))
"""


@pytest.mark.long
def test_every_command_ends_well_where_its_output_is_closed(folder: Path) -> None:
    """As in ``| head``, and in ``2>&1 | head``."""
    assert EVERY.keys() == {*COMMANDS, *(f"{SPARK} {name}" for name in JOBS)}
    words = [([1], f"{name} {more}") for name, more in EVERY.items()]
    words += [(closed, one) for one in OTHERS for closed in ([1], [1, 2])]
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED, json.dumps(words)],
        cwd=folder,
        # Output that is buffered fails only when the process exits.
        env={**environment(), "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _ in told] == [name for _, name in words]
    codes = {"spark": 2, "ls nothing --json": 3}
    assert {name: code for name, code in told if code != codes.get(name, FINE)} == {}
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_the_exit_code_of_a_job_does_not_depend_on_who_reads_its_output(here: Path, tmp_path: Path) -> None:
    damaged = copied(here / "my-store", tmp_path / "damaged")
    damage_entry(damaged, 0, 7)
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/null", "w") as nothing:
        for out in (writing, nothing):
            child = start("spark", "verify", damaged, folder=here, stdout=out, stderr=subprocess.PIPE)
            assert finished(child) == (1, "", "")
    os.close(writing)


def test_output_of_which_the_first_line_is_read(here: Path) -> None:
    child = start(*RECORDS, "--json", folder=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert json.loads(child.stdout.readline())["offset"] == 1024
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(PATIENCE) == FINE
    child.stderr.close()


@pytest.mark.parametrize(
    "arguments", [("ls", "my-store"), ("cat", "my-store", "0", "--raw"), ("ls", "nothing", "--json")]
)
def test_output_that_cannot_be_written(here: Path, arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        code, _, err = finished(start(*arguments, folder=here, stdout=full, stderr=subprocess.PIPE))
    assert "Traceback" not in err
    if "nothing" in arguments:
        assert err == "bookstand: there is nothing at nothing\n"
    else:
        assert (code, err.count("\n")) == (FAILED, 1)
        assert "No space left on device" in err


def test_no_output_at_all(here: Path) -> None:
    """What a store's file would get as its descriptor is not taken for output."""
    command = [*COMMAND, "verify", "my-store"]
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *command], cwd=here, env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (FAILED, "bookstand: stdout is closed\n")


def test_ctrl_c(here: Path) -> None:
    """While it waits for whoever reads its output, which is the one place where it surely is at some time."""
    child = start(*RECORDS, folder=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    code, _, err = finished(child)
    assert (code, err) == (INTERRUPTED, "bookstand: interrupted\n")


def test_ctrl_c_while_a_store_is_written(here: Path, tmp_path: Path) -> None:
    """The import is stopped at some moment, if it has not ended before; it goes on when it is run again."""
    words = ("import-bookie", "bookie", tmp_path / "new", *DUMP, "--json")
    child = start(*words, folder=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "new" / "data.mdb").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    child.send_signal(signal.SIGINT)
    code, out, err = finished(child)
    if code == INTERRUPTED:
        assert err.endswith("bookstand: interrupted\n")
        assert json.loads(out)["error"]["kind"] == "Interrupted"
    again = finished(start(*words, folder=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    assert again[0] == FINE
    with bookstand.open(tmp_path / "new", read_only=True) as store:
        assert len(list(store.list_ledgers())) == 87


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_that_has_not_all_letters(here: Path, encoding: str) -> None:
    """JSON is escaped, text is printed in another way, and nothing stops."""
    words = ("ls", "bookie", *DUMP, "--topic", "*odd*", "--kind", "topic")
    for options in ((), ("--json",)):
        done = subprocess.run(
            [*COMMAND, *words, *options], cwd=here, env=environment(PYTHONIOENCODING=encoding), capture_output=True
        )
        assert (done.returncode, done.stderr) == (FINE, b"")
        if options:
            (ledger,) = json.loads(done.stdout.decode(encoding))["ledgers"]
            assert ledger["topic"] == "persistent://acme/orders/odd name+ü%2F:x"
        else:
            assert ("odd name+ü" if encoding != "ascii" else "odd name+\\xfc") in done.stdout.decode(encoding)


# -- terminals ---------------------------------------------------------------------------------------------------------


def on_terminal(here: Path, *arguments: object, columns: int = 80, **variables: str) -> str:
    terminal = Terminal(columns)
    child = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=here,
        env=environment(**variables),
        stdin=terminal.end,
        stdout=terminal.end,
        stderr=terminal.end,
    )
    text = terminal.read()
    assert child.wait(PATIENCE) == FINE
    return text


def test_a_terminal(here: Path) -> None:
    text = on_terminal(here, "ls", "my-store", columns=70)
    assert "\x1b[1mLEDGER" in text
    plain = without_control(text)
    assert max(map(len, plain.splitlines())) <= 70
    assert on_terminal(here, "ls", "my-store", columns=70, NO_COLOR="1") == plain
    assert on_terminal(here, "ls", "my-store", columns=70, TERM="dumb") == plain
    # What a payload holds is not obeyed.
    assert "1:2  \\x00\\xff\\x1b[31m" in on_terminal(here, "cat", "my-store", "1")


def test_progress_is_on_the_terminal_and_output_is_not(here: Path, tmp_path: Path) -> None:
    """Of reading disks, and of writing stores, disks and cursors; it leaves nothing behind."""
    every = {"reading the disks", "writing the store", "writing the disk", "checking topics"}
    for words, shown in (
        (("ls", "bookie", *DUMP, "--json"), {"reading the disks"}),
        (("import-bookie", "bookie", tmp_path / "new", *DUMP, "--json"), {"reading the disks", "writing the store"}),
        (("export-bookie", "my-store", tmp_path / "out of it", "--json"), {"writing the disk"}),
        (("migrate", "cursors", "my-store", "--dry-run", "--json"), {"checking topics"}),
    ):
        terminal = Terminal()
        with open(tmp_path / "out", "w") as out:
            child = start(*words, folder=here, stdout=out, stderr=terminal.end)
            text = terminal.read()
        assert child.wait(PATIENCE) == FINE
        told = json.loads((tmp_path / "out").read_text())
        assert told.get("damage", []) == []
        assert {one for one in every if one in text} == shown
        # The last that is done to each line is to erase it.
        assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h"))


def test_without_a_terminal_there_is_no_progress(here: Path) -> None:
    done = finished(
        start(
            "verify",
            "bookie",
            "--metadata",
            "metadata.jsonl.gz",
            folder=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    )
    assert (done[0], done[2]) == (FINE, "")
    assert "\x1b" not in done[1]
