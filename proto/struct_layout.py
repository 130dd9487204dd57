"""Binary layouts as tables of fields, used by the codecs and by the diagrams of the documentation."""

from __future__ import annotations

from struct import Struct

Field = tuple[str, str, str]
"""Name; format code of :mod:`struct`, or size in words; description, which may be empty."""

_CODES = frozenset("xbBhHiIqQs")


class Layout:
    """A sequence of fields. ``struct`` is the codec of the leading fields with a fixed size."""

    __slots__ = ("fields", "order", "struct", "title")

    def __init__(self, title: str, *fields: Field, order: str = ">") -> None:
        self.title = title
        self.fields = fields
        self.order = order
        codes = []
        for _, size, _ in fields:
            if not is_struct_code(size):
                break
            codes.append(size)
        self.struct = Struct(order + "".join(codes))


class MessageFields:
    """Fields of a protobuf message with a hand-written codec: number, name, type and description of each."""

    __slots__ = ("fields", "title")

    def __init__(self, title: str, *fields: tuple[int, str, str, str]) -> None:
        self.title = title
        self.fields = fields


def is_struct_code(size: str) -> bool:
    """Return True if a field's size is a format code of :mod:`struct`."""
    return size[-1:] in _CODES and (len(size) == 1 or size[:-1].isdecimal())
