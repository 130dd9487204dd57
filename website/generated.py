"""Directives for generated content: a comment on a separate line, ``<!-- generated: NAME ARGUMENTS -->``.

The comment is invisible in the repository. On the site it is replaced by the generated content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

_DIRECTIVE = re.compile(r"^<!-- generated: ([\w-]+)((?: [^\s>]+)*) -->$", re.MULTILINE)

GENERATORS: Mapping[str, str] = MappingProxyType(
    {
        "benchmarks": "benchmark_tables",
        "commands": "commands",
        "digests": "layouts",
        "errors": "errors",
        "layouts": "layouts",
        "messages": "messages",
        "packages": "package_diagram",
        "settings": "settings",
        "tables": "layouts",
    }
)
"""Module of this package for each directive, with a function of the same name that takes the arguments."""


def expand(page: str) -> str:
    """Replace the directives of a page by the generated content."""
    return _DIRECTIVE.sub(lambda match: _generate(match[1], match[2].split()), page)


def directives(page: str) -> list[tuple[str, list[str]]]:
    """Return the directives of a page in order, with their arguments."""
    return [(match[1], match[2].split()) for match in _DIRECTIVE.finditer(page)]


def _generate(name: str, arguments: list[str]) -> str:
    if name not in GENERATORS:
        raise ValueError(f"a directive must be one of {', '.join(GENERATORS)}, not {name!r}")
    generate: Callable[..., str] = getattr(import_module(f"website.{GENERATORS[name]}"), name)
    return generate(*arguments)
