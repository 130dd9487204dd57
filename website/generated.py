"""What a page asks for by a comment on a line of its own, ``<!-- generated: WHAT ARGUMENTS -->``, and who makes it.

In the repository the comment is not seen, and the page reads without it; on the site its place is taken by what the
code says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

_ASKED = re.compile(r"^<!-- generated: ([\w-]+)((?: [^\s>]+)*) -->$", re.MULTILINE)

MAKERS: Mapping[str, str] = MappingProxyType(
    {
        "benchmarks": "figures",
        "commands": "commands",
        "digests": "layouts",
        "errors": "errors",
        "layouts": "layouts",
        "messages": "messages",
        "rooms": "rooms",
        "settings": "settings",
        "tables": "layouts",
    }
)
"""Each with the module of this package whose function of that name makes it, from the arguments."""


def filled(page: str) -> str:
    """The page with everything that it asks for."""
    return _ASKED.sub(lambda asked: _made(asked[1], asked[2].split()), page)


def asked_for(page: str) -> list[tuple[str, list[str]]]:
    """What a page asks for, in its order."""
    return [(asked[1], asked[2].split()) for asked in _ASKED.finditer(page)]


def _made(what: str, arguments: list[str]) -> str:
    if what not in MAKERS:
        raise ValueError(f"a page asks for {what!r}, and there are {', '.join(MAKERS)}")
    make: Callable[..., str] = getattr(import_module(f"website.{MAKERS[what]}"), what)
    return make(*arguments)
