"""What plan refuses as wrong, and what apply refuses until somebody permits it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from jsplan.address import Address, matches
from jsplan.codes import LINT
from jsplan.config.model import Removed, Workspace
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import Plan
from jsplan.facts.live import Live
from jsplan.planning import stranded
from jsplan.planning.bucket_aliases import with_bucket_names
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED, UNTOUCHED, ResourceDecision, table_of
from jsplan.planning.merge import overruled_fields
from jsplan.planning.model import PlanInputs
from jsplan.planning.ownership import OWNER_CHANGED
from jsplan.planning.preserve.consumer_position import START_FIELDS
from jsplan.planning.preserve.consumers import check_consumer_replacement, replacement_fields
from jsplan.planning.preserve.hazards import check_stream_replacement as worth_knowing
from jsplan.planning.preserve.hazards import preserve_obstacle
from jsplan.planning.preserve.methods import RECREATE_HINT
from jsplan.planning.replication.impact import effective_starts
from jsplan.resources.buckets import alias_of
from jsplan.resources.fields import Config
from jsplan.state.document import Entry, State
from jsplan.units import format_duration

#: The policy that gives everything to one client at a time.
PINNED_CLIENT = "pinned_client"
#: Findings that stop an apply with exit 3 while the plan itself is sound.
PREVENT_DESTROY, ADOPT_NEEDED, REPLACE_REFUSED = "JS301", "JS302", "JS303"
RESTORE_OVER, REINSTALLED, OTHER_WORKSPACE = "JS304", "JS305", "JS306"
REFUSALS = (
    PREVENT_DESTROY,
    ADOPT_NEEDED,
    REPLACE_REFUSED,
    RESTORE_OVER,
    REINSTALLED,
    OTHER_WORKSPACE,
)
LEVEL_NAMES = {1: "2.11", 2: "2.12", 3: "2.12.5", 4: "2.14", 5: "2.15"}


def is_refusal(found: Diagnostic) -> bool:
    """Whether a finding leaves the plan sound and stops its apply: a guard, or advice that the files make an error."""
    return found.code in REFUSALS or (found.severity == "error" and found.code in LINT)


def refusal_reasons(plan: Plan) -> list[str]:
    """Why an apply of this plan would stop before the first write, one line each with the flag to use."""
    reasons = [f"{d.address}: {d.summary}. {d.detail}" for d in plan.diagnostics if is_refusal(d)]
    for change in plan.resource_changes:
        stopping = (hazard for hazard in change.hazards if hazard.blocking and not hazard.allowed)
        reasons += [
            f"{change.address}: {hazard.message}. To permit it: {hazard.flag}"
            for hazard in stopping
        ]
    return reasons


def check_decision(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """Findings about one decided resource: errors of the plan, refusals, and what the server will not do."""
    address, place = str(verdict.address), _source_range(inputs, verdict.address)
    yield from verdict.diagnostics
    for change in with_bucket_names(verdict.address, verdict.ignored):
        summary = f"{change.path}: the server accepts the change and does nothing with it"
        detail = "It is not sent: only a new object would have it. Put the old value back, or use --replace."
        yield Diagnostic("warning", "JS412", summary, detail, address, place)
    yield from _check_overruled(inputs, verdict)
    yield from stranded.check_undelivered(inputs, verdict)
    yield from stranded.check_starved_consumers(inputs, verdict)
    yield from _check_pinned_client(verdict, place)
    if verdict.preserves and verdict.address.kind == "consumer":
        yield from check_consumer_replacement(inputs, verdict)
    yield from _check_server_level(inputs, verdict)
    if verdict.deletes and verdict.deleted_with is None:
        yield from _check_prevent_destroy(inputs, verdict)
    if verdict.replaces and verdict.deleted_with is None:
        yield from _check_replacement(inputs, verdict)
    if (
        verdict.adopts
        and verdict.actions != ["no-op"]
        and verdict.reason != OWNER_CHANGED
        and not inputs.request.adopt
    ):
        yield Diagnostic(
            "error",
            ADOPT_NEEDED,
            "exists on the server, is not managed yet, and differs from the files",
            "To manage and change it: --adopt. Or change the files to match the server.",
            address,
            place,
        )


def _source_range(inputs: PlanInputs, address: Address) -> SourceRange | None:
    declared = inputs.workspace.resources.get(address)
    return declared.range if declared else None


def _check_pinned_client(
    verdict: ResourceDecision, place: SourceRange | None
) -> Iterable[Diagnostic]:
    """A pin outlives its policy: until it ends the server serves nobody else (measured on 2.11 to 2.15)."""
    before, after = (
        config.get("priority_policy")
        for config in (verdict.live.compact if verdict.live else {}, verdict.after or {})
    )
    if (
        verdict.live is None
        or verdict.actions != ["update"]
        or before != PINNED_CLIENT
        or after == PINNED_CLIENT
    ):
        return
    pin = format_duration(verdict.live.compact.get("priority_timeout") or 0)
    text = f"a client that is pinned stays so for up to {pin}: until then the consumer delivers nothing to others"
    groups = " ".join(verdict.live.compact.get("priority_groups") or ())
    detail = f"To end the pin at once: nats consumer unpin {verdict.address.stream} {verdict.address.consumer} {groups}, just before the apply."
    yield Diagnostic("warning", "JS473", text, detail, str(verdict.address), place)


def _check_overruled(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """What the files say and the server replaces, because another setting decides it: said each time, never sent again."""
    declared = inputs.declared(verdict.address)
    if declared is None or verdict.after is None or verdict.reason == UNTOUCHED:
        return
    told = {change.path.split(".")[0].split("[")[0] for change in verdict.ignored} | set(
        declared.lifecycle.ignore_changes
    )
    told |= (
        {"sources"}
        if verdict.entry
        and effective_starts(verdict, verdict.entry, inputs.declared_fields(verdict.address))
        else set()
    )
    told |= (
        set(START_FIELDS)
        if verdict.preserves
        else replacement_fields(
            verdict.address, verdict.entry, inputs.declared_fields(verdict.address)
        )
    )
    for name in overruled_fields(
        table_of(verdict.address), inputs.body(verdict.address), verdict.after
    ):
        if name not in told:
            word = alias_of(verdict.address.kind, name)
            yield Diagnostic(
                "warning",
                "JS421",
                f"{word}: other settings decide it, so the server makes it {_format_value(verdict.after, name)}",
                "Remove the line, or what decides it.",
                str(verdict.address),
                declared.ranges.get(word, declared.range),
            )


def _format_value(after: Config, name: str) -> str:
    return json.dumps(after[name]) if name in after else "what it is by default"


def _check_server_level(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """A field that the domain's server does not know would be dropped in silence by old servers."""
    declared = inputs.declared(verdict.address)
    if declared is None:
        return
    address, level, table = (
        verdict.address,
        inputs.level(verdict.address),
        table_of(verdict.address),
    )
    for path, needed in table.required_levels(inputs.body(address)):
        if needed <= level:
            continue
        name = path.split(".")[0]
        value, word = inputs.body(address)[name], alias_of(address.kind, name)
        shown = (
            f"{word}: {value}"
            if isinstance(value, str) and value in table.by_name[name].value_levels
            else word + path.removeprefix(name)
        )
        yield Diagnostic(
            "error",
            "JS413",
            f"{shown} needs API level {needed} (nats-server {LEVEL_NAMES[needed]}); {address.domain} has level {level}",
            "Upgrade that server, or leave it out.",
            str(address),
            declared.ranges.get(word, declared.range),
        )


def is_guarded(workspace: Workspace, address: Address, *, guarded: bool) -> bool:
    """Whether prevent_destroy holds: by what the files say, else by state (`guarded`) unless a `removed` entry lifts it."""
    declared = workspace.resources.get(address)
    said = declared.lifecycle.prevent_destroy if declared else None
    lifted = any(
        matches(block.address, address) and block.prevent_destroy is False
        for block in workspace.removed
    )
    return said if said is not None else guarded and not lifted


def _check_prevent_destroy(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    found = inputs.interrupted.get(verdict.address)
    if found is not None and not found.has_old_stream:
        return  # what the guard is for is gone; to finish the replacement brings it back
    if is_guarded(
        inputs.workspace,
        verdict.address,
        guarded=bool(verdict.entry and verdict.entry.prevent_destroy),
    ):
        yield Diagnostic(
            "error",
            PREVENT_DESTROY,
            f"is guarded by prevent_destroy and would be {_describe_outcome(verdict)}",
            "The guard is kept in state. To lift it write prevent_destroy: false in its lifecycle, or in a removed entry.",
            str(verdict.address),
            _source_range(inputs, verdict.address),
        )


def _describe_outcome(verdict: ResourceDecision) -> str:
    """The guard stands before the object as it is: also before one that would get all that this one holds."""
    if verdict.preserves:
        return "replaced, with what it holds carried over"
    return "replaced, which deletes what it holds" if verdict.replaces else "deleted"


def _check_replacement(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """`refuse`, `recreate` or `preserve`; `--replace` names the resource and so stands for `recreate`."""
    consumer = verdict.address.kind == "consumer"
    if not consumer and verdict.reason == REPLACEMENT_INTERRUPTED:
        return  # to finish it loses nothing, whatever the files let a replacement do by now
    mode, forced = inputs.on_replace(verdict.address), verdict.reason == "replace_by_request"
    if mode == "recreate" or (forced and mode == "refuse"):
        return
    if consumer and mode == "preserve":
        return
    if mode == "preserve":
        yield from _check_preserve(inputs, verdict)
        return
    paths = (
        ", ".join(
            f.path
            for f in with_bucket_names(verdict.address, verdict.fields)
            if f.effect == "replace"
        )
        or "the request"
    )
    what = "its position" if consumer else "its messages"
    detail = f"To delete and recreate it without {what}: lifecycle: {{on_replace: recreate}}."
    if not consumer:
        detail += " To keep them: on_replace: preserve."
    summary = f"cannot be changed in place ({paths}), and on_replace: refuse does not let jsplan replace it"
    yield Diagnostic(
        "error",
        REPLACE_REFUSED,
        summary,
        detail,
        str(verdict.address),
        _source_range(inputs, verdict.address),
    )


def _check_preserve(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """What stands against carrying a stream's messages over, or is worth knowing before."""
    if (why := preserve_obstacle(inputs, verdict)) is not None:
        summary = f"cannot be changed in place, and its messages cannot be preserved (on_replace: preserve): {why}"
        yield Diagnostic(
            "error",
            REPLACE_REFUSED,
            summary,
            RECREATE_HINT,
            str(verdict.address),
            _source_range(inputs, verdict.address),
        )
    else:
        yield from worth_knowing(inputs, verdict)


def check_undeclared_domains(inputs: PlanInputs) -> list[Diagnostic]:
    """State entries of domains that are no longer declared: an error that prints what would settle it."""
    lost: dict[str, int] = {}
    for address in {*inputs.entries, *inputs.unfinished_steps}:
        forgotten = any(
            matches(r.address, address) and not r.destroy for r in inputs.workspace.removed
        )
        if address.domain not in inputs.workspace.domains and not forgotten:
            lost[address.domain] = lost.get(address.domain, 0) + 1
    return [
        Diagnostic(
            "error",
            "JS414",
            f"state has {count} resource{'s' if count > 1 else ''} in domain {domain}, which is no longer declared",
            f'If it has a new name:    moved:   [{{from: "{domain}/**", to: "NEW/**"}}]\n'
            f'To leave it on the server: removed: [{{address: "{domain}/**", destroy: false}}]\n'
            f"To delete it: declare {domain} again, and remove its resources from the files first.",
            f"{domain}/**",
        )
        for domain, count in sorted(lost.items())
    ]


def check_moves(inputs: PlanInputs) -> Iterable[Diagnostic]:
    """An error for each entry that `moved` gives another domain while the object itself is still where it was."""
    for new, old in sorted(inputs.moved_from.items()):
        if not is_at_old_address(inputs, new):
            continue
        block = next((b for b in inputs.workspace.moved if matches(b.old_address, old)), None)
        yield Diagnostic(
            "error",
            "JS427",
            f"is moved from {old} in the files, and is still there",
            f"A `moved` entry gives a domain another name; it moves nothing between servers. Take it out: then {new} is created, and {old} "
            "is planned for deletion unless it is declared.",
            str(new),
            block.range if block else None,
        )


def is_at_old_address(inputs: PlanInputs, new: Address) -> bool:
    """Whether what `moved` calls by a new address is live under the old one, and only there."""
    entry, old = inputs.entries.get(new), inputs.moved_from.get(new)
    there = inputs.live.get(old) if old is not None else None
    here = inputs.live.get(new)
    return (
        entry is not None
        and there is not None
        and there.created == entry.created
        and (here is None or here.created != entry.created)
    )


def check_environment(
    entries: Mapping[Address, Entry], state: State, live: Live, removed: Iterable[Removed]
) -> list[Diagnostic]:
    """A domain that answers as another server and has none of our objects is not the domain we know."""
    found = []
    given_up = [r.address for r in removed if not r.destroy]
    for key, facts in live.domains.items():
        known = state.domains.get(key, {})
        managed = [
            a for a in entries if a.domain == key and not any(matches(glob, a) for glob in given_up)
        ]
        there = [
            a for a in managed if (o := live.get(a)) is not None and o.created == entries[a].created
        ]
        if facts.reachable and managed and not there and not is_same_server(known, facts.server):
            found.append(
                Diagnostic(
                    "error",
                    "JS410",
                    f"domain {key} answers as {server_label(facts.server)}, and none of its {len(managed)} managed resources is there",
                    f"State knows it as {server_label(known)}. Is this the right environment or connection? If the server was really replaced, "
                    f"forget the old one with: jsplan state rm '{key}/**'",
                    f"{key}/**",
                )
            )
    return found


def is_same_server(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether both may be the same: a cluster is known by its name, a single server by its own.

    Who nobody knows is not called another.
    """
    if not all(server.get("name") or server.get("cluster") for server in (one, other)):
        return True
    if one.get("cluster") and other.get("cluster"):
        return one["cluster"] == other["cluster"]
    return one.get("name") == other.get("name")


def server_label(server: Mapping[str, str]) -> str:
    """A server as messages call it."""
    if server.get("cluster"):
        return f"cluster {server['cluster']}"
    return f"server {server['name']}" if server.get("name") else "an unknown server"
