"""Enumerate the states of the commit protocol: ``python -m tests.storage.protocol [--commits N] [--without RULE] ...``.

Prints the bounds and the counts, and the shortest way to a violation if there is one; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.storage.protocol.enumeration import enumerate_states, find_violation
from tests.storage.protocol.model import DATA_PAGES, PROCESSES, Bounds, Rules


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.protocol", description=__doc__)
    for bound in Bounds._fields:
        parser.add_argument(f"--{bound}", type=int, metavar="N", help="at most so many; without it: any number")
    parser.add_argument("--without", choices=Rules._fields, help="drop this rule of the protocol")
    given = parser.parse_args(arguments)
    bounds = Bounds(*(getattr(given, bound) for bound in Bounds._fields))
    rules = Rules() if given.without is None else Rules()._replace(**{given.without: False})
    begun = time.process_time()
    found = enumerate_states(rules, bounds)
    allowed = ", ".join(f"{'any number of' if most is None else f'<= {most}'} {name}" for name, most in _named(bounds))
    print(f"bounds: {len(PROCESSES)} processes, {DATA_PAGES} data pages, {allowed}")
    print(f"{found.states} states, {found.steps} steps, up to {found.depth} in a row")
    print(
        f"{time.process_time() - begun:.1f} s of CPU time; {found.violation or 'no violation, all states enumerated'}"
    )
    if found.violation is None:
        return 0
    print("\n".join(find_violation(rules, bounds)))
    return 1


def _named(bounds: Bounds) -> list[tuple[str, int | None]]:
    names = {"faults": "faults of the device", "cuts": "power cuts"}
    return [(names.get(name, name), most) for name, most in bounds._asdict().items()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
