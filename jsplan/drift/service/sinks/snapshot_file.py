"""Files with the current status: a report, and metrics for a text file collector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jsplan.disk import replace_file
from jsplan.drift.service.worker import Worker

#: Seconds until a failed write is retried.
RETRY_INTERVAL: Final = 2.0
#: Seconds for one write; a network file system may hang.
WRITE_TIMEOUT: Final = 30.0


class SnapshotFile:
    """One file, written whole and retried until it succeeds.

    `render` returns the content. `on_result(path, error)` is called after each write, with None for
    success. With `public` the umask decides who may read a new file: a metrics collector is another
    user.
    """

    def __init__(
        self,
        path: Path,
        render: Callable[[], bytes | None],
        on_result: Callable[[Path, str | None], None],
        *,
        public: bool = False,
    ) -> None:
        self.path = path
        self._public = public
        self._render = render
        self._on_result = on_result
        self._changed = asyncio.Event()
        self._worker = Worker(f"file {path.name}")

    def mark_changed(self) -> None:
        """Request a write."""
        self._changed.set()

    async def run(self) -> None:
        """Write on each request, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self.write():
                self._changed.set()
                await asyncio.sleep(RETRY_INTERVAL)

    async def write(self, seconds: float = WRITE_TIMEOUT) -> bool:
        """Write it now, within `seconds`. Return True on success."""
        content = self._render()
        if content is None:
            return True
        try:
            await self._worker.run(
                lambda: replace_file(self.path, content, private=not self._public), seconds
            )
        except OSError as error:
            reason = error.strerror or f"the disk did not answer within {seconds:g} s"
            self._on_result(self.path, f"cannot write {self.path}: {reason}")
            return False
        self._on_result(self.path, None)
        return True
