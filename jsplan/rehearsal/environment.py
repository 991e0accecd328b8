"""The embedded servers of one turn of a rehearsal: started, connected to, filled, the steps carried out, and all of it gone again.

Nothing of it outlives the turn, however it ends: what an orderly end does not reach, the sandbox's guardian ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import Address
from jsplan.applying.executor import Execution
from jsplan.config.model import Connection, Domain
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.errors import SandboxError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.connection import NatsConnection
from jsplan.rehearsal.layout import RehearsalTarget
from jsplan.rehearsal.seed import SeededObjects, seed_servers
from jsplan.sandbox import Sandbox
from jsplan.sandbox.sandbox import NOT_READY_CODES
from jsplan.sandbox.sites import Site, account_user
from jsplan.state import LockInfo, State

#: Seconds after which a cluster that finds no place for something is believed.
NOT_READY_RETRY = 1.0


class RehearsedApi(DomainApi):
    """The API of an embedded server that remembers what it refused, with the request."""

    def __init__(self, domain: Domain, link: NatsConnection) -> None:
        super().__init__(domain, link, read_only=False)
        self.refusals: list[tuple[str, ServerRefusedError]] = []

    async def request(
        self, api: str, payload: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """As `DomainApi.request`, but what a cluster on a busy machine says for a moment is not taken for its last word."""
        end = time.monotonic() + NOT_READY_RETRY
        while True:
            try:
                return await super().request(api, payload, timeout=timeout)
            except ServerRefusedError as error:
                if error.err_code not in NOT_READY_CODES or time.monotonic() > end:
                    self.refusals.append((api, error))
                    raise
            await asyncio.sleep(0.1)


class MemoryBackend:
    """The backend of a rehearsal: its state is in memory as long as it runs, and nowhere else. Nobody else could want its lock."""

    location = "memory"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def read(self) -> State:
        """An empty state."""
        return State(self._plan.workspace, self._plan.environment)

    @asynccontextmanager
    async def lock(self, info: LockInfo, timeout: int) -> AsyncIterator[None]:
        """There is nobody to keep out."""
        del info, timeout
        yield

    async def start(self, state: State) -> None:
        """Begin a session."""
        state.begin_session()

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Carry out changes on the document in memory."""
        for change in changes:
            state.apply_change(change)

    async def flush(self) -> None:
        """What is in memory dies with the process, as it should."""

    async def sync(self) -> None:
        """There is no disk to wait for."""

    async def finish(self, state: State) -> None:
        """Nothing is kept."""

    def may_write(self, seconds: float) -> float:
        """There is no lease."""
        return seconds

    async def close(self) -> None:
        """There is nothing to let go of."""


@dataclass(slots=True)
class RehearsalEnvironment:
    """Running embedded servers, with an API for every domain key that leads to one of them. `seeds` is what was put on them."""

    apis: dict[str, RehearsedApi]
    seeds: SeededObjects = field(default_factory=SeededObjects)

    async def seed(self, places: list[RehearsalTarget], clusters: Mapping[str, str | None]) -> None:
        """Put the live configuration on the servers. Raises ApiError when one does not answer."""
        ones = [place.jetstream for place in places]
        parts = await asyncio.gather(
            *(seed_servers(self.apis[o.key], o.streams, o.consumers, clusters[o.key]) for o in ones)
        )
        for part in parts:
            self.seeds.created |= part.created
            self.seeds.missing |= part.missing

    async def read_touched(self, steps: list[Step]) -> dict[Address, LiveObject]:
        """Everything that the steps touch and that is there, as it is there."""
        touched = sorted({step.target_address for step in steps})
        found = await asyncio.gather(
            *(read_object(self.apis[address.domain], address) for address in touched)
        )
        return {
            address: live for address, live in zip(touched, found, strict=True) if live is not None
        }

    async def execute(self, plan: Plan, parallelism: int) -> list[StepResult]:
        """Carry the plan's steps out here. Raises SandboxError when an embedded server went away."""
        backend = MemoryBackend(plan)
        execution = Execution(
            plan,
            self.apis,
            backend,
            await backend.read(),
            lambda _: None,
            asyncio.Event(),
            parallelism,
        )
        results = await execution.run()
        if execution.lost_domains:
            raise SandboxError(next(iter(execution.lost_domains.values())))
        return results


@asynccontextmanager
async def start_environment(
    sites: list[Site], places: list[RehearsalTarget]
) -> AsyncIterator[RehearsalEnvironment]:
    """Start the servers, connect, and leave nothing behind. Raises SandboxError when they cannot be started or reached."""
    password = secrets.token_hex(16)
    sandbox = Sandbox.of_sites(sites, password)
    try:
        await _run_blocking(sandbox.start, sandbox)
        first = {site.name: sandbox[site.nodes[0]] for site in sites}
        connections = {
            place.jetstream.key: Connection(
                place.jetstream.key,
                url=first[place.site].url,
                user=place.account,
                password=account_user(place.account, password).password,
            )
            for place in places
        }
        async with Pool(connections, {}, read_only=False) as pool:
            await pool.open(connections)
            if pool.failures:
                raise SandboxError(str(next(iter(pool.failures.values()))))
            yield RehearsalEnvironment(
                {
                    key: _open_api(place, key, pool)
                    for place in places
                    for key in place.jetstream.keys | {place.jetstream.key}
                }
            )
    finally:
        await _run_blocking(sandbox.close, sandbox)


def _open_api(place: RehearsalTarget, key: str, pool: Pool) -> RehearsedApi:
    """Straight to the server that a domain is on: how the real one is reached does not matter for what it refuses."""
    return RehearsedApi(
        Domain(key, place.jetstream.key, place.jetstream.domain.js_domain, "$JS.API"),
        pool.connections[place.jetstream.key],
    )


async def _run_blocking(work: Callable[[], None], sandbox: Sandbox) -> None:
    """Run blocking work in a thread. A Ctrl-C meanwhile ends the servers, so that nobody waits for them, and counts once that is over."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            for server in sandbox.servers.values():
                server.interrupt()
            await asyncio.wait({task}, timeout=0.1)
        with suppress(SandboxError):
            task.result()
        raise
