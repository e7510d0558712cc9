"""The page in a real browser: a run that goes on, that loses a learner and its syncer, and one that has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from tests.live.browser import Browser, find_browser
from tests.live.conftest import Rig

from gruppetto.dashboard.serving import directory_app
from gruppetto.trace.log import TraceWriter

pytestmark = [
    pytest.mark.live,
    pytest.mark.alone,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_browser() is None, reason="there is no chromium here"),
]

HOSTILE = "<img src=x onerror=alert(1)>"
KEPT = "window.kept === 'not loaded again'"
GONE = ("ERR_CONNECTION", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "ERR_SOCKET")
"""What a browser says by itself while nobody listens."""
HEADLINE = "document.querySelector('#headline').dataset.state"
DRAWN = "Number(document.body.dataset.drawn)"


def state(name: str) -> str:
    return f"document.querySelector('#learners tr[data-name={name}] .state')?.textContent"


async def look(rig: Rig) -> None:
    syncer = rig.syncer(trace=rig.place / "trace.jsonl")
    learners = {name: rig.learner(name) for name in "ab"}
    rig.until_merged("a")
    rig.until_merged("b")
    async with Browser() as page:
        await page.go(f"{rig.url}/dashboard/")
        await page.until(f"{HEADLINE} === 'training' && {state('b')} === 'training'")
        await page.ask("window.kept = 'not loaded again'")
        drawn = await page.ask(DRAWN)
        await page.until(f"{DRAWN} > {drawn} + 1")  # by itself

        rig.kill(learners["b"])
        await page.until(f"{state('b')} === 'offline'", within_s=3.0)
        # The headline comes by another way than the table, and may be half a second behind it.
        await page.until("document.querySelector('#headline').innerText.includes('start it again')", within_s=3.0)

        await zooms(page)
        await shares_add_up(page)
        await charts_say_what_does_not_fit(page)

        rig.kill(syncer)
        await page.until("document.querySelector('#link').dataset.state === 'lost'")
        rig.syncer(trace=rig.place / "trace.jsonl")
        before = rig.status()["round"]
        await page.until("document.querySelector('#link').dataset.state === 'live'")
        await page.until("document.querySelector('#events').innerText.includes('started again;')")
        await page.until(
            f"Number(document.querySelector('#numbers b').textContent.split('/')[0].replace(',', '')) > {before}"
        )
        assert await page.ask(KEPT)

        assert all(asked.startswith((rig.url, "data:")) for asked in page.asked), page.asked
        assert [said for said in page.complaints if not any(word in said for word in GONE)] == []
        page.complaints.clear()
        await an_ended_run(page, rig.place / "ended")


async def zooms(page: Browser) -> None:
    """With the mouse, the keys and a link, and back."""
    box = json.loads(await page.ask("JSON.stringify(document.querySelector('.lanes canvas').getBoundingClientRect())"))
    y, at = box["y"] + 30, lambda share: box["x"] + share * box["width"]
    await page.mouse("mouseMoved", at(0.5), y)
    await page.until("document.querySelector('#moment').textContent.includes('a: ')")
    await page.until(
        "[...document.querySelectorAll('#charts .cursor')].some(line => line.getAttribute('visibility') === 'visible')"
    )
    await page.mouse("mousePressed", at(0.4), y, buttons=1)
    await page.mouse("mouseMoved", at(0.6), y, buttons=1)
    await page.mouse("mouseReleased", at(0.6), y)
    await page.until("location.hash.includes('from=')")
    await page.ask("document.querySelector('.lanes canvas').focus()")
    moment = json.dumps(await page.ask("document.querySelector('#moment').textContent"))
    await page.key("ArrowLeft")
    await page.until(f"document.querySelector('#moment').textContent !== {moment}")
    await page.key("Home")
    await page.until("!location.hash.includes('from=')")
    await page.ask("location.hash = '#t=1.5'")
    await page.until("document.querySelector('#moment').textContent.startsWith('00:01')")
    await page.key("Escape")
    await zooms_in_a_chart(page)


async def zooms_in_a_chart(page: Browser) -> None:
    """Dragged closer and double-clicked back; another button drags nothing; a finger leaves the moment where it was."""
    chart = "document.querySelector('#charts .chart > svg')"
    # The window left just now may have held no loss: a chart of nothing has nothing to drag over.
    await page.until(f"!{chart}.getAttribute('aria-label').endsWith('nothing yet')")
    await page.ask(f"void {chart}.scrollIntoView({{block: 'center'}})")
    box = json.loads(await page.ask(f"JSON.stringify({chart}.getBoundingClientRect())"))
    y, at = box["y"] + 60, lambda share: box["x"] + share * box["width"]
    await page.mouse("mousePressed", at(0.4), y, buttons=1)
    await page.mouse("mouseMoved", at(0.6), y, buttons=1)
    await page.mouse("mouseReleased", at(0.6), y)
    await page.until("location.hash.includes('from=')")
    await page.ask(f"{chart}.dispatchEvent(new MouseEvent('dblclick'))")
    await page.until("!location.hash.includes('from=')")
    await page.ask(f"{chart}.dispatchEvent(new PointerEvent('pointerdown', {{button: 2, pointerId: 1}}))")
    await page.mouse("mouseMoved", at(0.7), y)
    await page.until("document.querySelector('#charts .chart > svg > rect.band').getAttribute('width') === '0'")
    finger = [{"x": at(0.5), "y": y}]
    for kind, points in (("touchStart", finger), ("touchEnd", [])):
        await page.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    await page.until("document.querySelector('#moment').textContent.startsWith('0')")
    await page.ask("document.querySelector('.lanes canvas').focus()")
    await page.key("Escape")


async def shares_add_up(page: Browser) -> None:
    """What is merged is counted though nothing was trained on in the same slot."""
    script = """(async () => {
        const { share } = await import("./charts.js");
        const part = { t: [2, 4], sum: [4, 4], width: 1 }, of = { t: [1, 2], sum: [4, 6], width: 1 };
        return share(part, of).map((point) => [point.t, point.value]);
    })()"""
    assert await page.ask(script) == [[1, 0], [2, 0.4], [4, 0.8]]


async def charts_say_what_does_not_fit(page: Browser) -> None:
    """One long round is an arrow and flattens nothing; no line leads over a loss that was no number; alarms of a kind
    are one line."""
    script = """(async () => {
        const { Chart } = await import("./chart.js");
        const { grouped } = await import("./panels.js");
        const place = document.body.appendChild(document.createElement("div"));
        const at = (values) => values.map((value, t) => ({ t, width: 1, value, low: value, high: value }));
        const line = (name, points) => ({ name, colour: "blue", kind: "line", points });
        const robust = new Chart(place, { title: "", format: String, zero: true, robust: true });
        robust.show([line("pace", at([180, 1, 1.2, 1, 1.1, 1]))], [0, 6]);
        const broken = new Chart(place, { title: "", format: String });
        const crosses = { name: "lost", colour: "red", kind: "cross", points: at([0, 0, 1]).slice(2) };
        broken.show([line("loss", at([3, 2, 2, 1])), crosses], [0, 4]);
        const alarm = (who, text) => ({ kind: "alarm", who, text });
        const found = [
            robust.svg.querySelectorAll(".beyond title")[0].textContent, robust.svg.querySelectorAll(".beyond").length,
            [...robust.svg.querySelectorAll("text")].some((text) => text.textContent === "1"),
            broken.svg.querySelector("path.stroke").getAttribute("d").split("M").length - 1, broken.said.textContent,
            grouped([alarm("a", "1"), alarm("b", "2"), alarm("a", "3"), { kind: "died", who: "a", text: "" }])
                .map((h) => h.text),
        ];
        place.remove();
        return JSON.stringify(found);
    })()"""
    found = json.loads(await page.ask(script))
    assert found == ["180", 1, True, 2, "loss 1 · lost: 1 time", ["", "3 The last of 2.", "2"]]


async def an_ended_run(page: Browser, place: Path) -> None:
    """Also one whose learners have names like nobody's."""
    with TraceWriter(place / "trace.jsonl", {"run_id": HOSTILE}) as trace:
        for name in (HOSTILE, "ben"):
            trace.note(0.5, name, "metrics", loss=2.0)
    async with TestServer(directory_app(place / "trace.jsonl")) as server:
        await page.resize(390, 800, dark=True, phone=True)
        await page.go(str(server.make_url("/dashboard/")))
        await page.until("document.querySelectorAll('#learners tbody tr').length === 2")
        assert await page.ask("document.querySelector('#learners tbody button').textContent") == HOSTILE
        assert await page.ask("document.querySelectorAll('main img').length") == 0
        assert await page.ask("document.documentElement.dataset.theme") == "dark"
        assert await page.ask("document.documentElement.scrollWidth <= innerWidth")
        await page.ask("document.querySelector('#theme').click()")
        assert await page.ask("document.documentElement.dataset.theme") == "light"
        assert page.complaints == []


def test_the_page_keeps_up_with_a_run_whatever_happens(rig: Callable[..., Rig]) -> None:
    asyncio.run(look(rig()))
