"""Time, injectable everywhere: milliseconds since the epoch."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Clock(Protocol):
        """What the store asks for the time."""

        def now(self) -> int:
            """Milliseconds since the epoch."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000
