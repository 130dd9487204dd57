"""Injectable clock, in milliseconds since the epoch."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Clock(Protocol):
        """Source of the current time."""

        def now(self) -> int:
            """Current time in milliseconds since the epoch."""


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000_000
