"""A report is printed as it should be: on white paper whatever the screen looks like, and nothing is cut off."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from tests.live.browser import Browser, find_browser
from tests.report.test_report import run_directory

from gruppetto.report import write_report

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(find_browser() is None, reason="there is no chromium here"),
]
DARK_PAPER = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
COLOURS = "(style => [style.backgroundColor, style.color])(getComputedStyle(document.body)).join(' ')"
WIDER_THAN_PAPER = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
CUT_OFF = "[...document.querySelectorAll('pre')].filter(pre => pre.scrollWidth > pre.clientWidth).length"
A4 = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": False, "preferCSSPageSize": False}


def test_a_report_is_printed_dark_on_white_and_whole(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")
    (run / "run.toml").write_text(f"# {'a very long line of settings ' * 40}\n")
    write_report(run)

    async def look() -> None:
        async with Browser(680, 960) as browser:
            await browser.go((run / "report.html").as_uri())
            await browser.call("Emulation.setEmulatedMedia", **DARK_PAPER)
            assert await browser.ask(COLOURS) == "rgb(255, 255, 255) rgb(0, 0, 0)"
            assert await browser.ask(WIDER_THAN_PAPER) is False
            assert await browser.ask(CUT_OFF) == 0
            printed = await browser.call("Page.printToPDF", **A4)
            pdf = base64.b64decode(printed["data"])
            (tmp_path / "report.pdf").write_bytes(pdf)
            assert pdf.startswith(b"%PDF-") and 1 <= pdf.count(b"/Type /Page\n") <= 20
            assert browser.complaints == []

    asyncio.run(look())
