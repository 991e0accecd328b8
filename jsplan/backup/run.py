"""Saves the streams of one backup, several at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.backup.folder import BackupError, BackupFolder
from jsplan.backup.manifest import Manifest
from jsplan.backup.save_stream import save_stream
from jsplan.config.model import Domain
from jsplan.documents.apply import (
    ApplyEvent,
    ApplyStarted,
    BytesMoved,
    StepFinished,
    StepResult,
    StepStarted,
)
from jsplan.errors import ApiError, ExitCode, combine_exit_codes
from jsplan.facts.live import DomainFacts
from jsplan.jetstream import Pool
from jsplan.units import format_timestamp


class BackupOptions(Struct, frozen=True):
    """`addresses` may be globs; `parallelism` is in streams; `check`: servers verify data first."""

    addresses: tuple[str, ...]
    folder: Path
    parallelism: int = 4
    check: bool = False


class BackupResult(Struct):
    """The result of `backup --json`: manifest, saved and unchanged streams, exit code."""

    manifest: Manifest
    folder: Path
    saved: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return self.manifest.to_json() | {
            "saved": self.saved,
            "kept": self.kept,
            "exit_code": self.exit_code,
        }


class BackupRun:
    """One run: several streams at once; a failure is recorded and does not stop the others."""

    def __init__(
        self,
        pool: Pool,
        domains: Mapping[str, Domain],
        facts: Mapping[str, DomainFacts],
        folder: BackupFolder,
        emit: Callable[[ApplyEvent], None],
        options: BackupOptions,
    ) -> None:
        self.pool = pool
        self.domains = domains
        self.facts = facts
        self.folder = folder
        self.emit = emit
        self.options = options
        self.result = BackupResult(folder.manifest, folder.path)

    async def save_all(self, wanted: list[Address]) -> BackupResult:
        """Save all, and write the manifest at the end in any case."""
        slots, manifest = asyncio.Semaphore(max(1, self.options.parallelism)), self.folder.manifest
        manifest.missing = {
            f"{key}/**": each.offline_text for key, each in self.facts.items() if not each.reachable
        }
        self.emit(ApplyStarted(len(wanted), "stream"))
        try:
            async with asyncio.TaskGroup() as group:
                for address in wanted:
                    group.create_task(self._save_one(address, slots))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.folder.write()
        manifest.complete, manifest.finished_at = not manifest.missing, format_timestamp()
        self.folder.write()
        self.result.saved.sort()
        self.result.kept.sort()
        self.result.exit_code = int(self._exit_code())
        return self.result

    async def _save_one(self, address: Address, slots: asyncio.Semaphore) -> None:
        async with slots:
            started, name = time.monotonic(), str(address)
            self.emit(StepStarted(name, name, name))

            def progress(done: int, total: int) -> None:
                self.emit(BytesMoved(name, done, total))

            api, facts = (
                self.pool.api(self.domains[address.domain]),
                self.facts[address.domain],
            )
            problem = None
            try:
                is_new = await save_stream(
                    api, facts, address, self.folder, progress, check=self.options.check
                )
                (self.result.saved if is_new else self.result.kept).append(name)
            except BackupError:
                raise
            except ApiError as error:
                problem = error.full_text
                self.folder.manifest.missing[name] = problem
            ended = StepResult(
                name, name, "stream.snapshot", "failed" if problem else "done", problem
            )
            self.emit(StepFinished(ended, name, time.monotonic() - started))

    def _exit_code(self) -> ExitCode:
        """Return the exit code. A missing domain that may be offline is no failure."""
        excused = {
            f"{key}/**"
            for key, each in self.facts.items()
            if not each.reachable and self.domains[key].may_be_offline is not None
        }
        if not self.folder.manifest.missing.keys() - excused:
            return ExitCode.OK
        return combine_exit_codes(
            [ExitCode.PARTIAL if self.result.saved or self.result.kept else ExitCode.ERROR]
        )
