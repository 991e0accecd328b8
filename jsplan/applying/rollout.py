"""Rolls a plan out in waves of domains, as in `--wave label:canary,10%,100%`.

After each wave it checks the domains, and stops when too many failed. It only decides when the
steps of the plan begin.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct, field

from jsplan.address import Address, compress_names
from jsplan.applying.executor import INTERRUPTED, Execution
from jsplan.applying.step_journal import describe_unkept, unkept_fields
from jsplan.config.model import Domain
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError, UsageError
from jsplan.facts.domains import open_answering
from jsplan.facts.last_seen import matches_edge
from jsplan.facts.reader import read_object, run_parallel
from jsplan.jetstream import DomainApi, Pool
from jsplan.options import Observer
from jsplan.topology import Edge, Topology
from jsplan.units import SECOND, count_text

_PERCENTAGE = re.compile(r"(\d{1,3})%")
#: Seconds until downstream streams hear of their origins: a server retries after up to 30.
FLOW_TIMEOUT = 60.0
#: Nanoseconds without a heartbeat (one a second) after which an origin counts as silent.
ORIGIN_SILENT_AFTER = 10 * SECOND


class Wave(Struct, frozen=True):
    """One wave: its term, its domains in the order of the files, its steps in plan order."""

    term: str
    domains: tuple[str, ...]
    steps: tuple[Step, ...]


def require_known_terms(terms: Sequence[str], domains: Mapping[str, Domain]) -> None:
    """Raise UsageError for a term that matches no domain of the files."""
    for term in terms:
        if not _PERCENTAGE.fullmatch(term) and not any(
            _matches_term(term, domain) for domain in domains.values()
        ):
            is_label = term.startswith("label:")
            what = "no domain has this label" if is_label else "there is no domain of this name"
            hint = "Give labels (label:NAME), names or globs of domains, or shares of them (10%)."
            raise UsageError(f"--wave {term} names no domain: {what}", hint=hint)


def split_into_waves(
    terms: Sequence[str], plan: Plan, domains: Mapping[str, Domain], topology: Topology
) -> list[Wave]:
    """Split the plan's steps into waves; without terms there are none.

    Each domain of the plan is in the first wave that takes it: by a label, a name, a glob, or a
    share of all in the order of the files. A hub has no wave: a domain with flows to or from two or
    more others. Its steps are in the first wave with a step that depends on them, but not before
    their own dependencies. Steps of hubs that no step depends on are last. Raises UsageError for an
    invalid term, and for a domain in no wave.
    """
    if not terms:
        return []
    touched = {step.domain for step in plan.steps}
    hubs = _find_hubs(topology)
    members = _wave_members(terms, [d for key, d in domains.items() if key in touched], hubs)
    _require_tried(terms, members, plan, domains)
    wave_by_domain = {key: number for number, keys in enumerate(members) for key in keys}
    fleet = [key for key in domains if key in touched and key not in hubs]
    if missing := [key for key in fleet if key not in wave_by_domain]:
        are = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        text = f"--wave ends before the fleet does: {missing[0]}{are} in no wave"
        raise UsageError(text, hint="Let the last wave be 100%.")
    wave_by_step = _assign_waves(plan.steps, wave_by_domain, last=len(terms) - 1)
    return [
        Wave(term, members[n], tuple(s for s in plan.steps if wave_by_step[s.id] == n))
        for n, term in enumerate(terms)
    ]


def _require_tried(
    terms: Sequence[str],
    members: Sequence[tuple[str, ...]],
    plan: Plan,
    domains: Mapping[str, Domain],
) -> None:
    """Raise UsageError where all domains that a wave names are offline: the rest runs untried."""
    offline = {item.address.partition("/")[0] for item in plan.deferred}
    for term, chosen in list(zip(terms, members, strict=True))[:-1]:
        named = [key for key, domain in domains.items() if _matches_term(term, domain)]
        if silent := [key for key in named if key in offline and not chosen]:
            raise UsageError(
                f"--wave {term}: {compress_names(silent)} is offline, so that nothing would be "
                "tried before the next wave. Nothing was changed",
                hint="Start it, or let another domain be the first: --wave NAME,100%",
            )


def _find_hubs(topology: Topology) -> set[str]:
    neighbours: dict[str, set[str]] = {}
    for edge in topology.edges:
        if edge.origin.domain != edge.downstream.domain:
            neighbours.setdefault(edge.origin.domain, set()).add(edge.downstream.domain)
            neighbours.setdefault(edge.downstream.domain, set()).add(edge.origin.domain)
    return {key for key, others in neighbours.items() if len(others) > 1}


def _wave_members(
    terms: Sequence[str], touched: Sequence[Domain], hubs: set[str]
) -> list[tuple[str, ...]]:
    """Return the domains of each wave. A hub that a term names is in it."""
    fleet = [domain.key for domain in touched if domain.key not in hubs]
    taken: dict[str, None] = {}
    found = []
    for term in terms:
        share = _PERCENTAGE.fullmatch(term)
        if share is not None:
            most = math.ceil(len(fleet) * min(int(share[1]), 100) / 100)
            rest = [key for key in fleet if key not in taken]
            chosen = rest[: max(0, most - len([key for key in taken if key in fleet]))]
        else:
            named = (domain.key for domain in touched if _matches_term(term, domain))
            chosen = [key for key in named if key not in taken]
        taken |= dict.fromkeys(chosen)
        found.append(tuple(chosen))
    return found


def _matches_term(term: str, domain: Domain) -> bool:
    label = term.removeprefix("label:")
    return label in domain.labels if label != term else fnmatchcase(domain.key, term)


def _assign_waves(
    steps: Sequence[Step], wave_by_domain: Mapping[str, int], last: int
) -> dict[str, int]:
    """Return the wave of each step, by id. Steps come in an order that respects dependencies."""
    wanted: dict[str, int] = {}
    needed_in: dict[str, int] = {}
    for step in reversed(steps):
        wanted[step.id] = wave_by_domain.get(step.domain, needed_in.get(step.id, last))
        for other in step.depends_on:
            needed_in[other] = min(wanted[step.id], needed_in.get(other, last))
    wave_by_step: dict[str, int] = {}
    for step in steps:
        before = (wave_by_step[other] for other in step.depends_on if other in wave_by_step)
        wave_by_step[step.id] = max([wanted[step.id], *before])
    return wave_by_step


# --- execution ---


async def run_in_waves(
    execution: Execution,
    waves: list[Wave],
    max_failures: int,
    topology: Topology,
    domains: Mapping[str, Domain],
    pool: Pool,
    observer: Observer,
) -> list[StepResult]:
    """Run wave by wave. Between waves unchanged downstream streams are checked too."""
    known = execution.apis.keys()
    flows = ({edge.origin.domain, edge.downstream.domain} for edge in topology.edges)
    others = {key for both in flows if both & known for key in both - known}
    apis = await open_answering(pool, [domains[key] for key in sorted(others)])
    apis = {**execution.apis, **apis}
    return await Rollout(execution, waves, max_failures, topology, apis, observer).run()


class Rollout(Struct):
    """One run of a plan in waves. More than `max_failures` failed domains in a wave end it.

    `apis` are the domains that answer, also those that the plan does not touch. `timeout` is
    seconds.
    """

    execution: Execution
    waves: Sequence[Wave]
    max_failures: int
    topology: Topology
    apis: Mapping[str, DomainApi]
    observer: Observer
    timeout: float = FLOW_TIMEOUT
    failed: dict[str, str] = field(default_factory=dict)

    async def run(self) -> list[StepResult]:
        """Run wave after wave. After too many failures the remaining steps are skipped."""
        for number, wave in enumerate(self.waves):
            count = count_text(len({s.domain for s in wave.steps}), "domain")
            self.observer.phase(f"Wave {number + 1} of {len(self.waves)} ({wave.term}): {count}")
            await self.execution.run(wave.steps)
            failed = self._failed_domains(wave) | await self._check_wave(wave)
            self.failed |= failed
            rest = [step for later in self.waves[number + 1 :] for step in later.steps]
            if self.execution.stop.is_set():
                self.execution.skip(rest, INTERRUPTED)
            elif len(failed) > self.max_failures and rest:
                self.execution.skip(rest, self._failure_reason(number, failed))
                return self.execution.collect_results()
            for key, why in sorted(failed.items()):
                self.observer.warn(f"{key} failed in wave {number + 1}: {why}")
        return self.execution.collect_results()

    def _failure_reason(self, number: int, failed: Mapping[str, str]) -> str:
        named = [f"{key} ({why})" for key, why in sorted(failed.items())[:3]]
        others = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        wave = f"wave {number + 1} ({self.waves[number].term})"
        count = count_text(len(failed), "domain")
        text = (
            f"{wave} had {count} that failed, more than --max-failures {self.max_failures}:"
            f" {'; '.join(named)}{others}"
        )
        self.observer.warn(f"{text}. Later waves were not started")
        return text

    def _failed_domains(self, wave: Wave) -> dict[str, str]:
        """Return failed domains with reasons. One that was offline before is deferred instead."""
        found: dict[str, str] = {}
        for step in wave.steps:
            result = self.execution.results[step.id]
            if result.status in ("failed", "unknown"):
                found.setdefault(step.domain, result.error or result.status)
            elif (why := self.execution.lost_domains.get(step.domain)) is not None:
                found.setdefault(step.domain, f"went offline: {why}")
        return found

    async def _check_wave(self, wave: Wave) -> dict[str, str]:
        """Read the changed objects and flows again after the wave; return failed domains."""
        done = [step for step in wave.steps if self.execution.results[step.id].status == "done"]
        found: dict[str, str] = {}
        last = {step.target_address: step for step in done if step.request is not None}

        async def check(address: Address) -> None:
            if why := await self._unexpected_state(last[address], address):
                found.setdefault(address.domain, why)

        await run_parallel(check, last)
        return found | await self._wait_for_replication(
            self._affected_edges({step.target_address for step in done}), found
        )

    async def _unexpected_state(self, step: Step, address: Address) -> str:
        try:
            live = await read_object(self.apis[address.domain], address)
        except ApiError as error:
            return str(error)
        if step.kind.does == "delete":
            return f"{address} is there again" if live is not None else ""
        if live is None:
            return f"{address} is gone again"
        lost = unkept_fields(step, live)
        unkept = describe_unkept(step, live, lost)
        return f"{address} does not have {unkept} any more" if lost else ""

    def _affected_edges(self, touched: set[Address]) -> list[Edge]:
        """Return flows between reachable domains of which the wave changed one side."""
        return [
            edge
            for edge in self.topology.edges
            if not edge.is_local
            and {edge.origin, edge.downstream} & touched
            and {edge.origin.domain, edge.downstream.domain} <= self.apis.keys()
        ]

    async def _wait_for_replication(
        self, flows: Iterable[Edge], known: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the leaf domains of flows that do not start in time. Later flows are skipped."""
        waiting, end = list(flows), time.monotonic() + self.timeout
        found: dict[str, str] = {}
        while waiting and not self.execution.stop.is_set():
            reasons = await asyncio.gather(*map(self._replication_problem, waiting))
            states = {edge: why for edge, why in zip(waiting, reasons, strict=True) if why}
            waiting = list(states)
            if time.monotonic() > end:
                plan = self.execution.plan
                found = {_leaf_domain(edge, plan): why for edge, why in states.items()}
                break
            await asyncio.sleep(0.5 if waiting else 0)
        return {key: why for key, why in found.items() if key not in known}

    async def _replication_problem(self, edge: Edge) -> str:
        """Return why a flow does not hear of its origin; empty if it does, or does not exist."""
        try:
            downstream = await read_object(self.apis[edge.downstream.domain], edge.downstream)
            origin = await read_object(self.apis[edge.origin.domain], edge.origin)
        except ApiError as error:
            return str(error)
        flows = downstream.flows if downstream is not None and origin is not None else ()
        flow = next((flow for flow in flows if matches_edge(flow, edge)), None)
        if flow is None:
            return ""
        if error_text := (flow.get("error") or {}).get("description"):
            return f"{edge.downstream} cannot copy {edge.origin}: {error_text}"
        hears = 0 <= int(flow.get("active", -1)) <= ORIGIN_SILENT_AFTER
        return "" if hears else f"{edge.downstream} does not hear of {edge.origin}"


def _leaf_domain(edge: Edge, plan: Plan) -> str:
    """Return the domain of the flow that is no hub: the one with fewer steps in the plan."""
    steps = [step.domain for step in plan.steps]
    return min((edge.origin.domain, edge.downstream.domain), key=steps.count)
