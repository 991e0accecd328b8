"""The embedded servers of one round of a rehearsal: start, seed, execute the steps, stop.

Nothing outlives the round: what an orderly end does not stop, the guardian of the sandbox does.
Servers are seeded with the live configuration, without data. An existing object need not be one
that the server would create: updates allow more, and rules changed since. So an object that is
refused is created with the fields that only a creation sets, and then updated to the rest.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.applying.executor import Execution
from jsplan.config.model import Connection, Domain
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError, SandboxError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object, run_parallel
from jsplan.facts.unmanaged import OWN_STREAMS
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.connection import NatsConnection
from jsplan.planning.pauses import PAUSE
from jsplan.rehearsal.layout import RehearsalTarget
from jsplan.resources.fields import Config, strip_metadata
from jsplan.sandbox import Sandbox
from jsplan.sandbox.sandbox import NOT_READY_CODES
from jsplan.sandbox.sites import Site, account_user
from jsplan.state import LockInfo, State

#: Seconds for one creation on a busy machine, and for a cluster to settle.
REQUEST_TIMEOUT = 30.0
#: Fields that only a creation sets, or that a creation checks against the rest of the account.
_CREATION_FIELDS: Final = (
    "name",
    "subjects",
    "retention",
    "storage",
    "mirror",
    "sources",
    "first_seq",
    "max_consumers",
    "max_bytes",
    "allow_msg_counter",
    "allow_msg_ttl",
    "persist_mode",
    "placement",
)
#: A time in the past is refused for a new consumer; updates do not check it.


class SeededObjects(Struct):
    """The objects on the embedded servers. `missing` has the reason for each other one."""

    created: dict[Address, LiveObject] = field(default_factory=dict)
    missing: dict[Address, str] = field(default_factory=dict)


async def seed_servers(
    api: DomainApi,
    streams: Iterable[LiveObject],
    consumers: Iterable[LiveObject],
    cluster: str | None,
) -> SeededObjects:
    """Create streams, origins first, then consumers. Raises ApiError without an answer."""
    seeds = SeededObjects()
    found = {o.address: o for o in streams}

    async def stream(address: Address) -> None:
        await _seed_object(
            seeds, found[address], lambda: _create_stream(api, found[address], cluster)
        )

    for batch in _order_by_origin(found.values()):
        await run_parallel(stream, batch)
    consumer_objects = {o.address: o for o in consumers}

    async def consumer(address: Address) -> None:
        if address.parent in seeds.missing:
            seeds.missing[address] = f"so is its stream {address.parent}"
        else:
            live = consumer_objects[address]
            await _seed_object(seeds, live, lambda: _create_consumer(api, live))

    await run_parallel(consumer, consumer_objects)
    return seeds


async def _seed_object(seeds: SeededObjects, live: LiveObject, make: Callable[[], Any]) -> None:
    try:
        await make()
    except ServerRefusedError as error:
        if not live.address.stream.startswith(OWN_STREAMS):
            seeds.missing[live.address] = (
                f"the embedded server refuses what is live: {error.description} ({error.err_code})"
            )
    else:
        seeds.created[live.address] = live


def _order_by_origin(streams: Iterable[LiveObject]) -> list[list[Address]]:
    """Return batches in which each stream follows its local origins. Cycles come last."""
    found = {
        o.address: {Address.of_stream(o.address.domain, name) for name in _local_origins(o.raw)}
        for o in streams
    }
    sorter = TopologicalSorter(
        {address: sorted(after & found.keys()) for address, after in found.items()}
    )
    try:
        sorter.prepare()
    except CycleError:
        return [sorted(found, key=lambda address: bool(found[address]))]
    batches = []
    while sorter.is_active():
        batches.append(sorted(sorter.get_ready()))
        sorter.done(*batches[-1])
    return batches


def _local_origins(config: Config) -> list[str]:
    origins = [config["mirror"]] if config.get("mirror") else []
    return [
        origin["name"]
        for origin in (*origins, *(config.get("sources") or ()))
        if not origin.get("external")
    ]


def client_config(config: Config, cluster: str | None = None) -> Config:
    """Return the configuration as a client sends it, without a placement in another cluster."""
    plain = {name: value for name, value in config.items() if name != "metadata"}
    if metadata := strip_metadata(config.get("metadata") or {}):
        plain["metadata"] = metadata
    placement = plain.get("placement") or {}
    if placement.get("cluster") not in (None, "", cluster):
        plain["placement"] = {name: value for name, value in placement.items() if name != "cluster"}
    return plain


async def _create_stream(api: DomainApi, live: LiveObject, cluster: str | None) -> None:
    config, name = client_config(live.raw, cluster), live.address.stream
    try:
        await api.request(f"STREAM.CREATE.{name}", config, timeout=REQUEST_TIMEOUT)
    except ServerRefusedError:
        await _create_then_update(api, config)
        await _wait_until_stable(api, live.address)


async def _create_then_update(api: DomainApi, config: Config) -> None:
    name = config["name"]
    await api.request(
        f"STREAM.CREATE.{name}",
        {key: config[key] for key in _CREATION_FIELDS if key in config},
        timeout=REQUEST_TIMEOUT,
    )
    try:
        await api.request(f"STREAM.UPDATE.{name}", config, timeout=REQUEST_TIMEOUT)
    except ServerRefusedError:
        await api.request(f"STREAM.DELETE.{name}", timeout=REQUEST_TIMEOUT)
        raise


async def _wait_until_stable(api: DomainApi, address: Address) -> None:
    """Wait until a cluster has the replicas of an update. Raises ApiError when it does not."""
    end = time.monotonic() + REQUEST_TIMEOUT
    while (
        (live := await read_object(api, address)) is not None
        and live.is_clustered
        and not live.is_stable
    ):
        if time.monotonic() > end:
            raise ApiError(f"the embedded cluster does not settle {address}")
        await asyncio.sleep(0.05)


async def _create_consumer(api: DomainApi, live: LiveObject) -> None:
    config, address = client_config(live.raw), live.address
    request = f"CONSUMER.CREATE.{address.stream}.{address.consumer}"

    def payload(config: Mapping[str, Any]) -> dict[str, Any]:
        return {"stream_name": address.stream, "config": config, "action": "create"}

    try:
        await api.request(request, payload(config), timeout=REQUEST_TIMEOUT)
    except ServerRefusedError:
        if PAUSE not in config:
            raise
        await api.request(
            request,
            payload({name: value for name, value in config.items() if name != PAUSE}),
            timeout=REQUEST_TIMEOUT,
        )


#: Seconds before a cluster's answer that it has no place is taken as final.
NOT_READY_RETRY = 1.0


class RehearsedApi(DomainApi):
    """The API of an embedded server that remembers what it refused, with the request."""

    def __init__(self, domain: Domain, connection: NatsConnection) -> None:
        super().__init__(domain, connection, read_only=False)
        self.refusals: list[tuple[str, ServerRefusedError]] = []

    async def request(
        self, api: str, payload: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Request as `DomainApi` does, and retry for a moment while a cluster is not ready."""
        end = time.monotonic() + NOT_READY_RETRY
        while True:
            try:
                return await super().request(api, payload, timeout=timeout)
            except ServerRefusedError as error:
                if error.err_code not in NOT_READY_CODES or time.monotonic() > end:
                    self.refusals.append((api, error))
                    raise
            await asyncio.sleep(0.1)

    async def create_each(
        self,
        requests: Sequence[tuple[str, dict[str, Any]]],
        outcomes: dict[int, ApiError | None],
        *,
        timeout: float,
    ) -> None:
        """Create each as `request` does, all at once."""

        async def create(number: int) -> None:
            outcomes[number] = None
            try:
                await self.request(*requests[number], timeout=timeout)
            except ApiError as error:
                outcomes[number] = error

        await asyncio.gather(*(create(number) for number in range(len(requests))))


class MemoryBackend:
    """The backend of a rehearsal: its state is only in memory. No other process uses it."""

    location = "memory"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def read(self) -> State:
        """Return an empty state."""
        return State(self._plan.workspace, self._plan.environment)

    @asynccontextmanager
    async def lock(self, info: LockInfo, timeout: int) -> AsyncIterator[None]:
        """Do nothing: no other process can have the lock."""
        del info, timeout
        yield

    async def start(self, state: State) -> None:
        """Begin a session."""
        state.begin_session()

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Apply changes to the document in memory."""
        for change in changes:
            state.apply_change(change)

    async def flush(self) -> None:
        """Do nothing: the state in memory is not stored."""

    async def sync(self) -> None:
        """Do nothing: there is no disk."""

    async def finish(self, state: State) -> None:
        """Do nothing: nothing is stored."""

    def may_write(self, seconds: float) -> float:
        """Return `seconds`: there is no lease."""
        return seconds

    async def close(self) -> None:
        """Do nothing: nothing is open."""


class RehearsalEnvironment(Struct):
    """Running embedded servers, with an API per domain key. `seeds` was created on them."""

    apis: dict[str, RehearsedApi]
    seeds: SeededObjects = field(default_factory=SeededObjects)

    async def seed(
        self, targets: list[RehearsalTarget], clusters: Mapping[str, str | None]
    ) -> None:
        """Put the live configuration on the servers. Raises ApiError when one does not answer."""
        jetstreams = [target.jetstream for target in targets]
        parts = await asyncio.gather(
            *(
                seed_servers(self.apis[each.key], each.streams, each.consumers, clusters[each.key])
                for each in jetstreams
            )
        )
        for part in parts:
            self.seeds.created |= part.created
            self.seeds.missing |= part.missing

    async def read_touched(self, steps: list[Step]) -> dict[Address, LiveObject]:
        """Read the objects that the steps touch and that exist."""
        touched = sorted({step.target_address for step in steps})
        found = await asyncio.gather(
            *(read_object(self.apis[address.domain], address) for address in touched)
        )
        return {
            address: live for address, live in zip(touched, found, strict=True) if live is not None
        }

    async def execute(self, plan: Plan, parallelism: int) -> list[StepResult]:
        """Execute the plan's steps. Raises SandboxError when an embedded server is lost."""
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
    sites: list[Site], targets: list[RehearsalTarget]
) -> AsyncIterator[RehearsalEnvironment]:
    """Start the servers, connect, and stop them at the end. Raises SandboxError on failure."""
    password = secrets.token_hex(16)
    async with run_sandbox(sites, password) as sandbox:
        first = {site.name: sandbox[site.nodes[0]] for site in sites}
        connections = {
            target.jetstream.key: Connection(
                target.jetstream.key,
                url=first[target.site].url,
                user=target.account,
                password=account_user(target.account, password).password,
            )
            for target in targets
        }
        async with Pool(connections, {}, read_only=False) as pool:
            await pool.open(connections)
            if pool.failures:
                raise SandboxError(str(next(iter(pool.failures.values()))))
            yield RehearsalEnvironment(
                {
                    key: _open_api(target, key, pool)
                    for target in targets
                    for key in target.jetstream.keys | {target.jetstream.key}
                }
            )


@asynccontextmanager
async def run_sandbox(sites: Iterable[Site], password: str) -> AsyncIterator[Sandbox]:
    """Start the servers of these sites, and stop them at the end. Raises SandboxError."""
    sandbox = Sandbox.of_sites(sites, password)
    try:
        await _run_blocking(sandbox.start, sandbox)
        yield sandbox
    finally:
        await _run_blocking(sandbox.close, sandbox)


def _open_api(target: RehearsalTarget, key: str, pool: Pool) -> RehearsedApi:
    """Open the API directly at the embedded server, without the real route through a leafnode."""
    return RehearsedApi(
        Domain(key, target.jetstream.key, target.jetstream.domain.js_domain, "$JS.API"),
        pool.connections[target.jetstream.key],
    )


async def _run_blocking(work: Callable[[], None], sandbox: Sandbox) -> None:
    """Run blocking work in a thread. On Ctrl-C end the servers first, then raise."""
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
