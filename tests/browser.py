"""Headless Chromium for tests, spoken to over its debugging pipe: one page, its errors, what it loaded."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.programs import program

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
TIMEOUT = 60.0


class Browser:
    """One tab."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, os.fdopen(read, "rb", buffering=0)
        self._buffer = b""
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.problems: list[str] = []
        """Exceptions, and errors of the console."""
        self.asked: list[str] = []
        """URLs of all that was loaded."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Be a screen of this size and taste."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, until: Callable[[Any], object] = bool) -> Any:
        """The expression's value, once it is as wanted."""
        end = time.monotonic() + TIMEOUT
        while not until(value := self.run(expression)):
            assert time.monotonic() < end, f"{expression} is {value!r}; {self.problems}"
            time.sleep(0.1)
        return value

    def write(self, text: str) -> None:
        """Into what has the focus, as a keyboard or paste would."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key by its name, such as Enter or Tab."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path) -> None:
        """The whole page, as PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._event(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = self._read.read(1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _event(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])


@contextmanager
def browsing(directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in ``directory``."""
    to_browser, from_browser = os.pipe(), os.pipe()
    command = [program("chromium", "chromium"), *FLAGS, f"--user-data-dir={directory}"]

    def place() -> None:  # it reads from descriptor 3 and writes to 4
        ends = os.dup(to_browser[0]), os.dup(from_browser[1])
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=place, start_new_session=True
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Browser(to_browser[1], from_browser[0])
    finally:
        process.kill()
        process.wait()
        os.close(to_browser[1])
