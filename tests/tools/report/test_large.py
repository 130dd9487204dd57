"""What a report takes does not grow with what it tells of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import report_store
from benchmarks.measure import child_memory
from tests.tools.kit import run
from tests.tools.report.kit import Page

MOST_BYTES = 5 << 20
# In MiB; each hole as two numbers would take 76 by itself.
MOST_MEMORY = 64.0

WRITE = """
import sys
from bookstand.tools.report.collect import collect
from bookstand.tools.report.page import page
from bookstand.tools.view.targets import open_view
ready()
with open_view(sys.argv[1]) as view:
    text = page(collect(view))
done(str(len(text)))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large-store"
    report_store.make(path)
    return path


@pytest.mark.long
def test_ten_thousand_ledgers_and_five_million_holes(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run("report", store, "--output", file, "--json")
    found = result.json
    assert found["output_bytes"] == file.stat().st_size < MOST_BYTES
    # The topic's ledgers are only listed, and what is in the last one is no message.
    assert {one["ledger"] for one in found["damage"]} == set(range(1 << 20, (1 << 20) + 101))
    (audit,) = found["subscriptions"]
    assert (audit["holes"], audit["acked"]) == (report_store.HOLES, report_store.HOLES)
    assert audit["backlog"] == 2 * report_store.HOLES + 1
    shown = Page(file.read_text("utf-8"))
    assert len(shown.rows("ledgers")) == report_store.LEDGERS
    (drawn,) = shown.data["maps"].values()
    assert drawn["total"] == 3 * report_store.HOLES + 1
    of_ledgers = [
        int(found[0]) for found in re.findall(r"<title>(\d+) (ledgers?) of ", shown.text.replace("\u202f", ""))
    ]
    assert sum(of_ledgers) == report_store.LEDGERS + 2


def test_memory_is_bounded(store: Path) -> None:
    """What was loaded before does not count."""
    taken = child_memory(WRITE, str(store))
    assert taken.peak - taken.start < MOST_MEMORY
    assert int(taken.output) < MOST_BYTES
