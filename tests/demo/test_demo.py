"""The demo runs, shows what it does, says that nothing was lost, and would say so if something were."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import bookstand
from bookstand.demo import main, process, workload
from bookstand.demo.accounting import Accounting
from bookstand.demo.check import inspect
from bookstand.demo.worker import topic_config
from tests.kit import PATIENCE

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MOVEMENTS = re.compile(r"\r|\x1b\[[0-9;?]*[A-Za-ln-z]")
ROWS = ("published", "delivered", "acknowledged", "dead-lettered", "lost", "early", "unexpectedly redelivered")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return kept | {"TMPDIR": str(tmp_path), "TERM": "xterm-256color", "COLORTERM": "truecolor"} | more


def command(messages: int) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "bookstand.demo", "--messages", str(messages)]


def table(output: str) -> dict[str, list[str]]:
    """The cells that are filled, by the name of the row."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in output.partition("before the cut")[2].splitlines())
    return {name: cells for name, *cells in rows if cells}


@pytest.mark.long
def test_it_runs_without_a_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        command(20_000),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == [], "the demo leaves something behind"
    rows = table(done.stdout)
    assert rows["published"][2] == "20,000"
    assert rows["acknowledged"] == ["19,980"]
    assert rows["dead-lettered"] == ["20"]
    assert rows["lost"] == ["0"]
    assert rows["early"] == rows["unexpectedly redelivered"] == ["0", "0", "0"]
    delivered, again = (int(rows[name][2].replace(",", "")) for name in ("delivered", "redelivered"))
    assert delivered - again == 20_000
    # Each of those that cannot be handled comes three times, each of the others that fail twice.
    assert again >= 2 * 20 + sum(map(workload.fails_once, range(20_000))) - 20
    assert re.search(r"^verify: 0 problems in \d+ ledgers, [\d,]+ entries$", done.stdout, re.MULTILINE)
    assert "OK: no message was lost" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(("columns", "colour"), [(80, True), (120, False)])
def test_it_fits_a_terminal(tmp_path: Path, columns: int, colour: bool) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    more = {} if colour else {"NO_COLOR": "1"}
    process = subprocess.Popen(
        command(main.MIN_MESSAGES),
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    output = b""
    try:
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:
                break
            if not part:
                break
            output += part
    finally:
        process.kill()
        code = process.wait()
        os.close(ours)
    text = output.decode()
    assert code == 0, text
    assert ("\x1b[32m" in text) == colour, "green is a colour"
    plain = MOVEMENTS.sub("\n", COLOURS.sub("", text))
    assert max(map(len, plain.splitlines())) <= columns
    assert re.search(r"acknowledged\s+[━╸╺]+\s+\d", plain), "there is no bar"
    assert re.search(r"delayed, \d+ MiB of private memory", plain)
    assert table(plain).keys() >= set(ROWS)


def test_too_few_messages_are_refused() -> None:
    done = subprocess.run(command(10), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "at least" in done.stderr


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_process_that_fails_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What it said of it is said on."""
    (tmp_path / "store").write_text("no folder")
    says = "FAILED: the child process exited with code 1: .*/store is not a folder, so it is not a store"
    with pytest.raises(SystemExit, match=says):
        process.ChildProcess(str(tmp_path / "store"), Accounting(main.MIN_MESSAGES)).run(lambda _: False)
    assert capfd.readouterr().err == ""


def test_a_full_disk_is_named(small_disk: Path) -> None:
    done = subprocess.run(
        command(200_000), capture_output=True, text=True, check=False, env=environment(small_disk), timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_hangs_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PATIENCE", 0.0)
    with pytest.raises(SystemExit, match="nothing was delivered"):
        process.ChildProcess(str(tmp_path / "store"), Accounting(main.MIN_MESSAGES)).run(lambda _: False)


@pytest.mark.long
def test_a_store_that_lost_a_message_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one is in the topic, and was acknowledged by somebody who did not get it."""
    path = str(tmp_path / "store")
    with bookstand.open(path) as store:
        topic = store.topic(workload.TOPIC, topic_config(main.MIN_MESSAGES))
        topic.cursor(workload.SUBSCRIPTION).ack(topic.publish(workload.payload(0))).result()
    assert main.run(path, main.MIN_MESSAGES).exit_code == 1
    assert "FAILED: 1 are lost." in capsys.readouterr().out


def test_what_is_found_in_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with bookstand.open(path) as store:
        topic = store.topic(workload.TOPIC, topic_config(main.MIN_MESSAGES))
        topic.publish_many(map(workload.payload, range(7)))
        topic.subscription(workload.SUBSCRIPTION)
        store.topic(f"{workload.TOPIC}-{workload.SUBSCRIPTION}-DLQ").publish(workload.payload(503))
    found = inspect(path, main.MIN_MESSAGES)
    assert (found.dead_letters, found.backlog, found.report.ok) == ([503], 7, True)


def test_rich_is_an_extra() -> None:
    program = """
import sys
sys.modules["rich.box"] = None
import bookstand
try:
    import bookstand.demo.main
except bookstand.errors.MissingExtraError as missing:
    assert "bookstand[cli]" in str(missing)
else:
    raise AssertionError("it went without rich")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
