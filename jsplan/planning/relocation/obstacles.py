"""Obstacles of a relocation, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from jsplan.facts.live import get_retention
from jsplan.planning.bucket_aliases import nouns_of
from jsplan.planning.preserve.staging import limits_copy_consumers
from jsplan.planning.relocation.progress import Relocation
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

_BACKUP_HINT: Final = (
    "Its content can be moved while its clients wait: jsplan backup {origin} DIR, then take it out "
    "of the files, then jsplan restore DIR --as {target}."
)


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
    try:
        route = inputs.topology.routes.find_route(target.key, origin.key)
    except NoRouteError as error:
        yield str(error), error.detail.replace("{", "{{").replace("}", "}}")
        return
    row = f"{{{{from: {origin.key}, into: {target.key}, api: …, deliver: …}}}}"
    if is_import(origin) or is_import(target):
        yield (
            f"{origin.key if is_import(origin) else target.key} is reached through an import",
            "Give it a connection of its own.",
        )
    elif route.import_row is None and origin.connection != target.connection:
        yield (
            (
                f"{origin.key} and {target.key} are not domains of one connection, and no "
                "`imports` row says how the one account reads the other"
            ),
            (
                "If both are in one account, let both domains use one connection. If the servers "
                f"are linked, write an `imports` row: {row}. Otherwise: {_BACKUP_HINT}"
            ),
        )
    elif route.import_row is not None and not route.deliver:
        yield (
            f"the imports row of {route.api} has no `deliver`, so no message would arrive",
            f"Add `deliver:` to the row: {row}.",
        )


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
