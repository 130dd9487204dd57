"""What is to be seen: bars while it runs, or a line now and then where there is no terminal; and a table at the end."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bookstand.errors import MissingExtraError

try:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Table
    from rich.text import Text
except ImportError as missing:
    raise MissingExtraError("the demo needs rich: pip install 'bookstand[cli]'") from missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookstand.demo.accounting import Accounting
    from bookstand.demo.check import Row

# Seconds between two lines where there is no terminal.
_LINE_EVERY = 5.0


class Screen:
    """Whatever was shown last stays where it is once the block ends."""

    def __init__(self, books: Accounting, to_acknowledge: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._books = books
        self._started = monotonic()
        self._last_line = 0.0
        self._bars = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>9,.0f} of {task.total:>9,.0f}"),
            expand=True,
        )
        self._published = self._bars.add_task("published", total=books.messages)
        self._delivered = self._bars.add_task("delivered", total=books.messages)
        self._acknowledged = self._bars.add_task("acknowledged", total=to_acknowledge)
        self._below = Text()
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(Group(self._bars, self._below), console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        return monotonic() - self._started

    def say(self, text: str) -> None:
        self._console.print(Text(f"{self.seconds:5.1f} s  ").append(text))

    def show(self, memory: int, now: bool = False) -> None:
        """How far it is; ``now``: also where lines come only now and then."""
        books = self._books
        waiting = f"{books.delayed:,} wait for their time, {_mebibytes(memory)} of private memory"
        if self._live is not None:
            self._bars.update(self._published, completed=books.published)
            self._bars.update(self._delivered, completed=books.delivered)
            self._bars.update(self._acknowledged, completed=books.acknowledged)
            self._below.plain = f"{self.seconds:5.1f} s  {waiting}"
            self._live.refresh()
        elif now or self.seconds - self._last_line >= _LINE_EVERY:
            self._last_line = self.seconds
            self.say(
                f"{books.published:,} published, {books.delivered:,} delivered, {books.acknowledged:,} acknowledged; "
                f"{waiting}"
            )

    def table(self, rows: Sequence[Row]) -> None:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        for heading in ("before the cut", "after it", "in all"):
            table.add_column(heading, justify="right")
        for row in rows:
            style = None if row.good is None else "green" if row.good else "bold red"
            table.add_row(row.name, *row.cells, style=style)
        self._console.print(table)

    def end(self, text: str, good: bool) -> None:
        self._console.print(Text(text, style="green" if good else "bold red"))


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
