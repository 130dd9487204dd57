"""The command ``bookstand``: a table of its commands, whose modules are loaded when they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from types import MappingProxyType

from bookstand.errors import BookstandError, MissingExtraError
from bookstand.tools.exit_codes import FAILED, FINE, MEANINGS, code_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import typer

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "ls": "List the ledgers, topics or files.",
        "show": "Show everything known of a ledger, a topic, an entry or a node.",
        "cat": "Print the payloads of a ledger or a topic.",
        "verify": "Read everything, and say what is wrong.",
        "cursors": "Show what subscriptions have acknowledged.",
        "delayed": "Show which messages wait for their time, and the buckets they are in.",
        "stats": "Count ledgers, entries and bytes, by kind and size.",
        "import-bookie": "Copy what is on bookies' disks into a store.",
    }
)
"""Each command's module is that of its name in ``bookstand.tools.commands``: its function ``run`` with typer's
annotations is the command, and ``EXAMPLES`` are command lines for its help."""

_INTRODUCTION = """Look into bookstand's stores and into real bookies' disks.

Every command takes either, and says which it is looking at. Stores that other processes have open can be looked at,
too; nothing is changed by looking."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    try:
        app = application()
    except MissingExtraError as error:
        print(f"bookstand: {error}", file=sys.stderr)
        return FAILED
    if isinstance(sys.stdout, TextIOWrapper):
        # What the terminal has no letters for is printed in another way, and stops nothing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="bookstand")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FINE if end.code is None else FAILED
    return FINE


def application() -> typer.Typer:
    try:
        import typer
        from typer.core import TyperGroup
    except ImportError as error:
        raise MissingExtraError(f"the command line needs typer: pip install 'bookstand[cli]' ({error})") from error

    class Commands(TyperGroup):
        """Commands by their names in the table; a command's module is loaded when the command is asked for."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            # What close matches of a mistyped name are looked for in.
            self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

        def list_commands(self, ctx: Any) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return _load(cmd_name) if cmd_name in COMMANDS else None

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(list(COMMANDS.items()))

        def invoke(self, ctx: Any) -> Any:
            try:
                try:
                    return super().invoke(ctx)
                finally:
                    sys.stdout.flush()
            except BrokenPipeError:
                # Whoever read the output has had enough. Nothing more is to be said to him, not even at the end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                raise typer.Exit(FINE) from None
            except (BookstandError, OSError) as error:
                _say(error)
                raise typer.Exit(code_of(error)) from error

    app = typer.Typer(
        cls=Commands,
        help=_INTRODUCTION,
        epilog=_exit_codes(),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: bool = typer.Option(False, "--version", help="Print the version, and end.", is_eager=True),
    ) -> None:
        if version:
            from bookstand import __version__

            print(f"bookstand {__version__}")
            raise typer.Exit(FINE)

    return app


def _load(name: str) -> Any:
    import typer

    module = import_module(f"bookstand.tools.commands.{name.replace('-', '_')}")
    examples = "\n".join(f"  {line}" for line in module.EXAMPLES)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(
        name,
        help=f"{module.__doc__}\n\n\b\nExamples:\n{examples}",
        context_settings={"help_option_names": ["-h", "--help"]},
    )(module.run)
    command = typer.main.get_command(app)
    command.name = name
    return command


def _exit_codes() -> str:
    return "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in MEANINGS.items())


def _say(error: BaseException) -> None:
    """On one line, whatever the message holds."""
    what = " ".join(str(error).split()) or type(error).__name__
    print(f"bookstand: {what}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
