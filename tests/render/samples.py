"""Documents that the views are tested with: one plan with everything in it, and small ones."""

from __future__ import annotations

from typing import Any

from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.drift import Drift, Unmanaged
from jsplan.documents.plan import (
    Change,
    FieldChange,
    Hazard,
    Plan,
    Rehearsal,
    RehearsalServer,
    ResourceChange,
    Step,
)
from jsplan.documents.step_kinds import Action, Severity
from jsplan.documents.types import Deferred
from jsplan.units import SECOND

DAY = 86400 * SECOND
GIB = 2**30
AS_OF = {"last_seq": 1300, "time": "2026-01-31T12:00:00Z"}

STREAM: dict[str, Any] = {
    "name": "ORDERS",
    "subjects": ["ORDERS.*"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": 10 * GIB,
    "max_age": 365 * DAY,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * SECOND,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "allow_direct": False,
    "mirror_direct": False,
    "compression": "none",
    "metadata": {"team": "shop", "cost.center": "42"},
}
CONSUMER: dict[str, Any] = {
    "name": "NEW",
    "durable_name": "NEW",
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "ack_wait": 30 * SECOND,
    "max_deliver": -1,
    "replay_policy": "instant",
    "filter_subject": "ORDERS.received",
    "sample_freq": "100",
    "max_ack_pending": 1000,
    "max_waiting": 512,
    "num_replicas": 0,
}


def resource(
    address: str,
    actions: list[Action],
    *,
    fields: tuple[FieldChange, ...] = (),
    hazards: tuple[Hazard, ...] = (),
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    replace_paths: tuple[str, ...] = (),
    importing: bool = False,
    severity: Severity | None = None,
    previous: str | None = None,
) -> ResourceChange:
    """Return one element of `resource_changes` with the parts that a test cares for."""
    domain, kind, name = address.split("/", 2)
    change = Change(
        actions,
        before,
        after,
        list(fields),
        [[p] for p in replace_paths],
        {"id": address} if importing else None,
    )
    return ResourceChange(
        address,
        kind,  # type: ignore[arg-type]
        domain,
        name,
        change,
        "update_because_config_changed",
        list(hazards),
        "sha256:" + "0" * 64,
        [],
        previous,
        severity,
    )


def plan(*changes: ResourceChange, **more: Any) -> Plan:
    """Return a plan of these resources, with a step for each that changes."""
    changing = [c for c in changes if c.change.actions != ["no-op"] or c.change.importing]
    steps = [
        Step(
            f"s{n}",
            c.address,
            "stream.update",
            f"update {c.address}",
            {"api": f"STREAM.UPDATE.{c.name}", "payload": {"name": c.name}},
            {},
        )
        for n, c in enumerate(changing, 1)
    ]
    return Plan(
        **(
            {
                "jsplan_version": "0.1.0",
                "workspace": "shop",
                "environment": None,
                "timestamp": "2026-01-31T12:00:00Z",
                "id": "p1",
                "state": {"lineage": "l1", "serial": 7},
                "config_hash": "sha256:" + "1" * 64,
                "variables": {"keep": "30d"},
                "applyable": True,
                "resource_changes": list(changes),
                "steps": steps,
            }
            | more
        )
    )


def deletes_messages(address: str, *, allowed: bool = False) -> Hazard:
    """The counted hazard of a shorter max_age."""
    return Hazard(
        "DELETES_MESSAGES",
        "messages older than 1d are deleted at once",
        allowed=allowed,
        flag=f"--allow-hazard DELETES_MESSAGES:{address}",
        messages=1203,
        bytes=88211,
        exact=True,
        as_of=AS_OF,
        causes=["max_age"],
    )


def everything() -> Plan:
    """A plan with each action, each effect, hazards, drift, a backfill, deferrals and findings."""
    copy = STREAM | {
        "name": "ORDERS_COPY",
        "subjects": None,
        "max_bytes": -1,
        "max_age": 0,
        "metadata": {},
        "mirror": {"name": "ORDERS", "external": {"api": "$JS.hub.API", "deliver": ""}},
    }
    sales = STREAM | {
        "name": "ALL_SALES",
        "max_bytes": 1572865,
        "subjects": None,
        "metadata": {},
        "sources": [
            {
                "name": "SALES",
                "external": {"api": "$JS.store-001.API", "deliver": ""},
                "filter_subject": "sales.>",
            },
            {
                "name": "SALES",
                "external": {"api": "$JS.store-002.API", "deliver": ""},
                "filter_subject": "sales.>",
            },
        ],
    }
    changes = (
        resource("hub/consumer/ORDERS/NEW", ["create"], after=CONSUMER),
        resource(
            "hub/kv/CONFIG",
            ["no-op"],
            importing=True,
            before={"bucket": "CONFIG"},
            after={"bucket": "CONFIG"},
        ),
        resource("hub/stream/ALL_SALES", ["create"], after=sales),
        resource("hub/stream/GONE", ["delete"], before=STREAM, hazards=(_deletes_stream(),)),
        resource("hub/stream/LEFT", ["forget"], before=STREAM),
        resource(
            "hub/stream/ORDERS",
            ["update"],
            before=STREAM,
            after=STREAM,
            fields=_updates(),
            hazards=_update_hazards(),
        ),
        resource(
            "hub/stream/STATS",
            ["delete", "create"],
            before=STREAM,
            after=STREAM,
            replace_paths=("storage",),
            fields=(
                FieldChange("max_msgs", 1000, -1, "in_place"),
                FieldChange("storage", "file", "memory", "replace"),
            ),
        ),
        resource("hub/stream/SAME", ["no-op"], before=STREAM, after=STREAM),
        resource(
            "leaf/stream/ORDERS_COPY", ["create"], after=copy, previous="edge/stream/ORDERS_COPY"
        ),
    )
    drift = (
        resource(
            "hub/stream/ORDERS",
            ["update"],
            severity="destructive",
            after=STREAM,
            fields=(FieldChange("max_msgs", -1, 5000, "in_place"),),
        ),
        resource(
            "hub/stream/SAME",
            ["update"],
            severity="cosmetic",
            after=STREAM,
            fields=(FieldChange("description", "a", "b", "in_place"),),
        ),
    )
    return plan(
        *changes,
        environment="prod",
        resource_drift=list(drift),
        allowed_hazards=["IRREVERSIBLE:hub/stream/ORDERS"],
        options={"adopt": True, "excludes": [], "replace": [], "safe_below": 0},
        rehearsal=Rehearsal(
            [
                RehearsalServer("hub", "2.15.1", "2.15.1"),
                RehearsalServer("leaf", "2.12.8", "2.12.4"),
            ],
            12,
            not_tried=1,
        ),
        backfills=[
            {
                "name": "orders-history",
                "from": [{"domain": "leaf", "stream": "ORDERS"}],
                "to": {"domain": "hub", "stream": "ORDERS_ALL"},
                "entry_hash": "0" * 32,
                "estimate": None,
                "messages": 1204331,
                "bytes": 3 * GIB,
                "strategy": "spark",
                "reason": "history before the first source",
            }
        ],
        deferred=[
            Deferred(f"far/stream/S{n}", "domain far is offline: no answer in 5s")
            for n in range(1, 4)
        ],
        diagnostics=[
            Diagnostic(
                "warning",
                "JS412",
                "first_seq: the server accepts the change and does nothing with it",
                "It is not sent.",
                "hub/stream/SAME",
                SourceRange("streams/orders.yaml", 12, 5),
            )
        ],
    )


def _deletes_stream() -> Hazard:
    return Hazard(
        "DELETES_STREAM",
        "deletes the stream with 4,000 messages (1,048,576 bytes) and 2 consumers",
        messages=4000,
        bytes=1048576,
        consumers=2,
        exact=True,
        as_of=AS_OF,
        flag="--allow-hazard DELETES_STREAM:hub/stream/GONE",
    )


def _updates() -> tuple[FieldChange, ...]:
    source = {
        "name": "SALES",
        "external": {"api": "$JS.leaf.API", "deliver": ""},
        "filter_subject": "sales.>",
    }
    return (
        FieldChange("allow_msg_ttl", None, True, "one_way"),
        FieldChange("description", None, "all orders", "in_place"),
        FieldChange("first_seq", 1, 7, "ignored"),
        FieldChange("max_age", 365 * DAY, DAY, "in_place"),
        FieldChange("max_bytes", 10 * GIB, 1572865, "in_place"),
        FieldChange("metadata.team", "shop", "sales", "in_place"),
        FieldChange("republish", {"src": ">", "dest": "copy.>"}, None, "in_place"),
        FieldChange('sources["SALES@$JS.leaf.API#sales.>"]', None, source, "in_place"),
        FieldChange("subjects", ["ORDERS.*", "ORDERS.a"], ["ORDERS.*", "ORDERS.b"], "in_place"),
    )


def _update_hazards() -> tuple[Hazard, ...]:
    return (
        deletes_messages("hub/stream/ORDERS"),
        Hazard(
            "IRREVERSIBLE",
            "allow_msg_ttl can never be turned off again",
            allowed=True,
            causes=["allow_msg_ttl"],
        ),
        Hazard("MOVES_DATA", "the stream moves to another server", blocking=False),
    )


def fleet(size: int) -> Plan:
    """Return the same small change in many domains, one of them with a hazard."""
    change = (FieldChange("max_age", 30 * DAY, 90 * DAY, "in_place"),)
    changes = [
        resource(
            f"store-{n:03}/stream/SALES", ["update"], before=STREAM, after=STREAM, fields=change
        )
        for n in range(1, size + 1)
    ]
    if size > 6:
        changes[6].hazards = [deletes_messages("store-007/stream/SALES")]
    return plan(*changes)


def store_opening(size: int) -> Plan:
    """Return so many new stores: a stream in each, and a source for each in the aggregate.

    Half of them are offline, and there are findings on all.
    """
    stores = [f"store-{n:03}" for n in range(1, size + 1)]
    apis = [f"$JS.{s}.API" for s in stores]
    source = [
        FieldChange(
            f'sources["SALES@{api}"]', None, {"name": "SALES", "external": {"api": api}}, "in_place"
        )
        for api in apis
    ]
    plain = {"name": "SALES", "max_bytes": GIB}
    made = [
        resource(f"{s}/stream/SALES", ["create"], after=plain | {"subjects": [f"sales.{s}.>"]})
        for s in stores[: size // 2]
    ]
    gone = [
        (s, f"domain {s} is offline: no responders on $JS.{s}.API") for s in stores[size // 2 :]
    ]
    deferred = [Deferred(f"{s}/stream/{name}", reason) for s, reason in gone for name in "AB"]
    odd = [
        Diagnostic("warning", "JS999", f"{s} is odd", "Look at it.", f"{s}/stream/SALES")
        for s in stores
    ]
    rates = [
        Diagnostic("warning", "JS998", f"{n} messages a day", "", f"{s}/stream/SALES")
        for n, s in enumerate(stores)
    ]
    every = resource(
        "hub/stream/ALL_SALES", ["update"], before=STREAM, after=STREAM, fields=tuple(source)
    )
    return plan(every, *made, deferred=deferred, diagnostics=[*odd, *rates])


def partial_apply() -> ApplyResult:
    """One step done, one failed, one without an answer, one skipped."""
    return ApplyResult(
        "p1",
        [
            StepResult("s1", "hub/stream/A", "stream.create", "done"),
            StepResult(
                "s2",
                "hub/stream/B",
                "stream.update",
                "failed",
                "no suitable peers for placement (10005)",
            ),
            StepResult("s3", "hub/stream/C", "stream.update", "unknown", "no answer in 5s"),
            StepResult("s4", "hub/consumer/B/X", "consumer.create", "skipped"),
        ],
        {
            "imported": 0,
            "added": 1,
            "changed": 0,
            "replaced": 0,
            "destroyed": 0,
            "forgotten": 0,
            "deferred": 1,
            "failed": 2,
            "skipped": 1,
        },
        {"lineage": "l1", "serial": 8},
        6,
        [Deferred("leaf/stream/X", "domain leaf is offline: no answer")],
    )


def complete_apply() -> ApplyResult:
    """An apply whose steps all succeeded."""
    steps = [StepResult("s1", "hub/stream/A", "stream.create", "done")]
    return ApplyResult(
        "p1",
        steps,
        {"added": 2, "changed": 1, "replaced": 1, "destroyed": 0},
        {"lineage": "l1", "serial": 8},
    )


def drift() -> Drift:
    """Each kind of finding once."""
    return Drift(
        "0.1.0",
        "shop",
        "prod",
        "2026-01-31T12:00:00Z",
        "d1",
        resource_drift=[
            resource(
                "hub/stream/ORDERS",
                ["update"],
                severity="destructive",
                before=STREAM,
                after=STREAM,
                fields=(FieldChange("max_age", 365 * DAY, DAY, "in_place"),),
            ),
            resource("leaf/stream/LOST", ["delete"], severity="destructive", before=STREAM),
        ],
        replication=[
            {
                "from": "hub/stream/ORDERS",
                "to": "leaf/stream/ORDERS_COPY",
                "kind": "mirror",
                "healthy": False,
                "cause": "the origin was made again",
                "origin_last_seq": 1300,
                "last_seq": 900,
            },
            {
                "from": "hub/stream/A",
                "to": "leaf/stream/B",
                "kind": "source",
                "healthy": True,
                "cause": None,
                "origin_last_seq": 1,
                "last_seq": 1,
            },
        ],
        unmanaged=[
            Unmanaged("hub/stream/TMP", "stream", 12, 4096, "2026-01-30T08:00:00Z"),
            Unmanaged("hub/consumer/TMP/c", "consumer", None, None, None),
        ],
        mutes=[
            {
                "address": "hub/stream/X",
                "owner": "ops",
                "reason": "test of a new limit",
                "until": "2026-12-31",
            }
        ],
        offline=[
            {
                "domain": "far",
                "reason": "no answer in 5s",
                "may_be_offline": 7 * DAY,
                "excused": True,
            },
            {
                "domain": "near",
                "reason": "no such domain",
                "may_be_offline": None,
                "excused": False,
            },
        ],
        deferred=[Deferred("far/stream/S1", "domain far is offline: no answer in 5s")],
        pending=2,
        exit_code=2,
    )


def state() -> dict[str, Any]:
    """A state document with a stream and a consumer."""
    entry = {
        "declared": {"max_age": 365 * DAY},
        "created": "2026-01-01T00:00:00Z",
        "depends_on": [],
        "applied_at": "2026-01-02T00:00:00Z",
    }
    return {
        "format_version": "1.0",
        "kind": "state",
        "jsplan_version": "0.1.0",
        "lineage": "l1",
        "serial": 7,
        "workspace": "shop",
        "environment": "prod",
        "domains": {"hub": {"name": "hub", "cluster": ""}},
        "ownership": {},
        "pending": {
            "hub/stream/NEW": {
                "id": "s9",
                "address": "hub/stream/NEW",
                "op": "stream.create",
                "expect": {},
                "record": None,
            }
        },
        "deferred": [{"plan": "p1", "steps": ["s3"]}],
        "replacements": {
            "hub/stream/ORDERS": {
                "address": "hub/stream/ORDERS",
                "detached": ["SALES@$JS.leaf.API"],
            }
        },
        "backfills": {
            "history": {
                "name": "history",
                "entry_hash": "0",
                "pinned_at": "2026-01-31T12:00:00Z",
                "done_at": "",
                "origins": [],
            }
        },
        "history": [
            {
                "id": 7,
                "at": "2026-01-31T12:00:00Z",
                "ended": None,
                "who": "ann",
                "host": "ops-1",
                "operation": "apply",
                "environment": "prod",
                "plan": {"id": "p1", "sha256": "0"},
                "summary": {"add": 1},
                "jsplan_version": "0.1.0",
                "result": "started",
                "changes": [],
            }
        ],
        "resources": {
            "hub/consumer/ORDERS/NEW": entry
            | {"config": CONSUMER, "origin": "imported", "prevent_destroy": False},
            "hub/stream/ORDERS": entry
            | {"config": STREAM, "origin": "created", "prevent_destroy": True},
        },
    }
