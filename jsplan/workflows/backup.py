"""backup: streams with configuration, data and consumers into a folder. Read-only, no lock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsplan.address import Address, is_glob, matches
from jsplan.backup.folder import BackupError, BackupFolder, open_for_writing
from jsplan.backup.manifest import Manifest
from jsplan.backup.save_stream import save_stream
from jsplan.config.model import Domain, LoadOptions
from jsplan.context import Context, known_domains, open_context, open_pool, state_bucket
from jsplan.diagnostics import did_you_mean
from jsplan.documents.apply import ApplyStarted, BytesMoved, StepFinished, StepResult, StepStarted
from jsplan.errors import (
    ApiError,
    ConnectError,
    ExitCode,
    JsplanError,
    UsageError,
    combine_exit_codes,
)
from jsplan.event_loop import run_until_complete
from jsplan.facts.inventory import OWN_STREAMS, is_state_bucket
from jsplan.facts.live import DomainFacts
from jsplan.facts.reader import identify_domain, read_object, run_parallel
from jsplan.jetstream import DomainApi, Pool
from jsplan.options import Observer
from jsplan.subjects import is_valid
from jsplan.units import format_timestamp


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """`addresses` may be globs; `parallelism` is in streams; `check`: servers verify data first."""

    addresses: tuple[str, ...]
    folder: Path
    parallelism: int = 4
    check: bool = False


@dataclass(slots=True)
class BackupResult:
    """The result of `backup --json`: manifest, saved and unchanged streams, exit code."""

    manifest: Manifest
    folder: Path
    saved: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return self.manifest.to_json() | {
            "saved": sorted(self.saved),
            "kept": sorted(self.kept),
            "exit_code": self.exit_code,
        }


def backup(load: LoadOptions, options: BackupOptions, observer: Observer) -> BackupResult:
    """Save each stream, bucket and object store that the addresses name, with its consumers.

    Failed ones are in `manifest.missing`, and the others are still saved (exit 6, or 1 if nothing
    was saved). A folder with a backup of this workspace is updated: unchanged streams are not read
    again. Raises UsageError for addresses that cannot be backed up, JsplanError for one that names
    nothing, ConnectError, and BackupError for the folder.
    """
    return run_until_complete(_backup(load, options, observer))


async def _backup(load: LoadOptions, options: BackupOptions, observer: Observer) -> BackupResult:
    async with open_context(load) as context, open_pool(context, read_only=True) as pool:
        domains = _select_domains(context, options.addresses)
        observer.phase(f"Looking at {len(domains)} domain{'' if len(domains) == 1 else 's'}")
        facts = await _identify_domains(context, pool, domains)
        wanted = await _select_streams(context, pool, facts, domains, options.addresses)
        with open_for_writing(
            options.folder, context.workspace.name, context.workspace.environment
        ) as folder:
            run_ = _BackupRun(context, pool, facts, folder, observer, options)
            return await run_.save_all(wanted)


def _select_domains(context: Context, texts: Iterable[str]) -> dict[str, Domain]:
    """Select the domains of the addresses. Globs skip `same_as` domains."""
    declared, found = context.workspace.domains, dict[str, Domain]()
    for text in texts:
        domain, _, rest = text.partition("/")
        if rest.startswith("consumer/"):
            raise UsageError(
                f"{text}: consumers are saved with their stream",
                hint=f"Name the stream: {domain}/stream/{_stream_name(rest)}",
            )
        keys = (
            [
                key
                for key, each in declared.items()
                if each.same_as is None and _matches_domain(domain, key)
            ]
            if is_glob(domain)
            else [domain]
        )
        if missing := [key for key in keys if key not in declared] or (not keys and [domain]):
            raise UsageError(
                f"there is no domain {missing[0]}.{did_you_mean(missing[0], declared)}"
            )
        found |= {key: declared[key] for key in keys}
    return found


def _stream_name(rest: str) -> str:
    return rest.split("/")[1] or "NAME"


def _matches_domain(glob: str, key: str) -> bool:
    return matches(glob, key)


async def _identify_domains(
    context: Context, pool: Pool, domains: dict[str, Domain]
) -> dict[str, DomainFacts]:
    await pool.open(domain.connection for domain in domains.values())
    known = known_domains(context)
    found = await asyncio.gather(
        *(
            identify_domain(pool, domain, context.workspace.domains, known)
            for domain in domains.values()
        )
    )
    if not any(facts.reachable for facts in found):
        raise ConnectError(
            f"no domain can be reached: {found[0].reason}",
            hint="Nothing was saved. Look at the connections and servers.",
        )
    return {facts.key: facts for facts in found}


async def _select_streams(
    context: Context,
    pool: Pool,
    facts: dict[str, DomainFacts],
    domains: dict[str, Domain],
    texts: Iterable[str],
) -> list[Address]:
    """Select existing streams. Raises JsplanError for an address or glob without a match."""
    reachable = [key for key, each in facts.items() if each.reachable]
    existing = [
        address
        for found in await asyncio.gather(
            *(_list_streams(pool.api(domains[key]), texts) for key in reachable)
        )
        for address in found
    ]
    found: set[Address] = set()
    states = await _find_state_buckets(
        context,
        pool,
        domains,
        [a for a in existing if any(is_glob(text) and matches(text, a) for text in texts)],
    )
    for text in texts:
        matching = [
            address
            for address in existing
            if matches(text, address) and not (is_glob(text) and address in states)
        ]
        offline = [
            key
            for key, each in facts.items()
            if not each.reachable and (_matches_domain(text.partition("/")[0], key))
        ]
        if not matching and not offline:
            raise JsplanError(
                f"{text} matches no stream",
                hint="Globs go over what is on the servers: hub/**, hub/kv/*",
            )
        found |= set(matching)
    return sorted(found)


async def _list_streams(api: DomainApi, texts: Iterable[str]) -> list[Address]:
    """List candidates in a domain; all of them only for a glob, as some users may not list."""
    key = api.domain.key
    if any(is_glob(text) and _matches_domain(text.partition("/")[0], key) for text in texts):
        return [
            Address.of_stream(key, name)
            for name in await api.stream_names()
            if not name.startswith(OWN_STREAMS)
        ]
    wanted = {
        address
        for text in texts
        if (address := _parse_stream_address(text)) is not None and address.domain == key
    }
    return [
        address for address in sorted(wanted) if await api.stream_info(address.stream) is not None
    ]


def _parse_stream_address(text: str) -> Address | None:
    """Return the stream that an address names, or None for a name that no stream can have."""
    try:
        address = Address.parse(text)
    except ValueError:
        return None
    usual = Address.of_stream(
        address.domain, address.stream
    ) == address and not address.stream.startswith(OWN_STREAMS)
    return address if usual and is_valid(address.stream) and "." not in address.stream else None


async def _find_state_buckets(
    context: Context, pool: Pool, domains: dict[str, Domain], found: Iterable[Address]
) -> set[Address]:
    """Find buckets with states of workspaces. Globs omit them: each lock changes the state."""
    states = {
        address
        for address in found
        if context.topology.canonicalize(address) in state_bucket(context.workspace)
    }

    async def check(address: Address) -> None:
        live = await read_object(pool.api(domains[address.domain]), address)
        if live is not None and is_state_bucket(live):
            states.add(address)

    await run_parallel(
        check, [address for address in found if address.kind == "kv" and address not in states]
    )
    return states


class _BackupRun:
    """One run: several streams at once; a failure is recorded and does not stop the others."""

    def __init__(
        self,
        context: Context,
        pool: Pool,
        facts: dict[str, DomainFacts],
        folder: BackupFolder,
        observer: Observer,
        options: BackupOptions,
    ) -> None:
        self.context = context
        self.pool = pool
        self.facts = facts
        self.folder = folder
        self.observer = observer
        self.options = options
        self.result = BackupResult(folder.manifest, folder.path)

    async def save_all(self, wanted: list[Address]) -> BackupResult:
        """Save all, and write the manifest at the end in any case."""
        slots, manifest = asyncio.Semaphore(max(1, self.options.parallelism)), self.folder.manifest
        manifest.missing = {
            f"{key}/**": each.offline_text for key, each in self.facts.items() if not each.reachable
        }
        self.observer.event(ApplyStarted(len(wanted), "stream"))
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
        self.result.exit_code = int(self._exit_code())
        return self.result

    async def _save_one(self, address: Address, slots: asyncio.Semaphore) -> None:
        async with slots:
            started, name = time.monotonic(), str(address)
            self.observer.event(StepStarted(name, name, name))

            def progress(done: int, total: int) -> None:
                self.observer.event(BytesMoved(name, done, total))

            api, facts = (
                self.pool.api(self.context.workspace.domains[address.domain]),
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
            self.observer.event(StepFinished(ended, name, time.monotonic() - started))

    def _exit_code(self) -> ExitCode:
        """Return the exit code. A missing domain that may be offline is no failure."""
        domains = self.context.workspace.domains
        excused = {
            f"{key}/**"
            for key, each in self.facts.items()
            if not each.reachable and domains[key].may_be_offline is not None
        }
        if not self.folder.manifest.missing.keys() - excused:
            return ExitCode.OK
        return combine_exit_codes(
            [ExitCode.PARTIAL if self.result.saved or self.result.kept else ExitCode.ERROR]
        )
