"""Display of the demo: progress bars, or occasional lines without a terminal, and a table of results."""

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

# Seconds between progress lines without a terminal.
_LINE_INTERVAL = 5.0


class Screen:
    """Context manager for the display, which leaves its last state on the terminal."""

    def __init__(self, accounting: Accounting, to_acknowledge: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._accounting = accounting
        self._started = monotonic()
        self._last_line = 0.0
        self._bars = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>9,.0f} of {task.total:>9,.0f}"),
            expand=True,
        )
        self._published = self._bars.add_task("published", total=accounting.messages)
        self._delivered = self._bars.add_task("delivered", total=accounting.messages)
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

    def show_progress(self, memory: int, now: bool = False) -> None:
        """Update the display. Without a terminal, print a line if the interval has passed or ``now`` is true."""
        counts = self._accounting
        status = f"{counts.delayed:,} delayed, {_mebibytes(memory)} of private memory"
        if self._live is not None:
            self._bars.update(self._published, completed=counts.published)
            self._bars.update(self._delivered, completed=counts.delivered)
            self._bars.update(self._acknowledged, completed=counts.acknowledged)
            self._below.plain = f"{self.seconds:5.1f} s  {status}"
            self._live.refresh()
        elif now or self.seconds - self._last_line >= _LINE_INTERVAL:
            self._last_line = self.seconds
            self.say(
                f"{counts.published:,} published, {counts.delivered:,} delivered, "
                f"{counts.acknowledged:,} acknowledged; {status}"
            )

    def table(self, rows: Sequence[Row]) -> None:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        for heading in ("before the cut", "after the cut", "total"):
            table.add_column(heading, justify="right")
        for row in rows:
            style = None if row.good is None else "green" if row.good else "bold red"
            table.add_row(row.name, *row.cells, style=style)
        self._console.print(table)

    def show_result(self, text: str, good: bool) -> None:
        self._console.print(Text(text, style="green" if good else "bold red"))


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
