"""The demo from its beginning to its end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import bookstand
from bookstand.demo import workload
from bookstand.demo.accounting import Accounting
from bookstand.demo.check import Row, inspect, problems, rows
from bookstand.demo.display import Screen
from bookstand.demo.process import ChildProcess

if TYPE_CHECKING:
    from rich.console import Console

FEWEST = 5_000
AtTheCut = Callable[[str], object]
"""Is told the store's path when the power has been cut, and nobody has gone on yet."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bookstand.demo", description="Messages, and a power cut.")
    parser.add_argument("--messages", type=_number, default=workload.MESSAGES, help="how many (default: %(default)s)")
    return in_a_folder_of_its_own(parser.parse_args(arguments).messages).exit_code


def _number(text: str) -> int:
    number = int(text)
    if number < FEWEST:
        raise argparse.ArgumentTypeError(f"at least {FEWEST}: of fewer the power cannot be cut in the middle")
    return number


def in_a_folder_of_its_own(
    messages: int, console: Console | None = None, at_the_cut: AtTheCut | None = None
) -> Outcome:
    with TemporaryDirectory(prefix="bookstand-demo-") as folder:
        return run(os.path.join(folder, "store"), messages, console, at_the_cut)


class Outcome(NamedTuple):
    rows: list[Row]
    wrong: list[str]
    """Each in a few words; empty if all is as it should be."""

    @property
    def exit_code(self) -> int:
        return 1 if self.wrong else 0


def run(path: str, messages: int, console: Console | None = None, at_the_cut: AtTheCut | None = None) -> Outcome:
    books = Accounting(messages)
    poison = workload.poison(messages)

    def is_half_done(life: ChildProcess) -> bool:
        screen.show(life.memory)
        return 2 * books.published >= messages and books.lives[0].durable > 0

    def is_never_cut(life: ChildProcess) -> bool:
        screen.show(life.memory)
        return False

    with Screen(books, messages - len(poison), console) as screen:
        screen.say(f"bookstand {bookstand.__version__} publishes {messages:,} messages, a quarter of them delayed.")
        screen.say(
            f"{workload.CONSUMERS} consumers share them, fail now and then, and always at {len(poison):,} of them."
        )
        first = ChildProcess(path, books)
        if not first.live(is_half_done):
            raise SystemExit("FAILED: all was done before the power was cut.")
        screen.show(first.memory, now=True)
        screen.say("The power is cut: SIGKILL. Another process goes on from what is stored.")
        if at_the_cut is not None:
            at_the_cut(path)
        second = ChildProcess(path, books)
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
    return Outcome(told, [])
