"""Let the original's classes read what bookstand writes, and its client and a broker use what bookstand serves:
``python -m tests.interop [seed] [word…]``, which asks only the groups whose names have one of the words. Needs Maven
and a JDK."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.interop import broker, cursors, delayed, disk, junit, questions, shell, wire
from tests.interop.broker_told import Step
from tests.interop.java import BUILD, ask, missing_tools
from tests.interop.questions import Question

SHOWN = 10
Group = Callable[[random.Random], Iterator[Question | Step]]
PROGRAMS: dict[str, Mapping[str, Group]] = {
    "pom.xml": {**questions.GROUPS, "commands of the shell": shell.same_commands},
    "pulsar.xml": cursors.GROUPS,
    "delayed.xml": delayed.GROUPS,
    "disk.xml": disk.GROUPS,
    "wire.xml": wire.GROUPS,
    "broker.xml": broker.GROUPS,
}
"""Which of the Java programs is asked what."""


def main(seed: int = 1, *words: str) -> int:
    missing = missing_tools()
    if missing:
        print(f"interop: skipped, {' and '.join(missing)} not on PATH")
        return 0
    asked = failed = 0
    for pom, generators in PROGRAMS.items():
        groups = {
            name: list(generate(random.Random(f"{seed} {name}")))
            for name, generate in generators.items()
            if is_wanted(name, words)
        }
        if not groups:
            continue
        answers = iter(ask(pom, [question.request for group in groups.values() for question in group]))
        for name, group in groups.items():
            failed += compare(name, group, answers)
            asked += len(group)
    if is_wanted(junit.GROUP, words):
        group = junit.questions()
        failed += compare(junit.GROUP, group, junit.answers())
        asked += len(group)
    print(f"interop: {asked} answers, {failed} different, seed {seed}")
    if failed:
        print(f"What the originals said meanwhile: {BUILD}/*.log and {BUILD}/broker/broker.log")
    return 1 if failed else 0


def is_wanted(group: str, words: Sequence[str]) -> bool:
    return not words or any(word in group for word in words)


def compare(name: str, group: Sequence[Question | Step], answers: Iterator[dict[str, str]]) -> int:
    """Tell how the answers to a group of questions are; how many are different."""
    differences = []
    for question in group:
        difference = question.difference(next(answers))
        if difference:
            differences.append(f"{question.name}: {difference}")
    print(f"{name}: {len(group) - len(differences)} of {len(group)} as they should be")
    for line in differences[:SHOWN]:
        print(f"  {line}")
    if len(differences) > SHOWN:
        print(f"  and {len(differences) - SHOWN} more")
    return len(differences)


if __name__ == "__main__":
    sys.exit(main(int((sys.argv[1:2] or ["1"])[0]), *sys.argv[2:]))
