"""Errors and warnings of a plan, and findings that stop its apply until the user permits it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from jsplan.address import Address, matches, matches_any
from jsplan.codes import LINT
from jsplan.config.model import Removed, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import Live, get_retention
from jsplan.planning import stranded
from jsplan.planning.contents.kinds import CONTENT_KINDS
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED, table_of
from jsplan.planning.diff import with_bucket_names
from jsplan.planning.field_levels import check_server_level, needs_newer_server, old_server
from jsplan.planning.merge import overruled_fields
from jsplan.planning.model import UNTOUCHED, Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.planning.ownership import OWNER_CHANGED
from jsplan.planning.restore.interrupted import HOW_TO_FINISH, describe_part
from jsplan.planning.transfer.consumer_position import START_FIELDS
from jsplan.planning.transfer.consumers import check_consumer_replacement, replacement_fields
from jsplan.planning.transfer.hazards import check_stream_replacement, preserve_obstacle
from jsplan.planning.transfer.methods import RECREATE_HINT
from jsplan.resources.buckets import alias_of, nouns_of
from jsplan.state.document import Entry, State
from jsplan.units import count_text, format_duration

#: The priority policy that delivers all messages to one client at a time.
PINNED_CLIENT = "pinned_client"
#: Findings that stop an apply with exit code 3 although the plan is valid.
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


def is_refusal(found: Diagnostic) -> bool:
    """Check whether a finding stops the apply of a valid plan: a guard, or a lint error."""
    return found.code in REFUSALS or (found.severity == "error" and found.code in LINT)


def check_decision(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Yield the errors, refusals and warnings about one decided resource."""
    if decision.is_untouched and not inputs.measured.concern(decision.address):
        yield from check_server_level(inputs, decision)
        return
    yield from decision.diagnostics
    for change in with_bucket_names(decision.address, decision.ignored):
        summary = f"{change.path}: the server accepts the change and does nothing with it"
        detail = (
            "It is not sent: only a new object would have it. "
            "Put the old value back, or use --replace."
        )
        yield inputs.finding("warning", "JS412", summary, detail, decision.address)
    yield from _check_overruled(inputs, decision)
    yield from stranded.check_undelivered(inputs, decision)
    yield from stranded.check_last_deliveries(inputs, decision)
    yield from _check_pinned_client(inputs, decision)
    if decision.address.kind == "consumer" and (decision.preserves or decision.reset is not None):
        yield from check_consumer_replacement(inputs, decision)
    yield from check_server_level(inputs, decision)
    too_old = list(_check_replace_level(inputs, decision))
    yield from too_old
    if decision.deletes and decision.deleted_with is None:
        yield from check_prevent_destroy(inputs, decision)
    if decision.replaces and decision.deleted_with is None and not too_old:
        yield from _check_replacement(inputs, decision)
    yield from check_adoption(inputs, decision)


def check_adoption(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Yield a refusal if the plan changes an object that is not managed yet, without `--adopt`."""
    changes = decision.actions != ["no-op"] and decision.reason != OWNER_CHANGED
    if not decision.adopts or inputs.options.adopt:
        return
    if part := describe_part(inputs.interrupted.steps.get(decision.address), decision.live):
        yield inputs.finding("error", ADOPT_NEEDED, part, HOW_TO_FINISH, decision.address)
    elif changes:
        text = "exists on the server, is not managed yet, and differs from the files"
        detail = "To manage and change it: --adopt. Or change the files to match the server."
        yield inputs.finding("error", ADOPT_NEEDED, text, detail, decision.address)


def check_parent(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Findings:
    """Yield an error for something new whose stream or bucket neither exists nor is planned."""
    address, parent = decision.address, decision.address.parent
    if parent is None or decision.actions != ["create"]:
        return
    planned = decisions.get(inputs.topology.find_declared(parent))
    if (planned is not None and not planned.is_removed) or inputs.live.get(parent) is not None:
        return
    noun, detail = "stream", "Declare the stream, or correct the name."
    if address.is_content:  # it is declared in its bucket
        noun = CONTENT_KINDS[address.kind].parent
        detail = f"Plan the {noun} too: leave out --exclude."
    text = f"its {noun} {parent} neither exists nor is planned"
    yield inputs.finding("error", "JS416", text, detail, address)


def _check_pinned_client(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Warn that a pin outlives its policy, and blocks other clients until it expires.

    Measured on 2.11 to 2.15.
    """
    policies = [one.get("priority_policy") for one in (decision.before, decision.planned)]
    ends = policies[0] == PINNED_CLIENT != policies[1]
    if not ends or decision.actions != ["update"]:
        return
    pin = format_duration(decision.before.get("priority_timeout") or 0)
    text = (
        f"a pinned client stays pinned for up to {pin}. "
        "Until then the consumer delivers to no other client"
    )
    groups = " ".join(decision.before.get("priority_groups") or ())
    detail = (
        "To end the pin, run just before the apply: nats consumer unpin "
        f"{decision.address.stream} {decision.address.consumer} {groups}"
    )
    yield inputs.finding("warning", "JS473", text, detail, decision.address)


def _check_overruled(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Warn about declared values that the server replaces because of another setting."""
    declared = inputs.declared(decision.address)
    address, entry, after = decision.address, decision.entry, decision.after
    # A saved configuration is what a server made of its settings.
    if declared is None or after is None or decision.reason == UNTOUCHED or inputs.backup:
        return
    overruled = overruled_fields(table_of(address), inputs.body(address), after)
    if not overruled:
        return
    named = inputs.declared_fields(address)
    reported = {change.path.split(".")[0].split("[")[0] for change in decision.ignored}
    reported.update(declared.lifecycle.ignore_changes)
    if decision.preserves or decision.reset is not None:
        reported.update(START_FIELDS)
    else:
        reported |= replacement_fields(address, entry, named)
    for name in overruled:
        if name not in reported:
            word = alias_of(address.kind, name)
            value = json.dumps(after[name]) if name in after else "the default"
            text = f"{word}: another setting overrides it. The server uses {value}"
            detail = "Remove the line, or the setting that overrides it."
            yield inputs.finding("warning", "JS421", text, detail, address, word)


def is_guarded(workspace: Workspace, address: Address, *, guarded: bool) -> bool:
    """Check whether prevent_destroy is in force: by the files, else by state (`guarded`).

    A `removed` entry can lift the guard of state.
    """
    declared = workspace.resources.get(address)
    in_files = declared.lifecycle.prevent_destroy if declared else None
    lifted = any(
        matches(block.address, address) and block.prevent_destroy is False
        for block in workspace.removed
    )
    return in_files if in_files is not None else guarded and not lifted


def check_prevent_destroy(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Yield a refusal if the plan deletes a guarded object."""
    interrupted = inputs.interrupted.streams.get(decision.address)
    if interrupted is not None and not interrupted.has_origin:
        return  # the old stream is deleted already; finishing the replacement restores it
    guarded = bool(decision.entry and decision.entry.prevent_destroy)
    if not is_guarded(inputs.workspace, decision.address, guarded=guarded):
        return
    outcome = "replaced, which deletes its content" if decision.replaces else "deleted"
    outcome = "replaced, keeping its content" if decision.preserves else outcome
    text = f"is guarded by prevent_destroy and would be {outcome}"
    detail = (
        "The guard is kept in state. To lift it, write prevent_destroy: false in its lifecycle, "
        "or in a removed entry."
    )
    yield inputs.finding("error", PREVENT_DESTROY, text, detail, decision.address)


def _check_replace_level(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Yield an error for a replacement or a position on a server that is too old for it."""
    if decision.deleted_with is not None:
        return
    if decision.reset is not None:
        what, detail = "setting its position", "Or remove `position`."
    elif decision.replaces:
        what = "replacing it"
        detail = (
            "Or take the change back. To lose what it has: take it out of the files and apply, "
            "then put it in again and apply."
        )
    elif _leaves_interest(decision):
        # 2.10 would delete what no consumer wants, at each later update of a consumer (measured).
        what, detail = "changing retention from interest to limits", "Or take the change back."
    else:
        return
    if (old := old_server(inputs, decision.address)) is not None:
        place = inputs.place(decision.address)
        yield needs_newer_server(decision.address, what, old, detail, place)


def _leaves_interest(decision: ResourceDecision) -> bool:
    retentions = get_retention(decision.before), get_retention(decision.planned)
    return decision.actions == ["update"] and retentions == ("interest", "limits")


def _check_replacement(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Check a replacement against `on_replace`. `--replace` counts as `recreate`."""
    consumer = decision.address.kind == "consumer"
    if not consumer and (decision.reason == REPLACEMENT_INTERRUPTED or decision.relocation):
        return  # it loses nothing, whatever on_replace is
    if decision.reset is not None and all(f.effect != "replace" for f in decision.fields):
        return
    mode, forced = inputs.on_replace(decision.address), decision.reason == "replace_by_request"
    if mode == "recreate" or (forced and mode == "refuse") or (consumer and mode == "preserve"):
        return
    if mode == "preserve":
        yield from _check_preserve(inputs, decision)
        return
    named = with_bucket_names(decision.address, decision.fields)
    paths = ", ".join(f.path for f in named if f.effect == "replace") or "the request"
    what = "its position" if consumer else f"its {nouns_of(decision.address).content}"
    detail = f"To delete and recreate it without {what}: lifecycle: {{on_replace: recreate}}."
    if not consumer:
        detail += " To keep them: on_replace: preserve."
    summary = (
        f"cannot be changed in place ({paths}), "
        "and on_replace: refuse does not let jsplan replace it"
    )
    yield inputs.finding("error", REPLACE_REFUSED, summary, detail, decision.address)


def _check_preserve(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Report obstacles of a preserving replacement, or else its warnings."""
    if (obstacle := preserve_obstacle(inputs, decision)) is not None:
        summary = (
            f"cannot be changed in place, and its {nouns_of(decision.address).content} "
            f"cannot be preserved (on_replace: preserve): {obstacle}"
        )
        yield inputs.finding("error", REPLACE_REFUSED, summary, RECREATE_HINT, decision.address)
    else:
        yield from check_stream_replacement(inputs, decision)


def check_undeclared_domains(inputs: PlanInputs) -> list[Diagnostic]:
    """Report an error for each undeclared domain with entries in state, with the ways to fix it."""
    workspace, found = inputs.workspace, list[Diagnostic]()
    known = {*inputs.entries, *inputs.interrupted.steps}
    undeclared = (a for a in known if a.domain not in workspace.domains and not a.is_content)
    lost = Counter(a.domain for a in undeclared if not workspace.forgets(a))
    for domain, count in sorted(lost.items()):
        many = count_text(count, "resource")
        text = f"state has {many} in domain {domain}, which is no longer declared"
        detail = (
            f'If it has a new name:    moved:   [{{from: "{domain}/**", to: "NEW/**"}}]\n'
            f'To leave it on the server: removed: [{{address: "{domain}/**", destroy: false}}]\n'
            f"To delete it: declare {domain} again, and remove its resources from the files first."
        )
        found.append(Diagnostic("error", "JS414", text, detail, f"{domain}/**"))
    return found


def check_moves(inputs: PlanInputs) -> Findings:
    """Yield an error for each `moved` entry whose object is still in the old domain."""
    for new, old in sorted(inputs.moved_from.items()):
        if new.is_content or not is_at_old_address(inputs, new):
            continue
        block = next((b for b in inputs.workspace.moved if matches(b.old_address, old)), None)
        text = f"is moved from {old} in the files, but the object is still there"
        detail = (
            "A `moved` entry renames a domain. It does not move objects between servers; for a "
            f"stream a `relocate` entry does. Remove the entry: then {new} is created, and {old} "
            "is deleted unless it is declared."
        )
        place = block.range if block else None
        yield Diagnostic("error", "JS427", text, detail, str(new), place)


def is_at_old_address(inputs: PlanInputs, new: Address) -> bool:
    """Check whether the object of a moved entry is live at the old address only."""
    entry, old = inputs.entries.get(new), inputs.moved_from.get(new)
    if entry is None or old is None:
        return False
    there, here = inputs.live.get(old), inputs.live.get(new)
    is_here = here is not None and here.created == entry.created
    return there is not None and there.created == entry.created and not is_here


def check_environment(
    entries: Mapping[Address, Entry], state: State, live: Live, removed: Iterable[Removed]
) -> list[Diagnostic]:
    """Report each domain that answers as another server and has no managed resource."""
    found = []
    forgotten = [r.address for r in removed if not r.destroy]
    for key, facts in live.domains.items():
        known = state.domains.get(key, {})
        if not facts.reachable or is_same_server(known, facts.server):
            continue
        ours = (a for a in entries if a.domain == key and not a.is_content)
        managed = [a for a in ours if not matches_any(forgotten, a)]
        there = any(
            (o := live.get(a)) is not None and o.created == entries[a].created for a in managed
        )
        if managed and not there:
            text = (
                f"domain {key} answers as {server_label(facts.server)}, and none of its "
                f"{len(managed)} managed resources is there"
            )
            detail = (
                f"State knows it as {server_label(known)}. Is this the right environment or "
                "connection? If the server was really replaced, forget the old one with: "
                f"jsplan state rm '{key}/**'"
            )
            found.append(Diagnostic("error", "JS410", text, detail, f"{key}/**"))
    return found


def is_same_server(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Check whether both may be the same server or cluster, by cluster name or else server name.

    An unknown server counts as the same.
    """
    if not all(server.get("name") or server.get("cluster") for server in (one, other)):
        return True
    if one.get("cluster") and other.get("cluster"):
        return one["cluster"] == other["cluster"]
    return one.get("name") == other.get("name")


def server_label(server: Mapping[str, str]) -> str:
    """Format the name of a server for messages."""
    if server.get("cluster"):
        return f"cluster {server['cluster']}"
    return f"server {server['name']}" if server.get("name") else "an unknown server"
