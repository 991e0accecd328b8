"""A headless Chromium, spoken to over a pipe in its own protocol: no driver, no port, no library."""

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
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

#: Seconds that an answer may take; generous, since the machine may be busy with other things.
PATIENCE = 60
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
    """One page in a browser of its own. `requested_urls` are the addresses that the page wanted to load."""

    def __init__(self, program: str, *, width: int = 1200, height: int = 900) -> None:
        self._folder = tempfile.TemporaryDirectory(
            ignore_cleanup_errors=True
        )  # its helpers may write for a moment longer
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self._heard: list[dict[str, Any]] = []
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, and forget what it kept."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One request and its answer; what happens meanwhile is remembered."""
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        os.write(
            self._to,
            json.dumps({"id": self._last, "method": method, "params": params} | session).encode()
            + b"\0",
        )
        while True:
            said = self._next()
            if said.get("id") == self._last:
                assert "error" not in said, f"{method}: {said['error']}"
                found = said["result"]
                assert isinstance(found, dict)
                return found
            self._heard.append(said)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], end - time.monotonic())
            assert ready, "the browser does not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(message)
        assert isinstance(found, dict)
        return found

    def open(self, path: Path) -> float:
        """Open a file; the seconds until it was loaded and drawn."""
        self._heard.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        while not any(said.get("method") == "Page.loadEventFired" for said in self._heard):
            self._heard.append(self._next())
        self.run(_FRAME)
        return time.monotonic() - began

    def run(self, script: str) -> Any:
        """What an expression of JavaScript gives, a promise when it is kept."""
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
        """The seconds that a statement takes until its result was drawn."""
        spent = self.run(
            f"(async () => {{ const began = performance.now(); {script}; await {_FRAME}; return performance.now() - began }})()"
        )
        return float(spent) / 1000

    @property
    def requested_urls(self) -> list[str]:
        """Addresses of requests since the page was opened."""
        return [
            said["params"]["request"]["url"]
            for said in self._heard
            if said.get("method") == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[Any]:
        """Errors of scripts, and what the page's own policy refused."""
        return [
            said["params"]
            for said in self._heard
            if said.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]

    def prefer(self, scheme: str) -> None:
        """A person who likes it `dark` or `light`."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )
