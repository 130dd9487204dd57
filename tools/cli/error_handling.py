"""How a command ends that does not end well: one line on stderr, with ``--json`` an object on stdout too, and a true
exit code. Never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

from bookstand.errors import BookstandError
from bookstand.tools.cli import output
from bookstand.tools.cli.exit_codes import FAILED, FINE, INTERRUPTED, WRONG_ARGUMENTS, code_of


@contextmanager
def report_errors(json: bool) -> Iterator[None]:
    """Whatever goes wrong within is said, and becomes the exit code."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has had enough. Nothing more is to be said to him, not even at the end.
        _to_nowhere()
        raise typer.Exit(FINE) from None
    except KeyboardInterrupt:
        raise _ended("Interrupted", "interrupted", INTERRUPTED, json) from None
    except (BookstandError, OSError) as error:
        # On one line, whatever the message holds.
        what = " ".join(str(error).split()) or type(error).__name__
        raise _ended(type(error).__name__, what, code_of(error), json) from error
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if hasattr(error, "format_message"):
            raise _misused(error, json) from None
        # A fault of ours: without this, Python would end with the code of damage.
        what = " ".join(f"unexpected {type(error).__name__}: {error}".split())
        raise _ended(type(error).__name__, what, FAILED, json) from error


def _misused(error: Exception, json: bool) -> typer.Exit:
    """typer has no public name for the errors of its parser; all of them can say what is wrong."""
    what = str(error.format_message())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if context is not None and what == context.get_help():
        output.usage(what)
        return typer.Exit(WRONG_ARGUMENTS)
    help_of = f" (see {context.command_path} --help)" if context is not None else ""
    return _ended("UsageError", " ".join(what.split()).rstrip(".") + help_of, WRONG_ARGUMENTS, json)


def _ended(kind: str, what: str, code: int, json: bool) -> typer.Exit:
    try:
        output.failure(kind, what, code, json)
        sys.stdout.flush()
    except OSError:
        # It was the output that failed, or it fails as well.
        _to_nowhere()
    return typer.Exit(code)


def _to_nowhere() -> None:
    """What is still to be written to stdout when the process ends goes nowhere."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def check_streams() -> bool:
    """Whether there is somewhere to write to. Descriptors that are closed are taken by the next file that is opened,
    which must not be a store's."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    return sys.stdout is not None
