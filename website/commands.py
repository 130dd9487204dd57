"""Help texts of all commands."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

WIDTH = 96


def commands(which: str) -> str:
    """Return the help of the ``bookstand`` commands, or of the ``spark`` jobs."""
    names = _jobs() if which == "spark" else _commands()
    parts = [_section(f"bookstand {name}".strip(), name.split()) for name in names]
    return "\n".join(parts)


def _commands() -> Iterator[str]:
    from bookstand.tools.main import COMMANDS

    yield ""
    yield from COMMANDS


def _jobs() -> Iterator[str]:
    from bookstand.pipeline.execution.cli import JOBS

    for name in JOBS:
        yield f"spark {name}"


def _section(title: str, words: list[str]) -> str:
    return f"### {title}\n\n```text\n{help_of(words)}```\n"


def help_of(words: list[str]) -> str:
    """Return the output of a command with ``--help``."""
    from bookstand.tools.main import main

    out = io.StringIO()
    with _width(WIDTH), redirect_stdout(out):
        try:
            main([*words, "--help"])
        except SystemExit as end:
            if end.code:
                raise
    return out.getvalue().rstrip() + "\n"


@contextmanager
def _width(columns: int) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
