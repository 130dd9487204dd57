"""What processes told of a topic, and whether what became of it keeps the promises.

:class:`Told` gathers what :mod:`tests.soak.topics_process` says; ``problems`` judges it together with what was left in
the end. Nothing is judged by the order in which lines arrive, but by their stamps and by the order of the lives, for
what a thread says may be late.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.soak.topics_process import MOST_REDELIVERIES, OWN_TICK, SUBSCRIPTIONS

NACK_BUCKET = 256
"""By less than this what was negatively acknowledged comes early."""
CHECKED_HOLDERS = ("shared", "dead")
"""Subscriptions in which a message comes again in a life only if its holder gave it back. In the others all that is out
comes again with another, or after a while."""

Id = tuple[int, int, int]
"""Ledger, entry, and which of its batch: -1 for a message of its own, and for an entry as a whole."""


class Receipt(NamedTuple):
    life: int
    began: int
    ended: int
    now: int


class Return(NamedTuple):
    """Given back; ``until``: not to come again before."""

    life: int
    stamp: int
    until: int | None


class Move(NamedTuple):
    """Given another time; ``ended`` and ``answer`` are None as long as nobody knows."""

    life: int
    began: int
    time: int
    ended: int | None = None
    answer: bool | None = None


@dataclass
class OfSubscription:
    receipts: dict[Id, list[Receipt]] = field(default_factory=lambda: defaultdict(list))
    acking: set[Id] = field(default_factory=set)
    acked: dict[Id, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Life and stamp of each confirmation."""
    acking_up_to: list[tuple[int, int]] = field(default_factory=list)
    acked_up_to: list[tuple[tuple[int, int], int, int]] = field(default_factory=list)
    returns: dict[Id, list[Return]] = field(default_factory=lambda: defaultdict(list))
    all_returned: list[Return] = field(default_factory=list)
    moves: dict[tuple[int, int], list[Move]] = field(default_factory=lambda: defaultdict(list))

    def may_be_acked(self, message: Id) -> bool:
        return (
            message in self.acking
            or (*message[:2], -1) in self.acking
            or any(message[:2] <= end for end in self.acking_up_to)
        )

    def confirmations(self, message: Id) -> Iterator[tuple[int, int]]:
        yield from self.acked.get(message, ())
        if message[2] >= 0:
            yield from self.acked.get((*message[:2], -1), ())
        for end, life, stamp in self.acked_up_to:
            if message[:2] <= end:
                yield life, stamp


class Told:
    def __init__(self) -> None:
        self.wanted_at: dict[str, int] = {}
        """By name: what publishers were about to publish, and when it is to be delivered."""
        self.names: dict[Id, str] = {}
        self.durable: set[Id] = set()
        """What was published for certain, as its publisher was told, or somebody saw it."""
        self.subs = {name: OfSubscription() for name in SUBSCRIPTIONS}
        self.ended: dict[int, str] = {}
        self.sharing: set[int] = set()
        """Lives in which the subscriptions shared an index, with the topic's tick."""
        self.complaints: list[str] = []
        self.operations: Counter[str] = Counter()

    def hear(self, line: list[Any]) -> None:
        life, what, stamp, *more = line
        # Whoever lost the topic is told so by its errors, but for these.
        self.operations[f"stumbled: {more[0]}" if what == "stumbled" else what] += 1
        match what, more:
            case "publishing", [names, deliver_at]:
                self.wanted_at.update(dict.fromkeys(names, deliver_at))
            case "published", [placed]:
                for ledger, entry, index, name, _ in placed:
                    self._is_called((ledger, entry, index), name)
            case "received", [began, now, sub, shown]:
                for ledger, entry, index, name in shown:
                    self._is_called((ledger, entry, index), name)
                    self.subs[sub].receipts[ledger, entry, index].append(Receipt(life, began, stamp, now))
            case "acking", [sub, ids]:
                self.subs[sub].acking.update(map(tuple, ids))
            case "acked", [sub, ids]:
                for one in ids:
                    self.subs[sub].acked[tuple(one)].append((life, stamp))
            case "acking_up_to", [sub, position]:
                self.subs[sub].acking_up_to.append(tuple(position))
            case "acked_up_to", [sub, position]:
                self.subs[sub].acked_up_to.append((tuple(position), life, stamp))
            case "giving_back", [sub, ids, until]:
                for one in ids:
                    self.subs[sub].returns[tuple(one)].append(Return(life, stamp, until))
                if not ids:
                    self.subs[sub].all_returned.append(Return(life, stamp, until))
            case "rescheduling", [sub, position, time]:
                self.subs[sub].moves[tuple(position)].append(Move(life, stamp, time))
            case "rescheduled", [sub, position, time, answer]:
                moves = self.subs[sub].moves[tuple(position)]
                begun = next(one for one in moves if (one.life, one.time, one.ended) == (life, time, None))
                moves[moves.index(begun)] = begun._replace(ended=stamp, answer=answer)
            case "ended", [how]:
                self.ended[life] = how
            case "found", [sub, where, skipped]:
                # Kills leave nothing half written.
                self.complaints += [f"{sub}: life {life} began with {where} and could not use {one}" for one in skipped]
            case "problem", [text]:
                self.complaints.append(f"life {life}: {text}")
            case "taking", [sharing]:
                if sharing:
                    self.sharing.add(life)
            case (("ready" | "taken" | "refused" | "lost" | "stumbled" | "warned"), _):
                pass
            case _:
                self.complaints.append(f"a process said {line}")

    def _is_called(self, message: Id, name: str) -> None:
        self.durable.add(message)
        if self.names.setdefault(message, name) != name:
            self.complaints.append(f"{message} is {self.names[message]} and {name}")

    # -- judging -------------------------------------------------------------------------------------------------------

    def problems(
        self, left: dict[str, list[tuple[Id, str]]], dead: Iterable[tuple[Id, str]], tick: int, strict: bool
    ) -> list[str]:
        """``left`` is what each subscription gave in the end, ``dead`` the dead letters."""
        for found in left.values():
            for message, name in found:
                self._is_called(message, name)
        problems = list(self.complaints)
        problems += [
            f"{self._of(message)} was published by nobody"
            for message, name in self.names.items()
            if name not in self.wanted_at
        ]
        letters = {message for message, _ in dead}
        for name, sub in self.subs.items():
            given = Counter(message for message, _ in left[name])
            given_up = letters if name == "dead" else set()
            problems += [
                f"{name}: {self._of(one)} came twice at the end; before: {sub.receipts.get(one)}, "
                f"{sub.returns.get(one)}, {sub.moves.get(one[:2])}"
                for one in given
                if given[one] > 1
            ]
            problems += self._lost(name, sub, set(given) | given_up)
            problems += self._again_though_acked(name, sub, set(given))
            problems += self._early(name, sub, 0 if strict else tick)
            if name in CHECKED_HOLDERS:
                problems += self._held_by_another(name, sub)
        problems += self._dead_too_soon(letters)
        return problems

    def _of(self, message: Id) -> str:
        return f"{':'.join(map(str, message))} ({self.names.get(message)})"

    def _lost(self, name: str, sub: OfSubscription, found: set[Id]) -> list[str]:
        missing = sorted(one for one in self.durable - found if not sub.may_be_acked(one))
        return [f"{name}: {len(missing)} lost, {', '.join(map(self._of, missing[:3]))}"] if missing else []

    def _again_though_acked(self, name: str, sub: OfSubscription, found: set[Id]) -> Iterator[str]:
        """Whoever lost the topic may still deliver what the next one was acknowledged."""
        for message, receipts in sub.receipts.items():
            for life, stamp in sub.confirmations(message):
                for receipt in receipts:
                    if receipt.life > life or (receipt.life == life and receipt.began > stamp):
                        yield (
                            f"{name}: {self._of(message)} was acknowledged in life {life} at {stamp}, and came again "
                            f"in life {receipt.life} at {receipt.began}..{receipt.ended}"
                        )
        for message in found:
            for life, stamp in sub.confirmations(message):
                yield f"{name}: {self._of(message)} was acknowledged in life {life} at {stamp}, and came at the end"

    def _early(self, name: str, sub: OfSubscription, tick: int) -> Iterator[str]:
        for message, receipts in sub.receipts.items():
            deliver_at = self.wanted_at.get(self.names[message], 0)
            moves = sorted(sub.moves.get(message[:2], []), key=lambda move: (move.life, move.began))
            if not deliver_at and not moves:
                continue
            for receipt in receipts:
                times, since = [deliver_at], (-1, -1)
                for move in moves:
                    known = move.ended is not None and move.ended < receipt.began and move.life <= receipt.life
                    if move.began > receipt.ended or move.answer is False:
                        continue
                    if known:
                        times, since = [move.time], (move.life, move.began)
                    else:
                        times.append(move.time)
                # Whatever came before had its time, and may come again at any.
                if any(since < (one.life, one.began) < (receipt.life, receipt.began) for one in receipts):
                    continue
                early = OWN_TICK if name == "deadline" else tick
                if receipt.now < min(times) - early:
                    yield (
                        f"{name}: {self._of(message)} came {min(times) - receipt.now} ms early in life {receipt.life}; "
                        f"it was to be delivered at {deliver_at}, and moved by {moves}"
                    )

    def _held_by_another(self, name: str, sub: OfSubscription) -> Iterator[str]:
        """In a life a message comes as often as it was given back, and once; and not before its time."""
        for message, receipts in sub.receipts.items():
            returns = sub.returns.get(message, [])
            if message[2] >= 0 or len(receipts) < 2:
                # What is left of a batch comes again together.
                continue
            for receipt in receipts:
                earlier = [one for one in receipts if one.life == receipt.life and one.ended < receipt.ended]
                given = [one for one in returns if one.life == receipt.life and one.stamp < receipt.ended]
                if len(earlier) > len(given):
                    yield (
                        f"{name}: {self._of(message)} came {len(earlier) + 1} times in life {receipt.life}, "
                        f"and was given back {len(given)} times: {receipts}, {returns}"
                    )
                elif earlier and given[-1].until is not None and receipt.now <= given[-1].until - NACK_BUCKET:
                    yield (
                        f"{name}: {self._of(message)} was not to come again before {given[-1].until}, "
                        f"and came at {receipt.now} in life {receipt.life}"
                    )
                elif not earlier and self.ended.get(receipt.life - 1) == "closed":
                    before = receipt.life - 1
                    kept = [one for one in returns if one.life == before]
                    out = kept and any(one.life == before and one.ended > kept[-1].stamp for one in receipts)
                    until = kept[-1].until if kept and not out else None
                    if until is not None and receipt.now <= until - NACK_BUCKET:
                        yield (
                            f"{name}: {self._of(message)} was not to come again before {until}, came at "
                            f"{receipt.now} in life {receipt.life}, and the life before was closed in good order"
                        )

    def _dead_too_soon(self, letters: set[Id]) -> Iterator[str]:
        returns = self.subs["dead"].returns
        for message in letters:
            if message[2] >= 0:
                continue
            lives = Counter(one.life for one in returns.get(message, []))
            # Recorded nacks carry their redelivery counts into later lives, where they return once more.
            most = sum(lives.values()) + max(0, len(lives) - 1)
            if most <= MOST_REDELIVERIES:
                yield f"dead: {self._of(message)} is a dead letter, and was given back {dict(lives)} times in lives"
            if message not in self.durable:
                yield f"dead: {self._of(message)} is a dead letter, and nobody published it"
