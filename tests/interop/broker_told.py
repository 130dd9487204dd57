"""What clients of a broker are told to do, step by step, and what they and the broker say of it.

A scenario is written down before anything happens, so that what a consumer has to be given is known then; where
messages are is known from the answers. What is said of a store at rest is compared with it when all is over.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from bookstand.storage.format.position import Position
from tests.interop.broker_compare import (
    about_cursors,
    about_delayed,
    about_names,
    about_topic,
    dropped_tail,
    ended,
    few,
    lost,
)
from tests.interop.broker_seen import Place, SeenCursor, SeenStore
from tests.interop.java import request

Answer = dict[str, str]
Check = Callable[[Answer], str]


class Step(NamedTuple):
    name: str
    request: str
    check: Check
    remark: str = ""

    def difference(self, answer: Answer) -> str:
        """Empty when the answer is as it should be."""
        return answer["error"] if "error" in answer else self.check(answer)


def fine(answer: Answer) -> str:
    return ""


def places(answered: str) -> Iterator[tuple[str, Place]]:
    """Of messages, by name."""
    for word in filter(None, answered.split(",")):
        name, _, place = word.partition("@")
        ledger_id, entry_id, index = map(int, place.split(":"))
        yield name, (ledger_id, entry_id, index)


class Subscribed:
    """A subscription: what is asked of it, and what it has confirmed."""

    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}
        """By name, in order of sending: what is not acknowledged when the scenario is at this step."""

        self.acked: list[tuple[str, bool]] = []
        """Names, and whether everything before them was meant."""

        self.acked_places: set[Place] = set()
        """Where only the answers say which."""


class Told:
    """A scenario, as far as it is written down."""

    def __init__(self, about: str) -> None:
        self._about = about
        self.steps: list[Step] = []
        self.confirmed: dict[str, dict[str, Place]] = defaultdict(dict)
        """By topic and name, where messages are. Known when the answers are."""

        self._batches: dict[str, list[list[str]]] = defaultdict(list)
        self._later: set[str] = set()
        self._again: set[str] = set()
        self._deleted: set[str] = set()
        self._subscribed: dict[str, dict[str, Subscribed]] = defaultdict(dict)

    def ask(self, what: str, about: str = "", check: Check = fine, **arguments: object) -> None:
        name = " ".join(filter(None, (f"{self._about}, {len(self.steps)}: {what}", about)))
        self.steps.append(Step(name, request(what, **arguments), check))

    # -- publishing ----------------------------------------------------------------------------------------------------

    def send(
        self, topic: str, name: str, count: int, *, batch: int = 1, later: bool = False, **options: Any
    ) -> list[str]:
        """Begin to send, ``batch`` messages in an entry; ``later``: so much delayed that it is over before."""
        names = [f"{name}-{number}" for number in range(count)]
        for subscribed in self._subscribed[topic].values():
            subscribed.waiting.update(dict.fromkeys(names))
        self._batches[topic] += (names[at : at + batch] for at in range(0, count, batch))
        if later:
            self._later.update(names)
        self.ask("send", f"{count} to {topic}", topic=topic, name=name, count=count, batch=batch, **options)
        return names

    def await_confirmed(self, topic: str, name: str, count: int) -> None:
        def check(answer: Answer) -> str:
            self.confirmed[topic].update(places(answer["sent"]))
            return ""

        self.ask("confirmed", f"{count} of {topic}", check, name=name, count=count)

    def publish(self, topic: str, name: str, count: int, **options: Any) -> list[str]:
        names = self.send(topic, name, count, **options)
        self.await_confirmed(topic, name, count)
        return names

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, name: str, kind: str, consumers: int = 1) -> None:
        self._subscribed[topic].setdefault(name, Subscribed())
        self.ask("subscribe", f"{name} of {topic}", **_of(topic, name), type=kind, consumers=consumers)

    def waiting(self, topic: str, name: str) -> list[str]:
        """What is due and not acknowledged."""
        return [one for one in self._subscribed[topic][name].waiting if one not in self._later]

    def receive(self, topic: str, name: str, names: Sequence[str] | None = None) -> None:
        """Exactly those are received, each once; without names all that wait."""
        expected = sorted(self.waiting(topic, name) if names is None else names)

        def check(answer: Answer) -> str:
            received = sorted(filter(None, answer["received"].split(",")))
            if received == expected:
                return ""
            missing, surplus = set(expected) - set(received), set(received) - set(expected)
            return f"{len(received)} received, not {len(expected)}: missing {few(missing)}, surplus {few(surplus)}"

        self.ask("receive", f"{name} of {topic}", check, **_of(topic, name), count=len(expected))

    def ack(self, topic: str, name: str, names: Sequence[str], *, cumulative: bool = False) -> None:
        subscribed = self._subscribed[topic][name]
        for one in names:
            subscribed.acked.append((one, cumulative))
            before = list(subscribed.waiting)
            for each in before[: before.index(one) + 1] if cumulative else [one]:
                subscribed.waiting.pop(each, None)
        how: dict[str, Any] = {"cumulative": "true"} if cumulative else {}
        self.ask("ack", f"{name} of {topic}", **_of(topic, name), names=",".join(names), **how)

    def nack(self, topic: str, name: str, names: Sequence[str]) -> None:
        self.ask("nack", f"{name} of {topic}", **_of(topic, name), names=",".join(names))

    def forget_parts(self, topic: str, name: str) -> None:
        """The broker has forgotten which messages of batches were acknowledged where not all of them were: it does not
        read that from a cursor's record, in which it wrote it."""
        subscribed = self._subscribed[topic][name]
        for batch in self._batches[topic]:
            if any(one in subscribed.waiting for one in batch):
                subscribed.acked = [one for one in subscribed.acked if one[0] not in batch]
                subscribed.waiting.update(dict.fromkeys(batch))

    def leave(self, topic: str, name: str) -> None:
        self.ask("leave", f"{name} of {topic}", **_of(topic, name))

    def work(self, topic: str, name: str, each: int) -> None:
        """A consumer goes on by itself, and acknowledges one of so many."""
        self.ask("work", f"{name} of {topic}", **_of(topic, name), each=each)

    def await_worked(self, topic: str, name: str, count: int) -> None:
        subscribed = self._subscribed[topic][name]

        def check(answer: Answer) -> str:
            subscribed.acked_places.update(place for _, place in places(answer["acked"]))
            return "" if subscribed.acked_places else "nothing was acknowledged"

        self.ask("worked", f"{name} of {topic}", check, **_of(topic, name), count=count)
        # What was under way when the server died may be there twice, and which of it was acknowledged is not known yet.
        self._again.add(topic)

    def unload(self, topic: str) -> None:
        self.ask("unload", topic, topic=topic)

    def delete(self, topic: str, name: str | None = None) -> None:
        """A subscription, or else the topic."""
        if name is None:
            del self._subscribed[topic]
            self._deleted.add(topic)
            self.ask("delete", topic, topic=topic)
        else:
            del self._subscribed[topic][name]
            self.ask("delete", f"{name} of {topic}", **_of(topic, name))

    # -- what the broker says, and the store ---------------------------------------------------------------------------

    def compare(self, topic: str, seen: SeenStore, delayed: Sequence[str] = ()) -> None:
        """The broker's figures are those of the store, in which the clients' messages and acknowledgments are, too.
        ``delayed`` names subscriptions whose dispatchers read everything."""
        later = {name: sum(map(self._later.__contains__, self._subscribed[topic][name].waiting)) for name in delayed}

        def differences(stats: Any, internal: Any) -> Iterator[str]:
            found = seen.topics[topic]
            yield from lost(self.confirmed[topic], seen.payloads[topic], found.ledgers)
            yield from about_names(self._subscribed[topic], internal["cursors"])
            for name in self._subscribed[topic]:
                yield from self._about_messages(topic, name, found.cursors[name], seen)
            for name in delayed:
                yield from self._about_delayed(topic, name, seen)

        self._compare(topic, seen, later, differences)

    def compare_recovered(self, topic: str, seen: SeenStore, delayed: Mapping[str, int] = MappingProxyType({})) -> None:
        """A broker that opens what another one left in the middle makes of it what the store says of itself; but for
        a tail that was not confirmed, whose backlog is another one then. ``delayed`` has the least that wait in
        subscriptions whose dispatchers read everything."""
        self._compare(topic, seen, delayed, lambda stats, internal: (), recovered=True)

    def _compare(
        self,
        topic: str,
        seen: SeenStore,
        delayed: Mapping[str, int],
        more: Callable[[Any, Any], Iterable[str]],
        recovered: bool = False,
    ) -> None:
        def check(answer: Answer) -> str:
            stats, internal = json.loads(answer["stats"]), json.loads(answer["internal"])
            found = seen.topics[topic]
            if recovered and dropped_tail(found, internal, self.confirmed[topic].values()):
                return ""
            lines = [*about_topic(found, internal), *about_names(found.cursors, internal["cursors"])]
            if not lines:
                lines = [*about_cursors(topic, found, seen, stats, internal), *more(stats, internal)]
                lines += [line for name in delayed for line in about_delayed(topic, name, seen, stats)]
            return "; ".join(lines)

        least = ",".join(f"{name}:{count}" for name, count in delayed.items())
        self.ask("stats", f"of {topic}", check, topic=topic, delayed=least)

    def survived(self, left: SeenStore) -> str:
        """Everything that was confirmed by now is in what the server left when it died."""
        gone = (
            f"{topic}: {line}"
            for topic, sent in self.confirmed.items()
            if topic not in self._deleted
            for line in lost(sent, left.payloads[topic], left.topics[topic].ledgers)
        )
        return "; ".join(filter(None, [*gone, left.wrong(), *left.damage()]))

    def at_rest(self, exit_code: str, seen: SeenStore, trimmed: str) -> str:
        """When all is over; ``trimmed`` is a topic whose ledgers go when they are consumed."""
        first = seen.topics[trimmed].ledgers[0][0]
        if all(place[0] >= first for place in self.confirmed[trimmed].values()):
            return f"nothing of {trimmed} was trimmed"
        there = (f"{topic} is still there" for topic in sorted(self._deleted & seen.topics.keys()))
        return "; ".join(filter(None, [ended(exit_code, seen), *seen.damage(), *there]))

    def _about_messages(self, topic: str, name: str, ours: SeenCursor, seen: SeenStore) -> Iterator[str]:
        """That each message is acknowledged, or is not, as clients were told."""
        sent = self.confirmed[topic]
        acked = set(self._acked(topic, name))
        there = seen.payloads[topic]
        for place in sorted(there.keys() & sent.values()):
            if ours.is_acked(place) != (place in acked):
                yield f"{name}: {there[place]} at {place} is {'' if place in acked else 'not '}acknowledged"
                return
        if topic not in self._again:
            surplus = [there[place] for place in there.keys() - sent.values() if not ours.is_acked(place)]
            if surplus:
                yield f"{name}: nobody knows of {few(surplus)}"

    def _acked(self, topic: str, name: str) -> Iterator[Place]:
        sent, subscribed = self.confirmed[topic], self._subscribed[topic][name]
        yield from subscribed.acked_places
        for one, everything_before in subscribed.acked:
            yield from (place for place in sent.values() if place <= sent[one]) if everything_before else [sent[one]]

    def _about_delayed(self, topic: str, name: str, seen: SeenStore) -> Iterator[str]:
        sent, subscribed = self.confirmed[topic], self._subscribed[topic][name]
        given, _ = seen.subscribed(topic, name)
        if given != sorted(self.waiting(topic, name)):
            yield f"{name}: a subscriber is given {few(given)}, not {few(self.waiting(topic, name))}"
        expected = {Position(*sent[one][:2]) for one in subscribed.waiting if one in self._later}
        in_table = seen.delayed_in_tables(topic, name)
        if missing := expected - in_table:
            yield f"{name}: missing in Spark's delayed_index: {few(missing)}"
        if topic not in self._again and (surplus := in_table - expected):
            yield f"{name}: surplus in Spark's delayed_index: {few(surplus)}"


def _of(topic: str, name: str) -> dict[str, Any]:
    return {"topic": topic, "subscription": name}
