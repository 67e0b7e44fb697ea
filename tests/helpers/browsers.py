"""Chromium, driven by a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
REMEDY = "apt-get install -y --no-install-recommends chromium chromium-driver"


@contextmanager
def chromium(
    folder: Path, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[Any]:
    """A browser with a fresh profile, whose downloads go to ``folder / "downloads"``."""
    from selenium import webdriver

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.fail(f"chromium and chromedriver must be installed: {REMEDY}")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},{height}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wish = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})
        downloads = folder / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        allowed = {"behavior": "allow", "downloadPath": str(downloads)}
        browser.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
        rights = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        browser.execute_cdp_cmd("Browser.grantPermissions", rights)
        yield browser
    finally:
        browser.quit()


def requested(browser: Any, page: str) -> list[str]:
    """The addresses that a page asked for since the last call, its own included; not those of the
    browser.
    """
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in asked if params["documentURL"] == page]
