"""apply --backup: save each stream right before the step that deletes its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jsplan.address import STAGING_PREFIX, Address
from jsplan.applying.step_context import StepFailed
from jsplan.backup.folder import BackupError, BackupFolder, open_for_writing
from jsplan.backup.save_stream import MEMORY_HINT, MEMORY_NOT_SUPPORTED, save_stream
from jsplan.documents.apply import BytesMoved
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError, RefusedError
from jsplan.facts.live import DomainFacts
from jsplan.jetstream import DomainApi
from jsplan.options import Observer
from jsplan.resources.server_features import RESTORE_ANY_NAME_LEVEL
from jsplan.units import format_timestamp


def find_deleting_steps(plan: Plan) -> dict[str, Address]:
    """Return by step id the stream to save before the step."""
    counted = {
        change.address
        for change in plan.resource_changes
        for hazard in change.hazards
        if hazard.code == "DELETES_MESSAGES"
    }
    touched = {
        step.id: step.target_address
        for step in plan.steps
        if _is_deleting(step) or (step.kind.loses == "some" and step.address in counted)
    }
    return {
        id_: Address.of_stream(address.domain, address.stream) for id_, address in touched.items()
    }


def _is_deleting(step: Step) -> bool:
    """Return True if it deletes or empties a stream, as quiesce does, or deletes an entry of it."""
    api = str((step.request or {}).get("api") or "")
    return step.kind.loses == "all" or (
        api.startswith(("STREAM.DELETE.", "STREAM.PURGE."))
        and not step.target_address.stream.startswith(STAGING_PREFIX)
    )


class BackupBeforeDelete:
    """The `before_write` hook of one apply: saves each stream once, into a folder of this apply."""

    def __init__(
        self, plan: Plan, apis: Mapping[str, DomainApi], root: Path, observer: Observer
    ) -> None:
        self.path = root / f"{format_timestamp().replace(':', '').replace('-', '')}-{plan.id[:8]}"
        self.saved: list[str] = []
        self._plan = plan
        self._apis = apis
        self._observer = observer
        self._stream_by_step = find_deleting_steps(plan)
        self._stream_locks: dict[Address, asyncio.Lock] = {}
        self._stack = ExitStack()
        self._folder: BackupFolder | None = None

    def require_possible(self) -> None:
        """Raise RefusedError for streams without snapshot support, before any change."""
        changes = {c.address: c.change.before or {} for c in self._plan.resource_changes}
        in_memory = {name for name, config in changes.items() if config.get("storage") == "memory"}
        streams = set(self._stream_by_step.values())
        old = {str(one) for one in streams if self._api_level(one) < RESTORE_ANY_NAME_LEVEL}
        if memory := sorted(old & in_memory):
            listed = "".join(f"\n  - {text}" for text in memory)
            raise RefusedError(
                "refused, nothing was changed: with --backup these would have to be saved,"
                f" but {MEMORY_NOT_SUPPORTED}:{listed}",
                hint=f"{MEMORY_HINT} Or exclude it with --exclude, or run without --backup.",
            )

    async def before_write(self, step: Step) -> bool:
        """Save the stream of the step. False if there is none or it is saved. Raises StepFailed."""
        address = self._stream_by_step.get(step.id)
        if address is None:
            return False
        async with self._stream_locks.setdefault(address, asyncio.Lock()):
            if str(address) in self.saved:
                return False
            try:
                await self._save(step, address)
            except (ApiError, BackupError) as error:
                raise StepFailed(
                    f"{address} could not be saved first: {error.full_text}; nothing was written"
                ) from None
            self.saved.append(str(address))
        return True

    async def _save(self, step: Step, address: Address) -> None:
        def progress(done: int, total: int) -> None:
            self._observer.event(BytesMoved(step.id, done, total))

        if self._folder is None:
            self._folder = self._stack.enter_context(
                open_for_writing(self.path, self._plan.workspace, self._plan.environment)
            )
        await save_stream(
            self._apis[address.domain], self._facts(address), address, self._folder, progress
        )
        self._folder.write()  # on disk before the step

    def _api_level(self, address: Address) -> int:
        return int(self._plan_domain(address).get("api_level") or 0)

    def _plan_domain(self, address: Address) -> Mapping[str, Any]:
        return self._plan.domains.get(address.domain) or {}

    def _facts(self, address: Address) -> DomainFacts:
        domain, level = self._plan_domain(address), self._api_level(address)
        version, server = domain.get("version"), dict(domain.get("server") or {})
        return DomainFacts(address.domain, True, level=level, version=version, server=server)

    @contextmanager
    def open_folder(self) -> Iterator[None]:
        """Keep the folder open during the apply, and mark its manifest complete at the end."""
        with self._stack:
            yield
            if self._folder is None:
                return
            manifest = self._folder.manifest
            manifest.complete, manifest.finished_at = True, format_timestamp()
            try:
                self._folder.write()
            except BackupError as error:  # all streams are on disk; only `complete` is missing
                self._observer.warn(str(error))
