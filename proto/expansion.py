"""Limits for the memory that decoding one entry or record may take.

A few stored bytes can expand to many: compressed payloads, messages of a batch, ranges of entries, runs of ids, columns
of equal numbers. A decoder charges the :class:`Expansion` of the entry before it allocates. All decoding stages of an
entry share one ``Expansion``, so that a small payload that decompresses to many small messages is charged for both.

The limit for ``n`` stored bytes is ``max_expansion_ratio * n``, at least :data:`FREE_BYTES` and at most
``max_expanded_bytes``. Below ``FREE_BYTES`` the ratio does not matter, because Pulsar limits messages to
``maxMessageSize`` (5 MiB) and batches to ``batchingMaxBytes``, while compression ratios can reach 10,000.

Decoders whose memory is a small multiple of the stored bytes do not charge it: the size of an entry limits it.
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
"""Expansions up to this size are not limited by the ratio."""

MESSAGE_BYTES = 512
"""Charge for one message of a batch: its id, offsets, state in flight or row."""
MAX_BATCH_MESSAGES = 1 << 22
"""Maximum number of messages in a batch; more than fit in any payload that Pulsar sends."""
RECORD_BYTES = 256
"""Charge for one element of a repeated field or one partially acknowledged batch."""
CONTAINER_BYTES = 128
"""Charge for one full container of a bitmap, which represents 65,536 entries."""
ID_BYTES = 8
"""Charge for one id when a run is expanded to a list."""


class ExpansionLimits(namedtuple("ExpansionLimits", ["max_expanded_bytes", "max_expansion_ratio"])):
    """Limits for decoding entries and records. ``max_expanded_bytes`` limits the size of an entry or record in memory.
    ``max_expansion_ratio`` limits that size per stored byte; it does not apply to expansions of up to 32 MiB."""

    # A tuple, so that job plans can store it as JSON; collections.namedtuple, because typing is slow to import.
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
        """Return the maximum size in memory for ``stored`` bytes."""
        return min(self.max_expanded_bytes, max(FREE_BYTES, self.max_expansion_ratio * stored))

    def of(self, stored: int) -> Expansion:
        """Return a new Expansion for an entry or record of ``stored`` bytes."""
        return Expansion(self, stored)


class Expansion:
    """Memory charged so far while decoding one entry or record."""

    __slots__ = ("_allowed", "_limits", "_stored", "_taken")

    def __init__(self, limits: ExpansionLimits, stored: int) -> None:
        self._limits = limits
        self._stored = stored
        self._allowed = limits.allowed(stored)
        self._taken = 0

    def room(self, size: int) -> int:
        """Return the number of items of ``size`` bytes that can still be charged."""
        return (self._allowed - self._taken) // size

    def take(self, size: int, what: str) -> None:
        """Charge ``size`` bytes for ``what``. Raises :class:`ExpansionError` if the limit is exceeded."""
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
            f"data is valid, raise {' and '.join(remedies)}"
        )


def _positive(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise IncorrectParameterError(f"{name} must be a positive integer, not {value!r}")
    return value


DEFAULT = ExpansionLimits()
UNLIMITED = ExpansionLimits(1 << 62, 1 << 62)
"""For entries that have already been checked against the limits."""
