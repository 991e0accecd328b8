"""Notifications as JSON lines appended to a file, which may be rotated at any time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jsplan.disk import open_private
from jsplan.documents.alert import AlertEvent
from jsplan.documents.base import dumps
from jsplan.drift.service.sinks.delivery import SinkError
from jsplan.drift.service.worker import Worker
from jsplan.secrets import conceal

#: Seconds for one batch; a network file system may hang.
WRITE_TIMEOUT: float = 30.0


class FileSink:
    """Opens the file for each batch, so that a moved or deleted file is created again."""

    batch = 100

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worker = Worker(f"sink {path.name}")
        self.name = conceal(f"file {path.name}")

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Append them in one write and wait for the disk."""
        lines = b"".join(dumps(event.to_json(), pretty=False) + b"\n" for event in notifications)
        try:
            await self._worker.run(lambda: self._append(lines), WRITE_TIMEOUT)
        except TimeoutError:
            raise SinkError(
                f"cannot write {self._path}: the disk did not answer within {WRITE_TIMEOUT:g} s"
            ) from None

    def _append(self, lines: bytes) -> None:
        try:
            with open_private(self._path, os.O_APPEND) as file:
                self._complete_last_line(file.fileno())
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SinkError(f"cannot write {self._path}: {error.strerror}") from None

    def _complete_last_line(self, number: int) -> None:
        """End a line that a full disk cut off, so that it does not join the next one."""
        if os.fstat(number).st_size:
            with self._path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    os.write(number, b"\n")

    async def close(self) -> None:
        """Do nothing: no file stays open."""
