"""The demo from its beginning to its end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import bookstand
from bookstand.demo import plan
from bookstand.demo.books import Books
from bookstand.demo.life import Life
from bookstand.demo.result import Row, inspect, problems, rows
from bookstand.demo.screen import Screen
from bookstand.errors import IncorrectParameterError
from bookstand.tools.report import writing
from bookstand.tools.report.collecting import collect
from bookstand.tools.report.page import page
from bookstand.tools.target import open_view

if TYPE_CHECKING:
    from rich.console import Console

FEWEST = 5_000


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bookstand.demo", description="Messages, and a power cut.")
    parser.add_argument("--messages", type=_number, default=plan.MESSAGES, help="how many (default: %(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report on the store as the cut leaves it")
    options = parser.parse_args(arguments)
    try:
        return in_a_folder_of_its_own(options.messages, report_file=options.report).exit_code
    except IncorrectParameterError as error:
        parser.error(str(error))


def _number(text: str) -> int:
    number = int(text)
    if number < FEWEST:
        raise argparse.ArgumentTypeError(f"at least {FEWEST}: of fewer the power cannot be cut in the middle")
    return number


def in_a_folder_of_its_own(messages: int, console: Console | None = None, report_file: Path | None = None) -> Outcome:
    """``report_file``: where to write a report on the store as the power cut leaves it."""
    if report_file is not None:
        writing.check(report_file)
    with TemporaryDirectory(prefix="bookstand-demo-") as folder:
        return run(os.path.join(folder, "store"), messages, console, report_file)


class Outcome(NamedTuple):
    rows: list[Row]
    wrong: list[str]
    """Each in a few words; empty if all is as it should be."""

    @property
    def exit_code(self) -> int:
        return 1 if self.wrong else 0


def run(path: str, messages: int, console: Console | None = None, report_file: Path | None = None) -> Outcome:
    books = Books(messages)
    poison = plan.poison(messages)

    def is_half_done(life: Life) -> bool:
        screen.show(life.memory)
        return 2 * books.published >= messages and books.lives[0].durable > 0

    def is_never_cut(life: Life) -> bool:
        screen.show(life.memory)
        return False

    with Screen(books, messages - len(poison), console) as screen:
        screen.say(f"bookstand {bookstand.__version__} publishes {messages:,} messages, a quarter of them delayed.")
        screen.say(f"{plan.CONSUMERS} consumers share them, fail now and then, and always at {len(poison):,} of them.")
        first = Life(path, books)
        if not first.live(is_half_done):
            raise SystemExit("FAILED: all was done before the power was cut.")
        screen.show(first.memory, now=True)
        screen.say("The power is cut: SIGKILL. Another process goes on from what is stored.")
        if report_file is not None:
            report_on(path, report_file)
        second = Life(path, books)
        second.live(is_never_cut)
        screen.show(second.memory, now=True)
        screen.say("All is done. The store is opened once more, and verified.")
        found = inspect(path, messages)
    told = rows(books, [first, second], found)
    screen.table(told)
    report = found.report
    screen.end(
        f"verify: {len(report.problems)} problems in {report.ledgers} ledgers, {report.entries:,} entries",
        report.ok,
    )
    for problem in report.problems:
        screen.end(f"  {problem.message}", False)
    wrong = problems(books, found)
    if wrong:
        screen.end(f"FAILED: {'; '.join(wrong)}.", False)
        return Outcome(told, wrong)
    screen.end("OK: nothing is lost, nothing came early, and nothing came again but what had", True)
    screen.end("failed, or was not durably acknowledged when the power was cut.", True)
    if report_file is not None:
        screen.tell(f"A report on the store as the cut left it, for a browser: {report_file}")
    return Outcome(told, [])


def report_on(path: str, file: Path) -> None:
    """With holes in what is acknowledged, messages that wait, and buckets: at the end there is nothing of that."""
    with open_view(path) as view:
        writing.write(file, page(collect(view)))
