"""The picture of a report in README: `python docs/picture.py` writes docs/static/report.png anew, with Chromium."""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import learncost as lc

PICTURE = Path(__file__).parent / "static" / "report.png"
SHOWN = {"width": 1280, "height": 860}


def main() -> None:
    """Write the picture of the report of README's command."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        path = Path(folder) / "gpt2.html"
        lc.report("gpt2", on="A100-SXM-40GB", procedure="bp,pepita", output=str(path))
        browser = browsers.chromium.launch(executable_path="/usr/bin/chromium")
        page = browser.new_page(viewport=SHOWN)
        page.goto(path.as_uri())
        page.wait_for_selector("text=forward")
        page.screenshot(path=PICTURE)
        browser.close()
    Image.open(PICTURE).convert("RGB").quantize(64).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
