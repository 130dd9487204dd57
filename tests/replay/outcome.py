"""What replaying one scenario or one sample came to."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Outcome(NamedTuple):
    """``detail`` says what differs (for ``argued``: the rule's name first); empty when equal."""

    name: str
    verdict: Literal["equal", "argued", "different"]
    detail: str
