"""Error reporting of commands: one line on stderr, with ``--json`` also an object on stdout, and an exit code. There is
never a traceback."""

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
    """Report every error that is raised within, and convert it to an exit code."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output closed the pipe. Discard the rest, including the flush when the process exits.
        _to_nowhere()
        raise typer.Exit(FINE) from None
    except KeyboardInterrupt:
        raise _ended("Interrupted", "interrupted", INTERRUPTED, json) from None
    except (BookstandError, OSError) as error:
        # One line, whatever line breaks the message contains.
        what = " ".join(str(error).split()) or type(error).__name__
        raise _ended(type(error).__name__, what, code_of(error), json) from error
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if hasattr(error, "format_message"):
            raise _misused(error, json) from None
        # Without this handler, Python would exit with 1, the exit code for damage.
        what = " ".join(f"unexpected {type(error).__name__}: {error}".split())
        raise _ended(type(error).__name__, what, FAILED, json) from error


def _misused(error: Exception, json: bool) -> typer.Exit:
    """Report a usage error. The parser's exceptions have no public type in typer; all have ``format_message``."""
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
        # stdout or stderr failed before, or fails now.
        _to_nowhere()
    return typer.Exit(code)


def _to_nowhere() -> None:
    """Redirect stdout and stderr to the null device if they cannot be written to, so that flushing them when the
    process exits cannot fail."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def check_streams() -> bool:
    """Return True if stdout is open. Closed standard descriptors are opened on the null device: otherwise the next file
    that is opened, such as a store's, would get their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    return sys.stdout is not None
