"""Builds findings of a plan from a rehearsal: refusals, untried steps, the servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import RehearsalServer, Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.rehearsal.layout import RehearsalLayout, RehearsalTarget
from jsplan.resources.error_codes import (
    CONSUMER_NOT_FOUND,
    INVALID_JSON,
    UPDATED_CONSUMER_NOT_FOUND,
)

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
