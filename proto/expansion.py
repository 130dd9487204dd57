"""The bound on what one entry or record may become when it is decoded.

A few bytes can stand for many: compressed payloads, messages of a batch, ranges of entries, runs of ids, columns of
equal numbers. A decoder charges what it is about to make to the :class:`Expansion` of the entry, before it makes it.
All stages of one entry share an ``Expansion``, so that a small payload that unpacks to many small messages is charged
for both.

The bound for ``n`` stored bytes is ``max_expansion_ratio * n``, but not less than :data:`FREE_BYTES` and not more than
``max_expanded_bytes``. Compression alone reaches ratios of some ten thousand: Pulsar limits what a producer sends to
``maxMessageSize`` (5 MiB) and a batch to ``batchingMaxBytes``, so that below ``FREE_BYTES`` the ratio means nothing.

What takes memory in proportion to its bytes, at a small factor, is bounded by the size of an entry and is not charged.
"""

from __future__ import annotations

from collections import namedtuple

from bookstand.errors import ExpansionError, IncorrectParameterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

MAX_EXPANDED_BYTES = 512 << 20
MAX_EXPANSION_RATIO = 1_000
FREE_BYTES = 32 << 20
"""No ratio is too high for an entry that expands to no more than this."""

MESSAGE_BYTES = 512
"""Charge for one message of a batch: its id, its bounds, its place among the messages in flight, or its row."""
MAX_BATCH_MESSAGES = 1 << 22
"""Messages of a batch, whatever the limits: more than any payload that Pulsar sends has room for."""
RECORD_BYTES = 256
"""Charge for one element of a repeated field, one partially acknowledged batch, and the like."""
CONTAINER_BYTES = 128
"""Charge for one container of a bitmap that is full of entries: 65,536 of them."""
ID_BYTES = 8
"""Charge for one id of a run that is listed."""


class ExpansionLimits(namedtuple("ExpansionLimits", ["max_expanded_bytes", "max_expansion_ratio"])):
    """How far entries and records may expand when they are decoded.

    ``max_expanded_bytes`` is the maximum size of one of them in memory. ``max_expansion_ratio`` is the maximum for each
    stored byte; it does not apply to expansions of up to 32 MiB.
    """

    # A tuple, so that plans of jobs can store it as JSON, and of collections, which loads faster than typing.
    __slots__ = ()
    max_expanded_bytes: int
    max_expansion_ratio: int

    def __new__(
        cls, max_expanded_bytes: int = MAX_EXPANDED_BYTES, max_expansion_ratio: int = MAX_EXPANSION_RATIO
    ) -> Self:
        return super().__new__(
            cls,
            _positive("max_expanded_bytes", max_expanded_bytes),
            _positive("max_expansion_ratio", max_expansion_ratio),
        )

    def allowed(self, stored: int) -> int:
        """Bytes to which so many stored bytes may expand."""
        return min(self.max_expanded_bytes, max(FREE_BYTES, self.max_expansion_ratio * stored))

    def of(self, stored: int) -> Expansion:
        """The bound of an entry or a record of so many stored bytes."""
        return Expansion(self, stored)


class Expansion:
    """What one entry or record has been charged with so far."""

    __slots__ = ("_allowed", "_limits", "_stored", "_taken")

    def __init__(self, limits: ExpansionLimits, stored: int) -> None:
        self._limits = limits
        self._stored = stored
        self._allowed = limits.allowed(stored)
        self._taken = 0

    def room(self, size: int) -> int:
        """How many more things of ``size`` bytes each there is room for."""
        return (self._allowed - self._taken) // size

    def take(self, size: int, what: str) -> None:
        """Charge ``size`` bytes for ``what``; :class:`ExpansionError` if they are more than are left."""
        self._taken += size
        if self._taken <= self._allowed:
            return
        limits, stored, taken = self._limits, self._stored, self._taken
        remedies = []
        if taken > max(FREE_BYTES, limits.max_expansion_ratio * stored):
            remedies.append(
                f"max_expansion_ratio ({limits.max_expansion_ratio}) to at least {-(-taken // max(stored, 1))}"
            )
        if taken > limits.max_expanded_bytes:
            remedies.append(f"max_expanded_bytes ({limits.max_expanded_bytes}) to at least {taken}")
        raise ExpansionError(
            f"{what} expands to {taken} bytes or more, but {stored} stored bytes may expand to {self._allowed}; if the "
            f"data is right, raise {' and '.join(remedies)}"
        )


def _positive(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise IncorrectParameterError(f"{name} must be a positive integer, not {value!r}")
    return value


DEFAULT = ExpansionLimits()
UNLIMITED = ExpansionLimits(1 << 62, 1 << 62)
"""For entries that passed the limits before."""
