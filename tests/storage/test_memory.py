"""A ledger may be larger than the memory: reading, recovering and verifying it takes a bounded amount of that."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import kit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LIMIT = 64 << 20
ENTRIES = 64_060

_BUILD = """
import sys
import bookstand

small, large = b"s" * 1_000, b"l" * (4 << 20)
with bookstand.open(sys.argv[1], durability="none") as store:
    writer = store.create_ledger()
    for _ in range(16):
        writer.append_many([small] * 2_000)
    for _ in range(7):
        writer.append(large)
    for _ in range(23):
        writer.append(small)
    # In one commit, which no later entry confirms: recovery reads all of it.
    writer.append_many([small] * 16_000 + [large] * 8 + [small] * 16_000 + [b""] * 22)
    print(writer.id)
"""

_MEASURE = """
import sys, threading
import bookstand

def anonymous():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")

def sample():
    global peak
    while not stop.wait(0.002):
        peak = max(peak, anonymous())

path, ledger_id, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
stop = threading.Event()
sampler = threading.Thread(target=sample)
with bookstand.open(path, durability="none") as store:
    reader = None
    if what in ("iterate", "payloads"):
        reader = store.open_ledger(ledger_id)
    start = peak = anonymous()
    sampler.start()
    if what == "iterate":
        count = 0
        for entry in reader:
            count += 1
            if len(entry.data) > 1_000 or not count % 500:
                peak = max(peak, anonymous())
    elif what == "payloads":
        count = 0
        for payload in reader.payloads():
            count += 1
            if len(payload) > 1_000 or not count % 500:
                peak = max(peak, anonymous())
    elif what == "recover":
        count = store.open_ledger(ledger_id, recovery=True).last_add_confirmed + 1
    else:
        report = store.verify()
        assert report.ok, report.problems
        count = report.entries
    peak = max(peak, anonymous())
    stop.set()
    sampler.join()
print(count, peak - start)
"""


@pytest.fixture
def large_ledger(tmp_path: Path) -> tuple[Path, int]:
    done = kit.run_python(_BUILD, tmp_path / "large")
    assert done.returncode == 0, done.stderr
    return tmp_path / "large", int(done.stdout)


@pytest.mark.slow
def test_large_ledgers_need_little_memory(large_ledger: tuple[Path, int]) -> None:
    path, ledger_id = large_ledger
    # Recovery before those that read to the end, which only a closed ledger has.
    for what in ("verify", "recover", "iterate", "payloads"):
        done = kit.run_python(_MEASURE, path, ledger_id, what)
        assert done.returncode == 0, (what, done.stderr)
        count, grown = map(int, done.stdout.split())
        assert count == ENTRIES, what
        assert grown <= LIMIT, f"{what} took {grown >> 20} MiB"
