"""Turns wishes into a plan: the files as they would have to be, planned like any others, and what the real files say to that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from jsplan.address import Address
from jsplan.config.model import Declared, Lifecycle, Removed, Workspace
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import Plan, Step
from jsplan.facts.live import LiveObject
from jsplan.planning.inputs import Inputs
from jsplan.planning.undoing.values import shown, written
from jsplan.planning.undoing.wishes import Wish
from jsplan.planning.verdict import Verdict, decide, table_of
from jsplan.planning.words import in_words
from jsplan.state.document import Entry

#: The files say something else than what a revert leaves behind.
FILES: Final = "JS492"
#: Where a wish comes from: no file, so no place that anybody could look at.
NOWHERE: Final = SourceRange("", 0, 0)
_ORDER: Final = ("import", "add", "change", "replace", "destroy", "forget")


def as_wished(workspace: Workspace, wishes: Sequence[Wish]) -> Workspace:
    """The workspace as its files would have to be for the wishes to come true. Everything else in it stays as it is."""
    resources = dict(workspace.resources)
    for wish in wishes:
        known = resources.pop(wish.address, None)
        if wish.body is not None:
            resources[wish.address] = _declared(wish, known)
    given_up = [Removed(str(w.address), destroy=False, range=NOWHERE) for w in wishes if w.becomes == "forgotten"]
    removed = [block for block in workspace.removed if block.destroy]
    return replace(workspace, resources=_with_known_dependencies(resources), removed=(*given_up, *removed), backfills={}, diagnostics=())


def _declared(wish: Wish, known: Declared | None) -> Declared:
    assert wish.body is not None
    lifecycle = known.lifecycle if known is not None else Lifecycle()
    before = tuple(wish.remembered.get("depends_on", ()))
    return Declared(
        wish.address, wish.body, NOWHERE, lifecycle=Lifecycle(on_replace=lifecycle.on_replace), depends_on=before,
    )  # fmt: skip


def _with_known_dependencies(resources: dict[Address, Declared]) -> dict[Address, Declared]:
    names = {str(address) for address in resources}

    def known(declared: Declared) -> Declared:
        return replace(declared, depends_on=tuple(name for name in declared.depends_on if name in names))

    return {address: known(declared) if declared.range is NOWHERE else declared for address, declared in resources.items()}


def finished(plan: Plan, wishes: Sequence[Wish]) -> None:
    """Let the plan's steps remember what state remembered then, and give up in the end what was not ours before."""
    plan.mode, plan.complete = "revert", False
    plan.diagnostics = [replace(found, range=None) if found.range == NOWHERE else found for found in plan.diagnostics]
    by_address = {str(wish.address): wish for wish in wishes}
    for step in plan.steps:
        wish = by_address.get(step.address)
        if wish is not None and wish.remembered and step.record is not None:
            step.record |= wish.remembered
    if not plan.errored:
        released = [wish for wish in wishes if wish.releases]
        plan.steps += list(_released(plan, released))
        plan.diagnostics += [Diagnostic("info", RELEASED, _RELEASES, "It stays on the server.", str(wish.address)) for wish in released]
        plan.applyable = plan.applyable or (bool(plan.steps) and not any(d.severity == "error" for d in plan.diagnostics))


#: The finding about something that is forgotten once it is as it was.
RELEASED: Final = "JS494"
_RELEASES: Final = "is forgotten in the end: the apply that is undone had adopted it"


def _released(plan: Plan, wishes: Iterable[Wish]) -> Iterable[Step]:
    first = len(plan.steps) + 1
    for number, wish in enumerate(wishes):
        before = [step.id for step in plan.steps if step.address == str(wish.address)]
        yield Step(f"s{first + number}", str(wish.address), "state.forget", f"forget {wish.address}", None, {}, before)


# --- what the files say --------------------------------------------------------------------------------------------


def against_files(files: Inputs, wishes: Sequence[Wish], plan: Plan) -> tuple[list[Diagnostic], dict[str, int]]:
    """Where the files differ from what the revert leaves, and what the next plan would be for these resources.

    `files` are the inputs with the real files; their live side and entries become what they will be after the revert.
    """
    after = {change.address: change.change.after for change in plan.resource_changes}
    for wish in wishes:
        _pretend(files, wish, after.get(str(wish.address)))
    counts, found = dict.fromkeys(_ORDER, 0), []
    for wish in wishes:
        verdict = decide(files, wish.address)
        if (kind := _kind(verdict)) is not None:
            counts[kind] += 1
            counts["change"] += kind == "import" and verdict.actions == ["update"]
            counts["replace"] += len(_with_it(files, verdict, {other.address for other in wishes}))
            found.append(_said(files, verdict, kind))
    return found, {kind: count for kind, count in counts.items() if count}


def _with_it(files: Inputs, verdict: Verdict, counted: set[Address]) -> set[Address]:
    """The consumers that are made anew with a stream that is."""
    if verdict.actions != ["delete", "create"]:
        return set()
    return {a for a in files.workspace.resources if a.parent == verdict.address and a in files.entries and a not in counted}


def _pretend(files: Inputs, wish: Wish, config: dict[str, Any] | None) -> None:
    """The world as it is after the revert, as far as one resource goes."""
    address, live = wish.address, files.live.get(wish.address)
    if wish.becomes == "removed":
        files.live.objects.pop(address, None)
        files.entries.pop(address, None)
        return
    if config is not None:
        live = LiveObject(address, config, live.created if live else "after", live.state if live else {}, live.server if live else {})
        files.live.objects[address] = live
    if live is None or wish.becomes == "forgotten" or wish.releases:
        files.entries.pop(address, None)
        return
    files.entries[address] = Entry(
        live.config, dict(wish.remembered.get("declared") or {}), live.created, wish.remembered.get("origin", "created")
    )


def _kind(verdict: Verdict) -> str | None:
    """What the next plan does with it, as its summary counts it; None for nothing."""
    if verdict.reason == "not_managed":
        return None
    if verdict.adopts and not verdict.deletes:
        return "import"
    if len(verdict.actions) == 2:
        return "replace"
    return {"create": "add", "update": "change", "delete": "destroy", "forget": "forget"}.get(verdict.actions[0])


def _said(files: Inputs, verdict: Verdict, kind: str) -> Diagnostic:
    declared = files.workspace.resources.get(verdict.address)
    where = declared.range if declared else None
    if kind == "add":
        summary, detail = "the files still have it: the next plan makes it again", "Take it out of the files."
    elif kind in ("destroy", "forget"):
        will = "deletes it again" if kind == "destroy" else "forgets it again"
        summary, detail = f"no file has it: the next plan {will}", _put_back(verdict)
    elif kind == "import" and not verdict.fields:
        summary, detail = "the files still have it: the next plan takes it over again", "Take it out of the files."
    else:
        summary = f"the files still contain the change: the next plan {'replaces' if kind == 'replace' else 'changes'} it again"
        detail, where = _fields(verdict, declared, where)
    return Diagnostic("warning", FILES, summary, detail, str(verdict.address), where)


def _put_back(verdict: Verdict) -> str:
    return (
        f"Put it back into the files:\n{written(verdict.address, verdict.live.config)}" if verdict.live else "Put it back into the files."
    )


def _fields(verdict: Verdict, declared: Declared | None, where: SourceRange | None) -> tuple[str, SourceRange | None]:
    """What to write for each field that differs, and where the first of them is written."""
    lines, ranges = [], declared.ranges if declared else {}
    table = table_of(verdict.address)
    for raw, change in zip(verdict.fields, in_words(verdict.address, verdict.fields), strict=True):
        name = raw.path.split(".")[0].split("[")[0]
        row = name if raw.path in table.by_name else ""
        stays, says = (shown(verdict.address, row, value) for value in (change.before, change.after))
        write = "take it out" if row and raw.before == table.default_of(row) else f"write: {stays}"
        lines.append(f"{change.path}: {says} in the files ({ranges[name]}); for it to stay, {write}" if name in ranges else
                     f"{change.path}: left to the server by the files, {says}; for it to stay, write: {stays}")  # fmt: skip
        where = ranges[name] if len(lines) == 1 and name in ranges else where
    return "\n".join(lines), where
