"""Replays recorded behaviour of the originals: ``python -m tests.replay AREA PATH... [--tracker NAME] [--json]``.

PATH names folders or files, plain or gzip; what does not exist is skipped. Prints how many samples are equal, argued
and different, then each difference. A difference is argued if it is listed in docs/differences.md with its reason and
matched by a narrow rule; what follows it in its scenario is then checked against the plain model,
bookstand.testing.model.

Exit code 0 if no other difference remains; 1 if one does, or if there was no sample at all; 2 for wrong arguments.
With --json the last line is one object: {"equal": n, "argued": n, "different": n}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.replay.areas import AREAS
from tests.replay.outcome import Outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    area = AREAS[options.area]
    if options.tracker and options.tracker not in area.trackers:
        parser.error(f"{area.name} has no tracker {options.tracker!r}")
    chosen = {"tracker": options.tracker} if options.tracker else {}
    outcomes: list[Outcome] = []
    for outcome in area.replay([Path(path) for path in options.paths], **chosen):
        outcomes.append(outcome)
        if options.progress and len(outcomes) % 100 == 0:
            print(f"{len(outcomes)} samples", file=sys.stderr)
    counts = Counter(outcome.verdict for outcome in outcomes)
    equal, argued, different = counts["equal"], counts["argued"], counts["different"]
    print(f"{area.name}: equal {equal}, argued {argued}, different {different}")
    if outcomes:
        share = argued / len(outcomes)
        if share > area.argued_at_most:
            print(f"warning: {share:.0%} are argued, more than the {area.argued_at_most:.0%} that this area allows")
    else:
        print("no samples found")
    for verdict in ("argued", "different"):
        for outcome in outcomes:
            if outcome.verdict == verdict:
                print(f"{verdict}: {outcome.name}: {outcome.detail}")
    if options.json:
        print(json.dumps({"equal": equal, "argued": argued, "different": different}))
    return 1 if different or not outcomes else 0


def _parser() -> argparse.ArgumentParser:
    fields = "\n\n".join(f"Compared in {area.name}.\n{area.fields}" for area in AREAS.values())
    parser = argparse.ArgumentParser(
        prog="python -m tests.replay",
        description=__doc__,
        epilog=fields,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("area", choices=sorted(AREAS), help="; ".join(f"{a.name}: {a.what}" for a in AREAS.values()))
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folders or files of recordings")
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object in the last line")
    parser.add_argument("--tracker", metavar="NAME", help="delayed: only scenarios of in_memory, or of bucket")
    parser.add_argument("--progress", action="store_true", help="say now and then on stderr how far it is")
    return parser


if __name__ == "__main__":
    sys.exit(main())
