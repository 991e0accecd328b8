"""Configurations that the server refuses because of its shape, the stream or other streams.

Planning reports them, so that no apply fails in the middle. The number in
each text is the server's err_code.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.config.checks_consumers import check_queue_consumer
from jsplan.config.findings import Problem, Problems
from jsplan.diagnostics import Diagnostic
from jsplan.flows.graph import list_origins
from jsplan.planning.consumer_count import count_consumers
from jsplan.planning.decide import planned_config
from jsplan.planning.full_origins import find_refused_copies, starts_copying
from jsplan.planning.left_origins import check_left_origins
from jsplan.planning.model import Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.replication.impact import begins_to_limit_acks, limits_acks
from jsplan.planning.transfer.consumer_position import START_FIELDS
from jsplan.planning.unmanaged import (
    StreamReaders,
    added_subjects,
    changes_consumer_limits,
    has_acknowledging_consumers,
    written_decisions,
)
from jsplan.planning.unreadable_origins import check_unreadable_origins
from jsplan.resources.buckets import alias_of
from jsplan.resources.fields import Config
from jsplan.resources.server_features import (
    PRIORITY_CHECK_LEVEL,
    REMOVABLE_LIMITS_LEVEL,
    SCHEDULES_CHECK_LEVEL,
)
from jsplan.subjects import is_subset
from jsplan.topology.overlaps import find_overlaps
from jsplan.units import format_duration


class ServerContext(Struct, frozen=True):
    """The place of a configuration.

    `level` is the API level. `standalone` is False also if that is unknown. For consumers: `stream`
    is the compact configuration that their stream will have, `other_consumers` are its other
    consumers.
    """

    level: int
    standalone: bool = False
    stream: Config = field(default_factory=dict)
    other_consumers: tuple[tuple[str, Config], ...] = ()


def check_server_rules(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield every error of the plan that one resource alone does not show."""
    readers, changed = StreamReaders(inputs, decisions), written_decisions(decisions)
    for decision in changed:
        context = _server_context(inputs, decision, decisions, readers)
        consumer = decision.address.kind == "consumer"
        new = decision.deletes if consumer else decision.loses_content
        before = decision.live.compact if decision.live and not new else None
        if decision.comes_filled and decision.planned.get("sealed"):
            before = {}  # a copy is sealed last, as an update, and a restore takes a sealed stream
        find = find_consumer_problems if consumer else find_stream_problems
        problems = [*find(before, decision.planned, context)]
        if consumer:
            problems += _check_push_bound(decision)
        else:
            problems += _check_consumer_limits(decision, readers, context.level)
            problems += _check_unchanged_consumers(decision, readers, context)
            problems += _check_origin_sizes(inputs, decision, decisions)
        yield from _to_diagnostics(inputs, decision, problems)
    yield from _check_overlaps(inputs, decisions, changed)
    yield from _check_max_consumers(inputs, decisions)
    if inputs.backup:
        return  # the flows of what was saved come back with it, whether they copy or not
    yield from _check_source_consumers(inputs, decisions)
    yield from _check_other_copies(inputs, decisions)
    for decision, problem in find_refused_copies(inputs, decisions):
        yield from _to_diagnostics(inputs, decision, [problem])
    yield from _check_unlisted_domains(inputs)
    yield from check_unreadable_origins(inputs, decisions)
    yield from check_left_origins(inputs, decisions)


def _check_unlisted_domains(inputs: PlanInputs) -> Findings:
    for domain, reason in sorted(inputs.live.unlisted.items()):
        text = (
            f"streams and consumers of domain {domain} cannot be listed, "
            f"so conflicts with them are unknown: {reason}"
        )
        detail = "Let this user request STREAM.NAMES, STREAM.LIST and CONSUMER.LIST."
        yield Diagnostic("warning", "JS447", text, detail, f"{domain}/**")


def _to_diagnostics(
    inputs: PlanInputs, decision: ResourceDecision, problems: Iterable[Problem]
) -> Findings:
    at = decision.address
    for one in problems:
        word = alias_of(at.kind, one.field)
        yield inputs.finding("error", one.code, one.summary, one.detail, at, word)


# --- one stream, one consumer ----


def find_stream_problems(before: Config | None, after: Config, context: ServerContext) -> Problems:
    """Find what the server refuses of a stream; `before` is None for a new one."""
    replicas = after.get("num_replicas", 1)
    if context.standalone and replicas > 1 and replicas != (before or {}).get("num_replicas", 1):
        yield _too_many_replicas(replicas)
    if before is None and after.get("sealed"):
        text = "a stream cannot be created sealed, since nothing could be stored in it (10052)"
        detail = "Leave `sealed` out, fill the stream, and add it then."
        yield Problem("JS431", "sealed", text, detail)
    if before is None and after.get("mirror_direct") and not after.get("mirror"):
        text, detail = "mirror_direct is for mirrors (10052)", "Remove it, or add `mirror:`."
        yield Problem("JS432", "mirror_direct", text, detail)
    if context.level >= SCHEDULES_CHECK_LEVEL and after.get("allow_msg_schedules"):
        yield from _check_schedules(after)
    if before is not None and after.get("allow_msg_counter") and after.get("allow_msg_ttl"):
        text = "a counter stream with delete markers can be created, but never updated (10052)"
        detail = "Revert the change, or recreate it without subject_delete_marker_ttl."
        yield Problem("JS445", "allow_msg_counter", text, detail)


def _check_schedules(after: Config) -> Problems:
    """Check what nats-server 2.12 accepts together with schedules and later servers refuse."""
    for name, used in (
        ("discard", after.get("discard") == "new"),
        ("allow_msg_counter", after.get("allow_msg_counter")),
    ):
        if used:
            value = str(after[name]).lower()
            text = f"allow_msg_schedules cannot be combined with {name}: {value} (10052)"
            detail = "Remove one of them; only nats-server 2.12 took both."
            yield Problem("JS445", "allow_msg_schedules", text, detail)


def _too_many_replicas(replicas: int) -> Problem:
    text = f"num_replicas is {replicas}, and this JetStream is one server, not a cluster (10074)"
    detail = "Write num_replicas: 1 for this domain, for example by a variable of its own."
    return Problem("JS430", "num_replicas", text, detail)


def find_consumer_problems(
    before: Config | None, after: Config, context: ServerContext
) -> Problems:
    """Find what the server refuses of a consumer in its stream; `before` is None for a new one."""
    yield from _check_replicas(before, after, context)
    if context.level >= PRIORITY_CHECK_LEVEL:
        yield from _check_priority(after)
    limits = context.stream.get("consumer_limits") or {}
    for name, err in (("max_ack_pending", 10121), ("inactive_threshold", 10153)):
        limit, value = limits.get(name, 0), after.get(name, 0)
        if 0 < limit < value:
            show = format_duration if name == "inactive_threshold" else str
            text = (
                f"{name} is {show(value)}, and consumer_limits of the stream allow {show(limit)} "
                f"({err})"
            )
            yield Problem("JS433", name, text, "Lower it, or raise the limit of the stream.")
    policy, most = after.get("ack_policy", "none"), after.get("max_ack_pending", 0)
    if after.get("deliver_subject") and policy == "none" and most > 0:
        text = (
            "a push consumer without acknowledgements cannot have max_ack_pending, "
            "not even from consumer_limits (10082)"
        )
        detail = "Write ack_policy: explicit, or remove max_ack_pending and the stream's limit."
        yield Problem("JS433", "ack_policy", text, detail)
    if policy == "flow_control" and most < 0:
        text = (
            "ack_policy: flow_control needs a max_ack_pending, "
            "here or as a positive limit of the stream (10220)"
        )
        yield Problem("JS433", "max_ack_pending", text, "Write max_ack_pending: 1000.")
    subject, stored = after.get("deliver_subject") or " ", context.stream.get("subjects", ())
    for cycle in [s for s in stored if is_subset(subject, s)][:1]:
        text = f'deliver_subject "{subject}" is stored again by the stream, as {cycle} (10081)'
        detail = "Use a subject that the stream does not store."
        yield Problem("JS434", "deliver_subject", text, detail)
    if context.stream.get("retention") == "workqueue":
        yield from check_queue_consumer(after, list(context.other_consumers))


def _check_priority(after: Config) -> Problems:
    """Up to 2.11 the server accepts groups and a timeout without a policy."""
    for name, err in (("priority_groups", 10196), ("priority_timeout", 10197)):
        if after.get("priority_policy", "none") == "none" and after.get(name):
            text = f"{name} needs a priority_policy ({err})"
            yield Problem("JS446", name, text, "Add `priority_policy:`, or remove it.")


def _check_replicas(before: Config | None, after: Config, context: ServerContext) -> Problems:
    replicas, of_stream = after.get("num_replicas", 0), context.stream.get("num_replicas", 1)
    if replicas in (0, (before or {}).get("num_replicas", 0)):
        return
    if context.standalone and replicas > 1:
        yield _too_many_replicas(replicas)
    elif replicas > of_stream:
        text = f"num_replicas is {replicas}, and the stream has {of_stream} (10126)"
        detail = "A consumer has at most as many replicas as its stream; leave it out for as many."
        yield Problem("JS430", "num_replicas", text, detail)
    elif replicas != of_stream and context.stream.get("retention", "limits") != "limits":
        text = (
            f"num_replicas is {replicas}; in a stream with {context.stream['retention']} retention "
            "it is that of the stream (10134)"
        )
        yield Problem("JS430", "num_replicas", text, "Leave it out.")


# --- with other resources ----


def _server_context(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions, readers: StreamReaders
) -> ServerContext:
    address, level = decision.address, inputs.level(decision.address)
    stream = planned_config(inputs, decisions, address.parent) if address.parent else None
    is_queue = stream is not None and stream.get("retention") == "workqueue"
    others = readers.earlier_queue_readers(address, level) if is_queue else ()
    standalone = is_standalone(inputs, address.domain)
    return ServerContext(level, standalone, stream or {}, tuple(others))


def is_standalone(inputs: PlanInputs, domain: str) -> bool:
    """Check whether a domain is known to be one server without a cluster."""
    facts = inputs.live.domains.get(domain)
    return facts is not None and bool(facts.server) and not facts.server.get("cluster")


def _check_push_bound(decision: ResourceDecision) -> Problems:
    """Refuse to change the subject of a push consumer that has subscribers."""
    is_bound = decision.live is not None and decision.live.state.get("push_bound")
    if not is_bound or decision.deletes or decision.after is None:
        return
    before = decision.before.get("deliver_subject")
    if before != decision.after.get("deliver_subject"):
        text = f'deliver_subject cannot change while "{before}" has subscribers (10013)'
        detail = "Stop its subscribers first, or recreate it with --replace."
        yield Problem("JS435", "deliver_subject", text, detail)


def _check_consumer_limits(
    decision: ResourceDecision, readers: StreamReaders, level: int
) -> Problems:
    """Find limits that existing consumers exceed (10069), unmanaged ones included.

    Up to 2.12 a limit that is not set counts as 0 there.
    """
    if not changes_consumer_limits(decision) or decision.after is None:
        return
    after = decision.after.get("consumer_limits") or {}
    retention = decision.after.get("retention", "limits")
    shown = (
        (address.consumer, config)
        for address, config in readers.consumers(decision.address)
        if _is_kept(readers, address)
    )
    for name, consumer in (*shown, *readers.hidden_consumers(decision.address, retention, level)):
        for field_name in ("max_ack_pending", "inactive_threshold"):
            limit, value = after.get(field_name, 0), consumer.get(field_name, 0)
            is_removable = level >= REMOVABLE_LIMITS_LEVEL or decision.preserves
            if value <= limit or (limit == 0 and is_removable):
                continue
            text = f"consumer_limits: consumer {name} has {field_name} {value}, "
            if limit > 0:
                text += f"above {limit} (10069)"
                detail = "Lower it at the consumer, or raise the limit."
            else:
                text += "and before nats-server 2.14 a limit that is not set counts as 0 (10069)"
                detail = f"Set {field_name} in consumer_limits to at least {value}."
            yield Problem("JS436", "consumer_limits", text, detail)


def _check_unchanged_consumers(
    decision: ResourceDecision, readers: StreamReaders, context: ServerContext
) -> Problems:
    """Find what the server would refuse of consumers that a replaced stream keeps as they are.

    They are of other clients, or not selected. Those of the files were checked when they were read.
    Their starts become what the new stream takes.
    """
    if not decision.preserves or decision.live is None:
        return
    consumers = {
        address: config
        for address, config in readers.consumers(decision.address)
        if not address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
    }
    live = readers.inputs.live
    unchanged = [a for a, c in consumers.items() if (one := live.get(a)) and one.compact == c]
    stream = {name: v for name, v in decision.planned.items() if name != "consumer_limits"}
    for address in unchanged:
        kept = consumers.pop(address)  # of two such, the later is not named again
        config = {name: v for name, v in kept.items() if name not in START_FIELDS}
        others = tuple((other.consumer, theirs) for other, theirs in consumers.items())
        its_context = replace(context, stream=stream, other_consumers=others)
        for problem in find_consumer_problems(None, config, its_context):
            text = f"consumer {address.consumer}, which the plan does not change, cannot be kept: "
            detail = "Change or delete it in the same plan."
            yield Problem(problem.code, "retention", text + problem.summary, detail)


def _is_kept(readers: StreamReaders, consumer: Address) -> bool:
    """Check whether a consumer exists and stays; a recreated one comes after its stream."""
    decision = readers.decisions.get(consumer)
    return readers.inputs.live.get(consumer) is not None and not (
        decision is not None and decision.loses_content
    )


def _check_origin_sizes(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Problems:
    """Require a `max_msg_size` of at least that of each origin in the same JetStream."""
    largest = decision.planned.get("max_msg_size", -1)
    for kind, origin in list_origins(decision.planned) if largest > 0 else ():
        if origin.get("external"):
            continue
        address = Address.of_stream(decision.address.domain, origin["name"])
        theirs = (planned_config(inputs, decisions, address) or {}).get("max_msg_size", -1)
        if theirs > largest:
            name, err = ("mirror", 10030) if kind == "mirror" else ("sources", 10046)
            text = (
                f"max_msg_size {largest:,} is less than that of {origin['name']}, "
                f"{theirs:,} ({err})"
            )
            detail = f"Leave it out, or lower that of the stream in `{name}` first."
            yield Problem("JS437", "max_msg_size", text, detail)


def _check_overlaps(
    inputs: PlanInputs, decisions: Decisions, changed: list[ResourceDecision]
) -> list[Diagnostic]:
    """Refuse subjects that two streams of one domain would store (10065), of all known streams."""
    takers = {
        v.address: added for v in changed if v.address.is_stream and (added := added_subjects(v))
    }
    if not takers:
        return []
    known = {
        address if (name := inputs.topology.find_declared(address)) not in decisions else name
        for address in {*decisions, *inputs.live.objects}
        if address.is_stream
    }
    return find_overlaps(
        takers,
        sorted(known),
        lambda address: (planned_config(inputs, decisions, address) or {}).get("subjects", ()),
        inputs.topology,
        {} if inputs.options.destroy else inputs.workspace.resources,
    )


def _check_max_consumers(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Refuse more consumers than `max_consumers` (10026), unmanaged ones included."""
    for count in count_consumers(inputs, decisions):
        if 0 < count.limit < count.total:
            text = (
                f"the stream would have {count.total} consumers, {count.unchanged} of them "
                f"unchanged; its max_consumers is {count.limit} (10026)"
            )
            detail, at = "Raise max_consumers, or remove consumers.", count.created[-1].address
            yield inputs.finding("error", "JS439", text, detail, at, "name")


def _check_source_consumers(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Refuse mirrors and sources of a stream with `consumer_limits.max_ack_pending` (10082).

    The limit refuses the server's own consumer. An existing downstream stream stops only when it
    reconnects, so both are left alone where this plan changes neither.
    """
    for edge in inputs.topology.edges:
        origin, downstream = (
            planned_config(inputs, decisions, address) for address in (edge.origin, edge.downstream)
        )
        if origin is None or downstream is None or not limits_acks(origin):
            continue
        if has_acknowledging_consumers(
            origin.get("retention", "limits"), inputs.level(edge.origin)
        ):
            continue
        before = inputs.live.get(edge.origin)
        limited = before is None or not limits_acks(before.compact)
        starting = any(starts_copying(decisions.get(one)) for one in (edge.origin, edge.downstream))
        at = decisions.get(edge.origin if limited else edge.downstream)
        if at is not None and at.writes and (limited or starting):
            field = "consumer_limits" if limited else edge.kind
            yield from _refused_copy(inputs, at, edge.origin, edge.downstream, field)


def _check_other_copies(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Refuse the same limit for a stream that one outside of the files reads.

    It stops when its server restarts, although nothing in this plan touches it.
    """
    for decision in decisions.values():
        after = decision.after
        if not decision.writes or after is None or decision.address.kind == "consumer":
            continue
        if not begins_to_limit_acks(decision.before, after):
            continue
        level = inputs.level(decision.address)
        if has_acknowledging_consumers(after.get("retention", "limits"), level):
            continue
        for downstream, _, _ in find_downstream(inputs, decisions, decision.address):
            if inputs.declared(downstream) is None:
                origin = decision.address
                yield from _refused_copy(inputs, decision, origin, downstream, "consumer_limits")


def _refused_copy(
    inputs: PlanInputs, at: ResourceDecision, origin: Address, downstream: Address, field: str
) -> Findings:
    text = (
        f"{downstream} cannot copy {origin}: its consumer_limits.max_ack_pending "
        "refuses the server's own consumer (10082)"
    )
    detail = "Remove max_ack_pending from these consumer_limits; set it at each consumer."
    yield from _to_diagnostics(inputs, at, [Problem("JS458", field, text, detail)])
