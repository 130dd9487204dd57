"""Headless Chromium with its driver, if installed."""

from __future__ import annotations

import shutil
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "chromium is not installed (apt-get install chromium chromium-driver)"
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


class Browser:
    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, file: Path) -> None:
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(file.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return ({script})", *arguments)

    def set_viewport(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Emulate a screen of this size with a preferred color scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self) -> bytes:
        """Capture a screenshot as PNG."""
        return b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])

    @property
    def seconds_to_load(self) -> float:
        """Load time of the page, including its scripts."""
        return float(self.run("performance.getEntriesByType('navigation')[0].loadEventEnd")) / 1000


@contextmanager
def browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
