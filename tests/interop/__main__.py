"""Let the original's classes read what bookstand writes: ``python -m tests.interop [seed]``. Needs Maven and a JDK."""

from __future__ import annotations

import random
import sys

from tests.interop.java import ask, missing_tools
from tests.interop.questions import GROUPS

SHOWN = 10


def main(seed: int = 1) -> int:
    missing = missing_tools()
    if missing:
        print(f"interop: skipped, {' and '.join(missing)} not on PATH")
        return 0
    groups = {name: list(generate(random.Random(f"{seed} {name}"))) for name, generate in GROUPS.items()}
    questions = [question for group in groups.values() for question in group]
    answers = iter(ask([question.request for question in questions]))
    failed = 0
    for name, group in groups.items():
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
        failed += len(differences)
    print(f"interop: {len(questions)} answers, {failed} different, seed {seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
