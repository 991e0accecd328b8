"""Files that show how things are now: a report, metrics for a text file collector. Written whole, retried until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jsplan.disk import replace_file
from jsplan.drift.worker import Worker

#: Seconds after which a file that could not be written is tried again.
RETRY_INTERVAL: Final = 2.0
#: Seconds that writing one may take; a network file system may hang for as long as it likes.
WRITE_TIMEOUT: Final = 30.0


class SnapshotFile:
    """One file. `make` gives what is to be in it; `told(path, error)` hears of each failure, and with None of each success.

    With `public` a new file may be read as the umask says: a collector of metrics is another user.
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
        """What it shows has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Write it whenever it is due, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self.write():
                self._changed.set()
                await asyncio.sleep(RETRY_INTERVAL)

    async def write(self, seconds: float = WRITE_TIMEOUT) -> bool:
        """Write it now, within so many seconds; whether that worked."""
        content = self._render()
        if content is None:
            return True
        try:
            await self._worker.run(
                lambda: replace_file(self.path, content, private=not self._public), seconds
            )
        except OSError as error:
            self._on_result(
                self.path,
                f"cannot write {self.path}: {error.strerror or f'the disk did not answer within {seconds:g} s'}",
            )
            return False
        self._on_result(self.path, None)
        return True
