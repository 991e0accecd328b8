"""The lines that scripts grep, as plain text.

Their wording is a promise. This module does not load rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.address import compress_names
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.drift import Drift
    from jsplan.documents.plan import Plan

NO_CHANGES = "No changes. Your streams match the configuration."
NOTHING_TO_DESTROY = "No changes. There is nothing that this workspace manages."
NOTHING_TO_UNDO = "Nothing to undo: all of it is as it was before."
NO_DRIFT = "No drift."

_HEADS = {0: "Apply complete!", 130: "Apply interrupted."}


def plan_line(plan: Plan) -> str:
    """Return `Plan: 2 to add, 1 to change, 0 to destroy.`; other zero parts are left out.

    What `import` takes into state is `Import: 2 resources.`
    """
    s = plan.summary
    if plan.options.get("import") and not (s["add"] or s["change"] or s["destroy"]):
        return f"Import: {count_text(s['import'], 'resource')}."
    parts = [f"{s['import']} to import"] if s["import"] else []
    parts += [f"{s['add']} to add", f"{s['change']} to change"]
    if s["replace"]:
        deletes = s["replace_deletes"]
        parts.append(
            f"{s['replace']} to replace"
            + (f" ({deletes} delete{'s' if deletes == 1 else ''} data)" if deletes else "")
        )
    parts.append(f"{s['destroy']} to destroy")
    parts += [f"{s['forget']} to forget"] if s["forget"] else []
    parts += [f"{s['backfill']} to backfill"] if s["backfill"] else []
    parts += [f"{s['hazards']} hazard{'s' if s['hazards'] != 1 else ''}"] if s["hazards"] else []
    return f"Plan: {', '.join(parts)}."


def rehearsal_line(plan: Plan) -> str:
    """Return `Rehearsed on nats-server 2.15.1 (hub), …: 12 steps, none refused.`, or nothing."""
    if plan.rehearsal is None:
        return ""
    done, by_version = plan.rehearsal, dict[str, list[str]]()
    for server in done.servers:
        by_version.setdefault(server.version, []).append(server.domain)
    named = (
        [f"{version} ({compress_names(domains)})" for version, domains in by_version.items()]
        if len(by_version) > 1
        else [*by_version]
    )
    parts = [
        count_text(done.steps, "step"),
        f"{done.refused} refused" if done.refused else "none refused",
    ]
    if done.blocked:
        parts.append(f"{done.blocked} not tried behind {'them' if done.refused > 1 else 'it'}")
    parts += [f"{done.not_tried} left out"] if done.not_tried else []
    return f"Rehearsed on nats-server {', '.join(named) or 'none'}: {', '.join(parts)}."


def deferred_line(addresses: Iterable[str]) -> str:
    """Return `Deferred: 3 resources in 1 domain.`, or nothing."""
    found = list(addresses)
    if not found:
        return ""
    domains = {address.split("/", 1)[0] for address in found}
    return (
        f"Deferred: {count_text(len(found), 'resource')} in {count_text(len(domains), 'domain')}."
    )


def no_changes_line(plan: Plan) -> str:
    """Return that nothing changes, for what was requested and could be read."""
    if plan.options.get("import"):
        where = (
            " in the domains that could be read" if plan.deferred else _target_text(plan.targets)
        )
        return (
            f"Nothing to import{where}: of what the files declare, nothing is on the server "
            "that is not managed already."
        )
    if plan.mode == "revert":
        if plan.deferred:
            return "Nothing to undo in the domains that could be read."
        return NOTHING_TO_UNDO
    if plan.deferred:
        return "No changes in the domains that could be read."
    return NOTHING_TO_DESTROY if plan.mode == "destroy" else NO_CHANGES


def _target_text(globs: Sequence[str]) -> str:
    """Return the requested scope: ` in hub, leaf` for whole domains, nothing for everything."""
    domains = [glob.removesuffix("/**") for glob in globs]
    if "**" in globs:
        return ""
    if any("/" in domain for domain in domains):
        return f" under {', '.join(globs)}"
    return f" in {', '.join(domains)}"


def is_quiet(plan: Plan) -> bool:
    """Return True if a plan only says that there are no changes."""
    return not (
        plan.has_changes
        or plan.errored
        or plan.deferred
        or plan.diagnostics
        or plan.targets
        or plan.options.get("excludes")
    ) and not (plan.mode == "revert" or (plan.mode == "refresh-only" and plan.resource_drift))


def apply_line(result: ApplyResult) -> str:
    """Return `Apply complete! Resources: 2 added, 1 changed, 0 destroyed.`, or another result."""
    s = result.summary
    parts = [f"{s['imported']} imported"] if s.get("imported") else []
    parts += [f"{s.get('added', 0)} added", f"{s.get('changed', 0)} changed"]
    parts += [f"{s['replaced']} replaced"] if s.get("replaced") else []
    parts.append(f"{s.get('destroyed', 0)} destroyed")
    parts += [f"{s['forgotten']} forgotten"] if s.get("forgotten") else []
    head = _HEADS.get(result.exit_code, "Apply incomplete.")
    return f"{head} Resources: {', '.join(parts)}."


def import_line(result: ApplyResult) -> str:
    """Return `Import complete! Resources: 2 imported.`, or another result."""
    head = _HEADS.get(result.exit_code, "Apply incomplete.").replace("Apply", "Import")
    return f"{head} Resources: {result.summary.get('imported', 0)} imported."


def drift_line(drift: Drift) -> str:
    """Return `Drift: 2 changed, 1 missing, 1 unhealthy, 3 unmanaged.`; always with all parts."""
    s = drift.summary
    return (
        f"Drift: {s['changed']} changed, {s['missing']} missing, {s['unhealthy']} unhealthy, "
        f"{s['unmanaged']} unmanaged."
    )
