"""The logger: quiet unless the application sets one up, and imported on first need, for logging is slow to load."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger


def logger() -> Logger:
    import logging

    ours = logging.getLogger("bookstand")
    if not ours.handlers:
        ours.addHandler(logging.NullHandler())
    return ours
