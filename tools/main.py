"""The command ``bookstand``: a table of commands whose modules are imported on first use."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from types import MappingProxyType

from bookstand.errors import MissingExtraError
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.tools.cli import output
from bookstand.tools.cli.exit_codes import FAILED, FINE, INTERRUPTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import typer

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "ls": "List ledgers, topics, nodes, files or records.",
        "show": "Show the details of a ledger, an entry, a topic or a node.",
        "cat": "Print the payloads of ledgers or topics.",
        "verify": "Read all data, and report damage.",
        "cursors": "Show the acknowledgment state of subscriptions.",
        "delayed": "Show delayed messages and their buckets.",
        "stats": "Count ledgers, entries and bytes, by kind and size.",
        "report": "Write an HTML report with tables and charts.",
        "import-bookie": "Import bookies' disks into a store.",
        "export-bookie": "Export a store as the disk of a bookie.",
        "migrate cursors": "Convert cursors to pages and markers, or to Pulsar snapshots.",
        "migrate snapshots": "Rewrite buckets of delayed messages with other sizes.",
        "backup": "Copy a consistent snapshot of a store that may be in use.",
        "compact": "Return unused space to the file system.",
        "repair": "Salvage a damaged store into a new one, and list the losses.",
        "upgrade": "Convert a store's records to their newest formats.",
        "serve": "Serve a store to BookKeeper and ZooKeeper clients in any language.",
        "demo": "Deliver a million messages across a simulated power cut.",
    }
)
"""Commands and their summaries. The module of a command in ``bookstand.tools.commands`` has the same name, with
underscores. Its ``run`` is the command, with typer's annotations; its docstring is the help, and ``EXAMPLES`` are the
example command lines. Names may have two words."""

SPARK = "spark"
"""First word of jobs over many stores, which have the same arguments as ``python -m bookstand.pipeline``."""

_INTRODUCTION = """Inspect bookstand's stores and real bookies' disks.

Every inspection command accepts either, and prints which one it reads. Inspection changes nothing, and works while
other processes have a store open. For jobs over many stores or disks, with or without Spark, see "bookstand spark
--help"."""

_EXTRA = ("typer", "rich", "cramjam", "jinja2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == [SPARK]:
        from bookstand.pipeline.execution.cli import main as run_job

        return run_job(words[1:], f"bookstand {SPARK}")
    try:
        return _run(application(), words)
    except MissingExtraError as error:
        return output.failure(type(error).__name__, str(error), FAILED, "--json" in words)
    except KeyboardInterrupt:
        # Interrupted before a command was invoked.
        return output.failure("Interrupted", "interrupted", INTERRUPTED, "--json" in words)


def _run(app: typer.Typer, words: Sequence[str]) -> int:
    from bookstand.tools.cli.error_handling import check_streams

    if not check_streams():
        return output.failure("OSError", "stdout is closed", FAILED, False)
    if "_BOOKSTAND_COMPLETE" in os.environ:
        # Each output line is one completion to the shell, so descriptions must not be wrapped.
        os.environ["COLUMNS"] = "10000"
    if isinstance(sys.stdout, TextIOWrapper):
        # Characters that the terminal cannot encode are escaped instead of raising an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=words, prog_name="bookstand")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FINE if end.code is None else FAILED
    return FINE


def application() -> typer.Typer:
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"the command line needs {', '.join(missing)}: pip install 'bookstand[cli]'")
    import typer
    from typer.core import TyperGroup

    from bookstand.tools.cli import error_handling, help_format

    class Words(TyperGroup):
        """Commands of the table whose names begin with ``before``; their modules are imported on demand."""

        before = ""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            # Candidates for suggestions when a name is mistyped.
            self.commands = dict.fromkeys(self.list_commands(None))  # type: ignore[assignment]

        def list_commands(self, ctx: Any) -> list[str]:
            words = (name.removeprefix(self.before).split()[0] for name in COMMANDS if name.startswith(self.before))
            jobs = [SPARK] if ctx is not None and ctx.resilient_parsing and not self.before else []
            return [*dict.fromkeys(words), *jobs]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name == SPARK and ctx.resilient_parsing:
                from bookstand.tools.cli.completion import spark_command

                return spark_command(SPARK)
            if cmd_name not in self.list_commands(ctx):
                return None
            name = f"{self.before}{cmd_name}"
            if name not in COMMANDS:
                return Seconds(name=cmd_name)
            module = import_module(module_of(name))
            command = help_format.command(cmd_name, module.run, module.__doc__ or "", module.EXAMPLES)
            command.short_help = COMMANDS[name]
            return command

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            meant = [(name, what) for name, what in COMMANDS.items() if name.startswith(self.before)]
            help_format.section(formatter, "Commands", meant)

        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            help_format.write_exit_codes(formatter)

    class Seconds(Words):
        """Subcommands of commands with two words."""

        def __init__(self, name: str) -> None:
            self.before = f"{name} "
            meant = ", ".join(other for other in COMMANDS if other.startswith(self.before))
            super().__init__(
                name=name,
                short_help=meant,
                no_args_is_help=True,
                rich_markup_mode=None,
                context_settings=help_format.SETTINGS,
            )

    class Commands(Words):
        """Top-level commands."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._json = False

        def make_context(self, info_name: Any, args: list[str], *more: Any, **options: Any) -> Any:
            self._json = "--json" in args
            with error_handling.report_errors(self._json):
                return super().make_context(info_name, args, *more, **options)

        def invoke(self, ctx: Any) -> Any:
            with error_handling.report_errors(self._json):
                return super().invoke(ctx)

    app = typer.Typer(
        cls=Commands,
        help=_INTRODUCTION,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings=help_format.SETTINGS,
    )

    @app.callback()
    def options(
        max_expanded_bytes: int = typer.Option(
            DEFAULT.max_expanded_bytes,
            "--max-expanded-bytes",
            metavar="N",
            help="Treat an entry or a record that expands to more than N bytes as damaged.",
        ),
        max_expansion_ratio: int = typer.Option(
            DEFAULT.max_expansion_ratio,
            "--max-expansion-ratio",
            metavar="N",
            help="Treat one as damaged that expands to more than 32 MiB and N times its stored size.",
        ),
        version: bool = typer.Option(
            False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ) -> None:
        from bookstand.tools.view.targets import LIMITS

        LIMITS.set(ExpansionLimits(max_expanded_bytes, max_expansion_ratio))

    return app


def module_of(command: str) -> str:
    return f"bookstand.tools.commands.{command.replace('-', '_').replace(' ', '_')}"


def _print_version(asked: bool) -> None:
    if asked:
        import typer

        from bookstand import __version__

        output.line(f"bookstand {__version__}")
        raise typer.Exit(FINE)


if __name__ == "__main__":
    sys.exit(main())
