"""How what a broker says is compared with a store; without a broker."""

from __future__ import annotations

import pytest

from bookstand.storage.format.position import Position
from tests.interop.broker_compare import about_topic, dropped_tail
from tests.interop.broker_seen import Place, SeenTopic

FOUND = SeenTopic([(1, 50), (4, 50), (7, 29)], Position(7, 28), {})


def internal(*ledgers: tuple[int, int]) -> dict[str, object]:
    last = max((one for one in ledgers if one[1]), default=(-1, 0))
    return {
        "ledgers": [{"ledgerId": ledger_id, "entries": entries} for ledger_id, entries in ledgers],
        "lastConfirmedEntry": f"{last[0]}:{last[1] - 1}",
    }


@pytest.mark.parametrize("kept", [[], [(7, 0), (9, 0)], [(7, 20)], [(7, 28)]])
def test_a_tail_that_was_not_confirmed_may_be_dropped(kept: list[tuple[int, int]]) -> None:
    told = internal((1, 50), (4, 50), *kept)
    assert list(about_topic(FOUND, told))
    assert dropped_tail(FOUND, told, [(4, 49, -1), (1, 0, -1)])


@pytest.mark.parametrize(
    ("ledgers", "confirmed"),
    [
        # Somebody was told of an entry that the broker does not have.
        ([(1, 50), (4, 50), (7, 20)], [(7, 20, -1)]),
        ([(1, 50), (4, 50)], [(7, 0, 3)]),
        # It is not the end that is missing.
        ([(1, 50), (4, 49)], []),
        ([(1, 50), (7, 20)], []),
        ([(1, 50), (4, 50), (7, 20), (8, 1)], []),
        # Nothing is.
        ([(1, 50), (4, 50), (7, 29)], []),
        ([(1, 50), (4, 50), (7, 30)], []),
    ],
)
def test_nothing_else_may(ledgers: list[tuple[int, int]], confirmed: list[Place]) -> None:
    assert not dropped_tail(FOUND, internal(*ledgers), confirmed)
