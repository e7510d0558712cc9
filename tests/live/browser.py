"""A real browser without a window, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
from tests.live.waiting import PATIENCE_S

__all__ = ["Browser", "find_browser"]


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. ``asked``: the addresses of all its requests; ``complaints``: what its console says is wrong."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self._size = (width, height)
        self._number = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def __aenter__(self) -> Self:
        command = find_browser()
        assert command is not None
        self._place = Path(tempfile.mkdtemp(prefix="gruppetto-browser-"))
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"]
        self._process = subprocess.Popen(
            [command, *flags, *quiet, "--remote-debugging-port=0", f"--user-data-dir={self._place}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port_file = self._place / "DevToolsActivePort"
        async with asyncio.timeout(PATIENCE_S):
            while not (port_file.exists() and "\n" in port_file.read_text()):
                assert self._process.poll() is None, "the browser did not start"
                await asyncio.sleep(0.05)
        port = port_file.read_text().split()[0]
        self._http = aiohttp.ClientSession()
        async with self._http.get(f"http://127.0.0.1:{port}/json/list") as reply:
            pages = [page for page in await reply.json() if page["type"] == "page"]
        self._socket = await self._http.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        self._reader = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.resize(*self._size)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()
        await self._http.close()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._place, ignore_errors=True)

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._number)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        async with asyncio.timeout(PATIENCE_S):
            answer = await self._waiting[number]
        del self._waiting[number]
        assert "error" not in answer, (method, answer)
        return answer["result"]

    async def resize(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    async def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer)
        return answer["result"].get("value")

    async def until(self, expression: str, within_s: float = PATIENCE_S) -> float:
        """Wait until it is true; how many seconds that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not await self.ask(f"Boolean({expression})"):
            if loop.time() - began > within_s:
                raise AssertionError(
                    f"not within {within_s} s: {expression}; {await self.ask('document.body.innerText')}"
                )
            await asyncio.sleep(0.05)
        return loop.time() - began

    async def mouse(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        button = "left" if kind != "mouseMoved" else "none"
        await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    async def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                if (waiting := self._waiting.get(said["id"])) is not None and not waiting.done():
                    waiting.set_result(said)
                continue
            match said["method"], said["params"]:
                case "Network.requestWillBeSent", news:
                    self.asked.append(news["request"]["url"])
                case "Runtime.exceptionThrown", news:
                    self.complaints.append(json.dumps(news["exceptionDetails"])[:800])
                case "Runtime.consoleAPICalled", {"type": "error" | "warning" | "assert"} as news:
                    self.complaints.append(json.dumps(news["args"])[:800])
                case "Log.entryAdded", news if news["entry"]["level"] in ("error", "warning"):
                    self.complaints.append(f"{news['entry']['text']} {news['entry'].get('url', '')}")
