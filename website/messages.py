"""Tables of protobuf messages, from the generated modules and the comments in the schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from website.markup import code, table

ROOT = Path(__file__).resolve().parent.parent
_LABELS = {1: "", 2: "required ", 3: "repeated "}


def messages(schema: str, *names: str) -> str:
    """Return tables of the messages in ``proto/<schema>.proto``, or of those with the given names."""
    module = import_module(f"bookstand.proto.{schema}_pb2")
    comments = _comments((ROOT / "proto" / f"{schema}.proto").read_text())
    chosen = [one for one in _all(module.DESCRIPTOR.message_types_by_name.values()) if not names or _name(one) in names]
    if unknown := set(names) - {_name(one) for one in chosen}:
        raise ValueError(f"{schema} has no message {', '.join(sorted(unknown))}")
    return "\n".join(_describe(one, comments) for one in chosen)


def _all(descriptors: Any) -> Iterator[Any]:
    """Iterate over messages and nested messages, except map entries."""
    for one in descriptors:
        if not one.GetOptions().map_entry:
            yield one
            yield from _all(one.nested_types)


def _name(message: Any) -> str:
    return str(message.full_name.removeprefix(f"{message.file.package}."))


def _describe(message: Any, comments: dict[tuple[str, str], str]) -> str:
    rows = [
        (str(field.number), code(field.name), _type(field), comments.get((message.name, field.name), ""))
        for field in message.fields
    ]
    return f"**Message {code(_name(message))}**\n\n{table(('number', 'field', 'type', ''), rows)}"


def _type(field: Any) -> str:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = kind.fields
        return f"map from {_kind(key)} to {_kind(value)}"
    label = "repeated " if field.is_repeated else "required " if field.is_required else ""
    return label + _kind(field)


def _kind(field: Any) -> str:
    if field.message_type is not None:
        return code(_name(field.message_type))
    if field.enum_type is not None:
        return ", ".join(f"{value.number} {value.name}" for value in field.enum_type.values)
    names: dict[int, str] = {of: name for name, of in vars(type(field)).items() if name.startswith("TYPE_")}
    return names[field.type].removeprefix("TYPE_").lower()


def _comments(schema: str) -> dict[tuple[str, str], str]:
    """Return the comments by message and field. A comment applies to the next field, and to further fields of the same
    type up to a blank line."""
    comments: dict[tuple[str, str], str] = {}
    message: list[str] = []
    comment: list[str] = []
    applies_to = ""
    after_comment = True
    for line in map(str.strip, schema.splitlines()):
        if line.startswith("//"):
            comment = comment if after_comment and comment else []
            comment.append(line.removeprefix("//").strip())
            after_comment = True
            continue
        if opened := re.match(r"(?:message|enum) (\w+) \{", line):
            message.append(opened[1])
        elif line.startswith("}"):
            message.pop()
        elif (field := re.match(r"(?:\w+ )?(map<[^>]+>|[\w.]+) (\w+) = \d+", line)) and message:
            applies_to = field[1] if after_comment else applies_to
            comments[message[-1], field[2]] = " ".join(comment) if field[1] == applies_to else ""
        if not line or opened or line.startswith("}"):
            comment = []
        after_comment = False
    return comments
