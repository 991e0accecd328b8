"""Decisions about relocated streams, and what prevents a relocation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, Severity
from jsplan.facts.live import get_retention
from jsplan.planning.bucket_aliases import nouns_of
from jsplan.planning.preserve.consumer_position import choose_position_method
from jsplan.planning.preserve.staging import limits_copy_consumers
from jsplan.planning.relocation.entries import origin_consumer
from jsplan.planning.relocation.progress import INTERRUPTED_HINT, Relocation
from jsplan.planning.relocation.sources import find_old_source
from jsplan.planning.replication.impact import reads_origin
from jsplan.resources.server_features import (
    PROMOTE_LEVEL,
    ROLLUP_MIRROR_LEVEL,
    SERVER_VERSIONS,
)
from jsplan.topology.routes import NoRouteError, is_import

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision

#: The reasons of both sides, and of a consumer that comes along.
TARGET_RELOCATED: Final = "create_by_relocation"
ORIGIN_RELOCATED: Final = "delete_because_relocated"
RELOCATION_ROLLED_BACK: Final = "relocation_rolled_back"
RELOCATION_WAITS: Final = "relocation_waits"
RELOCATION_REFUSED: Final = "relocation_refused"
#: A position behind every message.
_MAX_SEQUENCE: Final = 1 << 62
_BACKUP_HINT: Final = (
    "Its content can be moved while its clients wait: jsplan backup {origin} DIR, then take it out "
    "of the files, then jsplan restore DIR --as {target}."
)


def decide_relocations(
    inputs: PlanInputs, decisions: dict[Address, ResourceDecision]
) -> dict[Address, ResourceDecision]:
    """Return the decisions about both sides of each relocation, and about their consumers."""
    found: dict[Address, ResourceDecision] = {}
    if inputs.options.refresh_only or inputs.options.imports:
        return found
    for relocation in inputs.relocations.values():
        if not {relocation.origin, relocation.target} & decisions.keys():
            continue
        if relocation.must_release and not inputs.options.destroy:
            found |= _decide_release(inputs, relocation, decisions)
            continue
        if inputs.options.destroy:
            text = f"{relocation.summary}, and the plan destroys all resources"
            error = _finding(inputs, relocation, "error", text, INTERRUPTED_HINT)
            found |= _refuse(relocation, decisions, error)
        elif relocation.range is None and not relocation.is_activated:
            found |= _decide_rollback(inputs, relocation, decisions)
        else:
            found |= _decide_relocation(inputs, relocation, decisions)
    return found


def _decide_relocation(
    inputs: PlanInputs, relocation: Relocation, decisions: Mapping[Address, ResourceDecision]
) -> dict[Address, ResourceDecision]:
    found: dict[Address, ResourceDecision] = {}
    target, origin = decisions.get(relocation.target), decisions.get(relocation.origin)
    problem = None if relocation.is_activated else find_obstacle(inputs, relocation, target)
    if (
        origin is not None
        and origin.live is not None
        and origin.actions != ["delete"]
        and problem is None
    ):
        problem = (
            (
                f"cannot be relocated from {relocation.origin}: a `removed` entry leaves it on the "
                "server"
            ),
            "Remove one of the two entries.",
        )
    problem = problem or _replaced_downstream(inputs, relocation, decisions)
    if relocation.conflict and not relocation.record:
        problem = (
            f"cannot be relocated from {relocation.origin}: {relocation.conflict}",
            "Give each of them a target of its own.",
        )
    elif relocation.conflict:
        problem = (
            f"{relocation.summary}. It cannot be resumed: {relocation.conflict}",
            _give_up_hint(relocation),
        )
    if problem is not None:
        return _refuse(relocation, decisions, _finding(inputs, relocation, "error", *problem))
    notes = [_interrupted(inputs, relocation)] if relocation.record else []
    if target is not None and not relocation.is_activated:
        found[target.address] = replace(
            target, reason=TARGET_RELOCATED, relocation=relocation, diagnostics=notes
        )
        notes = []
    if origin is not None and origin.live is not None:
        found[origin.address] = replace(
            origin, reason=ORIGIN_RELOCATED, relocation=relocation, diagnostics=notes
        )
    for address, decision in decisions.items():
        if address.parent == relocation.target and decision.actions == ["create"]:
            found[address] = _decide_consumer(inputs, relocation, decision)
    return found


def _give_up_hint(relocation: Relocation) -> str:
    return (
        "Look at both streams. To plan with what is there, which deletes nothing: "
        f"jsplan state rm {relocation.target}"
    )


def _replaced_downstream(
    inputs: PlanInputs, relocation: Relocation, decisions: Mapping[Address, ResourceDecision]
) -> tuple[str, str] | None:
    """Describe a stream that would copy the target from its start, since it is replaced too."""
    for edge in inputs.topology.edges:
        decision = decisions.get(edge.downstream)
        if (
            edge.origin == relocation.target
            and decision is not None
            and decision.live is not None
            and decision.actions == ["create", "delete"]
            and find_old_source(inputs, relocation, decision.live, edge.config) is not None
        ):
            return (
                (
                    f"cannot be relocated from {relocation.origin}: {edge.downstream} sources it, "
                    "and is replaced in the same plan"
                ),
                f"Replace {edge.downstream} in an earlier or a later plan.",
            )
    return None


def _decide_consumer(
    inputs: PlanInputs, relocation: Relocation, decision: ResourceDecision
) -> ResourceDecision:
    """Let a consumer of the target begin where the consumer of that name is."""
    old = inputs.live.get(origin_consumer(relocation, decision.address))
    if old is None or decision.after is None:
        return decision
    method = choose_position_method(
        _MAX_SEQUENCE,
        decision.after,
        inputs.level(decision.address),
        retention="limits",
        first_seq=0,
    )
    unknown = ["deliver_policy", "opt_start_seq"] if method == "start" else []
    return replace(decision, reason=TARGET_RELOCATED, relocation=relocation, unknown=unknown)


def _decide_rollback(
    inputs: PlanInputs, relocation: Relocation, decisions: Mapping[Address, ResourceDecision]
) -> dict[Address, ResourceDecision]:
    """Decide an interrupted relocation that the files no longer ask for."""
    origin = decisions.get(relocation.origin)
    declared = inputs.declared(relocation.origin) is not None
    if (
        declared
        and origin is not None
        and not relocation.conflict
        and inputs.declared(relocation.target) is None
        and origin.live is not None
        and origin.actions in (["no-op"], ["update"])
    ):
        return {
            origin.address: replace(
                origin,
                actions=["update"],
                reason=RELOCATION_ROLLED_BACK,
                relocation=relocation,
                adopts=False,
                diagnostics=[*origin.diagnostics, _interrupted(inputs, relocation)],
            )
        }
    text = f"{relocation.summary}. The files no longer ask for it"
    origin_address, target = relocation.origin, relocation.target
    detail = (
        f"To finish it, write: relocate: [{{from: {origin_address}, to: {target}}}]. To go back, "
        f"declare {origin_address} as it was and not {target}."
    )
    if relocation.conflict:
        text = f"{relocation.summary}. It cannot be resumed: {relocation.conflict}"
        detail = _give_up_hint(relocation)
    error = _finding(inputs, relocation, "error", text, detail)
    return _refuse(relocation, decisions, error)


def _decide_release(
    inputs: PlanInputs, relocation: Relocation, decisions: Mapping[Address, ResourceDecision]
) -> dict[Address, ResourceDecision]:
    """Decide that the origin gets its subjects back, as long as the target is offline."""
    origin = decisions.get(relocation.origin)
    if origin is None or origin.live is None:
        return {}
    return {
        origin.address: replace(
            origin,
            actions=["update"],
            reason=RELOCATION_WAITS,
            relocation=relocation,
            after=dict(origin.live.compact),
            fields=[],
            adopts=False,
            diagnostics=[_interrupted(inputs, relocation)],
        )
    }


def _refuse(
    relocation: Relocation, decisions: Mapping[Address, ResourceDecision], error: Diagnostic
) -> dict[Address, ResourceDecision]:
    """Decide that nothing happens to either side or its consumers, with one error for all."""
    sides = (relocation.target, relocation.origin)
    first = next(side for side in sides if side in decisions)
    return {
        address: replace(
            decision,
            actions=["no-op"],
            reason=RELOCATION_REFUSED,
            fields=[],
            adopts=False,
            diagnostics=[error] if address == first else [],
        )
        for address, decision in decisions.items()
        if address in sides or address.parent in sides
    }


def _interrupted(inputs: PlanInputs, relocation: Relocation) -> Diagnostic:
    found = _finding(inputs, relocation, "warning", relocation.summary, relocation.hint)
    return replace(found, code="JS496")


def check_waiting_relocations(inputs: PlanInputs) -> Iterator[Diagnostic]:
    """Yield a warning for each relocation whose publishers wait for a target that is offline."""
    for relocation in inputs.relocations.values():
        waits = relocation.is_target_offline and relocation.is_quiesced
        if waits and not relocation.must_release:
            yield _interrupted(inputs, relocation)


def _finding(
    inputs: PlanInputs, relocation: Relocation, severity: Severity, text: str, detail: str
) -> Diagnostic:
    declared = inputs.declared(relocation.target)
    place = relocation.range or (declared.range if declared else None)
    code = "JS496" if relocation.range is None else "JS495"
    return Diagnostic(severity, code, text, detail, str(relocation.target), place)


# --- obstacles -----------------------------------------------------------------------------------


def find_obstacle(
    inputs: PlanInputs, relocation: Relocation, target: ResourceDecision | None
) -> tuple[str, str] | None:
    """Return what prevents a relocation and what to do instead; None if nothing does."""
    for text, detail in (
        *_kind_obstacles(inputs, relocation),
        *_ownership_obstacles(inputs, relocation),
        *_route_obstacles(inputs, relocation),
        *_config_obstacles(inputs, relocation, target),
        *_downstream_obstacles(inputs, relocation),
    ):
        hint = detail.format(origin=relocation.origin, target=relocation.target)
        return f"cannot be relocated from {relocation.origin}: {text}", hint
    return None


Obstacle = tuple[str, str]


def _kind_obstacles(inputs: PlanInputs, relocation: Relocation) -> Iterator[Obstacle]:
    """Yield what prevents the relocation of a bucket: its name is in the subjects of its keys.

    Before 2.14 a mirror does not follow messages that roll up others, as a purged key (measured).
    """
    if relocation.origin.kind == "stream":
        return
    noun = nouns_of(relocation.origin).object
    if relocation.origin.name != relocation.target.name:
        yield (
            f"the subjects of the {noun} have its name",
            "Relocate it to another domain under the same name, or copy it with a source.",
        )
    if inputs.level(relocation.target) < ROLLUP_MIRROR_LEVEL:
        release = SERVER_VERSIONS[ROLLUP_MIRROR_LEVEL]
        yield (
            f"only nats-server {release} and later can mirror every message of the {noun}",
            f"Upgrade that server. {_BACKUP_HINT}",
        )


def _ownership_obstacles(inputs: PlanInputs, relocation: Relocation) -> Iterator[Obstacle]:
    origin, entry = relocation.origin_now, inputs.entries.get(relocation.origin)
    if origin is not None and (entry is None or entry.created != origin.created):
        yield (
            "it is not managed by this workspace",
            (
                "Declare it under its old address and run jsplan import {origin}. Then declare it "
                "under its new address, with this `relocate` entry."
            ),
        )
    if relocation.target_now is not None and not relocation.record:
        yield (
            f"{relocation.target} exists already",
            (
                "Choose another name, or copy the messages into it with a backfill and remove "
                "{origin} afterwards."
            ),
        )


def _route_obstacles(inputs: PlanInputs, relocation: Relocation) -> Iterator[Obstacle]:
    origin, target = (
        inputs.workspace.domains[side.domain] for side in (relocation.origin, relocation.target)
    )
    level = inputs.level(relocation.target)
    if level < PROMOTE_LEVEL:
        yield (
            (
                f"only nats-server {SERVER_VERSIONS[PROMOTE_LEVEL]} and later can turn a mirror "
                f"into a stream; {target.key} has API level {level}"
            ),
            f"Upgrade that server. {_BACKUP_HINT}",
        )
    if origin.connection != target.connection or is_import(origin) or is_import(target):
        yield (
            (
                f"{origin.key} and {target.key} are not domains of one connection, and streams "
                "cannot be relocated to another account yet"
            ),
            (
                "If both are in one account, let both domains use one connection. Otherwise copy "
                "with a backfill, switch the clients, and remove {origin} afterwards."
            ),
        )
        return
    try:
        route = inputs.topology.routes.find_route(target.key, origin.key)
    except NoRouteError as error:
        yield str(error), error.detail.replace("{", "{{").replace("}", "}}")
        return
    if route.import_row is not None:
        yield "it is in another account", _BACKUP_HINT


def _config_obstacles(
    inputs: PlanInputs, relocation: Relocation, target: ResourceDecision | None
) -> Iterator[Obstacle]:
    origin = inputs.live.get(relocation.origin)
    before, after = origin.compact if origin else {}, (target.after if target else None) or {}
    for config, side in ((before, relocation.origin), (after, relocation.target)):
        retention = get_retention(config)
        if retention != "limits":
            yield (
                f"{side} has {retention} retention, and a mirror consumes its messages",
                (_BACKUP_HINT),
            )
        for name, what in _UNMOVABLE_FIELDS:
            if config.get(name):
                yield f"{side} {what}", _BACKUP_HINT
    if before.get("allow_msg_ttl") and not after.get("allow_msg_ttl"):
        yield (
            (
                f"{relocation.origin} has allow_msg_ttl and {relocation.target} has not, so "
                "messages that expire would stay"
            ),
            "Declare allow_msg_ttl: true at the new address.",
        )
    if limits_copy_consumers(before.get("consumer_limits") or {}):
        yield (
            (
                f"consumer_limits of {relocation.origin} also limit the consumer by which a mirror "
                "reads it, so nothing would be copied"
            ),
            "Remove consumer_limits at the old address and apply. Declare them at the new one.",
        )
    if "first_seq" in inputs.body(relocation.target):
        yield (
            "first_seq is declared, and a relocated stream keeps its sequences",
            "Leave first_seq out.",
        )


#: Fields with which a stream cannot be relocated yet.
_UNMOVABLE_FIELDS: Final = (
    ("mirror", "is a mirror: it has the messages of another stream"),
    ("sources", "has sources, which would copy their origins again"),
    ("sealed", "is sealed: it accepts no change"),
    ("allow_msg_counter", "has counters, which only a snapshot keeps"),
    ("allow_msg_schedules", "has scheduled messages, which a mirror does not schedule"),
)


def _downstream_obstacles(inputs: PlanInputs, relocation: Relocation) -> Iterator[Obstacle]:
    """Yield streams that would copy the target from its start.

    A source of the origin becomes one of the target. A mirror cannot change its origin.
    """
    for edge in inputs.topology.edges:
        live = inputs.live.get(edge.downstream)
        if edge.origin != relocation.target or live is None:
            continue
        if edge.kind == "mirror" and not live.compact.get("mirror"):
            continue
        if edge.kind == "mirror":
            yield (
                (
                    f"{edge.downstream} would mirror {relocation.target}, and a mirror cannot "
                    "change its origin"
                ),
                (
                    f"Take {edge.downstream} out of the files, apply, and declare it again with "
                    "the relocated stream as its origin."
                ),
            )
        elif find_old_source(inputs, relocation, live, edge.config) is None and not any(
            reads_origin(inputs, edge.downstream, source, relocation.target)
            for source in live.compact.get("sources") or ()
        ):
            yield (
                (
                    f"{edge.downstream} would get a source {relocation.target} without having "
                    f"one of {relocation.origin} with the same filter"
                ),
                "Add the source in a later plan, with opt_start_seq.",
            )


def mirror_external(inputs: PlanInputs, relocation: Relocation) -> dict[str, dict[str, str]]:
    """Return the `external` of the mirror by which the target reads the origin, if it needs one."""
    route = inputs.topology.routes.find_route(relocation.target.domain, relocation.origin.domain)
    return {"external": {"api": route.api}} if route.api else {}
