"""What a rehearsal showed, as findings of the plan: what was refused, what could not be tried, and on which servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import RehearsalServer, Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.jetstream.api import CONSUMER_NOT_FOUND
from jsplan.rehearsal.layout import RehearsalLayout, RehearsalTarget
from jsplan.rehearsal.live_snapshot import UNKNOWN_FIELD

REFUSED, NOT_KEPT, NOT_REHEARSED, OTHER_RELEASE = "JS460", "JS461", "JS462", "JS463"
_NOT_UPDATED = 10149
#: Requests that a server refuses for what they ask for; others fail for what is, or is not, in a stream.
_CONFIG_REQUESTS: Final = (
    "STREAM.CREATE.",
    "STREAM.UPDATE.",
    "STREAM.RESTORE.",
    "CONSUMER.CREATE.",
)
_NO_REAL_SERVER = "No real server was touched."

Refusals = Iterable[tuple[str, ServerRefusedError]]


def build_finding(
    step: Step,
    result: StepResult,
    refusals: Refusals,
    place: RehearsalTarget,
    expiring: Mapping[Address, LiveObject],
    at: SourceRange | None,
) -> Diagnostic | None:
    """What became of one step, None if nothing needs to be said. `expiring` are consumers that a server may delete when they are idle."""
    if result.status not in ("failed", "unknown"):
        return None
    error = result.error or ""
    request, refused = next(((api, e) for api, e in refusals if str(e) in error), ("", None))
    if refused is None and "did not keep" in error:
        kept = error.partition("did not keep ")[2]
        text = f"nats-server {place.version} does not keep {kept} in the rehearsal"
        return Diagnostic(
            "error",
            NOT_KEPT,
            text,
            f"An apply would stop there. {_NO_REAL_SERVER}",
            step.address,
            at,
        )
    if (
        why := _rehearsal_cause(step, request, refused, place, expiring)
    ) is not None or refused is None:
        return not_rehearsed_warning(step.address, why or error, at)
    text = f"nats-server {place.version} refuses it in the rehearsal: {refused.description} ({refused.err_code})"
    return Diagnostic(
        "error", REFUSED, text, f"It was to: {step.title}. {_NO_REAL_SERVER}", step.address, at
    )


def _rehearsal_cause(
    step: Step,
    request: str,
    refused: ServerRefusedError | None,
    place: RehearsalTarget,
    expiring: Mapping[Address, LiveObject],
) -> str | None:
    """Why a refusal is the rehearsal's own and says nothing about the real server."""
    if refused is None:
        return None
    if refused.err_code in (CONSUMER_NOT_FOUND, _NOT_UPDATED) and step.target_address in expiring:
        return "the embedded server expired the consumer, which nobody uses there"
    if refused.err_code == UNKNOWN_FIELD and place.is_older:
        return f"nats-server {place.version} does not know what {place.real_version} knows: {refused.description}"
    if step.params is not None and not request.startswith(_CONFIG_REQUESTS):
        return f"it carries data over, and there is none in a rehearsal: {refused.description} ({refused.err_code})"
    return None


def not_rehearsed_warning(address: str, why: str, at: SourceRange | None = None) -> Diagnostic:
    """A warning that something was left out."""
    detail = "Only an apply will show whether the server takes it."
    return Diagnostic("warning", NOT_REHEARSED, f"not rehearsed: {why}", detail, address, at)


def list_servers(places: Iterable[RehearsalTarget]) -> list[RehearsalServer]:
    """Each domain with the version that it was rehearsed on, sorted."""
    found = [
        RehearsalServer(key, place.version, place.real_version)
        for place in places
        for key in place.jetstream.keys
    ]
    return sorted(found, key=lambda server: server.domain)


def server_warnings(shape: RehearsalLayout) -> list[Diagnostic]:
    """Where the embedded servers are not what the real ones are."""
    found = []
    for place in shape.targets:
        key = f"{place.jetstream.key}/**"
        if not place.is_same_release:
            real = place.real_version or "an unknown version"
            text = f"rehearsed on nats-server {place.version}, the nearest at hand to {real}: rules may differ"
            detail = "Put the same release on PATH, or name it in $JSPLAN_NATS_SERVER."
            if place.real_version and place.real_version.count(".") == 2:
                detail += f" To have it at hand from now on: python -m jsplan.sandbox.versions {place.real_version}"
            found.append(Diagnostic("warning", OTHER_RELEASE, text, detail, key))
        if place.jetstream.facts.info.get("tiers"):
            found.append(
                not_rehearsed_warning(
                    key, "the account's limits per number of copies, which only operator mode knows"
                )
            )
    unclear = "whether the domain is a cluster, which it does not tell before it has a stream"
    found += [not_rehearsed_warning(f"{key}/**", unclear) for key in sorted(shape.guessed)]
    for address, tags in sorted(shape.unproven.items()):
        text = f"whether enough servers have the tags {', '.join(sorted(tags))}: a client cannot see the tags of a server"
        found.append(not_rehearsed_warning(address, text))
    return found
