"""The commands of ``bookkeeper shell``, as docs/from-bookkeeper-shell.md has to have all of them.

``python -m tests.interop.shell`` asks the original for them, and writes them down anew.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.interop.java import ask, request
from tests.interop.questions import Question

FILE = Path(__file__).resolve().parents[1] / "data" / "bookkeeper" / "shell.json"
_COUNT = "number of commands"


def commands() -> Mapping[str, list[str]]:
    """By name, the options of each; the names of one option are parted by ``/``."""
    found: dict[str, list[str]] = json.loads(FILE.read_text())
    return found


def same_commands(rng: random.Random) -> Iterator[Question]:
    """That the original has those that are written down, and no others."""
    expected = {name: " ".join(options) for name, options in commands().items()}
    yield Question("shell", request("shell"), {**expected, _COUNT: str(len(expected))})


def main() -> None:
    (answer,) = ask("pom.xml", [request("shell")])
    del answer[_COUNT]
    found = {name: options.split() for name, options in sorted(answer.items())}
    lines = [f"  {json.dumps(name)}: {json.dumps(options)}" for name, options in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
