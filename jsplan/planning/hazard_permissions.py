"""The `--allow-hazard` flags: what they permit, and those that match nothing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from jsplan.address import Address, is_glob, matches, names_content
from jsplan.diagnostics import Diagnostic, did_you_mean
from jsplan.documents.plan import ResourceChange
from jsplan.planning.interest import is_placeholder
from jsplan.planning.model import Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.state.history import JsonObject, unpack_changes

PERMITS_NOTHING = "JS429"
_FLAGS_HINT = "Correct or remove the flag. The plan shows each flag that it needs."


def is_permitted(flags: Iterable[str], code: str, address: Address | str) -> bool:
    """Check whether a flag `CODE` or `CODE:ADDR` (ADDR may be a glob) allows the hazard there."""
    for flag in flags:
        name, mark, glob = flag.partition(":")
        if name == code and (not mark or matches(glob, address)):
            return True
    return False


def check_plan_permissions(inputs: PlanInputs, changes: Iterable[ResourceChange]) -> Findings:
    """Check the flags of a plan against its changes, the files, the state and what is live."""
    flags = [f for f in inputs.options.allow_hazards if not names_content(f.partition(":")[2])]
    if not any(":" in flag for flag in flags):
        return ()  # the others name nothing
    known = {
        *(Address.parse(change.address) for change in changes),
        *_recorded_addresses(inputs),
        *inputs.live.objects,
        *inputs.live.unreadable,
    }
    offline = [key for key, facts in inputs.live.domains.items() if not facts.reachable]
    found = list(check_permissions(flags, known, offline))
    if any(one.severity == "error" for one in found):
        # The same command may be run again, also after a kill.
        known |= {address for address, _ in _last_changes(inputs)}
        found = list(check_permissions(flags, known, offline))
    return found


def check_permissions(
    flags: Iterable[str], known: Collection[Address | str], offline: Collection[str]
) -> Findings:
    """Yield a finding for each `CODE:ADDR` that matches no known address.

    An address is an error. A glob may be meant for later resources, and what an offline domain has
    is not known: these are warnings.
    """
    for flag in dict.fromkeys(flags):
        _, colon, glob = flag.partition(":")
        if colon and not any(matches(glob, address) for address in known):
            unsure = is_glob(glob) or glob.partition("/")[0] in offline
            text = f"--allow-hazard {flag} names nothing and permits nothing"
            hint = did_you_mean(glob, map(str, known)).strip() or _FLAGS_HINT
            yield Diagnostic("warning" if unsure else "error", PERMITS_NOTHING, text, hint)


def permitted_addresses(inputs: PlanInputs) -> set[Address]:
    """Return the addresses of `--allow-hazard` that only their server can know."""
    globs = {flag.partition(":")[2] for flag in inputs.options.allow_hazards} - {""}
    plain = (glob for glob in globs if not is_glob(glob) and not names_content(glob))
    named = {Address.parse(glob) for glob in plain}
    unknown = named - _recorded_addresses(inputs)
    return {address for address in unknown if address.domain in inputs.workspace.domains}


def messages_begun(inputs: PlanInputs, decisions: Decisions, stream: Address) -> int:
    """Return how many messages the last apply, which did not finish, could delete of a stream.

    -1 where it finished, or where something else is to become of the stream and its consumers now.
    """
    history = inputs.state.history
    if not history or history[-1]["result"] == "done":
        return -1
    begun = {a: change for a, change in _last_changes(inputs) if stream in (a, a.parent)}
    changed = (
        decision
        for address, decision in inputs.touched(decisions).items()
        if stream in (address, address.parent) and decision.actions != ["no-op"]
    )
    for decision in changed:
        at = decision.address
        if not is_placeholder(at) and not _is_begun(begun.get(at), decision):
            return -1
    costs = [
        cost.get("messages") or cost.get("at_most", 0)
        for change in begun.values()
        for cost in change.get("costs", ())
        if cost["code"] == "DELETES_MESSAGES"
    ]
    return sum(costs) if costs else -1


def _is_begun(change: JsonObject | None, decision: ResourceDecision) -> bool:
    """Check whether the last apply was to do the same."""
    if change is None:
        return False
    after, now = change["after"], decision.after
    if after is None or now is None:
        return after is now
    return all(now.get(name) == value for name, value in after["values"].items())


def _last_changes(inputs: PlanInputs) -> list[tuple[Address, JsonObject]]:
    """Return what the last apply changed, or began to change before it was killed."""

    def read() -> list[tuple[Address, JsonObject]]:
        history = inputs.state.history
        changes = unpack_changes(history[-1]) if history else None
        return [(Address.parse(change["address"]), change) for change in changes or ()]

    return inputs.index("last changes", (inputs.state,), read)


def _recorded_addresses(inputs: PlanInputs) -> set[Address]:
    """Return the addresses in the files and in state, by their old and new names."""
    return {
        *inputs.workspace.resources,
        *inputs.state.resources,
        *inputs.entries,
        *inputs.interrupted.steps,
        *inputs.interrupted.replacements,
    }
