"""Let the original's classes read what bookstand writes, and its client and a broker use what bookstand serves. Needs
Maven and a JDK."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.interop import (
    broker,
    cases,
    cursors,
    delayed,
    disk,
    junit,
    ledgers,
    questions,
    shell,
    topics,
    trackers,
    wire,
)
from tests.interop.java import BUILD, ask, missing_tools
from tests.interop.questions import Asked

SHOWN = 10
Groups = Mapping[str, Callable[[random.Random], Iterator[Asked]]]
PROGRAMS: dict[str, tuple[str, Groups]] = {
    "bytes": ("pom.xml", {**questions.GROUPS, "commands of the shell": shell.same_commands}),
    "cursors": ("pulsar.xml", cursors.GROUPS),
    "delayed": ("delayed.xml", {**delayed.GROUPS, **trackers.GROUPS}),
    "disk": ("disk.xml", disk.GROUPS),
    "topics": ("disk.xml", topics.GROUPS),
    "wire": ("wire.xml", wire.GROUPS),
    "ledgers": ("wire.xml", ledgers.GROUPS),
    "cases": ("wire.xml", cases.groups()),
    "broker": ("broker.xml", broker.GROUPS),
}
"""Which of the Java programs is asked what."""
JUNIT = "junit"
"""Its program is a project of its own, which is not asked but run."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    missing = missing_tools()
    if missing:
        print(f"interop: skipped, {' and '.join(missing)} not on PATH")
        return 0
    asked = failed = 0
    for program in options.only or [*PROGRAMS, JUNIT]:
        for name, group, answers in _junit() if program == JUNIT else _asked(program, options):
            failed += compare(name, group, answers)
            asked += len(group)
    print(f"interop: {asked} answers, {failed} different, seed {options.seed}")
    if failed:
        print(f"What the originals said meanwhile: {BUILD}/*.log and {BUILD}/broker/broker.log")
    return 1 if failed else 0


def _asked(
    program: str, options: argparse.Namespace
) -> Iterator[tuple[str, Sequence[Asked], Iterator[dict[str, str]]]]:
    """By group its questions, and the answers from where theirs begin."""
    pom, generators = PROGRAMS[program]
    if program == "cases" and options.recordings:
        generators = cases.groups(options.recordings)
    groups = {name: list(generate(random.Random(f"{options.seed} {name}"))) for name, generate in generators.items()}
    answers = iter(ask(pom, [question.request for group in groups.values() for question in group]))
    for name, group in groups.items():
        yield name, group, answers


def _junit() -> Iterator[tuple[str, Sequence[Asked], Iterator[dict[str, str]]]]:
    yield junit.GROUP, junit.questions(), junit.answers()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, default=1, help="of the samples that are made by chance")
    parser.add_argument(
        "--only", action="append", choices=[*PROGRAMS, JUNIT], help="these of the programs; again for more"
    )
    parser.add_argument(
        "--recordings", action="append", type=Path, metavar="PATH", help="cases: other folders or files of recordings"
    )
    return parser


def compare(name: str, group: Sequence[Asked], answers: Iterator[dict[str, str]]) -> int:
    """Tell how the answers to a group of questions are; how many are different."""
    differences = []
    for question in group:
        difference = question.difference(next(answers))
        if difference:
            differences.append(f"{question.name}: {difference}")
    print(f"{name}: {len(group) - len(differences)} of {len(group)} as they should be")
    for question in group:
        if question.remark:
            print(f"  {question.remark}")
    for line in differences[:SHOWN]:
        print(f"  {line}")
    if len(differences) > SHOWN:
        print(f"  and {len(differences) - SHOWN} more")
    return len(differences)


if __name__ == "__main__":
    sys.exit(main())
