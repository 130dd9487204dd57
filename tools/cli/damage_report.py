"""Damage as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookstand.disk.damage import Damage
from bookstand.errors import BookstandError
from bookstand.tools.cli.output import counted


class DamageError(BookstandError):
    """The requested object is damaged, or is missing and may be hidden by damage."""


def damage_facts(damage: Damage) -> dict[str, Any]:
    """Convert damage to JSON; unknown positions are null."""
    return {
        "what": damage.what,
        "file": damage.file or None,
        "offset": None if damage.offset < 0 else damage.offset,
        "ledger": None if damage.ledger_id < 0 else damage.ledger_id,
        "entry": None if damage.entry_id < 0 else damage.entry_id,
    }


def damage_line(damage: Damage) -> str:
    where = damage.file if damage.offset < 0 else f"{damage.file} at {damage.offset}"
    what = ""
    if damage.entry_id >= 0:
        what = f"entry {damage.ledger_id}:{damage.entry_id}"
    elif damage.ledger_id >= 0:
        what = f"ledger {damage.ledger_id}"
    if what and not damage.what.startswith(what):
        where = f"{where}, {what}" if where else what
    return f"{where}: {damage.what}"


def amounts(counts: Mapping[str, int]) -> str:
    """Format counts by their plural names: ``1 ledger, 2 entries``."""
    singular = {what: "entry" if what == "entries" else what.removesuffix("s") for what in counts if what != "bytes"}
    return ", ".join(counted(counts[what], one) for what, one in singular.items())


def summary(damage: list[Damage]) -> str:
    """Summarize the damage, which must not be empty, in one sentence."""
    if len(damage) == 1:
        return f"damage was found: {damage_line(damage[0])}"
    return f"damage was found in {len(damage)} places: see bookstand verify"
