"""Bytes that are not what was written."""

from __future__ import annotations

import google_crc32c
from hypothesis import strategies as st


@st.composite
def damaged(draw: st.DrawFn, stored: bytes) -> bytes:
    """``stored`` with some of it changed, lost, doubled or added."""
    at = draw(st.integers(0, len(stored) - 1))
    end = draw(st.integers(at, min(at + 40, len(stored))))
    change = draw(st.sampled_from(["bit", "cut", "lose", "double", "replace", "append", "swap"]))
    if change == "bit":
        flipped = stored[at] ^ 1 << draw(st.integers(0, 7))
        return stored[:at] + bytes([flipped]) + stored[at + 1 :]
    if change == "cut":
        return stored[:at]
    if change == "lose":
        return stored[:at] + stored[end:]
    if change == "double":
        return stored[:end] + stored[at:]
    if change == "replace":
        return stored[:at] + draw(st.binary(min_size=end - at, max_size=end - at)) + stored[end:]
    if change == "append":
        return stored + draw(st.binary(min_size=1, max_size=40))
    return stored[:at] + stored[at:end][::-1] + stored[end:]


def sealed_again(stored: bytes) -> bytes:
    """With the checksum that belongs to what now stands before it."""
    return stored[:-4] + google_crc32c.value(stored[:-4]).to_bytes(4, "little")
