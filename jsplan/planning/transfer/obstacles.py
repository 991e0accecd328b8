"""Obstacles of a relocation, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from jsplan.facts.live import get_retention
from jsplan.planning.bucket_aliases import nouns_of
from jsplan.planning.interest import MIN_INACTIVE_THRESHOLD
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.replication.impact import (
    find_interest_origins,
    reads_origin,
)
from jsplan.planning.transfer.configs import limits_copy_consumers
from jsplan.planning.transfer.progress import Transfer
from jsplan.planning.transfer.sources import find_moved_sources, find_old_source
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import (
    ORIGIN_IDENTITY_LEVEL,
    RESTORE_ANY_NAME_LEVEL,
    ROLLUP_MIRROR_LEVEL,
    SERVER_VERSIONS,
)
from jsplan.resources.stream import max_consumers
from jsplan.topology.routes import NoRouteError, is_import

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision

_BY_HAND: Final = "Declare the target without sources, or move them by hand in steps."
_BACKUP_HINT: Final = (
    "Its content can be moved while its clients wait: jsplan backup {origin} DIR, then take it out "
    "of the files, then jsplan restore DIR --as {target}."
)


Obstacle = tuple[str, str]


def choose_method(
    inputs: PlanInputs, relocation: Transfer, target: ResourceDecision | None
) -> tuple[Transfer, Obstacle | None]:
    """Return the relocation with its method; also what prevents it, and what to do instead.

    A mirror copies while publishers write, so a snapshot is only for what no mirror can do. One
    that has begun keeps its method.
    """
    obstacle = _first(
        *_name_obstacles(relocation),
        *_ownership_obstacles(inputs, relocation),
        *_config_obstacles(inputs, relocation, target),
        *_downstream_obstacles(inputs, relocation),
    )
    mirror = _first(
        *_retention_obstacles(inputs, relocation),
        *_level_obstacles(inputs, relocation),
        *(() if relocation.promotes else _route_obstacles(inputs, relocation)),
        *_mirror_obstacles(inputs, relocation),
    )
    snapshot = _first(*_snapshot_obstacles(inputs, relocation, target))
    if relocation.record or relocation.promotes:
        obstacle = obstacle or (snapshot if relocation.method == "snapshot" else mirror)
    elif mirror is not None and snapshot is None:
        relocation = replace(relocation, method="snapshot", why=mirror[0])
    elif mirror is not None and snapshot is not None:
        detail = f"{mirror[1]} A snapshot cannot copy it either: {snapshot[0]}."
        obstacle = obstacle or (mirror[0], detail)
    if obstacle is None:
        return relocation, None
    hint = obstacle[1].format(origin=relocation.origin, target=relocation.target)
    return relocation, (f"cannot be relocated from {relocation.origin}: {obstacle[0]}", hint)


def _first(*found: Obstacle) -> Obstacle | None:
    return found[0] if found else None


def _name_obstacles(relocation: Transfer) -> Iterator[Obstacle]:
    """Yield what prevents another name of a bucket: it is in the subjects of its keys."""
    if relocation.origin.kind != "stream" and relocation.origin.name != relocation.target.name:
        yield (
            f"the subjects of the {nouns_of(relocation.origin).object} have its name",
            "Relocate it to another domain under the same name, or copy it with a source.",
        )


def _level_obstacles(inputs: PlanInputs, relocation: Transfer) -> Iterator[Obstacle]:
    """Yield what the target's server cannot do with a mirror.

    Before 2.14 a mirror does not follow messages that roll up others, as a purged key (measured).
    """
    level = inputs.level(relocation.target)
    if relocation.origin.kind != "stream" and level < ROLLUP_MIRROR_LEVEL:
        release = SERVER_VERSIONS[ROLLUP_MIRROR_LEVEL]
        noun = nouns_of(relocation.origin).object
        yield (
            f"only nats-server {release} and later can mirror every message of the {noun}",
            f"Upgrade that server. {_BACKUP_HINT}",
        )


def _snapshot_obstacles(
    inputs: PlanInputs, relocation: Transfer, target: ResourceDecision | None
) -> Iterator[Obstacle]:
    """Yield what prevents that a snapshot of the origin is restored as the target.

    Measured on 2.12 to 2.15: archives of 2.15 need 2.15, and fit any name and storage. Those of
    earlier servers fit any server, under the same name, from file to file storage.
    """
    for side in (relocation.origin, relocation.target):
        if is_import(inputs.workspace.domains[side.domain]):
            yield f"{side.domain} is reached through an import, which no snapshot passes", ""
    levels = [inputs.level(side) for side in (relocation.origin, relocation.target)]
    newest = SERVER_VERSIONS[RESTORE_ANY_NAME_LEVEL]
    if levels[0] >= RESTORE_ANY_NAME_LEVEL:
        if levels[1] < RESTORE_ANY_NAME_LEVEL:
            yield f"snapshots of nats-server {newest} can be restored there and later only", ""
        return
    if relocation.origin.stream != relocation.target.stream:
        yield f"before nats-server {newest} a snapshot is restored under its own name only", ""
    origin = inputs.live.get(relocation.origin)
    configs = (origin.compact if origin else {}, (target.after if target else None) or {})
    if any(config.get("storage", "file") != "file" for config in configs):
        yield f"before nats-server {newest} there are no snapshots of memory storage", ""


def _ownership_obstacles(inputs: PlanInputs, relocation: Transfer) -> Iterator[Obstacle]:
    origin, entry = relocation.origin_now, inputs.entries.get(relocation.origin)
    if origin is not None and (entry is None or entry.created != origin.created):
        yield (
            "it is not managed by this workspace",
            (
                "Declare it under its old address and run jsplan import {origin}. Then declare it "
                "under its new address, with this `relocate` entry."
            ),
        )
    if relocation.target_now is not None and not (relocation.record or relocation.promotes):
        yield (
            f"{relocation.target} exists already",
            (
                "Choose another name, or copy the messages into it with a backfill and remove "
                "{origin} afterwards."
            ),
        )


def _route_obstacles(inputs: PlanInputs, relocation: Transfer) -> Iterator[Obstacle]:
    origin, target = (
        inputs.workspace.domains[side.domain] for side in (relocation.origin, relocation.target)
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


def _retention_obstacles(inputs: PlanInputs, relocation: Transfer) -> Iterator[Obstacle]:
    """Yield that a mirror would consume the messages of the origin."""
    retention = get_retention(_origin_config(inputs, relocation))
    if retention != "limits":
        yield (
            (
                f"{relocation.origin} has {retention} retention, and a mirror would consume its "
                "messages"
            ),
            _BACKUP_HINT,
        )


def _origin_config(inputs: PlanInputs, relocation: Transfer) -> Config:
    origin = inputs.live.get(relocation.origin)
    return origin.compact if origin is not None else {}


def _consumed_obstacles(
    inputs: PlanInputs, relocation: Transfer, target: ResourceDecision | None
) -> Iterator[Obstacle]:
    """Yield what prevents that a work queue or an interest stream is moved by a snapshot."""
    before, after = _origin_config(inputs, relocation), (target.after if target else None) or {}
    kinds = [get_retention(config) for config in (before, after)]
    if kinds[0] != kinds[1]:
        yield (
            f"{relocation.origin} has {kinds[0]} retention, and {relocation.target} {kinds[1]}",
            "Relocate it with the same retention, and change that in an earlier or a later plan.",
        )
    if "limits" in kinds:
        return
    for reader, kind, _ in find_downstream(inputs, {}, relocation.origin):
        yield (
            f"{reader} {kind}s it, and consumes its messages",
            f"Take the {kind} out, apply, and declare it again after the relocation.",
        )
    if kinds[0] == "workqueue" and (after.get("deny_delete") or after.get("deny_purge")):
        yield (
            (
                f"{relocation.target} denies deletions, and what workers finish during the "
                "relocation must be deleted there"
            ),
            "Leave deny_delete and deny_purge out, and set them in a later plan.",
        )
    if kinds[0] == "interest":
        yield from _placeholder_obstacles(inputs, relocation, after)


def _placeholder_obstacles(
    inputs: PlanInputs, relocation: Transfer, after: Config
) -> Iterator[Obstacle]:
    """Yield why the target does not accept a placeholder consumer beside its own consumers."""
    declared = sum(
        address.kind == "consumer" and address.parent == relocation.target
        for address in inputs.workspace.resources
    )
    if 0 < max_consumers(after) <= declared:
        yield (
            (
                f"max_consumers of {relocation.target} leaves no place for the placeholder "
                "consumer that holds its messages until its consumers exist"
            ),
            "Declare one more, and lower it in a later plan.",
        )
    limit = int((after.get("consumer_limits") or {}).get("inactive_threshold") or 0)
    if 0 < limit < MIN_INACTIVE_THRESHOLD:
        yield (
            (
                f"consumer_limits of {relocation.target} may delete the placeholder consumer that "
                "holds its messages until its consumers exist"
            ),
            "Declare an inactive_threshold of 5m or more, and lower it in a later plan.",
        )


def _config_obstacles(
    inputs: PlanInputs, relocation: Transfer, target: ResourceDecision | None
) -> Iterator[Obstacle]:
    before, after = _origin_config(inputs, relocation), (target.after if target else None) or {}
    for config, side in ((before, relocation.origin), (after, relocation.target)):
        for name, what in _UNMOVABLE_FIELDS:
            if config.get(name):
                yield f"{side} {what}", _BACKUP_HINT
    yield from _sealed_obstacles(relocation, before, after)
    yield from _source_obstacles(inputs, relocation, before, after)
    yield from _consumed_obstacles(inputs, relocation, target)
    if before.get("allow_msg_ttl") and not after.get("allow_msg_ttl"):
        yield (
            (
                f"{relocation.origin} has allow_msg_ttl and {relocation.target} has not, so "
                "messages that expire would stay"
            ),
            "Declare allow_msg_ttl: true at the new address.",
        )
    if bool(before.get("allow_msg_counter")) != bool(after.get("allow_msg_counter")):
        yield (
            "only one side has allow_msg_counter, which cannot be changed",
            "Declare the new address with the same value.",
        )
    if "first_seq" in inputs.body(relocation.target):
        yield (
            "first_seq is declared, and a relocated stream keeps its sequences",
            "Leave first_seq out.",
        )


def _source_obstacles(
    inputs: PlanInputs, relocation: Transfer, before: Config, after: Config
) -> Iterator[Obstacle]:
    """Yield what prevents that the sources of the origin continue at the target.

    A source begins again at another address, so its last sequence must be known: since 2.15 (the
    server reports it). Meanwhile no consumer holds the messages of an interest stream.
    """
    sources = [*(before.get("sources") or ()), *(after.get("sources") or ())]
    sides = (relocation.origin, relocation.target)
    if sources and min(map(inputs.level, sides)) < ORIGIN_IDENTITY_LEVEL:
        release = SERVER_VERSIONS[ORIGIN_IDENTITY_LEVEL]
        yield f"it has sources, and nats-server {release} is the first that says how far", _BY_HAND
    if any(source.get("consumer") for source in sources):
        yield "it has a source with a consumer of its own, which belongs to its address", _BY_HAND
    moved = find_moved_sources(inputs, relocation, after)
    for source in after.get("sources") or ():
        if origin_key(source) not in moved:
            yield (
                f"{relocation.origin} has no source {source['name']} with the same filter yet",
                "Add the source in an earlier or a later plan.",
            )
    for address in find_interest_origins(inputs, relocation.origin, before.get("sources") or ()):
        yield (
            f"{address} has interest retention, and keeps nothing while no source reads",
            "Take the source out, apply, and declare it again after the relocation.",
        )


def _sealed_obstacles(relocation: Transfer, before: Config, after: Config) -> Iterator[Obstacle]:
    """Yield what prevents that a sealed stream is moved: it changes no more, also no subjects."""
    if bool(before.get("sealed")) != bool(after.get("sealed")):
        yield (
            "only one side is sealed",
            "Declare both alike. Seal it in an earlier or a later plan.",
        )
    if not before.get("sealed"):
        return
    if get_retention(before) != "limits":
        yield f"{relocation.origin} is sealed, and its workers still empty it", _BACKUP_HINT
    if relocation.origin.domain == relocation.target.domain:
        yield (
            f"{relocation.origin} is sealed, so it keeps its subjects until it is deleted",
            _BACKUP_HINT,
        )


#: Fields with which a stream cannot be relocated yet.
_UNMOVABLE_FIELDS: Final = (
    ("mirror", "is a mirror: it has the messages of another stream"),
    ("allow_msg_schedules", "has schedules, and its server and that of the copy would both send"),
)


def _mirror_obstacles(inputs: PlanInputs, relocation: Transfer) -> Iterator[Obstacle]:
    """Yield what a mirror does not copy."""
    before = _origin_config(inputs, relocation)
    if before.get("sealed"):
        yield f"{relocation.origin} is sealed, and a mirror does not learn its end", _BACKUP_HINT
    if before.get("allow_msg_counter"):
        yield f"{relocation.origin} has counters, which only a snapshot keeps", _BACKUP_HINT
    if limits_copy_consumers(before.get("consumer_limits") or {}):
        yield (
            (
                f"consumer_limits of {relocation.origin} also limit the consumer by which a mirror "
                "reads it, so nothing would be copied"
            ),
            "Remove consumer_limits at the old address and apply. Declare them at the new one.",
        )


def _downstream_obstacles(inputs: PlanInputs, relocation: Transfer) -> Iterator[Obstacle]:
    """Yield streams that would get a source of the target, and have none of the origin yet.

    A source of the origin becomes one of the target. A mirror is replaced, as `on_replace` says.
    """
    for edge in inputs.topology.edges_from(relocation.target):
        live = inputs.live.get(edge.downstream)
        if edge.kind == "mirror" or live is None:
            continue
        if find_old_source(inputs, relocation, live, edge.config) is None and not any(
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
