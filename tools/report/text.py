"""Safe display of names and sentences from the inspected store, which may contain anything."""

from __future__ import annotations

from bookstand.storage.format.escapes import visible

NAME, SENTENCE = 160, 400
"""Maximum lengths of names and sentences."""


def shortened(text: str, most: int = NAME) -> str:
    """Make ``text`` visible on one line, and shorten it in the middle to at most ``most`` characters."""
    # Skip characters that would be cut away in any case.
    shown = visible(text if len(text) <= 2 * most else text[:most] + text[-most:])
    if len(text) <= 2 * most and len(shown) <= most:
        return shown
    half = (most - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"


def short_topic(name: str) -> str:
    """Shorten the name of a topic, without the prefix that all of them share."""
    return shortened(name.removeprefix("persistent://"))
