"""Rolls a plan out domain by domain: `--wave label:canary,10%,100%`, a check after each wave, and a stop when too many fail.

The steps are those of the plan; only when they begin is decided here. How one is done is left to `applying`.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from jsplan.address import Address
from jsplan.applying.executor import INTERRUPTED, Execution
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.config.model import Domain
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError, UsageError
from jsplan.facts.last_seen import matches_edge
from jsplan.facts.reader import read_object, run_parallel
from jsplan.jetstream import DomainApi
from jsplan.options import Observer
from jsplan.topology import Edge, Topology
from jsplan.units import SECOND

_PERCENTAGE = re.compile(r"(\d{1,3})%")
#: Seconds that copies may take until they hear of their origins: a server tries again after up to 30.
FLOW_TIMEOUT = 60.0
#: An origin that sent nothing for so long, not even a heartbeat (one a second), is not heard of. Nanoseconds.
ORIGIN_SILENT_AFTER = 10 * SECOND


@dataclass(frozen=True, slots=True)
class Wave:
    """One wave: what was written for it, its domains in the order of the files, its steps in the plan's order."""

    term: str
    domains: tuple[str, ...]
    steps: tuple[Step, ...]


def require_known_terms(terms: Sequence[str], domains: Mapping[str, Domain]) -> None:
    """Raise UsageError for a term that names no domain of the files, whatever there is to do."""
    for term in terms:
        if not _PERCENTAGE.fullmatch(term) and not any(
            _matches_term(term, domain) for domain in domains.values()
        ):
            what = (
                "no domain has this label"
                if term.startswith("label:")
                else "there is no domain of this name"
            )
            hint = "Give labels (label:NAME), names or globs of domains, or shares of all of them (10%)."
            raise UsageError(f"--wave {term} names no domain: {what}", hint=hint)


def split_into_waves(
    terms: Sequence[str], plan: Plan, domains: Mapping[str, Domain], topology: Topology
) -> list[Wave]:
    """The plan's steps in waves. Raises UsageError for a term that cannot be read, and where a domain is in no wave.

    Every domain that the plan touches is in the first wave that takes it: a label, a name, a glob, or as many as it takes to
    have that share of all, in the order of the files. A hub has no wave: a domain that two or more others copy to or from.
    Its steps go with the first wave that waits for them, and never before what they wait for; what nobody waits for is last.
    """
    touched = {step.domain for step in plan.steps}
    hubs = _find_hubs(topology)
    members = _wave_members(terms, [d for key, d in domains.items() if key in touched], hubs)
    turn = {key: number for number, keys in enumerate(members) for key in keys}
    fleet = [key for key in domains if key in touched and key not in hubs]
    if missing := [key for key in fleet if key not in turn]:
        raise UsageError(
            f"--wave ends before the fleet does: {missing[0]}"
            + (f" and {len(missing) - 1} more are" if len(missing) > 1 else " is")
            + " in no wave",
            hint="Let the last wave be 100%.",
        )
    when = _assign_waves(plan.steps, turn, last=len(terms) - 1)
    return [
        Wave(term, members[n], tuple(s for s in plan.steps if when[s.id] == n))
        for n, term in enumerate(terms)
    ]


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
    """The domains of each wave; one that a term names is in it even if it is a hub."""
    fleet = [domain.key for domain in touched if domain.key not in hubs]
    taken: dict[str, None] = {}
    found = []
    for term in terms:
        share = _PERCENTAGE.fullmatch(term)
        if share is not None:
            most = math.ceil(len(fleet) * min(int(share[1]), 100) / 100)
            left = [key for key in fleet if key not in taken]
            chosen = left[: max(0, most - len([key for key in taken if key in fleet]))]
        else:
            chosen = [
                domain.key
                for domain in touched
                if domain.key not in taken and _matches_term(term, domain)
            ]
        taken |= dict.fromkeys(chosen)
        found.append(tuple(chosen))
    return found


def _matches_term(term: str, domain: Domain) -> bool:
    label = term.removeprefix("label:")
    return label in domain.labels if label != term else fnmatchcase(domain.key, term)


def _assign_waves(steps: Sequence[Step], turn: Mapping[str, int], last: int) -> dict[str, int]:
    """The wave of each step, by id. The plan's order respects what depends on what."""
    wanted: dict[str, int] = {}
    waited_for: dict[str, int] = {}
    for step in reversed(steps):
        wanted[step.id] = turn.get(step.domain, waited_for.get(step.id, last))
        for other in step.depends_on:
            waited_for[other] = min(wanted[step.id], waited_for.get(other, last))
    when: dict[str, int] = {}
    for step in steps:
        when[step.id] = max(
            [wanted[step.id], *(when[other] for other in step.depends_on if other in when)]
        )
    return when


# --- carrying them out -----------------------------------------------------------------------------------------


@dataclass
class Rollout:
    """One run of a plan in waves; `max_failures` domains of a wave may fail before the next one is not begun any more.

    `apis` are the domains that answer, also those that the plan does not touch. `timeout` is seconds.
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
        """Wave after wave, until one has more than `max_failures` failed domains; what is left then is skipped with the reason."""
        for number, wave in enumerate(self.waves):
            self.observer.phase(
                f"Wave {number + 1} of {len(self.waves)} ({wave.term}): {_format_domain_count(len({s.domain for s in wave.steps}))}"
            )
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
        text = f"{wave} had {_format_domain_count(len(failed))} that failed, more than --max-failures {self.max_failures}: {'; '.join(named)}{others}"
        self.observer.warn(f"{text}. Later waves were not started")
        return text

    def _failed_domains(self, wave: Wave) -> dict[str, str]:
        """Domains in which something went wrong. One that was away before is no failure: it is deferred, as ever."""
        found: dict[str, str] = {}
        for step in wave.steps:
            result = self.execution.results[step.id]
            if result.status in ("failed", "unknown"):
                found.setdefault(step.domain, result.error or result.status)
            elif step.domain in self.execution.lost_domains:
                found.setdefault(
                    step.domain, f"went away: {self.execution.lost_domains[step.domain]}"
                )
        return found

    async def _check_wave(self, wave: Wave) -> dict[str, str]:
        """What is not as it was left, or does not copy: read from the servers once more, after all of the wave."""
        done = [step for step in wave.steps if self.execution.results[step.id].status == "done"]
        found: dict[str, str] = {}
        last = {step.target_address: step for step in done if step.request is not None}

        async def look(address: Address) -> None:
            if why := await self._unexpected_state(last[address], address):
                found.setdefault(address.domain, why)

        await run_parallel(look, last)
        return found | await self._wait_for_replication(
            self._affected_edges({step.target_address for step in done}), found
        )

    async def _unexpected_state(self, step: Step, address: Address) -> str:
        try:
            live = await read_object(self.apis[address.domain], address)
        except ApiError as error:
            return str(error)
        if step.op.endswith(".delete"):
            return f"{address} is there again" if live is not None else ""
        if live is None:
            return f"{address} is gone again"
        lost = unkept_fields(step, live)
        return (
            f"{address} does not have {describe_unkept(step, live, lost)} any more" if lost else ""
        )

    def _affected_edges(self, touched: set[Address]) -> list[Edge]:
        """The copies between domains of which the wave has made or changed an end, and both of which can be asked."""
        ends = (
            (edge, {edge.origin, edge.downstream})
            for edge in self.topology.edges
            if not edge.is_local
        )
        return [
            edge
            for edge, both in ends
            if both & touched and {address.domain for address in both} <= self.apis.keys()
        ]

    async def _wait_for_replication(
        self, flows: Iterable[Edge], known: Mapping[str, str]
    ) -> dict[str, str]:
        """The domains at the far end of copies that do not begin to move in time. A copy that the plan makes later is passed over."""
        left, end = list(flows), time.monotonic() + self.timeout
        found: dict[str, str] = {}
        while left and not self.execution.stop.is_set():
            states = dict(
                zip(
                    left,
                    await asyncio.gather(*(self._replication_problem(edge) for edge in left)),
                    strict=True,
                )
            )
            left = [edge for edge in left if states[edge]]
            if time.monotonic() > end:
                found = {
                    _leaf_domain(edge, self.execution.plan): why
                    for edge, why in states.items()
                    if why
                }
                break
            await asyncio.sleep(0.5 if left else 0)
        return {key: why for key, why in found.items() if key not in known}

    async def _replication_problem(self, edge: Edge) -> str:
        """Why a copy does not hear of its origin; nothing where it does, or does not try yet."""
        try:
            copy = await read_object(self.apis[edge.downstream.domain], edge.downstream)
            origin = await read_object(self.apis[edge.origin.domain], edge.origin)
        except ApiError as error:
            return str(error)
        flow = (
            next((flow for flow in copy.flows if matches_edge(flow, edge)), None)
            if copy is not None and origin is not None
            else None
        )
        if flow is None:
            return ""
        if said := (flow.get("error") or {}).get("description"):
            return f"{edge.downstream} cannot copy {edge.origin}: {said}"
        silent = int(flow.get("active", -1))
        return (
            ""
            if 0 <= silent <= ORIGIN_SILENT_AFTER
            else f"{edge.downstream} does not hear of {edge.origin}"
        )


def _leaf_domain(edge: Edge, plan: Plan) -> str:
    """The end that is not a hub: the one that fewer steps of the plan are for."""
    steps = [step.domain for step in plan.steps]
    return min((edge.origin.domain, edge.downstream.domain), key=steps.count)


def _format_domain_count(number: int) -> str:
    return f"{number:,} domain{'' if number == 1 else 's'}"
