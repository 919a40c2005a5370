"""What tests of several rooms share: a headless browser, and no deadlines."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)


def pytest_configure() -> None:
    os.environ["MAYA_CACHE"] = "off"  # what a test records is its own


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A selenium Chromium driver whose console is read with `get_log("browser")`."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver_binary = shutil.which("chromedriver")
    if binary is None or driver_binary is None:
        pytest.skip("no chromium and chromedriver on PATH (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_binary))
    yield driver
    driver.quit()


@pytest.fixture
def open_page(browser: Any) -> Callable[..., Any]:
    """`open_page(path, width, height, scheme)` loads a local page in that size and `light` or `dark`."""

    def load(path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Any:
        browser.get_log("browser"), browser.get_log("performance")  # what was said before is not this page's
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get("about:blank")  # nothing is read from the page that was there before
        browser.get(path.resolve().as_uri())
        wait = importlib.import_module("selenium.webdriver.support.ui").WebDriverWait(browser, 60)
        wait.until(lambda page: page.execute_script("return document.readyState") == "complete")
        return browser

    return load


@pytest.fixture
def console_errors(browser: Any) -> Callable[[], list[str]]:
    """What the page wrote to the console as errors or warnings since it was opened."""
    return lambda: [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]
