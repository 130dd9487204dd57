"""Count ledgers, entries and bytes by kind of ledger, and show the states, digests and ages of ledgers and the sizes of
their entries.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import numpy as np
import typer

from bookstand.tools.cli import output
from bookstand.tools.cli.options import Json, Metadata, MoreDisks, Password, Place, document, looking_at
from bookstand.tools.cli.output import Column, Fact, human, iso
from bookstand.tools.view.base import LedgerFacts, View

EXAMPLES = (
    "bookstand stats my-store",
    "bookstand stats my-store --json",
    "bookstand stats bookie --metadata metadata.jsonl.gz --no-sizes",
)

_KINDS = (
    Column("kind", "KIND"),
    Column("ledgers", "LEDGERS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("average", "PER ENTRY", right=True, show=output.size, rank=2),
    Column("oldest", "OLDEST", show=output.time, rank=1),
    Column("newest", "NEWEST", show=output.time),
)
_SUMS = (
    Fact("states", "states"),
    Fact("digests", "digests"),
    Fact("quorums", "ensemble/write/ack"),
    Fact("fenced", "fenced"),
    Fact("damaged", "damaged"),
)
_LARGEST = (
    Column("ledger", "LEDGER", right=True),
    Column("kind", "KIND"),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("topic", "TOPIC", show=output.topic, least=16),
)
_BAR = 40
_TOP = 5


def run(
    path: Place,
    sizes: Annotated[bool, typer.Option(help="Read the size of each entry, which takes time.")] = True,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    with looking_at(path, disk, metadata, password, json) as view:
        # Read the entries first: lost ones are discovered by reading, and are then part of their ledger's facts.
        entry_sizes = _histogram(view) if sizes else None
        facts = _facts([view.describe(ledger_id) for ledger_id in view.ledger_ids()])
        if entry_sizes is not None:
            facts["entry_sizes"] = entry_sizes
        if json:
            document(view, facts)
        else:
            _print(facts)


def _facts(found: list[LedgerFacts]) -> dict[str, Any]:
    kinds = sorted({one.kind for one in found})
    return {
        "kinds": [_sums(kind, [one for one in found if one.kind == kind]) for kind in kinds],
        "total": _sums("total", found),
        "states": dict(Counter(one.state for one in found).most_common()),
        "digests": dict(Counter(one.digest or "unknown" for one in found).most_common()),
        "quorums": dict(
            Counter(
                f"{one.ensemble_size}/{one.write_quorum}/{one.ack_quorum}"
                for one in found
                if one.ensemble_size is not None
            ).most_common()
        ),
        "fenced": sum(one.fenced for one in found),
        "damaged": sum(bool(one.damage) for one in found),
        "largest": [
            {
                "ledger": one.ledger,
                "kind": one.kind,
                "entries": one.entries,
                "bytes": one.bytes,
                "topic": one.topic or None,
            }
            for one in sorted(found, key=lambda one: one.bytes, reverse=True)[:_TOP]
        ],
    }


def _sums(kind: str, found: list[LedgerFacts]) -> dict[str, Any]:
    times = [one.created for one in found if one.created is not None]
    entries, size = sum(one.entries for one in found), sum(one.bytes for one in found)
    return {
        "kind": kind,
        "ledgers": len(found),
        "entries": entries,
        "bytes": size,
        "average": size // entries if entries else None,
        "oldest": iso(min(times, default=None)),
        "newest": iso(max(times, default=None)),
    }


def _histogram(view: View) -> list[dict[str, int]]:
    """Count entries by size, in powers of two; empty entries are counted separately."""
    counts = np.zeros(64, np.int64)
    for ledger_id in view.ledger_ids():
        for part in view.payload_sizes(ledger_id):
            # A size of n bits is at least 2 ** (n - 1) and less than 2 ** n.
            bits = np.zeros(len(part), np.int64)
            some = part > 0
            bits[some] = np.floor(np.log2(part[some])).astype(np.int64) + 1
            counts += np.bincount(bits, minlength=len(counts))
    used = np.flatnonzero(counts)
    if not len(used):
        return []
    return [
        {"from": 0 if bits == 0 else 1 << (bits - 1), "below": 1 << bits, "entries": int(counts[bits])}
        for bits in range(int(used[0]), int(used[-1]) + 1)
    ]


def _print(facts: dict[str, Any]) -> None:
    output.table(_KINDS, [*facts["kinds"], facts["total"]])
    output.heading("ledgers")
    output.facts(_SUMS, facts)
    if len(facts["largest"]) > 1:
        output.heading("largest")
        output.table(_LARGEST, facts["largest"])
    sizes = facts.get("entry_sizes")
    if sizes:
        output.heading("sizes of entries")
        most = max(row["entries"] for row in sizes)
        rows = [
            {
                "below": f"< {human(row['below'])}" if row["from"] else "0 B",
                "entries": row["entries"],
                "bar": "#" * max(round(row["entries"] / most * _BAR), 1 if row["entries"] else 0),
            }
            for row in sizes
        ]
        output.table(
            (
                Column("below", "SIZE", right=True),
                Column("entries", "ENTRIES", right=True),
                Column("bar", "", show=str, least=10),
            ),
            rows,
        )
