"""The targets of a revert: each resource before an apply, as a workspace and a plan. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address, matches
from jsplan.config.model import DeclaredResource, Lifecycle, Removed, Workspace
from jsplan.diagnostics import NO_LOCATION, Diagnostic, quote_shell
from jsplan.documents.plan import Plan, Step
from jsplan.documents.step_kinds import RESET_IN_PLACE
from jsplan.facts.live import Live, LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.diff import differing_fields
from jsplan.planning.merge import explicit_fields
from jsplan.planning.model import Findings, PlanInputs
from jsplan.planning.revert.selection import warn_of_losses
from jsplan.resources.fields import Config
from jsplan.resources.kv_entry import VALUE, digest_value
from jsplan.state.document import Entry, State
from jsplan.state.history import JsonObject
from jsplan.units import count_text

#: A value in the history that the plan did not show: the digest stands for it.
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}( \([\d,]+ bytes\).*)?")
_NOT_KNOWN: Final = (
    "the value that it had before is not known: the history has only the digest. "
    "To restore it, put it into the files, and apply"
)


class Target(Struct, frozen=True):
    """One resource as it was before the apply.

    `declared` is None for one that is deleted, or forgotten with `forgets`. `record` is what state
    had of it (`declared`, `origin`, `depends_on`, `prevent_destroy`); it is empty if state had
    nothing, and a declared one is then forgotten after it is restored.
    """

    address: Address
    declared: DeclaredResource | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    forgets: bool = False

    @property
    def is_released(self) -> bool:
        """Return True if it is restored and then forgotten: the apply had adopted it."""
        return self.declared is not None and not self.record


class RevertTargets(Struct):
    """The targets, the resources that are planned without one, and the findings."""

    targets: list[Target] = field(default_factory=list)
    others: set[Address] = field(default_factory=set)
    findings: list[Diagnostic] = field(default_factory=list)

    @property
    def selected(self) -> frozenset[Address]:
        """The addresses to plan."""
        return frozenset({*(target.address for target in self.targets), *self.others})


def find_targets(
    entry: JsonObject,
    changes: Iterable[JsonObject],
    workspace: Workspace,
    state: State,
    live: Live,
    later: Mapping[str, str],
) -> RevertTargets:
    """Find what each changed resource was before the apply that `entry` of the history records.

    `live` has the resources as they are now; those of offline domains are planned, to be deferred.
    `later` has by address the last apply that changed it after that.
    """
    out = RevertTargets()
    for item in changes:
        address = Address.parse(item["address"])
        if item["status"] == "skipped":
            continue
        if not live.is_reachable(address.domain):
            out.others.add(address)
            continue
        found = _find_target(address, item, workspace, state, live.get(address))
        if isinstance(found, str):
            out.findings.append(Diagnostic("info", "JS493", found, "", str(address)))
        elif found is not None:
            out.targets.append(found)
            out.findings += warn_of_losses(item, entry.get("backup"))
            if since := _describe_later(address, state, live.get(address), later):
                out.findings.append(_warn_of_later(address, f"{since}. This takes that back too"))
    _add_contained(out, state, later)
    return out


def _find_target(
    address: Address,
    item: JsonObject,
    workspace: Workspace,
    state: State,
    live: LiveObject | None,
) -> Target | str | None:
    """Return what the resource was, why it stays unchanged, or None if nothing is left to do."""
    entry, began = state.resources.get(address), _is_begun(state, address)
    before, imports = item["before"], bool(item.get("importing"))
    match item["actions"]:
        case ["create"]:
            if entry is not None or began:
                return Target(address)
            done = live is not None and item["status"] == "done"
            return "is no longer managed here, so it is not deleted" if done else None
        case ["forget"]:
            if item["reason"] != "forget_because_removed_block":
                return "was deleted before: the apply only recorded that"
            if entry is not None or live is None:
                return "is managed here again" if entry is not None else "was deleted since"
            before = live.raw if address.is_content else live.config
        case ["no-op"]:
            text = "was only renamed: the files decide its name"
            return (
                (Target(address, forgets=True) if entry is not None else None) if imports else text
            )
    if before is None:
        return None
    record = _record_before(item)
    if "first_seq" not in record.get("declared", {}):
        before = {name: value for name, value in before.items() if name != "first_seq"}
    restored = _restore(address, before, workspace, entry, live)
    if restored is None:
        return _NOT_KNOWN
    if live is not None and entry is not None and not began and _is_restored(live, restored):
        kept = "" if item.get("reason") != RESET_IN_PLACE else ". Its position stays where it is"
        text = f"has the configuration that it had before{kept}"
        return Target(address, forgets=True) if imports else text
    return Target(address, restored, record)


def _is_begun(state: State, address: Address) -> bool:
    """Check whether an interrupted apply left the resource between two steps."""
    return not {str(address), str(address.parent)}.isdisjoint({*state.pending, *state.replacements})


def _restore(
    address: Address,
    before: Config,
    workspace: Workspace,
    entry: Entry | None,
    live: LiveObject | None,
) -> DeclaredResource | None:
    """Declare what was there before; None for a value that the history does not have.

    Each field of now that was not there before is None, which is the default of the server. Not
    `first_seq`: where the stream continues is decided when it is recreated.
    """
    known = workspace.resources.get(address)
    content: bytes | None = None
    if VALUE in before:
        content = _content_before(before, live)
        if content is None:
            return None
        before = before | {VALUE: digest_value(content)}
    names = {*(live.compact if live else ()), *(entry.declared if entry else ())} - {"first_seq"}
    return DeclaredResource(
        address,
        dict.fromkeys(sorted(names)) | before,
        NO_LOCATION,
        lifecycle=Lifecycle(on_replace=known.lifecycle.on_replace if known else None),
        content=content,
        sensitive=known is not None and known.sensitive,
    )


def _content_before(before: Config, live: LiveObject | None) -> bytes | None:
    """Return a value that was shown in the plan, or that is on the server now."""
    text = before.get(VALUE)
    if not isinstance(text, str):
        return None
    if live is not None and live.content is not None and text.startswith(live.raw[VALUE]):
        return live.content
    return None if _DIGEST.fullmatch(text) else text.encode()


def _is_restored(live: LiveObject, restored: DeclaredResource) -> bool:
    wanted = {name: value for name, value in restored.body.items() if value is not None}
    if not live.address.is_content:
        wanted = table_of(live.address).compact(wanted)
    return wanted == {name: v for name, v in live.compact.items() if name in restored.body}


def _record_before(item: JsonObject) -> dict[str, Any]:
    known = item["entry"] or {}
    names = ("declared", "origin", "depends_on", "prevent_destroy")
    return {name: known[name] for name in names if name in known}


def _describe_later(
    address: Address, state: State, live: LiveObject | None, later: Mapping[str, str]
) -> str:
    """Describe what changed the resource after the apply; empty if nothing did."""
    entry = state.resources.get(address)
    if str(address) in later:
        return f"was changed since by {later[str(address)]}"
    if entry is None or _is_begun(state, address):
        return ""
    if live is None:
        return "was deleted on the server since"
    known = entry.config if address.is_content else table_of(address).compact(entry.config)
    return "" if live.compact == known else "is changed on the server since"


def _warn_of_later(address: Address, text: str) -> Diagnostic:
    hint = f"To keep it, leave it out: --exclude {quote_shell(address)}"
    return Diagnostic("warning", "JS489", text, hint, str(address))


def _add_contained(out: RevertTargets, state: State, later: Mapping[str, str]) -> None:
    """Plan the rest of what is deleted with its stream or bucket, and warn about it."""
    planned = out.selected
    gone = {target.address for target in out.targets if not target.declared and not target.forgets}
    for address in sorted(state.resources):
        if address.parent in gone and address not in planned:
            out.others.add(address)
            since = f", although {later[str(address)]} changed it" if str(address) in later else ""
            text = f"{address} is deleted with it{since}"
            out.findings.append(_warn_of_later(address.parent, text))


# --- the workspace of the plan ----


def declare_targets(workspace: Workspace, reverted: RevertTargets) -> Workspace:
    """Return the workspace in which the targets are declared as they were. All else is the same."""
    selected, back = reverted.selected, [t.declared for t in reverted.targets if t.declared]
    gone = {t.address for t in reverted.targets if t.declared is None}

    kept = {a: v for a, v in workspace.resources.items() if not {a, a.parent} & gone}
    resources = kept | {each.address: each for each in back}
    # An entry for each: that of a stream would hold for the consumers that were created in it.
    removed = [
        Removed(str(t.address), destroy=not t.forgets, range=NO_LOCATION)
        for t in reverted.targets
        if t.forgets or t.declared is None
    ]
    lasting = [r for r in workspace.removed if not any(matches(r.address, a) for a in selected)]
    names = {str(address) for address in resources}
    records = {t.address: t.record for t in reverted.targets}
    for each in back:
        after = records[each.address].get("depends_on", ())
        if not each.address.is_content:
            resources[each.address] = replace(
                each, depends_on=tuple(n for n in after if n in names)
            )
    return replace(
        workspace,
        resources=resources,
        removed=(*removed, *lasting),
        pruned=(),
        relocate=(),
        backfills={},
        diagnostics=(),
    )


# --- the plan -------------------------------------------------------------------------------------


def complete_plan(plan: Plan, targets: Sequence[Target]) -> None:
    """Let the steps restore the state records too, and forget what the apply had adopted."""
    plan.mode, plan.complete = "revert", False
    records = {str(target.address): target.record for target in targets}
    for step in plan.steps:
        if step.record is not None:
            step.record |= records.get(step.address, {})
        if step.op == "transfer.consumers" and step.params is not None:
            for consumer in filter(None, step.params["consumers"].values()):
                consumer["record"] |= records.get(consumer["address"], {})
    released = {str(target.address) for target in targets if target.is_released}
    for address in sorted(released & {step.address for step in plan.steps}):
        before = [step.id for step in plan.steps if step.address == address]
        number, title = len(plan.steps) + 1, f"forget {address}"
        plan.steps.append(Step(f"s{number}", address, "state.forget", title, None, {}, before))
        text = "is forgotten at the end, because the reverted apply had adopted it"
        note = Diagnostic("info", "JS494", text, "It stays on the server.", address)
        plan.diagnostics.append(note)


def warn_of_files(files: PlanInputs, targets: Iterable[Target]) -> Findings:
    """Warn about the targets that the next plan changes again, as far as the files show it.

    `files` are the inputs of what the files declare.
    """
    found = [str(each.address) for each in targets if _differs(files, each)]
    if found:
        many = count_text(len(found), "resource")
        text = f"the files still have the change of {many}: the next apply makes it again"
        lines = ["Change the files too, for example with git revert:", *sorted(found)]
        yield Diagnostic("warning", "JS492", text, "\n".join(lines))


def _differs(files: PlanInputs, target: Target) -> bool:
    """Check whether the files ask for something else than what was there before the apply."""
    address, before = target.address, target.declared
    if before is None or target.is_released:
        return address in files.workspace.resources
    if address not in files.workspace.resources:
        return True
    table, named = table_of(address), files.declared_fields(address)
    restored = table.compact(explicit_fields(before.body))
    removed = target.record.get("declared", {}).keys() - named.keys()
    return bool(differing_fields(table, restored, named) or removed & restored.keys())
