"""Stores full of texts that a terminal, a spreadsheet or a browser would obey, through every command and the report.

A case is one store. Its names of topics, subscriptions, keys, properties and nodes, its payloads and labels are random
mixtures of escape sequences, control characters, marks of direction, invisible characters, formulas and HTML. Every
command prints it, as text and as JSON, and so do the jobs over many stores. The campaign reports

- *terminal*: a character of the output that a terminal does not draw;
- *JSON*: output that is no JSON, or that has lost a name;
- *cell*: text in a table of the report that a spreadsheet would take for a formula, or a number that became text;
- *page*: an element, an attribute or a character of the report that comes from the store's texts.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shlex
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bookstand
from bookstand import SubscriptionConfig, TopicConfig
from bookstand.testing.clock import VirtualClock
from bookstand.tools.main import COMMANDS, main
from tests.soak.kinds import Done, Kind
from tests.tools.kit import START
from tests.tools.report.kit import Page

FRAGMENTS = (
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    "\x1b[31m",
    "\x1b[2J\x1b[H",
    "\x1b]0;title\x07",
    "\x1b]8;;http://example.com\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x1bP+q\x1b\\",
    "\x9b31m",
    "\x9d0;title\x9c",
    "\u202e",
    "\u2066",
    "\u2069",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u00ad",
    "\u2028",
    "\u2029",
    "\u3164",
    "\U000e0041",
    "\U000e0100",
    "\n",
    "\r\n",
    "\t",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '"><b onclick=alert(1)>',
    "<!--",
    "&lt;",
    "{{ 7*7 }}",
    "[bold red]",
    "'",
    '"',
    "\\",
    "%s%n",
    "日本語",
    "e\u0301",
    "a name",
)
BEGINNINGS = ("", "", "=1+1", "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-1", "\uff1d1+1")

LINES = (
    "ls {store}",
    "ls {store} --topics",
    "ls {store} --nodes",
    "ls {store} --files",
    "ls {disk} --contents",
    "ls {disk} --records",
    "show {store}",
    "show {store} {ledger}",
    "show {store} {ledger}:0",
    "show {store} {entry}",
    "show {store} {topic}",
    "show {store} --node {node}",
    "show {store} --node {topic_node}",
    "show {store} {missing}",
    "cat {store} {ledger}",
    "cat {store} {topic}",
    "cat {store} {topic} --messages",
    "cat {store} {topic} --hex",
    "cat {store} {missing}",
    "verify {store}",
    "verify {store} --messages",
    "verify {damaged}",
    "cursors {store}",
    "cursors {store} {topic}",
    "cursors {store} {topic} --cursor {subscription} --history",
    "cursors {store} {topic} --cursor {missing}",
    "delayed {store}",
    "delayed {store} {topic}",
    "stats {store}",
    "report {store} --output report.html",
    "report {damaged} --output damaged.html",
    "export-bookie {store} {new}-exported",
    "import-bookie {disk} {new}-imported --metadata {dump}",
    "migrate cursors {store} --to snapshot --dry-run",
    "migrate snapshots {store} --least 1000 --dry-run",
    "backup {store} {new}-copy",
    "compact {store} --dry-run",
    "repair {damaged} {new}-saved --dry-run",
    "upgrade {store} --dry-run",
    "spark verify {store}",
    "spark stats {store}",
    "spark verify {damaged}",
)
NOT_OF_A_STORE = {"serve", "demo"}
"""Commands that print nothing of what a store contains."""


def covered() -> set[str]:
    """Commands that the campaign runs."""
    return {name for name in COMMANDS if any(line.startswith(f"{name} ") for line in LINES)}


# -- a store -----------------------------------------------------------------------------------------------------------


class Texts:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._left: list[str] = []
        self.used: list[str] = []

    def one(self, without: str = "") -> str:
        """A text of all fragments by turns, behind the beginning of a formula."""
        parts = [self._chance.choice(BEGINNINGS)]
        for _ in range(self._chance.randrange(1, 5)):
            if not self._left:
                self._left = list(FRAGMENTS)
                self._chance.shuffle(self._left)
            parts.append(self._left.pop())
        text = "".join(parts)
        for char in without:
            text = text.replace(char, "")
        self.used.append(text)
        return text or "x"


class Place:
    """A store, its copy on a bookie's disk, and a damaged copy, in one folder."""

    def __init__(self, folder: str, seed: int) -> None:
        self.texts = Texts(seed)
        odd = os.fsdecode(b"st\x1b[31m\xff\n") if seed % 2 else "store"
        self.store = os.path.join(folder, odd)
        self.damaged = os.path.join(folder, f"{odd}-damaged")
        self.disk = os.path.join(folder, "disk")
        self._fill()
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            assert main(["export-bookie", self.store, self.disk]) == 0, said.getvalue()
        self.dump = next(str(path) for path in Path(self.disk).parent.rglob("*metadata*.jsonl*"))
        self._damage()

    def _fill(self) -> None:
        one = self.texts.one
        clock = VirtualClock(START)
        with bookstand.open(self.store, clock=clock) as store:
            labels = {one(): one().encode() for _ in range(4)}
            labels |= {"application": one().encode(), "component": one().encode(), "bookstand/topic": one().encode()}
            with store.create_ledger(custom_metadata=labels) as writer:
                self.ledger = str(writer.id)
                writer.append_many([one().encode() for _ in range(8)] + [b"\x1b[2J\xff\x00"])
            self.topics, self.subscriptions = [], []
            config = TopicConfig(
                delayed_delivery_tracker="bucket",
                delayed_delivery_min_index_count_per_bucket=2,
                max_entries_per_ledger=4,
            )
            for number in range(3):
                topic = store.topic(f"persistent://a/b/{one('/')}" if number else one("/"), config)
                self.topics.append(topic.name)
                name = one("/")
                subscription = topic.subscription(name, SubscriptionConfig())
                self.subscriptions.append(name)
                for _ in range(3):
                    properties = {one(): one() for _ in range(3)}
                    texts = {"key": one(), "producer_name": one(), "replicated_from": one()}
                    topic.publish(one().encode(), properties=properties, **texts)
                topic.publish_batch([one().encode() for _ in range(2)])
                topic.publish_many([b"a", b"b", b"c"], deliver_at=[START + 60_000] * 3, properties={one(): one()})
                # Delayed messages of a ledger that is full are in a bucket, of which the report has a picture.
                topic.publish_many([b"d"] * 8, deliver_at=[START + 90_000] * 8)
                ack = subscription.receive(max=20, timeout=0)
                subscription.ack_many(ack[1:3]).result()
                cursor = topic.cursor(name)
                cursor.put_cursor_property(one(), one())
                cursor.flush()
            self.entry = "{}:{}".format(*ack[0].position)
            self.node = f"/{one('/' + chr(0))}"
            for path in (self.node, f"{self.node}/{one('/' + chr(0))}", f"/{one('/' + chr(0))}"):
                store.nodes.put(path, one().encode())
            self.topic_node = next(
                path for path in _paths(store) if path.startswith("/managed-ledgers") and path.count("/") > 3
            )

    def _damage(self) -> None:
        from tests import kit

        copy = Path(self.disk).with_name("copy")
        with bookstand.open(self.store) as store:
            store.backup(copy)
        kit.change_entry(copy, int(self.ledger), 1, lambda stored: stored[:-1] + b"?")
        copy.rename(self.damaged)

    def line(self, line: str, new: str) -> list[str]:
        """Arguments of a command line."""
        values = {
            "store": self.store,
            "damaged": self.damaged,
            "disk": self.disk,
            "dump": self.dump,
            "ledger": self.ledger,
            "entry": self.entry,
            "topic": self.topics[-1],
            "subscription": self.subscriptions[-1],
            "node": self.node,
            "topic_node": self.topic_node,
            "missing": f"missing {self.topics[0]}",
            "new": new,
        }
        return [word.format(**values) for word in shlex.split(line)]


def _paths(store: Any, at: str = "/") -> Iterator[str]:
    for name in store.nodes.children(at):
        path = f"{at.rstrip('/')}/{name}"
        yield path
        yield from _paths(store, path)


# -- what comes out ----------------------------------------------------------------------------------------------------

_UNDRAWN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_UNDRAWN_LETTERS = "\u3164\uffa0\u115f\u1160\U000e0100"
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(:[+-]?\d+)?")
_FORMULA = tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")


def undrawn(text: str) -> list[str]:
    """Characters that a terminal or a browser does not draw, but for ends of lines."""
    return [
        char for char in text if char != "\n" and (unicodedata.category(char) in _UNDRAWN or char in _UNDRAWN_LETTERS)
    ]


def _run(words: list[str], columns: str) -> tuple[int, str, str]:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogatepass")
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = columns
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
            out.flush()
            err.flush()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    texts = [stream.buffer.getvalue().decode("utf-8", "surrogatepass") for stream in (out, err)]  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (key, *_strings(one))
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def problems_of_lines(place: Place, folder: str, lines: tuple[str, ...] = LINES) -> Iterator[str]:
    seen: set[str] = set()
    for number, line in enumerate(lines):
        for form, columns in ((), ""), ((), "60"), (("--json",), ""):
            words = [*place.line(line, os.path.join(folder, f"new-{number}-{len(form)}-{columns}")), *form]
            if form and "--hex" in words:
                continue
            code, out, err = _run(words, columns)
            what = f"{line} {' '.join(form)}"
            if code not in (0, 1, 2, 3) or "unexpected" in err or not (out or err):
                yield f"terminal: {what} ended with {code}: {err[-300:]!r}"
            if found := undrawn(out + err):
                yield f"terminal: {what} printed {found[:5]!a}"
            if form and out:
                try:
                    documents = [json.loads(out)]
                except ValueError:
                    try:
                        documents = [json.loads(one) for one in out.splitlines()]
                    except ValueError as error:
                        yield f"JSON: {what} printed none: {error}"
                        continue
                seen.update(_strings(documents))
    everything = "\0".join(seen)
    for name in (*place.topics, *place.subscriptions, place.node):
        if name not in everything:
            yield f"JSON: {name!a} is not in the output"


def problems_of_page(text: str, allowed: set[tuple[str, str]]) -> Iterator[str]:
    """``allowed``: elements and their attributes of a report on a store with usual names."""
    shown = Page(text)
    own = {"\u202f"}
    if found := [char for char in undrawn(text) if char not in own]:
        yield f"page: {found[:5]!a} is in it"
    try:
        shown.tree  # noqa: B018 - parsed here
    except Exception as error:
        yield f"page: it is not valid: {error!a}"
        return
    for element, attribute in _parts(shown) - allowed:
        yield f"page: an element {element} with {attribute or 'no attribute'}"
    for name in shown.data["tables"]:
        for row in shown.rows(name):
            for value in row:
                if isinstance(value, str) and undrawn(value):
                    yield f"page: {value!a} in the table {name}"
                if isinstance(value, str) and value.startswith(_FORMULA) and not NUMBER.fullmatch(value):
                    yield f"cell: {value!a} in the table {name}"
    for cell in (*shown.all("td"), *shown.all("th")):
        value = "".join(cell.itertext()).strip()
        if value.startswith(_FORMULA) and not NUMBER.fullmatch(value):
            yield f"cell: {value!a}"


def _parts(shown: Page) -> set[tuple[str, str]]:
    return {(one.tag, name) for one in shown.tree.iter() for name in ("", *map(str, one.attrib))}


def usual_parts() -> set[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        from tests.tools import kit
        from tests.tools.report.kit import page_on

        path = Path(folder, "store")
        kit.fill(path)
        found = _parts(page_on(path))
        kit.damage_entry(path, 0, 3)
        return found | _parts(page_on(path))


def one_round(seed: int) -> Done:
    allowed = usual_parts()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        place = Place(folder, seed)
        problems = list(problems_of_lines(place, folder))
        for name in ("report.html", "damaged.html"):
            problems += problems_of_page(Path(name).read_text("utf-8"), allowed)
    return Done(1, sorted(set(problems)))


KIND = Kind(one_round)
