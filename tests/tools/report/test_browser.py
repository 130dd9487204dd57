"""The page as somebody uses it: in a browser, by keyboard, in both schemes, on screens of any width."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from benchmarks import chromium, report_store
from benchmarks.chromium import Browser
from bookstand.tools.report.page import page
from tests.tools.report.kit import report_on

pytestmark = [
    pytest.mark.skipif(chromium.MISSING is not None, reason=chromium.MISSING or ""),
    pytest.mark.xdist_group("browser"),
    pytest.mark.filterwarnings("default"),
]

FILES = ("my-store", "damaged-store", "bookie", "empty", "large")
WIDTHS = (360, 768, 1280, 1920)


@pytest.fixture(scope="module")
def pages(bench: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of some tenth of the largest: what the largest takes is measured by a benchmark."""
    folder = tmp_path_factory.mktemp("pages")
    report_store.make(folder / "large", report_store.LEDGERS // 10, report_store.HOLES // 10)
    files = {}
    for name in FILES:
        place = (bench if name != "large" else folder) / name
        options: dict[str, Any] = {"at": None, "metadata": str(bench / "metadata.jsonl.gz")} if name == "bookie" else {}
        files[name] = folder / f"{name}.html"
        files[name].write_text(page(report_on(place, **options)), "utf-8")
    return files


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with chromium.browser() as one:
        yield one


@pytest.fixture
def browser(started: Browser) -> Browser:
    started.set_viewport(1280)
    started.run("localStorage.clear()") if started.driver.current_url.startswith("file:") else None
    return started


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_it_loads_alone_and_without_complaints(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    assert browser.driver.get_log("browser") == []
    events = [json.loads(one["message"])["message"] for one in browser.driver.get_log("performance")]
    asked = {one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {pages[name].resolve().as_uri()}
    assert browser.seconds_to_load > 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["my-store", "bookie", "damaged-store"])
def test_it_fits_screens_of_any_width_and_can_be_read(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    browser.set_viewport(width, scheme=scheme)
    browser.open(pages[name])
    assert browser.run("document.documentElement.scrollWidth") <= width
    low = browser.run(CONTRASTS)
    assert low == [], low[:5]


@pytest.mark.parametrize("name", ["my-store", "bookie", "large"])
def test_the_table_of_ledgers_need_not_be_scrolled(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    scroll = "document.querySelector('[data-table=ledgers] .scroll')"
    assert browser.run(f"{scroll}.scrollWidth") <= browser.run(f"{scroll}.clientWidth")
    (created,) = browser.run(f"[...{scroll}.querySelectorAll('tbody .time')].slice(0, 1).map((one) => one.textContent)")
    assert len(created) == len("2027-01-15T08:00:00Z")


# Every text that is seen, against what is behind it: those with a contrast below that of WCAG's level AA.
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = parts(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const low = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const one = node.parentElement;
    if (!node.data.trim() || !one.checkVisibility() || one.closest("script, title, .hidden")) continue;
    if (one.closest("button:disabled")) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(parts(one.closest("svg") ? style.fill : style.color)), light(behind(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 600);
    const text = node.data.trim().slice(0, 40);
    if (contrast < (large ? 3 : 4.5)) low.push(`${contrast.toFixed(2)} ${one.tagName} ${text}`);
  }
  return low;
})()"""


def test_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    """From the top on: past the links, to the filter and the heads of the table; what is focused can be seen."""
    browser.open(pages["bookie"])
    driver = browser.driver
    order = []
    for _ in range(40):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        active = driver.switch_to.active_element
        order.append((active.tag_name, active.text or active.get_attribute("aria-label") or ""))
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none", order[-1]
        assert active.is_displayed()
    assert order[0] == ("a", "Skip to the report")
    assert order[1] == ("button", "Theme: system")
    links = [text.split()[0] for tag, text in order if tag == "a"][1:]
    assert links == ["Ledgers", "Topics", "Acknowledgments", "Delayed", "Caches", "Nodes", "About", "Damage"]
    assert "input" in [tag for tag, _ in order]
    positions = browser.run("[...document.querySelectorAll('[tabindex]')].every((one) => one.tabIndex <= 0)")
    assert positions, "the order of the page is the order of the keys"
    driver.find_element(By.CSS_SELECTOR, ".skip").send_keys(Keys.ENTER)
    assert browser.run("document.activeElement.id") == "main"


def rows(browser: Browser, table: str) -> list[list[str]]:
    found: list[list[str]] = browser.run(
        "[...document.querySelectorAll(`[data-table=${arguments[0]}] tbody tr`)]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))",
        table,
    )
    return found


def test_filter_sort_and_turn(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["large"])
    table = browser.driver.find_element(By.CSS_SELECTOR, "[data-table=ledgers]")
    status = table.find_element(By.CSS_SELECTOR, "output")
    assert status.text == "1\u202f002 rows"
    first = rows(browser, "ledgers")
    assert len(first) == 50
    head = table.find_elements(By.CSS_SELECTOR, "thead th")[0]
    head.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "ascending"
    assert [row[0] for row in rows(browser, "ledgers")] == [str(number) for number in range(50)]
    table.find_element(By.CSS_SELECTOR, "[data-turn='1']").send_keys(Keys.ENTER)
    assert [row[0] for row in rows(browser, "ledgers")][:2] == ["50", "51"]
    head.find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert head.get_attribute("aria-sort") == "descending"
    assert rows(browser, "ledgers")[0][0] == str((1 << 20) + 100)
    table.find_element(By.TAG_NAME, "input").send_keys("cursor closed")
    assert status.text == "1 of 1\u202f002 rows"
    assert [row[1] for row in rows(browser, "ledgers")] == ["cursor"]
    table.find_element(By.TAG_NAME, "input").send_keys(" nothing of the kind")
    assert rows(browser, "ledgers") == []


def test_what_is_not_known_is_last_in_either_order(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["bookie"])
    table = browser.driver.find_element(By.CSS_SELECTOR, "[data-table=ledgers]")
    created = table.find_elements(By.CSS_SELECTOR, "thead button")[5]
    table.find_element(By.TAG_NAME, "input").send_keys("bucket")
    found = []
    for _ in range(2):
        created.send_keys(Keys.ENTER)
        found.append([row[5] for row in rows(browser, "ledgers")])
    for times in found:
        known = [time for time in times if time != "–"]
        assert known
        assert times == known + ["–"] * (len(times) - len(known))
    assert [sorted(times, reverse=down) for times, down in zip(found, (True, False), strict=True)] != found[::-1]


def test_the_theme(browser: Browser, pages: dict[str, Path]) -> None:
    """As the system has it, light, dark; and as it was left."""
    browser.set_viewport(1280, scheme="dark")
    browser.open(pages["my-store"])
    seen = []
    for _ in range(4):
        button = browser.driver.find_element(By.ID, "theme")
        seen.append((button.text, browser.run("getComputedStyle(document.body).backgroundColor")))
        button.send_keys(Keys.ENTER)
    assert [text for text, _ in seen] == ["Theme: system", "Theme: light", "Theme: dark", "Theme: system"]
    dark, light = seen[0][1], seen[1][1]
    assert [colour for _, colour in seen] == [dark, light, dark, dark]
    assert light != dark
    browser.open(pages["my-store"])
    assert browser.driver.find_element(By.ID, "theme").text == "Theme: light"


# The share of the columns of a map's field that are acknowledged, and how many fields there are side by side.
FIELD = """((root) => {
  const canvas = root.querySelector("canvas");
  const width = canvas.width;
  const row = canvas.getContext("2d").getImageData(0, 30, width, 1).data;
  const legend = getComputedStyle(document.querySelector(".legend .acked"));
  const swatch = legend.backgroundColor.match(/[0-9]+/g).map(Number);
  let acked = 0;
  let fields = 0;
  let before = false;
  for (let x = 2; x < width - 2; x += 1) {
    const is = swatch.every((part, number) => Math.abs(row[4 * x + number] - part) < 3);
    acked += is;
    fields += is && !before;
    before = is;
  }
  return [acked / (width - 4), fields];
})(document.querySelectorAll(".map")[arguments[0]])"""


def test_a_map_shows_what_is_acknowledged_and_can_be_zoomed(browser: Browser, pages: dict[str, Path]) -> None:
    """Of 171 entries these are: 0 to 3, 7, 9, 20 and 30."""
    browser.open(pages["my-store"])
    root = browser.driver.find_elements(By.CSS_SELECTOR, ".map")[0]
    browser.run("arguments[0].scrollIntoView()", root)
    said = root.find_element(By.CSS_SELECTOR, ".controls output")
    # It is drawn when it comes into view.
    WebDriverWait(browser.driver, 60).until(lambda _: said.text)
    share, fields = browser.run(FIELD, 0)
    assert share == pytest.approx(8 / 171, abs=0.01)
    assert fields == 5
    assert said.text == "All: 171 entries, 4.7 % acknowledged"
    buttons = {one.text: one for one in root.find_elements(By.CSS_SELECTOR, ".controls button")}
    assert not buttons["Zoom out"].is_enabled()
    for _ in range(3):
        buttons["Zoom in"].send_keys(Keys.ENTER)
    while buttons["Earlier"].is_enabled():
        buttons["Earlier"].send_keys(Keys.SPACE)
    share, fields = browser.run(FIELD, 0)
    # The first 22 of them.
    assert share == pytest.approx(7 / 22, abs=0.02)
    assert fields == 4
    assert said.text == "From 2:0 on: 22 entries, 31.8 % acknowledged"
    buttons["All"].send_keys(Keys.ENTER)
    assert said.text.startswith("All: 171")
    summary = root.find_element(By.TAG_NAME, "summary")
    summary.send_keys(Keys.ENTER)
    cells = [cell.text for cell in root.find_elements(By.CSS_SELECTOR, "tbody tr:first-child > *")]
    assert cells == ["2", "100", "8", "92", "4"]


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")])
def test_it_looks_different_in_each_scheme_and_width(
    browser: Browser, pages: dict[str, Path], width: int, scheme: str, tmp_path: Path
) -> None:
    """Pictures are kept where the run keeps its files, to be looked at."""
    browser.set_viewport(width, scheme=scheme)
    browser.open(pages["bookie"])
    picture = browser.picture()
    assert picture.startswith(b"\x89PNG")
    (tmp_path / f"{scheme}-{width}.png").write_bytes(picture)
    other = {"light": "dark", "dark": "light"}[scheme]
    browser.set_viewport(width, scheme=other)
    assert browser.picture() != picture


def test_on_paper(browser: Browser, pages: dict[str, Path]) -> None:
    """Black on white, without what is for screens."""
    browser.open(pages["my-store"])
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert browser.run("getComputedStyle(document.documentElement).colorScheme") == "light"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
