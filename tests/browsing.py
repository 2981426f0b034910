"""A browser for tests of pages: Debian's Chromium by Playwright, which are not on every machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_LEFT_OUT = ("background-networking", "component-update", "sync")

QUIET = ("--no-sandbox", "--disable-gpu", *(f"--disable-{feature}" for feature in _LEFT_OUT))


def missing() -> str:
    """Why there is no browser; empty where there is one. Where tests of pages are required, that is a failure."""
    why = "" if shutil.which("chromium") else "there is no chromium on this machine"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        why = "playwright is not installed (extra test)"
    if why and os.environ.get("LEARNCOST_BROWSER_TESTS") == "required":
        pytest.fail(f"tests of pages are required, and {why}")
    return why


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped with the reason where there is none."""
    if why := missing():
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        yield browser
        browser.close()


class Watched:
    """A page with what must not happen on it: errors, and requests that leave the machine."""

    def __init__(self, browser: Any, width: int = 1440, dark: bool = False, allowed: str = "file://") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text)
        )
        self.page.on("request", lambda request: self._requested(request.url, allowed))

    def _requested(self, address: str, allowed: str) -> None:
        if not address.startswith((allowed, "data:", "blob:")):
            self.requests.append(address)

    def open(self, address: str) -> Any:
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def serious(self) -> list[str]:
        """What axe finds that is serious: the rules, and how often."""
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(self.page).response["violations"]
        return [
            f"{violation['id']} × {len(violation['nodes'])}: {violation['nodes'][0]['html'][:160]}"
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
