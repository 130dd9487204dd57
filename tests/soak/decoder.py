"""What the campaign of mutations knows of a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bookstand.errors import BookstandError

Decode = Callable[[bytes], Any]


class Decoder(NamedTuple):
    """``decode`` gives a value, or an error of ours. ``encode`` gives bytes that decode to an equal value, or an error
    of ours where what was read cannot be written. Under a digest nothing but the sample may be accepted."""

    samples: list[bytes]
    decode: Decode
    encode: Callable[[Any], bytes] | None = None
    digested: bool = False
    refusals: type[Exception] | tuple[type[Exception], ...] = BookstandError
    share: float = 1.0
    equal: Callable[[Any, Any], bool] = lambda one, other: bool(one == other)
