"""Main program of the demo."""

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

MIN_MESSAGES = 5_000
OnCut = Callable[[str], object]
"""Called with the store's path between the power cut and the restart."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bookstand.demo", description="Deliver messages across a simulated power cut."
    )
    parser.add_argument(
        "--messages", type=_number, default=workload.MESSAGES, help="number of messages (default: %(default)s)"
    )
    return run_in_temporary_folder(parser.parse_args(arguments).messages).exit_code


def _number(text: str) -> int:
    number = int(text)
    if number < MIN_MESSAGES:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_MESSAGES}: fewer are done before the power is cut")
    return number


def run_in_temporary_folder(messages: int, console: Console | None = None, on_cut: OnCut | None = None) -> Outcome:
    with TemporaryDirectory(prefix="bookstand-demo-") as folder:
        return run(os.path.join(folder, "store"), messages, console, on_cut)


class Outcome(NamedTuple):
    rows: list[Row]
    wrong: list[str]
    """Descriptions of the problems found."""

    @property
    def exit_code(self) -> int:
        return 1 if self.wrong else 0


def run(path: str, messages: int, console: Console | None = None, on_cut: OnCut | None = None) -> Outcome:
    accounting = Accounting(messages)
    poison = workload.poison_numbers(messages)

    def is_half_done(process: ChildProcess) -> bool:
        screen.show_progress(process.memory)
        return 2 * accounting.published >= messages and accounting.runs[0].durable > 0

    def never(process: ChildProcess) -> bool:
        screen.show_progress(process.memory)
        return False

    with Screen(accounting, messages - len(poison), console) as screen:
        screen.say(f"bookstand {bookstand.__version__} publishes {messages:,} messages, a quarter of them delayed.")
        screen.say(
            f"{workload.CONSUMERS} consumers share them. Some messages fail once, and {len(poison):,} always fail."
        )
        first = ChildProcess(path, accounting)
        if not first.run(is_half_done):
            raise SystemExit("FAILED: all messages were processed before the power cut.")
        screen.show_progress(first.memory, now=True)
        screen.say("Power cut: the process is killed (SIGKILL). Another one continues.")
        if on_cut is not None:
            on_cut(path)
        second = ChildProcess(path, accounting)
        second.run(never)
        screen.show_progress(second.memory, now=True)
        screen.say("All messages are processed. The store is reopened and verified.")
        store = inspect(path, messages)
    results = rows(accounting, [first, second], store)
    screen.table(results)
    report = store.report
    screen.show_result(
        f"verify: {len(report.problems)} problems in {report.ledgers} ledgers, {report.entries:,} entries",
        report.ok,
    )
    for problem in report.problems:
        screen.show_result(f"  {problem.message}", False)
    wrong = problems(accounting, store)
    if wrong:
        screen.show_result(f"FAILED: {'; '.join(wrong)}.", False)
        return Outcome(results, wrong)
    screen.show_result("OK: no message was lost or delivered early, and only messages that failed", True)
    screen.show_result("or were not durably acknowledged before the cut were redelivered.", True)
    return Outcome(results, [])
