"""Layout of the help texts: like a manual page, and the same in every version of typer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from bookstand.tools.cli.exit_codes import MEANINGS

_WIDEST = 96


def command(name: str, run: Callable[..., None], text: str, examples: Sequence[str]) -> Any:
    """Build the command that calls ``run``, whose annotations are typer's. ``text`` is the help, in paragraphs."""

    class Command(TyperCommand):
        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            return ["[OPTIONS]", *(_name(one) for one in self.params if one.param_type_name == "argument")]

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self.format_usage(ctx, formatter)
            for paragraph in text.strip().split("\n\n"):
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write_text(" ".join(paragraph.split()))
            arguments = [(_name(one), _help(one)) for one in self.params if one.param_type_name == "argument"]
            options = [one.get_help_record(ctx) for one in self.get_params(ctx) if one.param_type_name == "option"]
            section(formatter, "Arguments", arguments)
            section(formatter, "Options", [record for record in options if record is not None])
            lines(formatter, "Examples", examples)
            write_exit_codes(formatter)

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=Command, context_settings=SETTINGS)(run)
    made = typer.main.get_command(app)
    made.name = name
    return made


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST}


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _help(argument: Any) -> str:
    return str(argument.help or "")


def section(formatter: Any, title: str, records: Sequence[tuple[str, str | None]]) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


def lines(formatter: Any, title: str, texts: Sequence[str]) -> None:
    """Write lines without wrapping, so that commands can be copied from the help."""
    with formatter.section(title):
        for text in texts:
            formatter.write(f"{'':>{formatter.current_indent}}{text}\n")


def write_exit_codes(formatter: Any) -> None:
    section(formatter, "Exit codes", [(str(code), meaning) for code, meaning in MEANINGS.items()])
