"""One round of the campaign on whole topics, and that it would notice what can go wrong."""

from __future__ import annotations

from typing import Any

import pytest

from bookstand.delivery.subscription.subscription import Subscription
from bookstand.ledger.client import COLLECTION_GRACE_MILLIS
from tests.soak import topics, topics_machine
from tests.soak.topics_process import SUBSCRIPTIONS
from tests.soak.topics_promises import Id, Told

NONE: dict[str, list[tuple[Id, str]]] = {name: [] for name in SUBSCRIPTIONS}
A, B = (1, 0, -1), (1, 1, -1)


def test_a_round(counts: Any) -> None:
    done = topics.one_round(3, turns=3)
    counts.add("topics", done.cases, len(done.problems))
    assert not done.problems, "\n".join(done.problems)
    assert done.figures["operations"]["received"] > 0


def test_machines(counts: Any) -> None:
    done = topics_machine.one_round(4, examples=2)
    counts.add("subscriptions", done.cases, len(done.problems))
    assert not done.problems, "\n".join(done.problems)


def test_a_machine_that_fails_says_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscription, "redeliver_all", lambda _: None)
    done = topics_machine.one_round(3, examples=5)
    assert done.problems
    assert "state = " in done.problems[0]


# -- what is told, and what is left: each line is of a life, and has a stamp -------------------------------------------


def judged(
    *lines: list[Any],
    left: dict[str, list[tuple[Id, str]]] | None = None,
    dead: list[tuple[Id, str]] | None = None,
) -> list[str]:
    """With a tick of 10, not strict."""
    told = Told()
    for line in lines:
        told.hear(line)
    for name in SUBSCRIPTIONS:
        if name not in (left or {}):
            told.hear([9, "acking", 900, name, [A, B]])
    return told.problems(NONE | (left or {}), dead or [], tick=10, strict=False)


PUBLISHING = [[1, "publishing", 1, ["a"], 1_000], [1, "publishing", 2, ["b"], 0]]
PUBLISHED = [[1, "published", 3, [[*A, "a", 1_000]]], [1, "published", 4, [[*B, "b", 0]]]]
BOTH = [*PUBLISHING, *PUBLISHED]
IN_THE_END: list[tuple[Id, str]] = [(A, "a"), (B, "b")]


def received(life: int, began: int, now: int, *shown: tuple[Id, str], sub: str = "shared") -> list[Any]:
    return [life, "received", began + 2, began, now, sub, [[*one, name] for one, name in shown]]


def test_nothing_is_wrong() -> None:
    assert judged(*BOTH, left={"shared": IN_THE_END}) == []
    # Whether it was published nobody knows.
    assert judged(*PUBLISHING, left={"shared": []}) == []
    acks = [[1, "acking", 20, "shared", [A]], [1, "acked", 21, "shared", [A]]]
    assert judged(*BOTH, received(1, 10, 1_000, (A, "a")), *acks, left={"shared": [(B, "b")]}) == []
    # It comes again as long as that is not confirmed.
    assert judged(*BOTH, received(1, 10, 1_000, (A, "a")), acks[0], left={"shared": IN_THE_END}) == []


def test_something_is_lost() -> None:
    (problem,) = judged(*BOTH, left={"shared": [(A, "a")]})
    assert "shared: 1 lost, 1:1:-1 (b)" in problem
    # Whoever saw it knows that it was published.
    (problem,) = judged(*PUBLISHING, received(1, 10, 20, (B, "b"), sub="dead"), left={"shared": []})
    assert "shared: 1 lost" in problem


def test_something_comes_again_though_it_was_acknowledged() -> None:
    acks = [[1, "acking", 20, "shared", [B]], [1, "acked", 21, "shared", [B]]]
    first = received(1, 10, 20, (B, "b"))
    (problem,) = judged(*BOTH, first, *acks, left={"shared": IN_THE_END})
    assert "came at the end" in problem
    (problem,) = judged(*BOTH, first, *acks, received(2, 15, 20, (B, "b")), left={"shared": [(A, "a")]})
    assert "came again in life 2" in problem
    # One who has lost the topic knows nothing of it.
    late = received(0, 30, 20, (B, "b"))
    assert judged(*BOTH, first, *acks, late, left={"shared": [(A, "a")]}) == []
    up_to = [[1, "acking_up_to", 20, "shared", B[:2]], [1, "acked_up_to", 21, "shared", B[:2]]]
    (problem,) = judged(*BOTH, *up_to, left={"shared": [(A, "a")]})
    assert "1:0:-1 (a) was acknowledged" in problem


def test_something_is_early() -> None:
    assert judged(*BOTH, received(1, 10, 990, (A, "a")), left={"shared": IN_THE_END}) == []
    (problem,) = judged(*BOTH, received(1, 10, 989, (A, "a")), left={"shared": IN_THE_END})
    assert "came 11 ms early" in problem
    begun = [1, "rescheduling", 5, "shared", A[:2], 2_000]
    ended = [1, "rescheduled", 6, "shared", A[:2], 2_000, True]
    early = received(1, 10, 1_500, (A, "a"))
    assert judged(*BOTH, begun, early, left={"shared": IN_THE_END}) == []
    (problem,) = judged(*BOTH, begun, ended, early, left={"shared": IN_THE_END})
    assert "came 500 ms early" in problem
    ended[-1] = False
    assert judged(*BOTH, begun, ended, early, left={"shared": IN_THE_END}) == []


def test_two_have_it_at_once() -> None:
    twice = [received(1, 10, 20, (B, "b")), received(1, 20, 900, (B, "b"))]
    (problem,) = judged(*BOTH, *twice, left={"shared": IN_THE_END})
    assert "came 2 times in life 1, and was given back 0 times" in problem
    back = [1, "giving_back", 15, "shared", [B], 1_000]
    assert judged(*BOTH, back, *twice, left={"shared": IN_THE_END}) == []
    back[-1] = 1_200
    (problem,) = judged(*BOTH, back, *twice, left={"shared": IN_THE_END})
    assert "not to come again before 1200" in problem
    # After a kill it comes at once; after a close it has to wait as well.
    twice[1][0] = 2
    assert judged(*BOTH, back, *twice, left={"shared": IN_THE_END}) == []
    (problem,) = judged(*BOTH, back, *twice, [1, "ended", 18, "closed"], left={"shared": IN_THE_END})
    assert "closed in good order" in problem


def test_dead_letters() -> None:
    returns = [[1, "giving_back", 10 * n, "dead", [B], None] for n in (1, 2, 3)]
    assert judged(*BOTH, *returns, left={"dead": [(A, "a")]}, dead=[(B, "b")]) == []
    (problem,) = judged(*BOTH, *returns[1:], left={"dead": [(A, "a")]}, dead=[(B, "b")])
    assert "is a dead letter, and was given back" in problem
    (problem,) = judged(*BOTH, *returns, left={"dead": [(A, "a")]})
    assert "dead: 1 lost" in problem


def test_strange_things() -> None:
    assert any("twice at the end" in problem for problem in judged(*BOTH, left={"shared": IN_THE_END * 2}))
    (problem,) = judged(*BOTH, left={"shared": [*IN_THE_END, ((1, 2, -1), "c")], "exclusive": []})[-1:]
    assert "lost" in problem
    assert any("published by nobody" in one for one in judged(*BOTH, left={"shared": [((1, 2, -1), "c")]}))
    assert any(" is a and b" in problem for problem in judged(*BOTH, left={"shared": [(A, "b")]}))
    assert any("tea" in problem for problem in judged([1, "tea", 1]))
    assert any("it hurts" in problem for problem in judged([1, "problem", 1, "it hurts"]))


# -- growth ------------------------------------------------------------------------------------------------------------


def test_what_grows_is_a_failure() -> None:
    campaign = topics.Campaign(lasting=True)
    try:
        campaign.memory = [100] * 30 + [111] * 10
        campaign.bytes = [100, 300, 200, 100] * 10
        done = campaign.end()
        assert done.problems == ["memory_kib grows: its peaks by quarter are [100, 100, 100, 111]"]
        assert done.figures["file_bytes"] == {"samples": 40, "peaks_by_quarter": [300, 300, 300, 300]}
        campaign.memory = [100] * 30 + [110] * 10
        assert campaign.end().problems == []
        campaign.bytes = [100] * 30 + [111] * 10
        assert campaign.end().problems == []
        campaign.began -= 4 * COLLECTION_GRACE_MILLIS / 1_000
        assert campaign.end().problems == ["file_bytes grows: its peaks by quarter are [100, 100, 100, 111]"]
        campaign.bytes = []
        # So few say nothing.
        campaign.memory = [100, 100, 100, 200]
        assert campaign.end().problems == []
    finally:
        campaign.close()


def test_a_short_campaign_has_rounds_of_their_own() -> None:
    with topics.long_campaign(topics.LONG_SECONDS - 1) as campaign:
        assert campaign is None
    with topics.long_campaign(topics.LONG_SECONDS) as campaign:
        assert campaign is not None
        assert campaign.lasting
