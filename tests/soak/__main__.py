"""Long campaigns: ``python -m tests.soak [--seconds N | --cases N] [--kind K] [--seed S] [--replay SEED]``.

Writes ``build/soak.json``: per kind the number of cases, of failures, and the seed of each failure. A campaign of one
kind leaves there what is known of the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import secrets
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.soak.kinds import Done, Kind, KindUnavailableError, Lasting, Tally

# Where each kind is: a module, and a name in it. Only those that are run are imported.
KINDS: dict[str, str] = {
    "random_kills": "tests.soak.random_kills:KIND",
    "kills": "tests.soak.kills:KIND",
    "server_kills": "tests.soak.server_kills:KIND",
    "io_faults": "tests.soak.io_faults:KIND",
    "crash_states": "tests.soak.crash_states:KIND",
    "crash_states_observed": "tests.soak.crash_states:OBSERVED",
    "damaged_files": "tests.soak.damaged_files:KIND",
    "flipped_bits": "tests.soak.flipped_bits:KIND",
    "flipped_bits_spark": "tests.soak.flipped_bits:SPARK",
    "repairs": "tests.soak.repairs:KIND",
    "decoder_mutations": "tests.soak.decoder_mutations:KIND",
    "decoder_fuzz": "tests.soak.decoder_fuzz:KIND",
    "forks": "tests.soak.forks:KIND",
    "histories": "tests.soak.histories:KIND",
    "delayed_views": "tests.soak.delayed_views:KIND",
    "eviction": "tests.soak.eviction:KIND",
    "protocol": "tests.soak.protocol:KIND",
    "protocol_traces": "tests.soak.protocol:TRACES",
    "protocol_defects": "tests.soak.protocol_defects:KIND",
    "seeded_defects": "tests.soak.seeded_defects:KIND",
    "texts": "tests.soak.texts:KIND",
    "topics": "tests.soak.topics:KIND",
    "subscriptions": "tests.soak.topics_machine:KIND",
    "liveness": "tests.soak.liveness:KIND",
    "block_device": "tests.soak.block_device:KIND",
    "endurance": "tests.soak.endurance:KIND",
    "interrupts": "tests.soak.interrupts:KIND",
    "interrupts_defects": "tests.soak.interrupts_defects:KIND",
    "frames": "tests.soak.frames:KIND",
    "dying_units": "tests.soak.dying_units:KIND",
    "dying_units_spark": "tests.soak.dying_units:SPARK",
    "spark_defects": "tests.soak.spark_defects:KIND",
}
MINUTES_A_ROUND = {
    "dying_units_spark",
    "flipped_bits",
    "flipped_bits_spark",
    "frames",
    "interrupts_defects",
    "spark_defects",
}
"""Kinds that run only if they are named, because a single round takes minutes; a part of each is in the tests."""
REPORT = Path("build/soak.json")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, help="run for about so long (default 60, unless --cases is given)")
    parser.add_argument("--cases", type=int, help="run at least so many cases of each kind")
    parser.add_argument(
        "--kind", choices=sorted(KINDS), help="only this kind; those whose rounds take minutes run only so"
    )
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count up from it")
    parser.add_argument("--replay", type=int, metavar="SEED", help="repeat the one round with this seed")
    given = parser.parse_args(arguments)
    names = [given.kind] if given.kind else [name for name in KINDS if name not in MINUTES_A_ROUND]
    seconds = given.seconds if given.seconds or given.cases else 60.0
    tallies = {}
    for name in names:
        if given.replay is not None:
            tallies[name] = campaign(name, given.replay, rounds=1)
        else:
            seed = given.seed if given.seed is not None else secrets.randbelow(1 << 32)
            share = None if seconds is None else seconds / len(names)
            tallies[name] = campaign(name, seed, seconds=share, cases=given.cases)
    report(tallies, keep=given.kind is not None)
    return 1 if any(tally.seeds for tally in tallies.values()) else 0


def find(name: str) -> Kind:
    module, _, attribute = KINDS[name].partition(":")
    kind: Kind = getattr(importlib.import_module(module), attribute)
    return kind


def campaign(
    name: str,
    seed: int,
    seconds: float | None = None,
    cases: int | None = None,
    rounds: int | None = None,
) -> Tally:
    """Rounds with seeds from ``seed`` up, until the time is over, the cases are enough, or the rounds are done."""
    tally = Tally()
    begun = time.monotonic()
    print(f"{name}: from seed {seed}", flush=True)
    try:
        kind = find(name)
        with _lasting(kind, seconds) as lasting:
            one_round = kind.round if lasting is None else lasting.round
            over = False
            while not over:
                done = one_round(seed)
                tally.add(seed, done)
                _complain(name, seed, done)
                seed += 1
                tally.rounds += 1
                tally.seconds = time.monotonic() - begun
                over = (
                    (rounds is not None and tally.rounds >= rounds)
                    or (cases is not None and tally.cases >= cases)
                    or (seconds is not None and tally.seconds >= seconds)
                )
            if lasting is not None:
                done = lasting.end()
                tally.add(seed - tally.rounds, done)
                for problem in done.problems:
                    print(f"{name}: {tally.rounds} rounds from seed {seed - tally.rounds}: {problem}", flush=True)
    except KindUnavailableError as reason:
        tally.skipped = str(reason)
        print(f"{name}: skipped: {reason}", flush=True)
    return tally


def _lasting(kind: Kind, seconds: float | None) -> AbstractContextManager[Lasting | None]:
    if kind.lasting is None or seconds is None:
        return nullcontext()
    return kind.lasting(seconds)


def _complain(name: str, seed: int, done: Done) -> None:
    for problem in done.problems:
        print(f"{name}: seed {seed}: {problem}")
    if done.problems:
        print(f"repeat it with: python -m tests.soak --kind {name} --replay {seed}", flush=True)


def report(tallies: dict[str, Tally], keep: bool) -> None:
    REPORT.parent.mkdir(exist_ok=True)
    known = json.loads(REPORT.read_text()) if keep and REPORT.exists() else {}
    known |= {name: tally.as_json() for name, tally in tallies.items()}
    REPORT.write_text(json.dumps(known, indent=2) + "\n")
    print(f"\n{'kind':<24} {'cases':>9} {'failures':>9} {'seconds':>9}  seeds of the failures")
    for name, tally in tallies.items():
        seeds = f"skipped: {tally.skipped}" if tally.skipped else ", ".join(map(str, tally.seeds)) or "-"
        print(f"{name:<24} {tally.cases:>9} {len(tally.seeds):>9} {tally.seconds:>9.1f}  {seeds}")
    failed = sum(len(tally.seeds) for tally in tallies.values())
    # Runners read this line.
    print(f"\n{sum(tally.cases for tally in tallies.values())} passed, {failed} failed" if not failed else "\nfailed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
