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
from jsplan.facts.survey import read_object
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.link import Link
from jsplan.rehearsal.seeding import Seeds, seed
from jsplan.rehearsal.shape import Place
from jsplan.sandbox import Sandbox
from jsplan.sandbox.sandbox import NOT_YET
from jsplan.sandbox.sites import Site, user_of
from jsplan.state import LockInfo, State

#: Seconds after which a cluster that finds no place for something is believed.
PATIENCE = 1.0


class RehearsedApi(DomainApi):
    """The API of an embedded server that remembers what it refused, with the request."""

    def __init__(self, domain: Domain, link: Link) -> None:
        super().__init__(domain, link, read_only=False)
        self.refusals: list[tuple[str, ServerRefusedError]] = []

    async def request(self, api: str, payload: dict[str, Any] | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """As `DomainApi.request`, but what a cluster on a busy machine says for a moment is not taken for its last word."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return await super().request(api, payload, timeout=timeout)
            except ServerRefusedError as error:
                if error.err_code not in NOT_YET or time.monotonic() > end:
                    self.refusals.append((api, error))
                    raise
            await asyncio.sleep(0.1)


class Forgetful:
    """The backend of a rehearsal: its state is in memory as long as it runs, and nowhere else. Nobody else could want its lock."""

    place = "memory"

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
        state.begin()

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Carry out changes on the document in memory."""
        for change in changes:
            state.apply(change)

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
class Stage:
    """Running embedded servers, with an API for every domain key that leads to one of them. `seeds` is what was put on them."""

    apis: dict[str, RehearsedApi]
    seeds: Seeds = field(default_factory=Seeds)

    async def fill(self, places: list[Place], clusters: Mapping[str, str | None]) -> None:
        """Put the live configuration on the servers. Raises ApiError when one does not answer."""
        ones = [place.jetstream for place in places]
        parts = await asyncio.gather(*(seed(self.apis[o.key], o.streams, o.consumers, clusters[o.key]) for o in ones))
        for part in parts:
            self.seeds.made |= part.made
            self.seeds.missing |= part.missing

    async def there(self, steps: list[Step]) -> dict[Address, LiveObject]:
        """Everything that the steps touch and that is there, as it is there."""
        touched = sorted({step.touches for step in steps})
        found = await asyncio.gather(*(read_object(self.apis[address.domain], address) for address in touched))
        return {address: live for address, live in zip(touched, found, strict=True) if live is not None}

    async def carry_out(self, plan: Plan, parallelism: int) -> list[StepResult]:
        """Carry the plan's steps out here. Raises SandboxError when an embedded server went away."""
        backend = Forgetful(plan)
        execution = Execution(plan, self.apis, backend, await backend.read(), lambda _: None, asyncio.Event(), parallelism)
        results = await execution.run()
        if execution.lost:
            raise SandboxError(next(iter(execution.lost.values())))
        return results


@asynccontextmanager
async def staged(sites: list[Site], places: list[Place]) -> AsyncIterator[Stage]:
    """Start the servers, connect, and leave nothing behind. Raises SandboxError when they cannot be started or reached."""
    password = secrets.token_hex(16)
    sandbox = Sandbox.of_sites(sites, password)
    try:
        await _to_its_end(sandbox.start, sandbox)
        first = {site.name: sandbox[site.nodes[0]] for site in sites}
        connections = {
            place.jetstream.key: Connection(
                place.jetstream.key, url=first[place.site].url, user=place.account, password=user_of(place.account, password).password
            )
            for place in places
        }
        async with Pool(connections, {}, read_only=False) as pool:
            await pool.open(connections)
            if pool.failures:
                raise SandboxError(str(next(iter(pool.failures.values()))))
            yield Stage({key: _api(place, key, pool) for place in places for key in place.jetstream.keys | {place.jetstream.key}})
    finally:
        await _to_its_end(sandbox.close, sandbox)


def _api(place: Place, key: str, pool: Pool) -> RehearsedApi:
    """Straight to the server that a domain is on: how the real one is reached does not matter for what it refuses."""
    return RehearsedApi(Domain(key, place.jetstream.key, place.jetstream.domain.js_domain, "$JS.API"), pool.links[place.jetstream.key])


async def _to_its_end(work: Callable[[], None], sandbox: Sandbox) -> None:
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
