"""Turn revert targets into a plan, and compare the result with the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import DeclaredResource, Lifecycle, Removed, Workspace
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import Plan, Step
from jsplan.facts.live import Live, LiveObject
from jsplan.planning.bucket_aliases import with_bucket_names
from jsplan.planning.decide import decide, table_of
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.planning.revert.targets import RevertTarget
from jsplan.planning.revert.values import format_declaration, format_value
from jsplan.resources.fields import Config
from jsplan.state.document import Entry

#: The code of the finding that the files differ from the result of a revert.
FILES_DIFFER: Final = "JS492"
#: The location of a revert target, which is in no file.
NO_LOCATION: Final = SourceRange("", 0, 0)
_SUMMARY_ORDER: Final = ("import", "add", "change", "replace", "destroy", "forget")


def with_targets(workspace: Workspace, targets: Sequence[RevertTarget]) -> Workspace:
    """Return the workspace with the declarations that the targets need. All else is unchanged."""
    resources = dict(workspace.resources)
    for target in targets:
        known = resources.pop(target.address, None)
        if target.body is not None:
            resources[target.address] = _declared_target(target, known)
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
        relocate=(),
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
    """Let the steps restore the earlier state records, and forget what was not managed before."""
    plan.mode, plan.complete = "revert", False
    plan.diagnostics = [
        replace(found, range=None) if found.range == NO_LOCATION else found
        for found in plan.diagnostics
    ]
    by_address = {str(target.address): target for target in targets}
    for step in plan.steps:
        target = by_address.get(step.address)
        if target is not None and target.state_record and step.record is not None:
            step.record |= target.state_record
    if not plan.errored:
        released = [target for target in targets if target.is_released]
        plan.steps += list(_release_steps(plan, released))
        plan.diagnostics += [
            Diagnostic(
                "info", RELEASED, _RELEASED_TEXT, "It stays on the server.", str(target.address)
            )
            for target in released
        ]
        plan.applyable = plan.applyable or (
            bool(plan.steps) and not any(d.severity == "error" for d in plan.diagnostics)
        )


#: The code of the finding about a resource that is forgotten after it is reverted.
RELEASED: Final = "JS494"
_RELEASED_TEXT: Final = "is forgotten at the end, because the reverted apply had adopted it"


def _release_steps(plan: Plan, targets: Iterable[RevertTarget]) -> Iterable[Step]:
    first = len(plan.steps) + 1
    for number, target in enumerate(targets):
        before = [step.id for step in plan.steps if step.address == str(target.address)]
        yield Step(
            f"s{first + number}",
            str(target.address),
            "state.forget",
            f"forget {target.address}",
            None,
            {},
            before,
        )


# --- what the files say ----


def compare_with_files(
    files: PlanInputs, targets: Sequence[RevertTarget], plan: Plan
) -> tuple[list[Diagnostic], dict[str, int]]:
    """Compare the files with the result of the revert, and count the changes of the next plan.

    `files` are the inputs with the real files.
    """
    after = {change.address: change.change.after for change in plan.resource_changes}
    live, entries = files.live.copy(), dict(files.entries)
    for target in targets:
        _simulate_target(live, entries, target, after.get(str(target.address)))
    files = replace(files, live=live, entries=entries)
    counts, found = dict.fromkeys(_SUMMARY_ORDER, 0), []
    for target in targets:
        decision = decide(files, target.address)
        if (kind := _summary_kind(decision)) is not None:
            counts[kind] += 1
            counts["change"] += kind == "import" and decision.actions == ["update"]
            counts["replace"] += len(
                _recreated_consumers(files, decision, {other.address for other in targets})
            )
            found.append(_describe_difference(files, decision, kind))
    return found, {kind: count for kind, count in counts.items() if count}


def _recreated_consumers(
    files: PlanInputs, decision: ResourceDecision, counted: set[Address]
) -> set[Address]:
    """Return the consumers that are recreated with their stream."""
    if decision.actions != ["delete", "create"]:
        return set()
    return {
        a
        for a in files.workspace.resources
        if a.parent == decision.address and a in files.entries and a not in counted
    }


def _simulate_target(
    all_live: Live, entries: dict[Address, Entry], target: RevertTarget, config: Config | None
) -> None:
    """Put one resource into both as it will be after the revert."""
    address, live = target.address, all_live.get(target.address)
    if target.action == "removed":
        all_live.objects.pop(address, None)
        entries.pop(address, None)
        return
    if config is not None:
        live = LiveObject(
            address,
            config,
            live.created if live else "after",
            live.state if live else {},
            live.server if live else {},
        )
        all_live.objects[address] = live
    if live is None or target.action == "forgotten" or target.is_released:
        entries.pop(address, None)
        return
    known = entries.get(address)
    entries[address] = Entry(
        live.config,
        dict(target.state_record.get("declared") or {}),
        live.created,
        target.state_record.get("origin", "created"),
        position_once=known.position_once if known is not None else "",
    )


def _summary_kind(decision: ResourceDecision) -> str | None:
    """Return the kind under which the summary of the next plan counts it; None for no change."""
    if decision.reason == "not_managed":
        return None
    if decision.adopts and not decision.deletes:
        return "import"
    if len(decision.actions) == 2:
        return "replace"
    return {"create": "add", "update": "change", "delete": "destroy", "forget": "forget"}.get(
        decision.actions[0]
    )


def _describe_difference(files: PlanInputs, decision: ResourceDecision, kind: str) -> Diagnostic:
    declared = files.workspace.resources.get(decision.address)
    where = declared.range if declared else None
    if kind == "add":
        summary, detail = (
            "the files still have it: the next plan creates it again",
            "Remove it from the files.",
        )
    elif kind in ("destroy", "forget"):
        will = "deletes it again" if kind == "destroy" else "forgets it again"
        summary, detail = f"no file has it: the next plan {will}", _put_back_hint(decision)
    elif kind == "import" and not decision.fields:
        summary, detail = (
            "the files still have it: the next plan imports it again",
            "Remove it from the files.",
        )
    else:
        verb = "replaces" if kind == "replace" else "changes"
        summary = f"the files still contain the change: the next plan {verb} it again"
        detail, where = _describe_fields(decision, declared, where)
    return Diagnostic("warning", FILES_DIFFER, summary, detail, str(decision.address), where)


def _put_back_hint(decision: ResourceDecision) -> str:
    return (
        f"Put it back into the files:\n{format_declaration(decision.address, decision.live.config)}"
        if decision.live
        else "Put it back into the files."
    )


def _describe_fields(
    decision: ResourceDecision, declared: DeclaredResource | None, where: SourceRange | None
) -> tuple[str, SourceRange | None]:
    """Describe what to write for each field that differs; return also the first location."""
    lines, ranges = [], declared.ranges if declared else {}
    table = table_of(decision.address)
    for raw, change in zip(
        decision.fields, with_bucket_names(decision.address, decision.fields), strict=True
    ):
        name = raw.path.split(".")[0].split("[")[0]
        row = name if raw.path in table.by_name else ""
        stays, says = (
            format_value(decision.address, row, value) for value in (change.before, change.after)
        )
        write = "remove it" if row and raw.before == table.default_of(row) else f"write: {stays}"
        lines.append(
            f"{change.path}: {says} in the files ({ranges[name]}). To keep the live value, {write}"
            if name in ranges
            else f"{change.path}: not in the files, {says} by default. "
            f"To keep the live value, write: {stays}"
        )
        where = ranges[name] if len(lines) == 1 and name in ranges else where
    return "\n".join(lines), where
