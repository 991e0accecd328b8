"""--rehearse: try a plan on embedded servers that are configured like the real ones.

The real servers are only read. A rehearsal that fails raises an error. Refusals, untried steps and
the servers become findings of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import Workspace
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Rehearsal, RehearsalServer, Step
from jsplan.errors import ApiError, SandboxError, ServerRefusedError
from jsplan.facts.live import Live, LiveObject
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.rehearsal.environment import RehearsalEnvironment, start_environment
from jsplan.rehearsal.layout import RehearsalLayout, RehearsalTarget, build_rehearsal_layout
from jsplan.rehearsal.live_snapshot import read_jetstreams
from jsplan.rehearsal.steps import (
    RehearsedSteps,
    build_steps,
    list_writing_steps,
    placement_problem,
)
from jsplan.resources.error_codes import (
    CONSUMER_NOT_FOUND,
    INVALID_JSON,
    UPDATED_CONSUMER_NOT_FOUND,
)
from jsplan.sandbox.sites import Site
from jsplan.sandbox.versions import find_release, list_available
from jsplan.units import count_text

REFUSED, NOT_KEPT, NOT_REHEARSED, OTHER_RELEASE = "JS460", "JS461", "JS462", "JS463"
#: Requests that a server refuses for their configuration; others fail because of stream content.
_CONFIG_REQUESTS: Final = (
    "STREAM.CREATE.",
    "STREAM.UPDATE.",
    "STREAM.RESTORE.",
    "CONSUMER.CREATE.",
)
_NO_REAL_SERVER = "No real server was touched."

Refusals = Iterable[tuple[str, ServerRefusedError]]


async def rehearse(
    plan: Plan,
    workspace: Workspace,
    live: Live,
    pool: Pool,
    observer: Observer,
    parallelism: int = 10,
    server_version: str | None = None,
) -> None:
    """Execute the plan on embedded servers, without data, and add the findings to the plan.

    The servers are of the release nearest to the real one, or of `server_version`, which is
    downloaded if need be. A refusal makes the plan errored. Raises SandboxError when the rehearsal
    itself fails, such as without a nats-server.
    """
    steps = list_writing_steps(plan)
    if plan.errored or not steps:
        return
    try:
        programs = list_available() if server_version is None else find_release(server_version)
        observer.phase("Reading what the rehearsal needs")
        jetstreams = await read_jetstreams(pool, workspace, live, steps)
        if server_version is not None:
            jetstreams = [replace(each, version=next(iter(programs))) for each in jetstreams]
        layout = build_rehearsal_layout(
            [each for each in jetstreams if each.failure is None], steps, programs
        )
        observer.phase(f"Rehearsing {count_text(len(steps), 'step')} on embedded servers")
        positions = {address: declared.range for address, declared in workspace.resources.items()}
        outcomes = [
            await rehearse_round(plan, layout, sites, positions, parallelism)
            for sites in layout.rounds
        ]
    except (SandboxError, ApiError) as error:
        hint = error.hint or "Plan without --rehearse, which tries nothing."
        raise SandboxError(f"the rehearsal failed: {error}", hint=hint) from None
    unread = [each for each in jetstreams if each.failure is not None]
    outcomes += [
        RoundOutcome(
            not_tried=len(select_steps(plan, each.keys)),
            diagnostics=[not_rehearsed_warning(f"{each.key}/**", each.failure or "")],
        )
        for each in unread
    ]
    plan.diagnostics += server_warnings(layout)
    _record_outcomes(plan, Rehearsal(list_servers(layout.targets), len(steps)), outcomes)


def _record_outcomes(plan: Plan, rehearsal: Rehearsal, outcomes: Iterable[RoundOutcome]) -> None:
    """Add the outcomes to the plan. As with every error, a plan with a refusal has no steps."""
    for outcome in outcomes:
        plan.diagnostics += outcome.diagnostics
        rehearsal.refused += outcome.refused
        rehearsal.blocked += outcome.blocked
        rehearsal.not_tried += outcome.not_tried
    plan.rehearsal = rehearsal
    if rehearsal.refused:
        plan.errored, plan.applyable, plan.steps = True, False, []


# --- one round ------------------------------------------------------------------------------------

SourceRanges = Mapping[Address, SourceRange]


class RoundOutcome(Struct):
    """Counts of steps: `refused`, `blocked` a refused one, `not_tried` because not rehearsable."""

    refused: int = 0
    blocked: int = 0
    not_tried: int = 0
    diagnostics: list[Diagnostic] = field(default_factory=list)


async def rehearse_round(
    plan: Plan,
    layout: RehearsalLayout,
    sites: list[Site],
    positions: SourceRanges,
    parallelism: int,
) -> RoundOutcome:
    """Execute the steps on these sites. Raises SandboxError and ApiError if servers fail."""
    targets = layout.targets_on(sites)
    by_key = {key: target for target in targets for key in target.jetstream.keys}
    part = replace(plan, steps=[step for step in plan.steps if step.domain in by_key])
    async with start_environment(sites, targets) as servers:
        await servers.seed(targets, layout.clusters)
        existing = await servers.read_touched(list_writing_steps(part))
        fingerprints = {address: live.fingerprint for address, live in existing.items()}
        script = build_steps(
            part,
            _find_obstacles(part, layout, servers, by_key),
            fingerprints,
            _created_times(by_key, existing),
        )
        results = await servers.execute(replace(part, steps=script.steps), parallelism)
    outcome = RoundOutcome(
        not_tried=len(script.skipped),
        diagnostics=_left_out_warnings(script, servers, targets, positions),
    )
    at_fault: set[str] = set()
    for step, result in zip(script.steps, results, strict=True):
        refusals, expiring = (
            servers.apis[step.domain].refusals,
            _expiring_consumers(by_key[step.domain]),
        )
        finding = build_finding(
            step,
            result,
            refusals,
            by_key[step.domain],
            expiring,
            positions.get(Address.parse(step.address)),
        )
        _count_outcome(outcome, at_fault, step, finding, skipped=result.status == "skipped")
    return outcome


def _count_outcome(
    outcome: RoundOutcome,
    at_fault: set[str],
    step: Step,
    finding: Diagnostic | None,
    *,
    skipped: bool,
) -> None:
    """Count one step. `at_fault` are refused steps and those behind them."""
    refused, behind = (
        finding is not None and finding.severity == "error",
        skipped and not at_fault.isdisjoint(step.depends_on),
    )
    outcome.refused += refused
    outcome.blocked += behind
    outcome.not_tried += (finding is not None or skipped) and not refused and not behind
    outcome.diagnostics += [finding] if finding is not None else []
    if refused or behind:
        at_fault.add(step.id)


def _find_obstacles(
    part: Plan,
    layout: RehearsalLayout,
    servers: RehearsalEnvironment,
    targets: Mapping[str, RehearsalTarget],
) -> dict[str, str]:
    """Return by step id the reason why a step cannot be rehearsed."""
    found = {}
    for step in list_writing_steps(part):
        jetstream = targets[step.domain].jetstream
        absent = jetstream.unreadable_objects | servers.seeds.missing
        touched = step.target_address._replace(domain=jetstream.key)
        lacking = next((absent[a] for a in (touched, touched.parent) if a in absent), None)
        if (why := placement_problem(step, layout.clusters[step.domain]) or lacking) is not None:
            found[step.id] = why
    return found


def _created_times(
    targets: Mapping[str, RehearsalTarget], existing: Mapping[Address, LiveObject]
) -> dict[str, str]:
    """Map the `created` of each real object to that of its rehearsed object."""
    real = {
        o.address: o.created
        for target in targets.values()
        for o in (*target.jetstream.streams, *target.jetstream.consumers)
    }
    known = {
        address: address._replace(domain=targets[address.domain].jetstream.key)
        for address in existing
    }
    return {
        real[known[address]]: live.created
        for address, live in existing.items()
        if known[address] in real
    }


def _left_out_warnings(
    script: RehearsedSteps,
    servers: RehearsalEnvironment,
    targets: list[RehearsalTarget],
    positions: SourceRanges,
) -> list[Diagnostic]:
    """Return one warning for each thing that does not exist or was not tried."""
    why = {
        address: reason
        for target in targets
        for address, reason in target.jetstream.unreadable_objects.items()
    } | servers.seeds.missing
    why |= {Address.parse(address): reason for address, reason in script.reasons.items()}
    return [
        not_rehearsed_warning(str(address), reason, positions.get(address))
        for address, reason in sorted(why.items())
    ]


def _expiring_consumers(target: RehearsalTarget) -> dict[Address, LiveObject]:
    """Return consumers that the server deletes when idle, under each key that leads to them."""
    found = [o for o in target.jetstream.consumers if o.raw.get("inactive_threshold")]
    return {o.address._replace(domain=key): o for o in found for key in target.jetstream.keys}


def select_steps(plan: Plan, keys: set[str]) -> list[Step]:
    """Return the steps that write to one of the domains."""
    return [step for step in list_writing_steps(plan) if step.domain in keys]


def build_finding(
    step: Step,
    result: StepResult,
    refusals: Refusals,
    target: RehearsalTarget,
    expiring: Mapping[Address, LiveObject],
    at: SourceRange | None,
) -> Diagnostic | None:
    """Build the finding of one step, or None. Idle `expiring` consumers may be deleted."""
    if result.status not in ("failed", "unknown"):
        return None
    error = result.error or ""
    request, refused = next(((api, e) for api, e in refusals if str(e) in error), ("", None))
    if refused is None and "did not keep" in error:
        lost = error.partition("did not keep ")[2]
        text = f"nats-server {target.version} accepts and drops {lost} in the rehearsal"
        return Diagnostic(
            "error",
            NOT_KEPT,
            text,
            f"An apply would stop there. {_NO_REAL_SERVER}",
            step.address,
            at,
        )
    if (
        why := _rehearsal_cause(step, request, refused, target, expiring)
    ) is not None or refused is None:
        return not_rehearsed_warning(step.address, why or error, at)
    text = (
        f"nats-server {target.version} refuses it in the rehearsal:"
        f" {refused.description} ({refused.err_code})"
    )
    return Diagnostic(
        "error", REFUSED, text, f"It was to: {step.title}. {_NO_REAL_SERVER}", step.address, at
    )


def _rehearsal_cause(
    step: Step,
    request: str,
    refused: ServerRefusedError | None,
    target: RehearsalTarget,
    expiring: Mapping[Address, LiveObject],
) -> str | None:
    """Return the cause of a refusal that only the rehearsal has, or None."""
    if refused is None:
        return None
    if (
        refused.err_code in (CONSUMER_NOT_FOUND, UPDATED_CONSUMER_NOT_FOUND)
        and step.target_address in expiring
    ):
        return "the embedded server expired the consumer, which no client uses there"
    if refused.err_code == INVALID_JSON and target.is_older:
        return (
            f"nats-server {target.version} does not know what {target.real_version} knows:"
            f" {refused.description}"
        )
    if step.params is not None and not request.startswith(_CONFIG_REQUESTS):
        return (
            "it carries data over, and there is none in a rehearsal:"
            f" {refused.description} ({refused.err_code})"
        )
    return None


def not_rehearsed_warning(address: str, why: str, at: SourceRange | None = None) -> Diagnostic:
    """Return the warning that something was not rehearsed."""
    detail = "Only an apply will show whether the server takes it."
    return Diagnostic("warning", NOT_REHEARSED, f"not rehearsed: {why}", detail, address, at)


def list_servers(targets: Iterable[RehearsalTarget]) -> list[RehearsalServer]:
    """List each domain with the version that it was rehearsed on, sorted."""
    found = [
        RehearsalServer(key, target.version, target.real_version)
        for target in targets
        for key in target.jetstream.keys
    ]
    return sorted(found, key=lambda server: server.domain)


def server_warnings(layout: RehearsalLayout) -> list[Diagnostic]:
    """Warn about embedded servers that differ from the real ones."""
    found = []
    for target in layout.targets:
        key = f"{target.jetstream.key}/**"
        if not target.is_same_release:
            real = target.real_version or "an unknown version"
            text = (
                f"rehearsed on nats-server {target.version}, the nearest at hand to {real}:"
                " rules may differ"
            )
            detail = "Put the same release on PATH, or name it in $JSPLAN_NATS_SERVER."
            if target.real_version and target.real_version.count(".") == 2:
                command = f"python -m jsplan.sandbox.versions {target.real_version}"
                detail += f" To have it at hand from now on: {command}"
            found.append(Diagnostic("warning", OTHER_RELEASE, text, detail, key))
        if target.jetstream.facts.info.get("tiers"):
            found.append(
                not_rehearsed_warning(
                    key, "the account's limits per number of replicas, which need operator mode"
                )
            )
    unclear = "whether the domain is a cluster, which it does not report before it has a stream"
    found += [not_rehearsed_warning(f"{key}/**", unclear) for key in sorted(layout.guessed)]
    for address, tags in sorted(layout.unproven.items()):
        text = (
            f"whether enough servers have the tags {', '.join(sorted(tags))}:"
            " a client cannot see the tags of a server"
        )
        found.append(not_rehearsed_warning(address, text))
    return found
