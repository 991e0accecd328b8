"""Obstacles of a relocation, and what to do instead.

A source of the target may take the place of a source of the origin; that is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.facts.live import get_retention
from jsplan.planning.interest import MIN_INACTIVE_THRESHOLD
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.replication.closed_streams import list_accepted, list_rejected
from jsplan.planning.replication.impact import find_interest_origins, origin_domain, reads_origin
from jsplan.planning.transfer.configs import is_transferred, limits_copy_consumers
from jsplan.planning.transfer.methods import may_not_have_rolled_up
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources.buckets import nouns_of
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
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs, ResourceDecision


_BY_HAND: Final = "Declare the target without sources, or move them by hand in steps."
_BACKUP_HINT: Final = (
    "Its content can be moved while its clients wait: jsplan backup {origin} DIR, then take it out "
    "of the files, then jsplan restore DIR --as {target}."
)

#: What prevents a relocation, and what to do. Both may name `{origin}` and `{target}`.
Obstacle = tuple[str, str]


class Sides(Struct, frozen=True):
    """A relocation, and the compact configurations of its origin and of its target."""

    inputs: PlanInputs
    relocation: Transfer
    before: Config
    after: Config

    @property
    def noun(self) -> str:
        """The word for the stream in messages."""
        return nouns_of(self.relocation.origin).object


def choose_method(
    inputs: PlanInputs, relocation: Transfer, target: ResourceDecision | None
) -> tuple[Transfer, Obstacle | None]:
    """Return the relocation with its method; also what prevents it, and what to do instead.

    A mirror copies while publishers write, so a snapshot is only for what no mirror can do, or may
    not do. One that has begun keeps its method.
    """
    origin = inputs.live.get(relocation.origin)
    before, after = origin.compact if origin else {}, target.planned if target else {}
    sides = Sides(inputs, relocation, before, after)
    obstacle = next(_find_obstacles(sides), None)
    mirror, snapshot = next(_mirror_obstacles(sides), None), next(_snapshot_obstacles(sides), None)
    if relocation.record or relocation.promotes:
        obstacle = obstacle or (snapshot if relocation.method == "snapshot" else mirror)
    elif mirror is not None and snapshot is None:
        why = _with_names(mirror[0], relocation)
        relocation = replace(relocation, method="snapshot", why=why)
    elif snapshot is None and may_not_have_rolled_up(before, inputs.level(relocation.target)):
        why = "a source may have brought rollups before it allowed any, and a mirror repeats them"
        relocation = replace(relocation, method="snapshot", why=why)
    elif mirror is not None and snapshot is not None:
        detail = f"{mirror[1]} A snapshot cannot copy it either: {snapshot[0]}."
        obstacle = obstacle or (mirror[0], detail)
    if obstacle is None:
        return relocation, None
    text, hint = (_with_names(part, relocation) for part in obstacle)
    return relocation, (f"cannot be relocated from {relocation.origin}: {text}", hint)


def _with_names(text: str, relocation: Transfer) -> str:
    named = text.replace("{origin}", str(relocation.origin))
    return named.replace("{target}", str(relocation.target))


# --- by either method ----------------------------------------------------------------------------


def _find_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield what prevents the relocation whatever copies it."""
    yield from _name_obstacles(sides)
    yield from _config_obstacles(sides)
    yield from _sealed_obstacles(sides)
    yield from _source_obstacles(sides)
    yield from _consumed_obstacles(sides)
    yield from _field_obstacles(sides)
    yield from _downstream_obstacles(sides)


def _name_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield what prevents the use of these two names: whose they are, and what is in them."""
    relocation = sides.relocation
    origin, entry = relocation.origin_now, sides.inputs.entries.get(relocation.origin)
    if relocation.origin.kind != "stream" and relocation.origin.name != relocation.target.name:
        text = f"the subjects of the {sides.noun} have its name"
        yield text, "Relocate it to another domain under the same name, or copy it with a source."
    if origin is not None and (entry is None or entry.created != origin.created):
        hint = (
            "Declare it under its old address and run jsplan import {origin}. Then declare it "
            "under its new address, with this `relocate` entry."
        )
        yield "it is not managed by this workspace", hint
    found = relocation.target_now
    if found is None or relocation.record or relocation.promotes:
        return
    if is_transferred(found.raw) and origin is not None:
        hint = (
            "Put back the state that was written last, with jsplan state push. Or delete {target}: "
            "{origin} has all that is in it."
        )
        yield "{target} is left of an interrupted apply, of which state has no record", hint
    else:
        hint = (
            "Choose another name, or copy the messages into it with a backfill and remove {origin} "
            "afterwards."
        )
        yield "{target} exists already", hint


#: Fields with which a stream cannot be relocated yet.
_UNMOVABLE_FIELDS: Final = (
    ("mirror", "is a mirror: it has the messages of another stream"),
    ("allow_msg_schedules", "has schedules, and its server and that of the copy would both send"),
)


def _config_obstacles(sides: Sides) -> Iterator[Obstacle]:
    for config, side in ((sides.before, "{origin}"), (sides.after, "{target}")):
        for name, what in _UNMOVABLE_FIELDS:
            if config.get(name):
                yield f"{side} {what}", _BACKUP_HINT


def _sealed_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield what prevents that a sealed stream is moved: it changes no more, also no subjects."""
    is_sealed = bool(sides.before.get("sealed"))
    if is_sealed != bool(sides.after.get("sealed")):
        hint = "Declare both alike. Seal it in an earlier or a later plan."
        yield "only one side is sealed", hint
    if is_sealed and get_retention(sides.before) != "limits":
        yield "{origin} is sealed, and its workers still empty it", _BACKUP_HINT
    if is_sealed and sides.relocation.origin.domain == sides.relocation.target.domain:
        yield "{origin} is sealed, so it keeps its subjects until it is deleted", _BACKUP_HINT


def _source_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield what prevents that the sources of the origin continue at the target.

    A source begins again at another address, so its last sequence must be known: since 2.15 (the
    server reports it). Meanwhile no consumer holds the messages of an interest stream.
    """
    inputs, relocation = sides.inputs, sides.relocation
    before, after = (config.get("sources") or () for config in (sides.before, sides.after))
    levels = [inputs.level(side) for side in (relocation.origin, relocation.target)]
    if (before or after) and min(levels) < ORIGIN_IDENTITY_LEVEL:
        release = SERVER_VERSIONS[ORIGIN_IDENTITY_LEVEL]
        yield f"it has sources, and nats-server {release} is the first that says how far", _BY_HAND
    if any(source.get("consumer") for source in (*before, *after)):
        yield "it has a source with a consumer of its own, which belongs to its address", _BY_HAND
    moved = find_moved_sources(inputs, relocation, sides.after)
    if sides.after.get("allow_msg_counter") and any(origin_key(o) != k for k, o in moved.items()):
        text = "it counts its sources by their API prefixes, and would count all once more"
        yield text, "Relocate it within its domain. Or declare it as a new stream with its sources."
    for source in after:
        if origin_key(source) not in moved:
            text = f"{{origin}} has no source {source['name']} with the same filter yet"
            yield text, "Add the source in an earlier or a later plan."
    staying = {origin_key(source) for source in moved.values()}
    for source in before:
        if origin_key(source) not in staying:
            text = f"{{target}} has no source {source['name']} with the same filter any more"
            yield text, "Remove the source in an earlier or a later plan."
    origin = inputs.live.get(relocation.origin)
    if origin is not None:
        later = "Change its limits in an earlier or a later plan."
        if list_accepted(inputs, origin, sides.after, levels[1]):
            text = "{origin} may have refused what its sources bring, and {target} would take it"
            yield text, later
        if list_rejected(inputs, origin, sides.after, levels[1]):
            yield "{target} may refuse what the sources of {origin} bring", later
    for address in find_interest_origins(inputs, relocation.origin, before):
        text = f"{address} has interest retention, and keeps nothing while no source reads"
        yield text, "Take the source out, apply, and declare it again after the relocation."


def _consumed_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield what prevents that a work queue or an interest stream is moved by a snapshot."""
    kinds = [get_retention(config) for config in (sides.before, sides.after)]
    if kinds[0] != kinds[1]:
        hint = "Relocate it with the same retention, and change that in an earlier or a later plan."
        yield f"{{origin}} has {kinds[0]} retention, and {{target}} {kinds[1]}", hint
    if "limits" in kinds:
        return
    for reader, kind, _ in find_downstream(sides.inputs, {}, sides.relocation.origin):
        hint = f"Take the {kind} out, apply, and declare it again after the relocation."
        yield f"{reader} {kind}s it, and consumes its messages", hint
    denies = sides.after.get("deny_delete") or sides.after.get("deny_purge")
    if kinds[0] == "workqueue" and denies:
        text = (
            "{target} denies deletions, and what workers finish during the relocation must be "
            "deleted there"
        )
        yield text, "Leave deny_delete and deny_purge out, and set them in a later plan."
    if kinds[0] == "interest":
        yield from _placeholder_obstacles(sides)


def _placeholder_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield why the target does not accept a placeholder consumer beside its own consumers."""
    why = "the placeholder consumer that holds its messages until its consumers exist"
    known, target = sides.inputs.workspace.resources, sides.relocation.target
    declared = sum(a.kind == "consumer" and a.parent == target for a in known)
    if 0 < max_consumers(sides.after) <= declared:
        text = f"max_consumers of {{target}} leaves no place for {why}"
        yield text, "Declare one more, and lower it in a later plan."
    limits = sides.after.get("consumer_limits") or {}
    if 0 < int(limits.get("inactive_threshold") or 0) < MIN_INACTIVE_THRESHOLD:
        text = f"consumer_limits of {{target}} may delete {why}"
        yield text, "Declare an inactive_threshold of 5m or more, and lower it in a later plan."


def _field_obstacles(sides: Sides) -> Iterator[Obstacle]:
    before, after = sides.before, sides.after
    if before.get("allow_msg_ttl") and not after.get("allow_msg_ttl"):
        text = "{origin} has allow_msg_ttl and {target} has not, so messages that expire would stay"
        yield text, "Declare allow_msg_ttl: true at the new address."
    if bool(before.get("allow_msg_counter")) != bool(after.get("allow_msg_counter")):
        text = "only one side has allow_msg_counter, which cannot be changed"
        yield text, "Declare the new address with the same value."
    if "first_seq" in sides.inputs.body(sides.relocation.target):
        text = "first_seq is declared, and a relocated stream keeps its sequences"
        yield text, "Leave first_seq out."


def _downstream_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield streams that would get a source of the target, and have none of the origin yet.

    A source of the origin becomes one of the target. A mirror is replaced, as `on_replace` says.
    """
    inputs, relocation = sides.inputs, sides.relocation
    for edge in inputs.topology.edges_from(relocation.target):
        reader, live = edge.downstream, inputs.live.get(edge.downstream)
        if edge.kind == "mirror" or live is None:
            continue
        sources = live.compact.get("sources") or ()
        reads = any(reads_origin(inputs, reader, one, relocation.target) for one in sources)
        if not reads and find_old_source(inputs, relocation, live, edge.config) is None:
            text = (
                f"{reader} would get a source {{target}} without having one of {{origin}} with the "
                f"same {'consumer' if edge.config.get('consumer') else 'filter'}"
            )
            yield text, "Add the source in a later plan."


# --- by a mirror ---------------------------------------------------------------------------------


def _mirror_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield what a mirror cannot copy, or not from there.

    Before 2.14 a mirror does not follow messages that roll up others, as a purged key (measured).
    """
    before, retention = sides.before, get_retention(sides.before)
    if retention != "limits":
        text = f"{{origin}} has {retention} retention, and a mirror would consume its messages"
        yield text, _BACKUP_HINT
    level, release = sides.inputs.level(sides.relocation.target), ROLLUP_MIRROR_LEVEL
    if sides.relocation.origin.kind != "stream" and level < release:
        text = (
            f"only nats-server {SERVER_VERSIONS[release]} and later can mirror every message of "
            f"the {sides.noun}"
        )
        yield text, f"Upgrade that server. {_BACKUP_HINT}"
    if not sides.relocation.promotes:
        yield from _route_obstacles(sides)
    if before.get("sealed"):
        yield "{origin} is sealed, and a mirror does not learn its end", _BACKUP_HINT
    if before.get("allow_msg_counter"):
        yield "{origin} has counters, which only a snapshot keeps", _BACKUP_HINT
    if limits_copy_consumers(before.get("consumer_limits") or {}):
        text = (
            "consumer_limits of {origin} also limit the consumer by which a mirror reads it, so "
            "nothing would be copied"
        )
        hint = "Remove consumer_limits at the old address and apply. Declare them at the new one."
        yield text, hint


def _route_obstacles(sides: Sides) -> Iterator[Obstacle]:
    inputs, relocation = sides.inputs, sides.relocation
    origin, target = (
        inputs.workspace.domains[side.domain] for side in (relocation.origin, relocation.target)
    )
    try:
        route = inputs.topology.routes.find_route(target.key, origin.key)
    except NoRouteError as error:
        yield str(error), error.detail
        return
    row = f"{{from: {origin.key}, into: {target.key}, api: …, deliver: …}}"
    if is_import(origin) or is_import(target):
        key = origin.key if is_import(origin) else target.key
        yield f"{key} is reached through an import", "Give it a connection of its own."
    elif route.import_row is None and origin.connection != target.connection:
        text = (
            f"{origin.key} and {target.key} are not domains of one connection, and no `imports` "
            "row says how the one account reads the other"
        )
        hint = (
            "If both are in one account, let both domains use one connection. If the servers are "
            f"linked, write an `imports` row: {row}. Otherwise: {_BACKUP_HINT}"
        )
        yield text, hint
    elif route.import_row is not None and not route.deliver:
        text = f"the imports row of {route.api} has no `deliver`, so no message would arrive"
        yield text, f"Add `deliver:` to the row: {row}."


# --- by a snapshot -------------------------------------------------------------------------------


def _snapshot_obstacles(sides: Sides) -> Iterator[Obstacle]:
    """Yield what prevents that a snapshot of the origin is restored as the target.

    Measured on 2.12 to 2.15: archives of 2.15 need 2.15, and fit any name and storage. Those of
    earlier servers fit any server, under the same name, from file to file storage.
    """
    inputs, relocation = sides.inputs, sides.relocation
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
    if any(one.get("storage", "file") != "file" for one in (sides.before, sides.after)):
        yield f"before nats-server {newest} there are no snapshots of memory storage", ""


def find_old_source(
    inputs: PlanInputs, relocation: Transfer, downstream: LiveObject, source: Mapping[str, Any]
) -> Config | None:
    """Return the source of the origin that `source` continues, or None.

    Both take the same messages. One with a consumer begins where that is, and the target gets the
    consumers of the origin, so it continues only what was read through the consumer of its name.
    """
    by = (source.get("consumer") or {}).get("name")
    same = (
        one
        for one in downstream.compact.get("sources") or ()
        if takes_the_same(one, source) and by in (None, (one.get("consumer") or {}).get("name"))
    )
    reader, origin = downstream.address, relocation.origin
    return next((one for one in same if reads_origin(inputs, reader, one, origin)), None)


def find_moved_sources(
    inputs: PlanInputs, transfer: Transfer, after: Mapping[str, Any]
) -> dict[str, Config]:
    """Return by the key of each source of a target the source of its origin that it continues."""
    origin = inputs.live.get(transfer.origin)
    before = origin.compact.get("sources") or () if origin is not None else ()
    return {
        origin_key(source): old
        for source in after.get("sources") or ()
        for old in before
        if old["name"] == source["name"]
        and takes_the_same(old, source)
        and origin_domain(inputs, transfer.origin, old)
        == origin_domain(inputs, transfer.target, source)
    }


def find_replaced_sources(
    decision: ResourceDecision, continues: Callable[[Config, Config], bool]
) -> Iterator[tuple[str, Config]]:
    """Yield the key of each new source, with the one removed source that it `continues`.

    Both take the same messages. `continues` is called with the removed and the new source. One with
    a consumer begins where that is, so it continues no other.
    """
    live = decision.before.get("sources") or ()
    wanted = {origin_key(source): source for source in decision.planned.get("sources") or ()}
    removed = [source for source in live if origin_key(source) not in wanted]
    existing = {origin_key(source) for source in live}
    for key, source in wanted.items() if removed else ():
        if key in existing or source.get("consumer"):
            continue
        old = [s for s in removed if takes_the_same(s, source) and continues(s, source)]
        if len(old) == 1:
            removed.remove(old[0])
            yield key, old[0]


def takes_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Check whether two sources have the same filter and transforms."""
    return _takes(one) == _takes(other)


def _takes(source: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return the filter and the transforms of a source."""
    transforms = source.get("subject_transforms") or ()
    return (
        str(source.get("filter_subject") or ""),
        [(str(one.get("src") or ">"), str(one.get("dest") or "")) for one in transforms],
    )
