"""Merge desired, live and last applied into the configuration that a resource should have.

An omitted field means the default of the server. If it was omitted before too, and live equals
last applied, it keeps its value. Fields without a row in the tables are
never dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jsplan.address import is_parked
from jsplan.documents.plan import FieldChange
from jsplan.planning.diff import field_changes
from jsplan.resources.consumer import CONSUMER, EVERY_SUBJECT, filters_of
from jsplan.resources.fields import ABSENT, OWNER_KEY, Config, Field, Table, sort_objects
from jsplan.resources.nested import ORIGIN, origin_key

SOURCE_START_FIELDS = ("opt_start_seq", "opt_start_time")
FILTERS = ("filter_subject", "filter_subjects")


def explicit_fields(body: Mapping[str, Any]) -> Config:
    """Return the fields that the files set. Origins get a form that every server accepts."""
    out = {name: value for name, value in body.items() if value is not None}
    if out.get("mirror"):
        out["mirror"] = _normalize_origin(out["mirror"])
    if out.get("sources"):
        out["sources"] = [_normalize_origin(origin) for origin in out["sources"]]
    return out


def build_create(table: Table, body: Mapping[str, Any], level: int) -> Config:
    """Build the body of a create, without default values that the server is too old to know.

    Servers since 2.12 reject unknown fields, whatever the value.
    """

    def unknown(row: Field | None, value: Any) -> bool:
        return row is not None and row.level > level and row.compact(value) is ABSENT

    return {
        name: value
        for name, value in explicit_fields(body).items()
        if not unknown(table.by_name.get(name), value)
    }


def _normalize_origin(origin: Config) -> Config:
    """Remove an empty list of transforms, and give each transform its source.

    A mirror that is created with an empty list can never be updated (10055). 2.10 rejects an
    empty source (10145, 10151). Later servers take it, and a source that an update adds with it
    never copies anything (measured on 2.12 to 2.15).
    """
    transforms = origin.get("subject_transforms")
    if transforms is None:
        return origin
    rest = {name: value for name, value in origin.items() if name != "subject_transforms"}
    with_sources = [transform | {"src": transform.get("src") or ">"} for transform in transforms]
    return rest | ({"subject_transforms": with_sources} if transforms else {})


def declared_fields(table: Table, body: Mapping[str, Any]) -> Config:
    """Return the declared fields for state, in compact form; None for a default value."""
    compact = table.compact(explicit_fields(body))
    return {name: compact.get(name) for name in body}


def expected_new(table: Table, body: Mapping[str, Any], level: int, inherited: Config) -> Config:
    """Return the compact configuration that a create of this body gives, with server defaults.

    `inherited` are settings from other objects: for a consumer the `consumer_limits` of its
    stream, for a mirror the `mirror_direct` that an origin in the same JetStream decides.
    """
    target = table.compact(explicit_fields(body))
    # No stream is created sealed. A replacement seals it last, and the server drops max_age then.
    if target.get("sealed"):
        unsealed = {name: value for name, value in target.items() if name != "sealed"}
        table.fill_derived(unsealed, level)
        target |= {name: unsealed[name] for name in ("duplicate_window",) if name in unsealed}
    return _with_derived(table, target, level, inherited)


def _with_derived(table: Table, target: Config, level: int, inherited: Config) -> Config:
    if table.kind == "consumer":
        target["consumer_limits"] = inherited
    table.fill_derived(target, level)
    return _with_mirror_direct(target, inherited) if table.kind == "stream" else target


def _with_mirror_direct(target: Config, inherited: Config) -> Config:
    """Set `mirror_direct` to `allow_direct` of the origin, for an origin in the same JetStream."""
    if target.get("mirror") and "mirror_direct" in inherited:
        target.pop("mirror_direct", None)
        if inherited["mirror_direct"]:
            target["mirror_direct"] = True
    return target


def overruled_fields(table: Table, body: Mapping[str, Any], after: Config) -> list[str]:
    """List the declared fields whose value the server overrides because of another setting.

    Starts of sources are no such value: see `without_ignored`, and `planning.source_starts`.
    """
    wanted, found = table.compact(explicit_fields(body)), dict(after)
    if table.kind == "stream":
        for config in (wanted, found):
            if config.get("sources"):
                config["sources"] = sort_objects([_without_start(s) for s in config["sources"]])
    return [
        name
        for name in body
        if name in table.by_name
        and body[name] is not None
        and wanted.get(name) not in (found.get(name), None)
    ]


def _without_start(source: Config) -> Config:
    return {name: value for name, value in source.items() if name not in SOURCE_START_FIELDS}


def expected_update(
    table: Table,
    body: Mapping[str, Any],
    live: Config,
    live_raw: Config,
    last: tuple[Config, Config] | None,
    *,
    level: int,
    inherited: Config,
    ignore: Collection[str],
) -> Config:
    """Return the compact configuration that an existing object should have.

    `live` is its compact form now, `live_raw` the document of the server. `last` is the compact
    configuration and the declared fields of the last apply, or None if it was never applied.
    `ignore` are `ignore_changes`. `inherited` is as in `expected_new`. A mirror takes an inherited
    value only when it is updated, so that value alone is no reason to write.
    """
    wanted = table.compact(with_server_fields(table, explicit_fields(body), live_raw))
    target: Config = {}
    for name in dict.fromkeys([*table.by_name, *live, *wanted]):
        value = _choose_value(table.by_name.get(name), name, body, wanted, live, last, ignore)
        if value is not None:
            target[name] = value
    _drop_conflicting_defaults(table, target, body, inherited)
    inherits = "mirror_direct" in body or _with_derived(table, dict(target), level, {}) != live
    given = inherited if table.kind == "consumer" or inherits else {}
    return _with_derived(table, target, level, given)


def _choose_value(
    row: Field | None,
    name: str,
    body: Mapping[str, Any],
    wanted: Config,
    live: Config,
    last: tuple[Config, Config] | None,
    ignore: Collection[str],
) -> Any:
    if name in ignore:
        return live.get(name)
    if name in body:
        return wanted.get(name)
    if is_parked(live.get(name)):
        return None
    if row is None or row.operational or row.when_omitted == "live":
        return live.get(name)
    if row.when_omitted == "last":
        return (last[0] if last is not None else live).get(name)
    if last is not None:
        config, declared = last
        if name not in declared and live.get(name) == config.get(name):
            return live.get(name)
    return None


def _drop_conflicting_defaults(
    table: Table, target: Config, body: Mapping[str, Any], inherited: Config
) -> None:
    """Remove undeclared values that the server would reject together with the declared ones.

    A duplicate window may not exceed max_age (10052). Rollups, which a removed
    subject_delete_marker_ttl leaves behind, need the right to purge (10052). A consumer may not
    exceed the limits of its stream (10121, 10153), and has one filter or a list of them (10136).
    """
    for name, other in (FILTERS, FILTERS[::-1]) if table.kind == "consumer" else ():
        if body.get(name) and other not in body:
            target.pop(other, None)
    if target.get("deny_purge") and "allow_rollup_hdrs" not in body:
        target.pop("allow_rollup_hdrs", None)
    age, window = target.get("max_age"), target.get("duplicate_window")
    if age and window and window > age and "duplicate_window" not in body:
        del target["duplicate_window"]
    for name in ("max_ack_pending", "inactive_threshold") if table.kind == "consumer" else ():
        if 0 < inherited.get(name, 0) < target.get(name, 0) and name not in body:
            del target[name]


def may_exceed_limits(consumer: Config) -> bool:
    """Check whether a compact consumer has a value that `consumer_limits` may forbid."""
    return "max_ack_pending" in consumer or "inactive_threshold" in consumer


def is_within_limits(consumer: Config, limits: Config) -> bool:
    """Check whether a compact consumer is within the `consumer_limits` of its stream."""
    return not any(
        0 < limits.get(name, 0) < consumer.get(name, 0)
        for name in ("max_ack_pending", "inactive_threshold")
    )


def with_server_fields(table: Table, wanted: Config, live_raw: Config) -> Config:
    """Add the live unknown keys and delivery prefixes to the nested objects of `wanted`.

    A delivery prefix is kept unless the files set one: a mirror is never replaced for a prefix.
    """
    out = dict(wanted)
    for name, value in wanted.items():
        row = table.by_name.get(name)
        if row is None or row.table is None or not value or not live_raw.get(name):
            continue
        if row.type == "object":
            out[name] = _with_unknown_fields(row.table, value, live_raw[name])
        elif row.table is ORIGIN:
            theirs = {origin_key(origin): origin for origin in live_raw[name]}
            out[name] = [
                _with_unknown_fields(ORIGIN, one, theirs.get(origin_key(one), {})) for one in value
            ]
    return out


def _with_unknown_fields(table: Table, wanted: Config, theirs: Config) -> Config:
    named = table.by_name.keys() | wanted.keys()
    out = wanted | {name: value for name, value in theirs.items() if name not in named}
    if table is ORIGIN and wanted.get("external") and theirs.get("external"):
        ours, live = dict(wanted["external"]), theirs["external"]
        if ours.get("api") == live.get("api") and "deliver" not in ours and live.get("deliver"):
            ours["deliver"] = live["deliver"]
        out["external"] = ours
    return out


def without_ignored(
    table: Table, before: Config, after: Config, level: int
) -> tuple[Config, list[FieldChange]]:
    """Undo changes that the server accepts without effect, and return them too.

    The start of an existing source is such a change: the server reads it only for a new source.
    """
    effective = dict(after)
    found: list[FieldChange] = []
    if table.kind == "stream" and before.get("sources") and after.get("sources"):
        effective["sources"], starts = _existing_starts(before["sources"], after["sources"])
        found += starts
    for change in field_changes(table, before, effective, level):
        name = change.path.split(".")[0].split("[")[0]
        if change.effect == "ignored":
            found.append(change)
            if name in before:
                effective[name] = before[name]
            else:
                effective.pop(name, None)
    return effective, found


def _existing_starts(
    before: list[Config], after: list[Config]
) -> tuple[list[Config], list[FieldChange]]:
    """Keep the starts of existing sources, and return how the files differ; 1 is like none."""
    theirs = {origin_key(origin): origin for origin in before}
    origins, found = [], []
    for origin in after:
        key = origin_key(origin)
        old = theirs.get(key)
        if old is None:
            origins.append(origin)
            continue
        found += [
            FieldChange(f'sources["{key}"].{s}', old.get(s), origin.get(s), "ignored")
            for s in SOURCE_START_FIELDS
            if (old.get(s) or 1) != (origin.get(s) or 1)
        ]
        starts = {name: old[name] for name in SOURCE_START_FIELDS if name in old}
        origins.append(_without_start(origin) | starts)
    return sort_objects(origins), found


def build_update(
    table: Table, live_raw: Config, body: Mapping[str, Any], before: Config, after: Config
) -> Config:
    """Build the body of an update: the document of the server with the changed fields.

    STREAM.UPDATE and CONSUMER.CREATE replace the whole configuration and reset what it omits.
    Fields without a row in the tables stay because they are in `live_raw`.
    """
    wanted = with_server_fields(table, explicit_fields(body), live_raw)
    out = dict(live_raw)
    sealing = bool(after.get("sealed")) and not before.get("sealed")
    # Sealing sets discard: new itself. Counters reject it in a request, and per subject needs it.
    adds_discard = sealing and "discard" not in body and not after.get("discard_new_per_subject")
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) == after.get(name) or (adds_discard and name == "discard"):
            continue
        if name not in after:
            out.pop(name, None)
        elif name in wanted and table.compact({name: wanted[name]}).get(name) == after[name]:
            out[name] = wanted[name]
        else:
            out |= explicit_fields({name: after[name]})
    if table is CONSUMER:
        _write_filters(out, live_raw)
    return _with_server_metadata(out, live_raw)


def _write_filters(payload: Config, live_raw: Config) -> None:
    """Write "no filter" as the filter `>` where the consumer has filters now, in place.

    A consumer whose filters are removed is not notified of new messages until its server restarts
    (a fault of 2.10 to 2.15): a push consumer stops, and a waiting pull request gets nothing.
    """
    if payload.get("filter_subject") and payload.get("filter_subjects"):
        # one of them is `>`, which compact forms do not have, so it was not removed
        is_single = payload["filter_subject"] != EVERY_SUBJECT
        del payload["filter_subjects" if is_single else "filter_subject"]
    if filters_of(live_raw) and not filters_of(payload):
        payload.pop("filter_subjects", None)
        payload["filter_subject"] = EVERY_SUBJECT


def _with_server_metadata(out: Config, live_raw: Config) -> Config:
    now, wanted = live_raw.get("metadata") or {}, out.get("metadata") or {}
    theirs = {k: v for k, v in now.items() if k.startswith("_nats.") or k == OWNER_KEY}
    if theirs or wanted:
        ours = {k: v for k, v in wanted.items() if not k.startswith("_nats.")}
        out["metadata"] = ours | theirs
    return out
