"""The bound on what an entry or a record may become: by ratio, in total, and with a remedy that is one."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookstand
from bookstand.errors import ExpansionError, IncorrectParameterError, MalformedError
from bookstand.proto.expansion import DEFAULT, FREE_BYTES, ExpansionLimits

SIZES = st.integers(0, 1 << 40)
LIMITS = st.builds(ExpansionLimits, st.integers(1, 1 << 40), st.integers(1, 1 << 20))


@given(LIMITS, SIZES, st.lists(SIZES, max_size=5))
def test_what_is_charged_together_is_within_the_limits_or_rejected(
    limits: ExpansionLimits, stored: int, charges: list[int]
) -> None:
    allowed = min(limits.max_expanded_bytes, max(FREE_BYTES, limits.max_expansion_ratio * stored))
    expansion = limits.of(stored)
    taken = 0
    for charge in charges:
        assert expansion.room(1) == allowed - taken
        taken += charge
        if taken <= allowed:
            expansion.take(charge, "the batch")
            continue
        with pytest.raises(ExpansionError) as raised:
            expansion.take(charge, "the batch")
        assert f"the batch expands to {taken} bytes or more, but {stored} stored bytes may" in str(raised.value)
        break


@given(LIMITS, st.integers(1, 1 << 30), SIZES)
def test_the_remedy_of_the_error_is_enough(limits: ExpansionLimits, stored: int, size: int) -> None:
    try:
        limits.of(stored).take(size, "the payload")
    except ExpansionError as error:
        remedy = {name: int(value) for name, value in re.findall(r"(max_\w+) \(\d+\) to at least (\d+)", str(error))}
        assert remedy
        ExpansionLimits(**{**limits._asdict(), **remedy}).of(stored).take(size, "the payload")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "7", None])
@pytest.mark.parametrize("name", ExpansionLimits._fields)
def test_limits_are_positive_integers(name: str, value: object) -> None:
    with pytest.raises(IncorrectParameterError, match=f"{name} must be a positive integer, not {value!r}"):
        ExpansionLimits(**{name: value})  # type: ignore[arg-type]


def test_limits_travel_between_processes_and_in_plans() -> None:
    limits = ExpansionLimits(5, 6)
    assert pickle.loads(pickle.dumps(limits)) == limits
    assert type(pickle.loads(pickle.dumps(limits))) is ExpansionLimits
    assert ExpansionLimits(*json.loads(json.dumps(limits))) == limits
    assert bookstand.ExpansionLimits() == DEFAULT
    assert issubclass(ExpansionError, MalformedError)


def test_a_store_takes_limits_and_nothing_else() -> None:
    with pytest.raises(IncorrectParameterError, match="expansion_limits must be an ExpansionLimits, not tuple"):
        bookstand.open("nowhere", expansion_limits=(1, 2))  # type: ignore[arg-type]
