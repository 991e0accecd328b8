"""JSON Schemas of the documents, from which `state/schema/*.json` is generated. The documents themselves are beside this.

A field that a later minor version adds is no error to a reader of this one, so objects are open; everything that
the contract promises is required and typed.
"""

from __future__ import annotations

from typing import Any, get_args

from jsplan.address import KINDS
from jsplan.codes import HAZARDS
from jsplan.documents.apply import StepStatus
from jsplan.documents.backfill import COUNTED, DIFFERENCES
from jsplan.documents.graph import Fate
from jsplan.documents.notice import Kind, Occasion
from jsplan.documents.plan import Effect, Op, Severity

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ACTIONS = (["no-op"], ["create"], ["update"], ["delete"], ["delete", "create"], ["create", "delete"], ["forget"])

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
ANYTHING: Schema = {}
ADDRESS: Schema = {"type": "string", "pattern": r"^[^/]+/(stream|kv|object_store)/[^/]+$|^[^/]+/consumer/[^/]+/[^/]+$"}
TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"}
FINGERPRINT: Schema = {"type": "string", "pattern": "^(absent|sha256:[0-9a-f]{64})$"}
VERSION: Schema = {"type": "string", "pattern": r"^1\.\d+$"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, description: str = "") -> Schema:
    out: Schema = {"type": "object", "required": sorted(required), "properties": required | (optional or {})}
    return {"description": description} | out if description else out


def _counts(*names: str) -> Schema:
    return _object(dict.fromkeys(names, COUNT))


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


DIAGNOSTIC = _object(
    {
        "severity": _one_of("error", "warning", "info"),
        "code": TEXT,
        "summary": TEXT,
        "detail": TEXT,
        "address": _or_null(TEXT),
        "range": _or_null(_object({"file": TEXT, "line": COUNT, "column": COUNT})),
    },
    description="One finding. `code` is stable; line and column count from 1.",
)
FIELD = _object(
    {"path": TEXT, "before": ANYTHING, "after": ANYTHING, "effect": _one_of(*get_args(Effect))},
    description='One leaf that changes. Elements of sets are named by what they are: sources["SALES@$JS.leaf.API"].',
)
HAZARD = _object(
    {"code": _one_of(*HAZARDS), "blocking": FLAG, "allowed": FLAG, "flag": TEXT, "message": TEXT},
    {
        "messages": COUNT, "bytes": COUNT, "consumers": COUNT, "exact": FLAG, "at_least": COUNT, "at_most": COUNT,
        "as_of": OBJECT, "causes": _list(TEXT),
    },
    "What an apply of the change costs. Counts that do not apply are left out.",
)  # fmt: skip
CHANGE = _object(
    {
        "actions": _one_of(*ACTIONS), "before": _or_null(OBJECT), "after": _or_null(OBJECT), "after_unknown": OBJECT,
        "before_sensitive": OBJECT, "after_sensitive": OBJECT, "fields": _list(_ref("field")),
        "replace_paths": _list(_list(TEXT)), "importing": _or_null(_object({"id": TEXT})),
    },
    description="Full configurations in API names and units (ns, bytes), server defaults included, without `_nats.*` metadata.",
)  # fmt: skip
RESOURCE = _object(
    {
        "address": ADDRESS, "mode": _one_of("managed"), "type": _one_of(*KINDS), "domain": TEXT, "name": TEXT,
        "change": _ref("change"), "action_reason": TEXT, "hazards": _list(_ref("hazard")), "fingerprint": FINGERPRINT,
        "depends_on": _list(TEXT),
    },
    {"previous_address": ADDRESS, "severity": _one_of(*get_args(Severity))},
)  # fmt: skip
PRECONDITION = _object(
    {},
    {"fingerprint": FINGERPRINT, "after_step": TEXT, "at_stake": COUNT, "settled": ADDRESS},
    description="`at_stake`: with more messages (for a consumer: unfinished ones) than that, the step is not done. "
    "`settled`: a stream that the step waits for until the cluster has moved or scaled it.",
)
STEP = _object(
    {
        "id": TEXT, "address": ADDRESS, "op": _one_of(*get_args(Op)), "title": TEXT, "request": _or_null(OBJECT),
        "precondition": PRECONDITION, "depends_on": _list(TEXT), "expect": _or_null(OBJECT), "record": _or_null(OBJECT),
    },
    {"object": ADDRESS, "carries": OBJECT, "unless_away": _list(TEXT)},
    description="One call, with what must hold before it and what the read-back must show after it.",
)  # fmt: skip
DEFERRED = _object({"address": ADDRESS, "reason": TEXT}, description="Left for a later plan.")
ESTIMATE = _object({"seconds": {"type": "number"}, "basis": TEXT}, description="About how long it takes, and what that rests on.")
BACKFILL = _object(
    {"name": TEXT, "from": ANYTHING, "to": ANYTHING},
    {
        "messages": _or_null(COUNT), "bytes": _or_null(COUNT), "strategy": TEXT, "reason": TEXT, "declared": FLAG, "command": TEXT,
        "estimate": _or_null(ESTIMATE), "text": TEXT, "runs": FLAG, "waits": TEXT,
    },
    description="Elements of `from` have the `range` that apply keeps: `first`, `last` and the origin's `created`. `text` is a hash of "
    "what the entry says. `declared` false: history that a source leaves out; with `runs` false apply does not copy it, and `waits` says "
    "for what that waits.",
)  # fmt: skip
REHEARSAL = _object(
    {
        "servers": _list(_object({"domain": TEXT, "version": TEXT, "real": _or_null(TEXT)})),
        "steps": COUNT, "refused": COUNT, "behind": COUNT, "left_out": COUNT,
    },
    description="How the plan went on embedded servers: steps refused, steps behind one that was, steps that could not be tried.",
)  # fmt: skip
STATE_ENTRY = _object(
    {
        "config": OBJECT, "declared": OBJECT, "created": TEXT, "origin": _one_of("created", "imported"),
        "prevent_destroy": FLAG, "depends_on": _list(ADDRESS), "applied_at": TEXT,
    },
    {"starts": _map(COUNT), "seen": TEXT},
    description="`config` is live after the last apply; `declared` what the files named then, null for the server's default. "
    "`seen` is the server's time when this was last known to be the object.",
)  # fmt: skip

_HEAD = {"format_version": VERSION}
_RUN = {"jsplan_version": TEXT, "workspace": TEXT, "environment": _or_null(TEXT), "timestamp": TIME, "id": TEXT}
_CHANGES = {"diagnostic": DIAGNOSTIC, "field": FIELD, "hazard": HAZARD, "change": CHANGE, "resource": RESOURCE, "deferred": DEFERRED}

PLAN = _HEAD | _RUN | {
    "kind": _one_of("plan"),
    "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "state": _object({"lineage": _or_null(TEXT), "serial": COUNT}),
    "config_hash": TEXT, "variables": OBJECT, "mode": _one_of("normal", "destroy", "refresh-only", "restore", "revert"),
    "targets": _list(TEXT),
    "complete": FLAG, "applyable": FLAG, "errored": FLAG, "allowed_hazards": _list(TEXT), "options": OBJECT,
    "domains": _map(OBJECT), "resource_changes": _list(_ref("resource")), "steps": _list(_ref("step")),
    "resource_drift": _list(_ref("resource")), "backfills": _list(_ref("backfill")), "deferred": _list(_ref("deferred")),
    "diagnostics": _list(_ref("diagnostic")), "rehearsal": _or_null(REHEARSAL),
    "summary": _counts("import", "add", "change", "replace", "replace_deletes", "destroy", "forget", "backfill", "deferred", "hazards"),
}  # fmt: skip
APPLY = _HEAD | {
    "kind": _one_of("apply"), "plan_id": TEXT, "steps": _list(_ref("result")), "summary": _map(COUNT), "state": OBJECT,
    "deferred": _list(_ref("deferred")), "exit_code": COUNT,
}  # fmt: skip
STEP_RESULT = _object(
    {"id": TEXT, "address": ADDRESS, "op": _one_of(*get_args(Op)), "status": _one_of(*get_args(StepStatus)), "error": _or_null(TEXT)}
)
REPLICATION = _object(
    {
        "from": TEXT,
        "to": TEXT,
        "kind": TEXT,
        "healthy": _or_null(FLAG),
        "cause": _or_null(TEXT),
        "origin_last_seq": _or_null(COUNT),
        "last_seq": _or_null(COUNT),
    },
    {"lag": _or_null(COUNT), "active": _or_null(COUNT), "severity": _one_of(*get_args(Severity))},
    "One mirror or source. `healthy` null: nobody can tell, the cause says why. `active` is ns since the copy heard of its origin.",
)
UNMANAGED = _object(
    {"address": ADDRESS, "type": _one_of(*KINDS), "messages": _or_null(COUNT), "bytes": _or_null(COUNT), "created": _or_null(TEXT)},
    {"severity": _one_of(*get_args(Severity)), "ephemeral": FLAG},
)
DRIFT = _HEAD | _RUN | {
    "kind": _one_of("drift"), "resource_changes": {"type": "array", "maxItems": 0}, "resource_drift": _list(_ref("resource")),
    "replication": _list(_ref("replication")), "unmanaged": _list(_ref("unmanaged")), "mutes": _list(OBJECT), "away": _list(OBJECT),
    "deferred": _list(_ref("deferred")), "diagnostics": _list(_ref("diagnostic")), "exit_code": COUNT,
    "summary": _counts("changed", "missing", "unhealthy", "unmanaged", "pending", "muted", "away"),
}  # fmt: skip
SITUATION = _object(
    {
        "id": {"type": "string", "pattern": "^[0-9a-f]{12}$"}, "kind": _one_of(*get_args(Kind)), "severity": _one_of(*get_args(Severity)),
        "address": TEXT, "says": TEXT, "details": _list(TEXT), "fields": _list(_ref("field")),
    },
    description="`id` is the same wherever and whenever the same thing is found again in the same workspace and environment.",
)  # fmt: skip
BY = _object(
    {"user": TEXT, "client": TEXT, "host": TEXT, "account": TEXT, "leafnode": FLAG},
    description="Who asked the server for the change; behind a leafnode the server knows only the link.",
)
NOTICE = _HEAD | {
    "kind": _one_of("notice"), "id": TEXT, "occasion": _one_of(*get_args(Occasion)), "situation": _ref("situation"), "workspace": TEXT,
    "environment": _or_null(TEXT), "timestamp": TIME, "since": TIME, "by": _or_null(BY), "text": TEXT,
}  # fmt: skip
APPLIED = _object(
    {
        "id": COUNT, "at": TIME, "ended": _or_null(TIME), "who": TEXT, "host": TEXT, "operation": TEXT, "environment": _or_null(TEXT),
        "plan": _or_null(_object({"id": TEXT, "sha256": TEXT})), "summary": _map(COUNT), "jsplan_version": TEXT,
        "result": _one_of("begun", "done", "partial", "failed", "interrupted"),
    },
    {"changes": ANYTHING, "backfills": _list(TEXT), "of": COUNT, "backup": TEXT, "running": FLAG},
    "One session that changed something. `id` is the serial that it gave the state; `changes` may be compressed, or given up (null).",
)  # fmt: skip
CHANGED = _object(
    {
        "address": ADDRESS, "actions": _one_of(*ACTIONS), "status": _one_of("begun", *get_args(StepStatus)),
        "fields": _list(_ref("field")), "costs": _list(OBJECT), "error": _or_null(TEXT),
    },
    {"importing": FLAG, "moved_from": ADDRESS},
    "What became of one resource; `costs` is what does not come back.",
)  # fmt: skip
HISTORY = _HEAD | {
    "kind": _one_of("history"), "workspace": TEXT, "environment": _or_null(TEXT), "entries": _list(_ref("applied")),
}  # fmt: skip
STATE = _HEAD | {
    "kind": _one_of("state"), "jsplan_version": TEXT, "lineage": TEXT, "serial": COUNT, "workspace": TEXT,
    "environment": _or_null(TEXT), "domains": _map(OBJECT), "ownership": OBJECT, "pending": _map(OBJECT),
    "replacements": _map(OBJECT), "deferred": _list(OBJECT), "backfills": _map(OBJECT), "history": _list(_ref("applied")),
    "resources": {"type": "object", "propertyNames": ADDRESS, "additionalProperties": _ref("entry")},
}  # fmt: skip

POSITION = _object(
    dict.fromkeys(("delivered", "ack_floor"), _object({"consumer_seq": COUNT, "stream_seq": COUNT}))
    | dict.fromkeys(("num_ack_pending", "num_redelivered", "num_pending"), COUNT)
)
SAVED = _object(
    {
        "address": ADDRESS, "config": OBJECT, "created": TEXT, "before": _counts("messages", "first_seq", "last_seq", "bytes"),
        "after": _counts("messages", "first_seq", "last_seq", "bytes"), "taken_at": TIME,
        "consumers": _list(_object({"name": TEXT, "config": OBJECT, "created": TEXT, "before": POSITION, "after": POSITION})),
        "archive": _object({"file": TEXT, "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "bytes": COUNT,
                            "format": _one_of("natsarc1", "tar")}),
        "server": _object(
            {"js_domain": _or_null(TEXT), "name": _or_null(TEXT), "version": _or_null(TEXT), "api_level": COUNT, "clustered": FLAG}
        ),
    },
    description="One stream. `before` and `after` are as the snapshot began and when it had ended; equal where nothing moved.",
)  # fmt: skip
BACKUP = _HEAD | {
    "kind": _one_of("backup"), "jsplan_version": TEXT, "workspace": TEXT, "environment": _or_null(TEXT), "id": TEXT, "started_at": TIME,
    "finished_at": _or_null(TIME), "complete": FLAG, "streams": _list(_ref("saved")),
    "missing": _list(_object({"address": TEXT, "reason": TEXT})),
    "summary": _counts("streams", "consumers", "messages", "bytes", "archive_bytes"),
}  # fmt: skip


_PLACE = _counts("consumer_seq", "stream_seq")
STATUS_DOMAIN = _object(
    {
        "domain": TEXT, "js_domain": _or_null(TEXT), "connection": TEXT, "reachable": FLAG, "reason": _or_null(TEXT),
        "may_be_offline": _or_null(COUNT), "last_seen": _or_null(TIME), "excused": _or_null(FLAG), "messages": COUNT, "bytes": COUNT,
        "limits": _or_null(_object(dict.fromkeys(("max_streams", "max_consumers", "max_memory", "max_storage"), _or_null(COUNT)))),
    }
    | dict.fromkeys(("server", "cluster", "version"), _or_null(TEXT))
    | dict.fromkeys(("api_level", "streams", "consumers", "memory", "storage"), _or_null(COUNT)),
    description="One domain that stands for itself. Bytes, and ns for `may_be_offline`; a limit of null is none.",
)  # fmt: skip
STATUS_STREAM = _object(
    {
        "address": ADDRESS, "type": _one_of(*KINDS), "managed": FLAG, "copies": _one_of("mirror", "sources", None),
        "last_time": _or_null(TIME), "created": TEXT,
    }
    | dict.fromkeys(("messages", "bytes", "first_seq", "last_seq", "consumers"), COUNT)
)  # fmt: skip
STATUS_CONSUMER = _object(
    {"address": ADDRESS, "managed": FLAG, "delivered": _PLACE, "ack_floor": _PLACE}
    | dict.fromkeys(("pending", "ack_pending", "redelivered", "waiting"), COUNT)
)
STATUS = _HEAD | _RUN | {
    "kind": _one_of("status"), "domains": _list(_ref("domain")), "streams": _list(_ref("stream")), "consumers": _list(_ref("consumer")),
    "replication": _list(_ref("replication")), "diagnostics": _list(_ref("diagnostic")),
    "summary": _counts("domains", "away", "streams", "consumers", "messages", "bytes", "flows", "unhealthy", "unknown"),
}  # fmt: skip
_STATUS = {
    "domain": STATUS_DOMAIN, "stream": STATUS_STREAM, "consumer": STATUS_CONSUMER, "replication": REPLICATION, "diagnostic": DIAGNOSTIC,
}  # fmt: skip


FINDING = _list(_ref("diagnostic"))
LINT = _HEAD | {
    "kind": _one_of("lint"), "jsplan_version": TEXT, "workspace": TEXT, "environment": _or_null(TEXT), "live": FLAG, "findings": FINDING,
    "ignored": _list({"allOf": [_ref("diagnostic"), _object({"reason": TEXT})]}), "resources": COUNT,
    "summary": _counts("errors", "warnings", "notes", "ignored"),
}  # fmt: skip
_FATE = _or_null(_one_of(*(fate for fate in get_args(Fate) if fate)))
NODE = _object(
    {
        "id": TEXT, "domain": TEXT, "kind": _one_of("stream", "kv", "object_store", "outside"), "name": TEXT, "subjects": _list(TEXT),
        "facts": TEXT, "consumers": _list(_object({"name": TEXT, "words": TEXT, "fate": _FATE})), "fate": _FATE, "count": COUNT,
    },
    description="A stream or bucket. `outside`: one that the workspace refers to and does not have. `fate`: what a plan does with it.",
)  # fmt: skip
LINK = _object(
    {"origin": TEXT, "copy": TEXT, "kind": _one_of("mirror", "source"), "label": TEXT, "fate": _FATE, "count": COUNT},
    description="Messages flow from node `origin` to node `copy`; `label` is the filter.",
)
GRAPH = _HEAD | {
    "kind": _one_of("graph"), "title": TEXT, "planned": FLAG, "domains": _list(_object({"key": TEXT, "title": TEXT, "count": COUNT})),
    "nodes": _list(_ref("node")), "links": _list(_ref("link")),
}  # fmt: skip


SPAN: Schema = {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}
_LEG = {"from": ADDRESS, "to": ADDRESS, "first": COUNT, "last": COUNT}
COPIED = _object(
    _LEG | {"copied": COUNT, "bytes": COUNT, "seconds": {"type": "number"}, "attempts": COUNT, "verified": FLAG, "path": TEXT,
            "gaps": _list(SPAN), "gap_messages": COUNT, "skipped": _list(COUNT), "skipped_count": COUNT, "natively": COUNT,
            "windows": COUNT},
    description="One origin. `gaps`: sequences that were gone before they could be copied; `seconds` without Spark's start.",
)  # fmt: skip
CHECKED = _object(
    _LEG
    | {
        "counts": _counts(*COUNTED),
        "differences": _list(_object({"kind": _one_of(*DIFFERENCES), "from": ADDRESS, "origin_seq": COUNT, "target_seq": _or_null(COUNT)})),
    },
    description="One origin compared with the target. `differences` are the first of them, `counts` counts all.",
)
LEFTOVER = _object(
    {"domain": TEXT, "stream": TEXT, "entry": TEXT, "from": TEXT, "messages": COUNT, "bytes": COUNT, "sealed": FLAG,
     "source_of": _list(ADDRESS)},
    description="A staging stream, and the streams that have it as a temporary source.",
)  # fmt: skip
ENTRY = _object(
    {
        "name": TEXT, "status": _one_of("new", "begun", "done", "changed", "gone"), "frozen_at": _or_null(TIME), "done_at": _or_null(TIME),
        "leftovers": _list(_ref("leftover")), "next": _or_null(TEXT),
        "legs": _list(_object(_LEG | {"status": TEXT, "copied": COUNT, "gaps": _list(SPAN), "skipped": _list(COUNT)})),
    },
    {"declined": FLAG},
)  # fmt: skip
RUN = _HEAD | {
    "kind": _one_of("backfill"), "name": TEXT, "legs": _list(_ref("leg")), "deferred": _list(_ref("deferred")), "exit_code": COUNT,
}  # fmt: skip
LOOKED = _object(
    _LEG | {"frozen": FLAG, "done": FLAG, "messages": _or_null(COUNT), "bytes": _or_null(COUNT),
            "measured": _one_of("counted", "compared", "unknown"), "there": COUNT, "gone": COUNT, "error": _or_null(TEXT)},
    description="One origin: what is missing of it, and how that was found. `there`: in the target already; `gone`: at the origin no more.",
)  # fmt: skip
OUTLOOK = _HEAD | {
    "kind": _one_of("backfill-plan"), "name": TEXT, "status": _one_of("new", "begun", "done"), "reason": TEXT,
    "strategy": _one_of("native", "snapshot", "spark"), "against": _or_null(TEXT), "command": TEXT, "messages": COUNT, "bytes": COUNT,
    "estimate": _or_null(ESTIMATE), "before": _list(TEXT), "legs": _list(_ref("leg")),
}  # fmt: skip
VERIFY = _HEAD | {
    "kind": _one_of("backfill-verify"), "name": TEXT, "legs": _list(_ref("leg")), "others": COUNT, "seconds": {"type": "number"},
    "exit_code": COUNT,
}  # fmt: skip
STANDING = _HEAD | {
    "kind": _one_of("backfill-status"), "workspace": TEXT, "environment": _or_null(TEXT), "entries": _list(_ref("entry")),
    "strays": _list(_ref("leftover")), "unreachable": _map(TEXT),
    "locked": _or_null(_object(dict.fromkeys(("id", "who", "host", "operation", "since"), TEXT) | {"pid": COUNT})),
}  # fmt: skip


def _document(name: str, fields: dict[str, Schema], defs: dict[str, Schema]) -> Schema:
    title = f"jsplan {name} document, format 1"
    return {"$schema": DIALECT, "$id": f"urn:jsplan:schema:{name}-v1", "title": title, "$defs": defs} | _object(fields)


def schemas() -> dict[str, Schema]:
    """All schemas by file name, such as `plan-v1.json`."""
    return {
        "plan-v1.json": _document("plan", PLAN, _CHANGES | {"step": STEP, "backfill": BACKFILL}),
        "apply-v1.json": _document("apply", APPLY, {"result": STEP_RESULT, "deferred": DEFERRED}),
        "drift-v1.json": _document("drift", DRIFT, _CHANGES | {"replication": REPLICATION, "unmanaged": UNMANAGED}),
        "notice-v1.json": _document("notice", NOTICE, {"field": FIELD, "situation": SITUATION}),
        "state-v1.json": _document("state", STATE, {"entry": STATE_ENTRY, "applied": APPLIED}),
        "history-v1.json": _document("history", HISTORY, {"applied": APPLIED, "changed": CHANGED, "field": FIELD}),
        "backup-v1.json": _document("backup", BACKUP, {"saved": SAVED}),
        "status-v1.json": _document("status", STATUS, _STATUS),
        "lint-v1.json": _document("lint", LINT, {"diagnostic": DIAGNOSTIC}),
        "graph-v1.json": _document("graph", GRAPH, {"node": NODE, "link": LINK}),
        "backfill-v1.json": _document("backfill", RUN, {"leg": COPIED, "deferred": DEFERRED}),
        "backfill-plan-v1.json": _document("backfill-plan", OUTLOOK, {"leg": LOOKED}),
        "backfill-verify-v1.json": _document("backfill-verify", VERIFY, {"leg": CHECKED}),
        "backfill-status-v1.json": _document("backfill-status", STANDING, {"entry": ENTRY, "leftover": LEFTOVER}),
    }
