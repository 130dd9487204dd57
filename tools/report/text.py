"""Names and sentences of what was looked at, for a page: whoever chose them may have had anything in mind."""

from __future__ import annotations

from bookstand.storage.format.escapes import visible

NAME, SENTENCE = 160, 400
"""Names and sentences are cut to so many characters."""


def shortened(text: str, most: int = NAME) -> str:
    """On one line, with nothing in it that a reader would not see; what is too long is cut in the middle."""
    # What is cut away in any case is not looked at.
    shown = visible(text if len(text) <= 2 * most else text[:most] + text[-most:])
    if len(text) <= 2 * most and len(shown) <= most:
        return shown
    half = (most - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"


def short_topic(name: str) -> str:
    """Without what is the same in all of them."""
    return shortened(name.removeprefix("persistent://"))
