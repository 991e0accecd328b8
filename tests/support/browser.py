"""A headless Chromium, controlled over a pipe: no driver, no port, no library."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

#: Seconds that an answer may take. Generous: the machine may be busy.
TIMEOUT = 60
#: The browser reads from 3 and writes to 4, whatever the ends of the pipes are called here.
_START = (
    "import fcntl, os, sys; ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]; "
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Browser:
    """One page in a browser of its own.

    `requested_urls` are the addresses that the page wanted to load.
    """

    def __init__(self, program: str, *, width: int = 1200, height: int = 900) -> None:
        # Child processes of the browser may still write for a moment after its end.
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        window = (f"--window-size={width},{height}", f"--user-data-dir={self._folder.name}")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(read), str(write), program, *_OPTIONS, *window],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and delete its folder."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one request and return its answer; keep the events that arrive meanwhile."""
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        os.write(
            self._to,
            json.dumps({"id": self._last, "method": method, "params": params} | session).encode()
            + b"\0",
        )
        while True:
            event = self._next()
            if event.get("id") == self._last:
                assert "error" not in event, f"{method}: {event['error']}"
                result = event["result"]
                assert isinstance(result, dict)
                return result
            self._events.append(event)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], end - time.monotonic())
            assert ready, "the browser does not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        document = json.loads(message)
        assert isinstance(document, dict)
        return document

    def open(self, path: Path) -> float:
        """Open a file and return the seconds until it was loaded and drawn."""
        self._events.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())
        self.run(_FRAME)
        return time.monotonic() - began

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, after its promise is resolved."""
        answer = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def timed(self, script: str) -> float:
        """Return the seconds that a statement takes until its result was drawn."""
        spent = self.run(
            f"(async () => {{ const began = performance.now(); {script}; await {_FRAME}; return performance.now() - began }})()"
        )
        return float(spent) / 1000

    @property
    def requested_urls(self) -> list[str]:
        """Addresses of the requests since the page was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[Any]:
        """Errors of scripts, and what the content policy of the page refused."""
        return [
            event["params"]
            for event in self._events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]

    def prefer(self, scheme: str) -> None:
        """Prefer the colour scheme `dark` or `light`."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the visible page."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )
