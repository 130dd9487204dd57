"""Griffe extension that prepares docstrings for the pages."""

from __future__ import annotations

from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object

from website.markup import prose

_VALUES = ("NamedTuple", "Protocol")


class Docstrings(Extension):
    """Convert roles to Markdown, and include fields of value classes that have no docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = prose(obj.docstring.value)

    def on_class(self, *, cls: Class, **_: Any) -> None:
        if "dataclass" in cls.labels or any(str(base).rpartition(".")[2] in _VALUES for base in cls.bases):
            for member in cls.members.values():
                if isinstance(member, Attribute) and member.annotation is not None and member.docstring is None:
                    member.docstring = Docstring("", parent=member)
