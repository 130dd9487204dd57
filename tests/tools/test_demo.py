"""The report that ``bookstand demo`` writes on its store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bookstand.demo.main import MIN_MESSAGES
from bookstand.tools.cli.exit_codes import FINE, WRONG_ARGUMENTS
from tests.tools.kit import run


@pytest.mark.long
def test_it_ends_by_naming_a_report_on_what_the_cut_left(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run("demo", "--messages", str(MIN_MESSAGES), "--report", str(file))
    assert result.code == FINE
    assert result.out.replace("\n", " ").rstrip().endswith(f": {file}")
    text = file.read_text("utf-8")
    assert "No damage was found." in text
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0])
    # At the end the subscription has nothing left; at the cut it had.
    assert data["tables"]["cursors"]["columns"][3]["values"][0] > 0


def test_a_report_goes_over_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear reader")
    result = run("demo", "--messages", str(MIN_MESSAGES), "--report", str(tmp_path / "letter"))
    assert (result.code, "is not a report" in result.err) == (WRONG_ARGUMENTS, True)
    assert (tmp_path / "letter").read_text() == "Dear reader"
