"""What becomes of one resource: the three-way comparison of one address. Cost and order are left to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Action, FieldChange
from jsplan.facts.live import LiveObject, limits_of, retention_of
from jsplan.planning import pauses
from jsplan.planning.diff import field_changes, lacking
from jsplan.planning.downstream import told
from jsplan.planning.inputs import Inputs
from jsplan.planning.merge import expected_new, expected_update, within_limits, without_ignored
from jsplan.planning.preserve.consumers import goes_on, held, purges
from jsplan.planning.preserve.ways import one_by_one, tightens
from jsplan.planning.words import in_words
from jsplan.resources import CONSUMER
from jsplan.resources.buckets import CARRYING
from jsplan.resources.fields import Config, Table
from jsplan.state.document import Entry

#: The reason of a resource that is as state has it and as the files have it: nothing more needs to be compared.
UNTOUCHED = "equal"
#: That of a resource whose replacement an apply began and did not end.
UNDER_WAY = "replacement_interrupted"
#: That of a stream whose replacement was begun, and that the files want as it was.
GIVEN_UP = "replacement_rolled_back"


@dataclass(slots=True)
class Verdict:
    """One resource, decided. `after` is the compact configuration it should end with, None when it goes.

    `ignored` are changes the server would take and not carry out. `follows` is the stream whose replacement or
    deletion takes this consumer with it, `brought` the one whose replacement brings it back as it shall be. `adopts` says that
    the live object was not ours until now. `renews`: of a stream that is replaced with its messages, each consumer is made as it shall
    be, at its ack floor. `unknown` are fields of `after` that are only known when it is carried out. `leaves`
    are sources that are taken out before what they read is made anew, `rejoins` those that are put back where they left.
    """

    address: Address
    actions: list[Action]
    reason: str
    live: LiveObject | None = None
    entry: Entry | None = None
    after: Config | None = None
    fields: list[FieldChange] = field(default_factory=list)
    ignored: list[FieldChange] = field(default_factory=list)
    adopts: bool = False
    follows: Address | None = None
    brought: Address | None = None
    unknown: list[str] = field(default_factory=list)
    renews: bool = False
    leaves: set[str] = field(default_factory=set)
    rejoins: set[str] = field(default_factory=set)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @property
    def replaces(self) -> bool:
        """Whether the object is deleted and made again, with what it holds or without."""
        return len(self.actions) == 2

    @property
    def preserves(self) -> bool:
        """Whether a replacement carries over what the object holds."""
        return self.actions == ["create", "delete"]

    @property
    def loses(self) -> bool:
        """Whether what the live object holds goes with it."""
        return self.deletes and not self.preserves

    @property
    def goes(self) -> bool:
        """Whether nothing is there, or nothing is ours, in the end."""
        return self.actions[-1] in ("delete", "forget") and not self.preserves

    @property
    def writes(self) -> bool:
        """Whether something that is made or changed is there in the end."""
        return self.actions[-1] in ("create", "update") or self.preserves

    @property
    def deletes(self) -> bool:
        """Whether the live object goes away."""
        return "delete" in self.actions


def table_of(address: Address) -> Table:
    """The field table of what lies on the server behind an address."""
    return CONSUMER if address.kind == "consumer" else CARRYING[address.kind]


def will_be(inputs: Inputs, verdicts: Mapping[Address, Verdict], address: Address) -> Config | None:
    """The compact configuration an object will have, None when it is not there then."""
    verdict, live = verdicts.get(address), inputs.live.get(address)
    if verdict is not None:
        return None if verdict.goes else verdict.after
    return live.compact if live else None


def decide(inputs: Inputs, address: Address) -> Verdict:
    """Compare desired, live and last applied of one address in a reachable domain."""
    verdict = _decide(inputs, address)
    return _goes_on(inputs, verdict) if address in inputs.under_way else verdict


def _decide(inputs: Inputs, address: Address) -> Verdict:
    live, entry, declared = inputs.live.get(address), inputs.entries.get(address), inputs.declared(address)
    ours = entry is not None and live is not None and entry.created == live.created
    if inputs.request.refresh_only:
        return _refresh(address, live, entry, ours=ours, under_way=address in inputs.replacements)
    if declared is None:
        return _left_the_files(inputs, address, live, entry, ours=ours)
    if live is None:
        return _absent(inputs, address, entry)
    return _present(inputs, address, live, entry, ours=ours)


def _refresh(address: Address, live: LiveObject | None, entry: Entry | None, *, ours: bool, under_way: bool) -> Verdict:
    if under_way:
        return Verdict(address, ["no-op"], UNDER_WAY, live, entry, live.compact if live else None)
    if entry is not None and (live is None or not ours):
        return Verdict(address, ["forget"], "forget_because_missing", None, entry)
    return Verdict(address, ["no-op"], "refresh_only", live, entry, live.compact if live else None)


def _left_the_files(inputs: Inputs, address: Address, live: LiveObject | None, entry: Entry | None, *, ours: bool) -> Verdict:
    if entry is None:
        return Verdict(address, ["no-op"], "not_managed", live)
    removed = next((r for r in inputs.workspace.removed if matches(r.address, address)), None)
    if removed is not None and not removed.destroy:
        return Verdict(address, ["forget"], "forget_because_removed_block", live, entry)
    if live is None:
        return Verdict(address, ["forget"], "forget_because_missing", None, entry)
    if not ours:
        text = f"{address} was made again by somebody else ({live.created}); what this workspace created is gone"
        found = Diagnostic("warning", "JS411", text, "It is forgotten, not deleted.", str(address))
        return Verdict(address, ["forget"], "forget_because_recreated_elsewhere", live, entry, diagnostics=[found])
    reason = "delete_because_destroy" if inputs.request.destroy else "delete_because_not_in_files"
    return Verdict(address, ["delete"], reason, live, entry)


def _absent(inputs: Inputs, address: Address, entry: Entry | None) -> Verdict:
    if inputs.request.imports:
        return _nothing_to_import(inputs, address)
    after = expected_new(table_of(address), inputs.creation(address), inputs.level(address), around(inputs, address))
    reason = "create_because_missing" if entry is not None else "create_because_new"
    if address in inputs.replacements:
        reason = UNDER_WAY
    verdict = Verdict(address, ["create"], reason, None, entry, after)
    if reason == UNDER_WAY and address.kind == "consumer":
        goes_on(inputs, verdict)
    return verdict


def _nothing_to_import(inputs: Inputs, address: Address) -> Verdict:
    """A glob takes what is there; an address that somebody wrote out must be there."""
    verdict = Verdict(address, ["no-op"], "absent")
    if str(address) in inputs.request.imports:
        verdict.diagnostics.append(
            Diagnostic("error", "JS420", "does not exist on the server", "Create it with: jsplan apply", str(address))
        )
    return verdict


def around(inputs: Inputs, address: Address) -> Config:
    """What the server takes from elsewhere: a consumer's limits from its stream, a local mirror's `mirror_direct`."""
    parent = address.parent
    return _mirror_direct(inputs, address) if parent is None else _limits(inputs, parent) | _of_account(inputs, address)


def _of_account(inputs: Inputs, address: Address) -> Config:
    """The most unacknowledged messages that the account lets a consumer have, where it says so."""
    most = most_unacknowledged(inputs, address)
    return {"account_max_ack_pending": most} if most > 0 else {}


def most_unacknowledged(inputs: Inputs, consumer: Address) -> int:
    """What the account allows of a consumer with so many copies; 0 or less is no limit."""
    facts, parent = inputs.live.domains.get(consumer.domain), consumer.parent
    if facts is None or parent is None:
        return 0
    live, body = inputs.live.get(parent), inputs.topology.bodies.get(parent, {})
    of_stream = body.get("num_replicas") or (live.compact.get("num_replicas") if live else None) or 1
    return int(limits_of(facts.info, inputs.topology.bodies.get(consumer, {}).get("num_replicas") or of_stream).get("max_ack_pending") or 0)


def _limits(inputs: Inputs, stream: Address) -> Config:
    """The `consumer_limits` that consumers of the stream will live under."""
    live, declared = inputs.live.get(stream), stream in inputs.topology.bodies and not inputs.request.destroy
    if declared and "consumer_limits" in inputs.topology.bodies[stream]:
        return inputs.topology.bodies[stream]["consumer_limits"] or {}
    limits: Config = (live.compact.get("consumer_limits") or {}) if live else {}
    if limits and declared:
        limits = (decide(inputs, stream).after or {}).get("consumer_limits") or {}
    return limits


def _mirror_direct(inputs: Inputs, address: Address) -> Config:
    """Empty where the mirror decides itself: its origin is elsewhere, or is not there."""
    mirror = inputs.topology.bodies.get(address, {}).get("mirror") or {}
    if not mirror or mirror.get("external"):
        return {}
    origin = Address.of_stream(address.domain, mirror["name"])
    live, declared = inputs.live.get(origin), origin in inputs.topology.bodies and not inputs.request.destroy
    if not declared and live is None:
        return {}
    body = ({} if live else inputs.creation(origin)) | (inputs.body(origin) if declared else {})
    said = body["allow_direct"] if "allow_direct" in body else live and live.compact.get("allow_direct")
    return {"mirror_direct": bool(said)}


def _present(inputs: Inputs, address: Address, live: LiveObject, entry: Entry | None, *, ours: bool) -> Verdict:
    """Declared and on the server: nothing, an update, a replacement, and perhaps an import with it."""
    mine = held(address, entry, inputs.declared_fields(address)) if ours else frozenset()
    if ours and entry is not None and _untouched(inputs, live, entry, mine) and not _forced(inputs, address):
        return Verdict(address, ["no-op"], UNTOUCHED, live, entry, live.compact)
    table, body, level = table_of(address), inputs.body(address), inputs.level(address)
    last = (table.compact(entry.config), entry.declared) if ours and entry is not None else None
    declared = inputs.declared(address)
    ignore = declared.lifecycle.ignore_changes if declared else ()
    target = expected_update(
        table, body, live.compact, live.raw, last, level=level, around=around(inputs, address), ignore=mine.union(ignore)
    )
    if address.kind == "consumer" and pauses.PAUSE not in ignore:
        target = pauses.settled(target, body, live.compact, last, inputs.request.now)
    after, ignored = without_ignored(table, live.compact, target, level)
    ignored = told(ignored, entry if ours else None, inputs.declared_fields(address))
    fields = field_changes(table, live.compact, after, level)
    verdict = Verdict(address, ["no-op"], "equal_now", live, entry, after, fields, ignored, adopts=not ours)
    return _with_action(inputs, verdict)


def _cannot_stay(inputs: Inputs, verdict: Verdict) -> bool:
    """Whether an update in place would delete messages that a replacement keeps."""
    after, live = verdict.after, verdict.live
    return live is not None and after is not None and verdict.address.kind == "consumer" and purges(inputs, live, after)


def _forced(inputs: Inputs, address: Address) -> bool:
    return address in inputs.unfinished or any(matches(glob, address) for glob in inputs.request.replace)


def _untouched(inputs: Inputs, live: LiveObject, entry: Entry, mine: frozenset[str]) -> bool:
    """The cheap way to see that nothing differs: live as recorded and as named, and the files as recorded.

    What is `mine` a replacement put there in place of what the files say.
    """
    named = inputs.declared_fields(live.address)
    if live.config != entry.config or named != entry.declared:
        return False
    if lacking(table_of(live.address), live.compact, {name: value for name, value in named.items() if name not in mine} if mine else named):
        return False
    return live.address.parent is None or within_limits(live.compact, around(inputs, live.address))


def _with_action(inputs: Inputs, verdict: Verdict) -> Verdict:
    if verdict.adopts and inputs.request.imports:
        return _import_only(inputs, verdict)
    forced = _forced(inputs, verdict.address)
    if _cannot_stay(inputs, verdict):
        verdict.fields = [replace(c, effect="replace") if c.path.startswith("filter_subject") else c for c in verdict.fields]
    if forced or any(change.effect == "replace" for change in verdict.fields):
        verdict.reason = "replace_by_request" if forced else "replace_because_cannot_update"
        if verdict.address in inputs.unfinished:
            verdict.reason = UNDER_WAY
        verdict.actions = ["delete", "create"]
        verdict.after = expected_new(
            table_of(verdict.address), inputs.creation(verdict.address), inputs.level(verdict.address), around(inputs, verdict.address)
        )
        if inputs.on_replace(verdict.address) == "preserve":
            verdict.actions = ["create", "delete"]
            if verdict.address.kind == "consumer":
                goes_on(inputs, verdict)
    elif verdict.fields:
        verdict.actions, verdict.reason = ["update"], _update_reason(verdict)
    elif verdict.adopts:
        verdict.reason = "import_because_equal"
    return verdict


def _goes_on(inputs: Inputs, verdict: Verdict) -> Verdict:
    """What becomes of a stream whose replacement was begun: it goes on, or gives back what it took; whatever the files say by now."""
    address, found = verdict.address, inputs.under_way[verdict.address]
    if inputs.request.refresh_only or found.begin == "clear":
        return verdict
    if found.broken or inputs.declared(address) is None:
        what = found.broken or "it is in no file any more, or all is to be destroyed"
        detail = found.detail if found.broken else "Put it back into the files and run: jsplan apply. Then it can go."
        error = Diagnostic("error", "JS424", f"{found.summary}. It cannot be finished: {what}", detail, str(address))
        return replace(verdict, actions=["no-op"], reason=UNDER_WAY, fields=[], adopts=False, diagnostics=[error])
    told = Diagnostic("warning", "JS424", found.summary, found.detail, str(address))
    if found.can_be_given_up and not verdict.replaces:
        return replace(verdict, actions=["update"], reason=GIVEN_UP, adopts=False, diagnostics=[told])
    after = expected_new(table_of(address), inputs.creation(address), inputs.level(address), around(inputs, address))
    return replace(verdict, actions=["create", "delete"], reason=UNDER_WAY, after=after, ignored=[], adopts=False, diagnostics=[told])


def _import_only(inputs: Inputs, verdict: Verdict) -> Verdict:
    """Taken into state as it is, without a write; what differs from the files is for the next plan."""
    verdict.reason = "import_by_request" if verdict.fields else "import_because_equal"
    if verdict.fields and not inputs.request.adopt:
        paths = ", ".join(change.path for change in in_words(verdict.address, verdict.fields))
        detail = "To take it over as it is, and see the difference as a change in the next plan: --adopt."
        verdict.diagnostics.append(Diagnostic("error", "JS302", f"differs from the files ({paths})", detail, str(verdict.address)))
    return verdict


def _update_reason(verdict: Verdict) -> str:
    if verdict.adopts:
        return "import_and_update"
    drifted = (
        verdict.entry is not None
        and verdict.live is not None
        and table_of(verdict.address).compact(verdict.entry.config) != verdict.live.compact
    )
    return "update_because_drifted" if drifted else "update_because_config_changed"


def follow_streams(inputs: Inputs, verdicts: dict[Address, Verdict]) -> None:
    """Deleting a stream takes its consumers along: theirs is no step of its own, in place."""
    changing = {v.address.parent for v in verdicts.values() if v.address.parent is not None and v.actions != ["no-op"]}
    for address, verdict in verdicts.items():
        if verdict.preserves and verdict.live is not None and address.kind != "consumer":
            after = verdict.after or {}
            changes = address in changing and (retention_of(after) == "interest" or tightens(verdict.live.compact, after))
            verdict.renews = changes or one_by_one(verdict.live.compact, after, inputs.level(address))
    for address, verdict in verdicts.items():
        parent = verdicts.get(address.parent) if address.parent else None
        if parent is None or not parent.deletes or verdict.live is None:
            continue
        if parent.preserves:
            verdicts[address] = _comes_back(inputs, parent, verdict)
            continue
        if verdict.deletes and not verdict.preserves:
            verdicts[address] = replace(verdict, follows=parent.address)
        elif verdict.after is not None and verdict.actions != ["create"]:
            after = expected_new(CONSUMER, inputs.body(address), inputs.level(address), around(inputs, address))
            verdicts[address] = replace(
                verdict, actions=["delete", "create"], reason="replace_with_stream", after=after, follows=parent.address,
                unknown=[],
            )  # fmt: skip


def _comes_back(inputs: Inputs, stream: Verdict, verdict: Verdict) -> Verdict:
    """A consumer of a stream that keeps its messages. One that is made anew for it can be what it shall be at once."""
    assert stream.live is not None
    if verdict.address not in inputs.selected and verdict.live is not None and not verdict.adopts:
        kept = replace(verdict, actions=["no-op"], reason="not_targeted", fields=[], ignored=[], after=verdict.live.compact, diagnostics=[])
        return replace(kept, brought=stream.address)
    if verdict.actions == ["no-op"] or (stream.renews and (verdict.actions == ["update"] or verdict.preserves)):
        return replace(verdict, brought=stream.address)
    return replace(verdict, follows=stream.address) if stream.renews and verdict.deletes else verdict
