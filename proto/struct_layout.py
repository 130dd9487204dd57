"""Layouts as tables: the fields of a record one behind the other, each with its name, its size and what it means.

Code packs and unpacks by them, and the pictures of the documentation are drawn from them.
"""

from __future__ import annotations

from struct import Struct

Field = tuple[str, str, str]
"""A name; a code of :mod:`struct`, or in words how many bytes; what it means, if the name does not say it."""

_CODES = frozenset("xbBhHiIqQs")


class Layout:
    """Fields one behind the other. ``struct`` packs and unpacks those at the beginning whose size is fixed."""

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
    """The fields of a protobuf message that is coded by hand: number, name, kind and meaning of each."""

    __slots__ = ("fields", "title")

    def __init__(self, title: str, *fields: tuple[int, str, str, str]) -> None:
        self.title = title
        self.fields = fields


def is_struct_code(size: str) -> bool:
    """Whether a field's size is a code of :mod:`struct`, and no words."""
    return size[-1:] in _CODES and (len(size) == 1 or size[:-1].isdecimal())
