"""The subscription, the command line, the report and Spark show the same delayed messages, with the same due times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.delayed_views import (
    MODES_HERE,
    acknowledged,
    acknowledged_cumulatively,
    cancelled,
    check,
    crashed,
    delivered,
    not_read,
    rescheduled_and_cancelled,
    rescheduled_earlier,
    rescheduled_later,
    rescheduled_twice,
    restarted,
)

HAPPENINGS = {
    "rescheduled, cancelled and acknowledged": (
        rescheduled_twice,
        rescheduled_and_cancelled,
        acknowledged,
        cancelled,
        restarted,
        not_read,
    ),
    "delivered in part and passed": (
        rescheduled_earlier,
        rescheduled_later,
        delivered,
        acknowledged_cumulatively,
        crashed,
        acknowledged,
    ),
}


@pytest.mark.parametrize("happenings", HAPPENINGS)
@pytest.mark.parametrize("mode", MODES_HERE)
def test_all_views_show_the_same_delayed_messages(tmp_path: Path, mode: str, happenings: str) -> None:
    check(tmp_path / "store", mode, HAPPENINGS[happenings])
