"""The package's logger. ``logging`` is imported on first use, because loading it is slow."""

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
