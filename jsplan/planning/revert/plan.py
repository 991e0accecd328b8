"""Turns wishes into a plan: the files as they would have to be, planned like any others, and what the real files say to that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from jsplan.address import Address
from jsplan.config.model import DeclaredResource, Lifecycle, Removed, Workspace
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import Plan, Step
from jsplan.facts.live import LiveObject
from jsplan.planning.bucket_aliases import with_bucket_names
from jsplan.planning.decide import ResourceDecision, decide, table_of
from jsplan.planning.model import PlanInputs
from jsplan.planning.revert.targets import RevertTarget
from jsplan.planning.revert.values import format_declaration, format_value
from jsplan.state.document import Entry

#: The files say something else than what a revert leaves behind.
FILES_DIFFER: Final = "JS492"
#: Where a wish comes from: no file, so no place that anybody could look at.
NO_LOCATION: Final = SourceRange("", 0, 0)
_SUMMARY_ORDER: Final = ("import", "add", "change", "replace", "destroy", "forget")


def with_targets(workspace: Workspace, targets: Sequence[RevertTarget]) -> Workspace:
    """The workspace as its files would have to be for the wishes to come true. Everything else in it stays as it is."""
    resources = dict(workspace.resources)
    for wish in targets:
        known = resources.pop(wish.address, None)
        if wish.body is not None:
            resources[wish.address] = _declared_target(wish, known)
    given_up = [
        Removed(str(w.address), destroy=False, range=NO_LOCATION)
        for w in targets
        if w.action == "forgotten"
    ]
    removed = [block for block in workspace.removed if block.destroy]
    return replace(
        workspace,
        resources=_with_known_dependencies(resources),
        removed=(*given_up, *removed),
        backfills={},
        diagnostics=(),
    )


def _declared_target(target: RevertTarget, known: DeclaredResource | None) -> DeclaredResource:
    assert target.body is not None
    lifecycle = known.lifecycle if known is not None else Lifecycle()
    before = tuple(target.state_record.get("depends_on", ()))
    return DeclaredResource(
        target.address,
        target.body,
        NO_LOCATION,
        lifecycle=Lifecycle(on_replace=lifecycle.on_replace),
        depends_on=before,
    )


def _with_known_dependencies(
    resources: dict[Address, DeclaredResource],
) -> dict[Address, DeclaredResource]:
    names = {str(address) for address in resources}

    def known(declared: DeclaredResource) -> DeclaredResource:
        return replace(
            declared, depends_on=tuple(name for name in declared.depends_on if name in names)
        )

    return {
        address: known(declared) if declared.range is NO_LOCATION else declared
        for address, declared in resources.items()
    }


def complete_plan(plan: Plan, targets: Sequence[RevertTarget]) -> None:
    """Let the plan's steps remember what state remembered then, and give up in the end what was not ours before."""
    plan.mode, plan.complete = "revert", False
    plan.diagnostics = [
        replace(found, range=None) if found.range == NO_LOCATION else found
        for found in plan.diagnostics
    ]
    by_address = {str(wish.address): wish for wish in targets}
    for step in plan.steps:
        wish = by_address.get(step.address)
        if wish is not None and wish.state_record and step.record is not None:
            step.record |= wish.state_record
    if not plan.errored:
        released = [wish for wish in targets if wish.is_released]
        plan.steps += list(_release_steps(plan, released))
        plan.diagnostics += [
            Diagnostic(
                "info", RELEASED, _RELEASED_TEXT, "It stays on the server.", str(wish.address)
            )
            for wish in released
        ]
        plan.applyable = plan.applyable or (
            bool(plan.steps) and not any(d.severity == "error" for d in plan.diagnostics)
        )


#: The finding about something that is forgotten once it is as it was.
RELEASED: Final = "JS494"
_RELEASED_TEXT: Final = "is forgotten in the end: the apply that is undone had adopted it"


def _release_steps(plan: Plan, targets: Iterable[RevertTarget]) -> Iterable[Step]:
    first = len(plan.steps) + 1
    for number, wish in enumerate(targets):
        before = [step.id for step in plan.steps if step.address == str(wish.address)]
        yield Step(
            f"s{first + number}",
            str(wish.address),
            "state.forget",
            f"forget {wish.address}",
            None,
            {},
            before,
        )


# --- what the files say --------------------------------------------------------------------------------------------


def compare_with_files(
    files: PlanInputs, targets: Sequence[RevertTarget], plan: Plan
) -> tuple[list[Diagnostic], dict[str, int]]:
    """Where the files differ from what the revert leaves, and what the next plan would be for these resources.

    `files` are the inputs with the real files; their live side and entries become what they will be after the revert.
    """
    after = {change.address: change.change.after for change in plan.resource_changes}
    for wish in targets:
        _simulate_target(files, wish, after.get(str(wish.address)))
    counts, found = dict.fromkeys(_SUMMARY_ORDER, 0), []
    for wish in targets:
        verdict = decide(files, wish.address)
        if (kind := _summary_kind(verdict)) is not None:
            counts[kind] += 1
            counts["change"] += kind == "import" and verdict.actions == ["update"]
            counts["replace"] += len(
                _recreated_consumers(files, verdict, {other.address for other in targets})
            )
            found.append(_describe_difference(files, verdict, kind))
    return found, {kind: count for kind, count in counts.items() if count}


def _recreated_consumers(
    files: PlanInputs, verdict: ResourceDecision, counted: set[Address]
) -> set[Address]:
    """The consumers that are made anew with a stream that is."""
    if verdict.actions != ["delete", "create"]:
        return set()
    return {
        a
        for a in files.workspace.resources
        if a.parent == verdict.address and a in files.entries and a not in counted
    }


def _simulate_target(
    files: PlanInputs, target: RevertTarget, config: dict[str, Any] | None
) -> None:
    """The world as it is after the revert, as far as one resource goes."""
    address, live = target.address, files.live.get(target.address)
    if target.action == "removed":
        files.live.objects.pop(address, None)
        files.entries.pop(address, None)
        return
    if config is not None:
        live = LiveObject(
            address,
            config,
            live.created if live else "after",
            live.state if live else {},
            live.server if live else {},
        )
        files.live.objects[address] = live
    if live is None or target.action == "forgotten" or target.is_released:
        files.entries.pop(address, None)
        return
    files.entries[address] = Entry(
        live.config,
        dict(target.state_record.get("declared") or {}),
        live.created,
        target.state_record.get("origin", "created"),
    )


def _summary_kind(verdict: ResourceDecision) -> str | None:
    """What the next plan does with it, as its summary counts it; None for nothing."""
    if verdict.reason == "not_managed":
        return None
    if verdict.adopts and not verdict.deletes:
        return "import"
    if len(verdict.actions) == 2:
        return "replace"
    return {"create": "add", "update": "change", "delete": "destroy", "forget": "forget"}.get(
        verdict.actions[0]
    )


def _describe_difference(files: PlanInputs, verdict: ResourceDecision, kind: str) -> Diagnostic:
    declared = files.workspace.resources.get(verdict.address)
    where = declared.range if declared else None
    if kind == "add":
        summary, detail = (
            "the files still have it: the next plan makes it again",
            "Take it out of the files.",
        )
    elif kind in ("destroy", "forget"):
        will = "deletes it again" if kind == "destroy" else "forgets it again"
        summary, detail = f"no file has it: the next plan {will}", _put_back_hint(verdict)
    elif kind == "import" and not verdict.fields:
        summary, detail = (
            "the files still have it: the next plan takes it over again",
            "Take it out of the files.",
        )
    else:
        summary = f"the files still contain the change: the next plan {'replaces' if kind == 'replace' else 'changes'} it again"
        detail, where = _describe_fields(verdict, declared, where)
    return Diagnostic("warning", FILES_DIFFER, summary, detail, str(verdict.address), where)


def _put_back_hint(verdict: ResourceDecision) -> str:
    return (
        f"Put it back into the files:\n{format_declaration(verdict.address, verdict.live.config)}"
        if verdict.live
        else "Put it back into the files."
    )


def _describe_fields(
    verdict: ResourceDecision, declared: DeclaredResource | None, where: SourceRange | None
) -> tuple[str, SourceRange | None]:
    """What to write for each field that differs, and where the first of them is written."""
    lines, ranges = [], declared.ranges if declared else {}
    table = table_of(verdict.address)
    for raw, change in zip(
        verdict.fields, with_bucket_names(verdict.address, verdict.fields), strict=True
    ):
        name = raw.path.split(".")[0].split("[")[0]
        row = name if raw.path in table.by_name else ""
        stays, says = (
            format_value(verdict.address, row, value) for value in (change.before, change.after)
        )
        write = "take it out" if row and raw.before == table.default_of(row) else f"write: {stays}"
        lines.append(
            f"{change.path}: {says} in the files ({ranges[name]}); for it to stay, {write}"
            if name in ranges
            else f"{change.path}: left to the server by the files, {says}; for it to stay, write: {stays}"
        )
        where = ranges[name] if len(lines) == 1 and name in ranges else where
    return "\n".join(lines), where
