"""The page: valid, whole, the same each time, and whatever names hold is text in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookstand
from bookstand import SubscriptionConfig, TopicConfig
from bookstand.disk.damage import Damage
from bookstand.storage.format.escapes import visible
from bookstand.testing.clock import VirtualClock
from bookstand.tools.cli.exit_codes import DAMAGE, FAILED, FINE, NOT_THERE, WRONG_ARGUMENTS
from bookstand.tools.report.page import page
from bookstand.tools.report.tables import LEDGERS
from bookstand.tools.report.text import NAME, shortened
from tests.tools.kit import ORDERS, START, cut_file, run
from tests.tools.report.kit import Page, page_on, report_on

AT = ("--at", "2027-01-15T08:10:00Z")
DUMP = ("--metadata", "metadata.jsonl.gz")
PLACES = {
    "a store": ("my-store", {}),
    "a damaged store": ("damaged-store", {}),
    "an empty store": ("empty", {}),
    "a bookie": ("bookie", {"at": None, "metadata": "metadata.jsonl.gz"}),
    "a bookie without metadata": ("bookie", {"at": None}),
    "a damaged bookie": ("damaged-bookie", {"at": None}),
    "a store that was not verified": ("my-store", {"verify": False}),
}


@pytest.fixture(params=PLACES)
def shown(here: Path, request: pytest.FixtureRequest) -> Page:
    place, options = PLACES[request.param]
    return page_on(Path(place), **options)


# -- as a page ---------------------------------------------------------------------------------------------------------


def test_it_is_valid_and_its_parts_are_named_for_those_who_do_not_see_it(shown: Page) -> None:
    root = shown.tree
    assert shown.one("html").get("lang") == "en"
    assert shown.all("title")[0].text
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(shown.all(landmark)) == 1
    for one in root.iter():
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(one.get(name, "").split()) <= set(ids), one.get(name)
        if one.tag == "a" and one.get("href", "").startswith("#"):
            assert one.get("href", "")[1:] in ids, one.get("href")
    check_headings(root)
    check_tables(root)
    for picture in [one for one in root.iter() if one.get("role") == "img"]:
        assert picture.get("aria-label")
    for svg in shown.all("svg"):
        assert svg.get("role") == "img" or svg.get("aria-hidden") == "true"
    for button in shown.all("button"):
        assert "".join(button.itertext()).strip()
        assert button.get("type") == "button"
    for label in shown.all("label"):
        assert "".join(label.itertext()).strip()
        assert label.find("input") is not None
    for scrolled in [one for one in root.iter() if "scroll" in one.get("class", "").split()]:
        assert scrolled.get("tabindex") == "0"
        assert scrolled.get("aria-label") or scrolled.get("aria-labelledby")


def check_headings(root: Element) -> None:
    """One of the first level, and none left out on the way to a lower one."""
    levels = [int(one.tag[1]) for one in root.iter() if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def check_tables(root: Element) -> None:
    for table in root.iter("table"):
        assert "".join(table.find("caption").itertext()).strip()  # type: ignore[union-attr]
        heads = list(table.find("thead").iter("th"))  # type: ignore[union-attr]
        assert heads
        assert {head.get("scope") for head in heads} == {"col"}
        for row in table.find("tbody").iter("tr"):  # type: ignore[union-attr]
            first, *others = list(row)
            assert (first.tag, first.get("scope")) == ("th", "row")
            assert len(others) + 1 == len(heads)


def test_nothing_is_loaded_and_nothing_else_runs(shown: Page) -> None:
    (policy,) = [
        one.get("content", "") for one in shown.all("meta") if one.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        (code,) = [one.text or "" for one in shown.all(tag) if one.get("type") is None]
        assert rules[name] == f"'sha256-{b64encode(sha256(code.encode()).digest()).decode()}'"
    assert rules["img-src"] == "data:"
    for one in shown.tree.iter():
        assert "style" not in one.attrib
        assert not [name for name in one.attrib if name.startswith("on")]
        assert one.tag not in ("iframe", "object", "embed", "base", "form", "img")
        for name in ("src", "href", "xlink:href", "action"):
            assert one.get(name, "#").startswith(("#", "data:,"))
    # Values of nodes, which are data, may be addresses.
    code = shown.text.replace(shown.one("script", id="data").text or "", "")
    assert len(code) < len(shown.text)
    assert "http://" not in code
    assert "https://" not in code
    assert "@import" not in code
    assert "url(" not in code


def test_it_says_what_it_is_about(here: Path) -> None:
    store = page_on(Path("my-store"))
    assert store.words("h1") == "Store my-store"
    header = store.words("header")
    assert "As of 2027-01-15T08:10:00Z · format 2 · bookstand" in header
    assert "No damage was found." in header
    tiles = dict(
        re.findall(r"(Ledgers|Entries|Backlog|Holes|Delayed)\s*([\d\u202f]+)", store.words("dl", **{"class": "tiles"}))
    )
    assert tiles == {"Ledgers": "8", "Entries": "394", "Backlog": "284", "Holes": "4", "Delayed": "224"}
    assert page_on(Path("bookie"), at=None, metadata=DUMP[1]).words("h1") == "Bookie bookie-0 at bookie, with metadata"
    damaged = page_on(Path("damaged-store"))
    assert "Damage was found in 3 places." in damaged.words("header")
    assert {(row[1], row[2]) for row in damaged.rows("damage")} == {(2, 7), (3, None), (3, 5)}
    assert "There is no ledger" in page_on(Path("empty")).words("main")
    assert "Nodes5small values" in store.words("dl", **{"class": "tiles"})
    assert "Not verified." in page_on(Path("my-store"), verify=False).words("header")


def test_a_store_that_has_only_nodes_is_not_called_empty(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "only-nodes") as store:
        store.nodes.put("/accounts/ann", b"70")
    shown = page_on(tmp_path / "only-nodes")
    assert "Nothing is here yet" not in shown.text
    assert shown.rows("nodes") == [["/accounts/ann", 0, 2, "70"]]
    assert "Nodes 1" in shown.words("nav")


def test_a_long_path_stands_below_the_title(tmp_path: Path) -> None:
    place = tmp_path / "a-folder-below-others" / "accounts"
    bookstand.open(place).close()
    shown = page_on(place)
    assert shown.words("h1") == "Store accounts"
    assert shown.words("p", **{"class": "quiet path"}) == str(place)
    assert f"<title>store {place}" in shown.text


@pytest.mark.parametrize("count", [4, 5])
def test_few_ledgers_have_no_picture(count: int, tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "few") as store:
        for _ in range(count):
            store.create_ledger().append(b"one")
    assert ("By size and age" in page_on(tmp_path / "few").text) == (count == 5)


def test_its_tables_have_what_was_collected(here: Path) -> None:
    shown = page_on(Path("my-store"))
    ledgers = {row[0]: row for row in shown.rows("ledgers")}
    assert ledgers[0] == [0, "other", "CLOSED", 200, 19900, START, "", "", ""]
    assert ledgers[4][1:8] == ["bucket", "CLOSED", 11, 1020, START + 120_000, "acme/shop/orders", "billing"]
    assert shown.rows("cursors")[0][:6] == ["acme/shop/orders", "audit", "2:3", 163, 4, 4]
    (bucket,) = shown.rows("buckets")
    assert bucket[1:7] == ["billing", "2", 4, 10, 50, 8]
    one, other = shown.data["maps"].values()
    assert (one["total"], one["ids"], one["starts"]) == (171, ["2", "3"], [0, 100])
    assert other["most"] == 0


def test_the_pictures_have_their_numbers(here: Path) -> None:
    shown = page_on(Path("my-store"))
    titles = [one.text or "" for one in shown.all("title")][1:]
    of_ledgers = [int(title.split()[0]) for title in titles if " created " in title]
    assert sum(of_ledgers) == 8
    due = [title for title in titles if " due from " in title]
    # Of both subscriptions together, and of each.
    assert sum(int(title.split()[0]) for title in due) == 2 * 224
    assert "2 messages due from 2027-01-15 08:11:00 UTC to before 2027-01-15 08:12:00 UTC" in due
    in_buckets = [int(title.split()[0]) for title in titles if "in the bucket" in title]
    assert (len(in_buckets), sum(in_buckets)) == (10, 50)


def test_it_is_the_same_each_time(here: Path) -> None:
    assert page_on(Path("my-store")).text == page_on(Path("my-store")).text


# -- names of any kind -------------------------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"quoted\" 'twice' & <b>bold</b>",
    "]]><!-- {{ 7*7 }} {% raw %}",
    "line\u2028separated\u2029twice",
    "right\u202eto left \u05d0\u05d1",
    "nul\x00 bell\x07 escape\x1b[31m",
)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_are_text(store_path: Path, name: str) -> None:
    clock = VirtualClock(START)
    with bookstand.open(store_path, clock=clock) as store:
        topic = store.topic(
            f"persistent://acme/shop/{name}", TopicConfig(delayed_delivery_min_index_count_per_bucket=2)
        )
        subscription = topic.subscription(name, SubscriptionConfig())
        topic.publish_many([b"a", b"b", b"c"], deliver_at=[START + 60_000] * 3)
        subscription.receive(max=3, timeout=0)
        labels = {"application": b"bookstand", "component": name.encode(), "bookstand/topic": name.encode() * 4000}
        store.create_ledger(custom_metadata=labels).append(b".")
    report = report_on(store_path)
    report.damage.append(Damage(name, -1, name))
    report.notes.append(name)
    shown = Page(page(report))
    assert len(shown.text) < 200_000
    tags = {one.tag for one in shown.tree.iter()}
    assert not tags & {"img", "b"}
    assert len(shown.all("script")) == 2
    assert not re.search("[\u2028\u2029\u202e\x00\x07\x1b]", shown.text)
    # It is there to be read, and is what it was but for what would not be seen.
    seen = shortened(name)
    assert seen in {row[1] for row in shown.rows("cursors")}
    assert shown.rows("damage")[0][0] == seen
    assert [one for one in shown.all("bdi") if "".join(one.itertext()) == seen]


@given(st.text(max_size=50), st.integers(0, 3000))
def test_names_are_cut(text: str, times: int) -> None:
    shown = shortened(text * times)
    assert len(shown) <= NAME
    assert shown.isprintable()
    if len(text * times) <= NAME and visible(text) == text:
        assert shown == text * times


def test_a_path_of_any_name(tmp_path: Path, here: Path) -> None:
    """Also of one that is no text."""
    place = tmp_path / os.fsdecode(b"<b>\xff")
    place.symlink_to((here / "bookie").resolve())
    shown = page_on(place, at=None)
    assert "<b>" in shown.words("h1")
    assert not shown.all("b")
    shown.text.encode()


def test_numbers_that_a_browser_does_not_have(store_path: Path) -> None:
    """Ids and times up to the largest."""
    large = (1 << 62) + 1
    with bookstand.open(store_path) as store:
        with store.create_ledger_adv(ledger_id=large) as writer:
            writer.write(0, b".")
        topic = store.topic("orders")
        topic.subscription("audit")
        topic.publish_many([b"a", b"b"], deliver_at=[START, (1 << 62) - 1])
    shown = page_on(store_path)
    assert str(large) in [row[0] for row in shown.rows("ledgers")]
    (waits,) = shown.rows("waiting")
    assert (waits[2], waits[6], waits[7]) == (1, str((1 << 62) - 1), str((1 << 62) - 1))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "code"),
    [("my-store", FINE), ("empty", FINE), ("damaged-store", DAMAGE), ("bookie", FINE), ("damaged-bookie", DAMAGE)],
)
def test_it_ends_as_verify_does(folder: Path, place: str, code: int) -> None:
    dump = DUMP if place == "bookie" else ()
    result = run("report", place, *dump)
    assert (result.code, run("verify", place, *dump).code) == (code, code)
    assert f"{place}-report.html" in result.out
    shown = Page((folder / f"{place}-report.html").read_text("utf-8"))
    assert ("Damage was found" in shown.words("header")) == (code == DAMAGE)
    as_json = run("report", place, *dump, "--json")
    assert as_json.code == code
    assert as_json.json["output_bytes"] == len((folder / f"{place}-report.html").read_bytes())
    assert bool(as_json.json["damage"]) == (code == DAMAGE)


def test_a_store_that_cannot_be_opened_gives_a_report_that_says_so(own: Path) -> None:
    cut_file(own / "my-store")
    result = run("report", "my-store", *AT)
    assert result.code == DAMAGE
    assert "its meta page requires" in result.err
    shown = Page((own / "my-store-report.html").read_text("utf-8"))
    assert "Damage was found in 1 place." in shown.words("header")
    assert "It cannot be read" in shown.words("main")
    assert "its meta page requires" in shown.rows("damage")[0][0]
    as_json = run("report", "my-store", "--json")
    assert (as_json.code, len(as_json.json["damage"])) == (DAMAGE, 1)


def test_what_a_running_process_says_of_its_caches(folder: Path) -> None:
    labels = f'{{topic="{ORDERS}",subscription="audit"}}'
    lines = (f"bookstand_cursor_cache_{name}_total{labels} {value}\n" for name, value in (("hits", 30), ("misses", 10)))
    Path("metrics.txt").write_text("".join(lines))
    audit, billing = run("report", "my-store", "--metrics", "metrics.txt", "--json").json["subscriptions"]
    assert (audit["cache_hits"], audit["cache_misses"], audit["cache_hit_ratio"]) == (30, 10, 0.75)
    assert billing["cache_hits"] is None
    shown = Page(Path("my-store-report.html").read_text("utf-8"))
    assert [row[-3:] for row in shown.rows("caches")] == [[30, 10, 0.75]]
    assert "--metrics" not in shown.words("section", id="caches")
    missing = run("report", "my-store", "--metrics", "nowhere.txt")
    assert (missing.code, "nowhere.txt" in missing.err) == (NOT_THERE, True)


@pytest.mark.parametrize(("place", "code"), [("nothing", NOT_THERE), ("something", NOT_THERE)])
def test_what_is_nothing_of_the_kind(folder: Path, place: str, code: int) -> None:
    result = run("report", place)
    assert result.code == code
    assert not list(folder.glob("*-report.html"))


def test_an_earlier_report_is_written_over_and_nothing_else(own: Path) -> None:
    assert run("report", "my-store", "--output", "today.html", *AT).code == FINE
    first = Path("today.html").read_bytes()
    assert run("report", "my-store", "--output", "today.html", *AT).code == FINE
    assert Path("today.html").read_bytes() == first
    Path("letter.html").write_text("<!doctype html>\n<p>Dear reader")
    data = Path("my-store", "data.mdb").read_bytes()
    for name, says in (
        ("letter.html", "is not a report"),
        ("my-store/data.mdb", "is not a report"),
        ("my-store", "is not a regular file"),
        ("/dev/null", "is not a regular file"),
        ("nowhere/report.html", "no folder nowhere"),
    ):
        result = run("report", "my-store", "--output", name)
        assert (result.code, says in result.err) == (WRONG_ARGUMENTS, True), result.err
    assert Path("letter.html").read_text().endswith("Dear reader")
    assert Path("my-store", "data.mdb").read_bytes() == data
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_leaves_no_half_of_a_report(here: Path, small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"." * ((3 << 20) - (40 << 10)))
    before = sorted(small_disk.iterdir())
    result = run("report", "my-store", "--output", str(small_disk / "report.html"))
    assert result.code == FAILED
    assert "space" in result.err
    assert sorted(small_disk.iterdir()) == before


def test_jinja_is_an_extra(here: Path) -> None:
    program = "import sys; sys.modules['jinja2'] = None; from bookstand.tools.main import main"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(main(['report', 'my-store', '--json']))"],
        capture_output=True,
        text=True,
        cwd=here,
        check=False,
    )
    assert done.returncode == FAILED
    assert "bookstand[cli]" in json.loads(done.stdout)["error"]["message"]


def test_no_more_rows_than_there_is_room_for(here: Path) -> None:
    report = report_on(Path("my-store"))
    row = next(iter(report.ledgers.largest(1)))
    assert row["ledger"] == 0
    assert len(list(report.ledgers.largest(LEDGERS))) == 8
    report.damage = [Damage("file", number, f"wrong {number}") for number in range(2_500)]
    shown = Page(page(report))
    assert len(shown.rows("damage")) == 2_000
    assert "Of 2\u202f500 there is room for 2\u202f000: the first." in shown.words("section", id="damage")
