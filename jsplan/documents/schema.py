"""JSON Schemas of the documents, from which `state/schema/*.json` is generated.

A field that a later minor version adds is no error, so objects are open. Everything that the
specification promises is required and typed.
"""

from __future__ import annotations

from typing import get_args

from jsplan.address import KINDS
from jsplan.documents.apply import StepStatus
from jsplan.documents.plan_types import SEVERITIES, Op
from jsplan.documents.schema_plan import (
    CHANGE_DEFS,
    DEFERRED,
    DIAGNOSTIC,
    HEAD,
    RUN,
)
from jsplan.documents.schema_types import (
    ADDRESS,
    COUNT,
    FLAG,
    OBJECT,
    TEXT,
    TIME,
    Schema,
    document,
    list_of,
    map_of,
    object_of,
    object_of_counts,
    one_of,
    or_null,
    ref,
)

INTERRUPTED = list_of(
    object_of(
        {"address": ADDRESS, "rejected": list_of(TEXT), "summary": TEXT, "detail": TEXT},
        description="A replacement that an apply did not finish. "
        "Publishers to the subjects of `rejected` are rejected until it is finished.",
    )
)
APPLY = HEAD | {
    "kind": one_of("apply"),
    "plan_id": TEXT,
    "steps": list_of(ref("result")),
    "summary": map_of(COUNT),
    "state": OBJECT,
    "interrupted": INTERRUPTED,
    "deferred": list_of(ref("deferred")),
    "exit_code": COUNT,
}
STEP_RESULT = object_of(
    {
        "id": TEXT,
        "address": ADDRESS,
        "op": one_of(*get_args(Op)),
        "status": one_of(*get_args(StepStatus)),
        "error": or_null(TEXT),
    },
    {"note": TEXT},
    "`note`: what remains after a step that is done.",
)
REPLICATION = object_of(
    {
        "from": TEXT,
        "to": TEXT,
        "kind": TEXT,
        "healthy": or_null(FLAG),
        "cause": or_null(TEXT),
        "origin_last_seq": or_null(COUNT),
        "last_seq": or_null(COUNT),
    },
    {"lag": or_null(COUNT), "active": or_null(COUNT), "severity": one_of(*SEVERITIES)},
    "One mirror or source. `healthy` null: not known; `cause` says why. "
    "`active` is the time since the last contact with its origin, in ns.",
)
BREACH = {
    "key": TEXT,
    "level": one_of("critical", "warning"),
    "threshold": TEXT,
    "cause": TEXT,
}
UNMANAGED = object_of(
    {
        "address": ADDRESS,
        "type": one_of(*KINDS),
        "messages": or_null(COUNT),
        "bytes": or_null(COUNT),
        "created": or_null(TEXT),
    },
    {"severity": one_of(*SEVERITIES), "ephemeral": FLAG},
)
DRIFT = (
    HEAD
    | RUN
    | {
        "kind": one_of("drift"),
        "interrupted": INTERRUPTED,
        "resource_changes": {"type": "array", "maxItems": 0},
        "resource_drift": list_of(ref("resource")),
        "replication": list_of(ref("replication")),
        "thresholds": list_of(object_of({"address": ADDRESS} | BREACH)),
        "unmanaged": list_of(ref("unmanaged")),
        "mutes": list_of(OBJECT),
        "offline": list_of(OBJECT),
        "deferred": list_of(ref("deferred")),
        "diagnostics": list_of(ref("diagnostic")),
        "exit_code": COUNT,
        "summary": object_of_counts(
            "changed", "missing", "unhealthy", "unmanaged", "pending", "muted", "offline"
        ),
    }
)
_POSITION = object_of_counts("consumer_seq", "stream_seq")
STATUS_DOMAIN = object_of(
    {
        "domain": TEXT,
        "js_domain": or_null(TEXT),
        "connection": TEXT,
        "reachable": FLAG,
        "reason": or_null(TEXT),
        "may_be_offline": or_null(COUNT),
        "last_seen": or_null(TIME),
        "excused": or_null(FLAG),
        "messages": COUNT,
        "bytes": COUNT,
        "limits": or_null(
            object_of(
                dict.fromkeys(
                    ("max_streams", "max_consumers", "max_memory", "max_storage"), or_null(COUNT)
                )
            )
        ),
    }
    | dict.fromkeys(("server", "cluster", "version"), or_null(TEXT))
    | dict.fromkeys(("api_level", "streams", "consumers", "memory", "storage"), or_null(COUNT)),
    description="One domain. Sizes in bytes, `may_be_offline` in ns; a limit of null is none.",
)
_CLUSTER = or_null(
    object_of(
        {
            "name": TEXT,
            "leader": or_null(TEXT),
            "replicas": list_of(
                object_of(
                    {"name": TEXT, "lag": COUNT, "active": COUNT}
                    | dict.fromkeys(("leader", "current", "offline"), FLAG)
                )
            ),
            "placement": or_null(object_of({"cluster": or_null(TEXT), "tags": list_of(TEXT)})),
            "desired": or_null(object_of({"replicas": list_of(TEXT), "reason": TEXT})),
        },
        description="Null without a cluster. `active` in ns, `lag` in operations.",
    )
)
STATUS_STREAM = object_of(
    {
        "address": ADDRESS,
        "type": one_of(*KINDS),
        "managed": or_null(FLAG),
        "down": FLAG,
        "fed_by": one_of("mirror", "sources", None),
        "last_time": or_null(TIME),
        "created": TEXT,
        "cluster": _CLUSTER,
        "thresholds": list_of(object_of(BREACH)),
    }
    | dict.fromkeys(("messages", "bytes", "first_seq", "last_seq", "consumers"), COUNT)
)
STATUS_CONSUMER = object_of(
    {
        "address": ADDRESS,
        "managed": or_null(FLAG),
        "delivered": _POSITION,
        "ack_floor": _POSITION,
        "cluster": _CLUSTER,
        "thresholds": list_of(object_of(BREACH)),
    }
    | dict.fromkeys(("pending", "ack_pending", "redelivered", "waiting"), COUNT)
)
STATUS = (
    HEAD
    | RUN
    | {
        "kind": one_of("status"),
        "domains": list_of(ref("domain")),
        "interrupted": INTERRUPTED,
        "relocations": list_of(ref("relocation")),
        "streams": list_of(ref("stream")),
        "consumers": list_of(ref("consumer")),
        "replication": list_of(ref("replication")),
        "diagnostics": list_of(ref("diagnostic")),
        "summary": object_of_counts(
            "domains",
            "offline",
            "streams",
            "down",
            "consumers",
            "messages",
            "bytes",
            "flows",
            "unhealthy",
            "unknown",
            "breached",
        ),
    }
)
RELOCATION = object_of(
    {
        "from": TEXT,
        "to": TEXT,
        "phase": one_of("copying", "prepared", "cut-over", "activated"),
        "prepared": or_null(TEXT),
        "lag": COUNT,
        "last_message": or_null(TEXT),
    },
    description="A relocation that has begun. `lag`: the messages that the copy has not yet. "
    "`prepared`: the time of the comparison after which `apply --stage prepare` ended.",
)
_STATUS = {
    "relocation": RELOCATION,
    "domain": STATUS_DOMAIN,
    "stream": STATUS_STREAM,
    "consumer": STATUS_CONSUMER,
    "replication": REPLICATION,
    "diagnostic": DIAGNOSTIC,
}


def schemas() -> dict[str, Schema]:
    """Schemas by file name, such as `plan-v1.json`."""
    return {
        "apply-v1.json": document("apply", APPLY, {"result": STEP_RESULT, "deferred": DEFERRED}),
        "drift-v1.json": document(
            "drift", DRIFT, CHANGE_DEFS | {"replication": REPLICATION, "unmanaged": UNMANAGED}
        ),
        "status-v1.json": document("status", STATUS, _STATUS),
    }
