"""Schemas of a plan and of its parts, several of which are parts of other documents too."""

from __future__ import annotations

from typing import get_args

from jsplan.address import ADDRESS_KINDS
from jsplan.codes import HAZARDS
from jsplan.documents.plan_types import SEVERITIES, Effect, Op
from jsplan.documents.schema_configs import CONFIG_OR_NULL, CONFIG_REF, ORIGIN_REF
from jsplan.documents.schema_state import (
    ACTIONS,
    FLOW,
    RECORD_DEFS,
    RENAME_RECORD,
    SERVER,
    STEP_RECORD,
)
from jsplan.documents.schema_types import (
    ADDRESS,
    ANYTHING,
    CONSUMER_ADDRESS,
    COUNT,
    FINGERPRINT,
    FLAG,
    INSTANT,
    INT63,
    OBJECT,
    SECONDS,
    SHA256,
    STREAM_ADDRESS,
    TEXT,
    TIME,
    UINT64,
    UPLOAD_ID,
    VERSION,
    Schema,
    list_of,
    map_of,
    object_of,
    object_of_counts,
    one_of,
    or_null,
    ref,
)

DIAGNOSTIC = object_of(
    {
        "severity": one_of("error", "warning", "info"),
        "code": TEXT,
        "summary": TEXT,
        "detail": TEXT,
        "address": or_null(TEXT),
        "range": or_null(object_of({"file": TEXT, "line": COUNT, "column": COUNT})),
    },
    description="One finding. `code` is stable; line and column count from 1.",
)
FIELD = object_of(
    {"path": TEXT, "before": ANYTHING, "after": ANYTHING, "effect": one_of(*get_args(Effect))},
    description='One leaf that changes. Elements of sets are named: sources["SALES@$JS.leaf.API"].',
)
HAZARD = object_of(
    {"code": one_of(*HAZARDS), "blocking": FLAG, "allowed": FLAG, "flag": TEXT, "message": TEXT},
    {
        "messages": UINT64,
        "bytes": UINT64,
        "consumers": UINT64,
        "exact": FLAG,
        "at_least": UINT64,
        "at_most": UINT64,
        "as_of": object_of({}, {"last_seq": UINT64, "time": or_null(TEXT)}),
        "causes": list_of(TEXT),
    },
    "A consequence of the change. Counts that do not apply are absent.",
)
CHANGE = object_of(
    {
        "actions": one_of(*ACTIONS),
        "before": CONFIG_OR_NULL,
        "after": CONFIG_OR_NULL,
        "after_unknown": OBJECT,
        "before_sensitive": OBJECT,
        "after_sensitive": OBJECT,
        "fields": list_of(ref("field")),
        "replace_paths": list_of(list_of(TEXT)),
        "importing": or_null(object_of({"id": TEXT})),
    },
    description="Full configurations in API names and units (ns, bytes). "
    "They include server defaults, and not the metadata `_nats.*`.",
)
RESOURCE = object_of(
    {
        "address": ADDRESS,
        "mode": one_of("managed"),
        "type": one_of(*ADDRESS_KINDS),
        "domain": TEXT,
        "name": TEXT,
        "change": ref("change"),
        "action_reason": TEXT,
        "hazards": list_of(ref("hazard")),
        "fingerprint": FINGERPRINT,
        "depends_on": list_of(TEXT),
    },
    {
        "previous_address": ADDRESS,
        "severity": one_of(*SEVERITIES),
        "relocated_from": ADDRESS,
        "relocated_to": ADDRESS,
    },
)
PRECONDITION = object_of(
    {},
    {
        "fingerprint": FINGERPRINT,
        "after_step": TEXT,
        "before_apply": FINGERPRINT,
        "max_deleted": UINT64,
        "max_consumers": UINT64,
        "wait_until_stable": ADDRESS,
        "parent": object_of({"created": TEXT, "retention": TEXT}),
        "consumers": map_of(TEXT),
        "new_flows": list_of(object_of({"origin": STREAM_ADDRESS, "max_messages": UINT64})),
        "removed_sources": list_of(
            object_of(
                {"source": ORIGIN_REF, "domain": TEXT, "max_uncopied": or_null(UINT64)},
                {"origin_goes": FLAG},
            )
        ),
    },
    description="`max_deleted`: with more messages (of a consumer: unfinished ones) it fails. "
    "`max_consumers`: with more consumers of the stream it fails. "
    "`wait_until_stable`: the step waits until the cluster has moved or scaled this stream. "
    "`parent`: the stream of a consumer. "
    "`consumers`: `created` of the durable consumers, by name, of a stream that is preserved.",
)
_NEW_CONSUMER = or_null(
    object_of({"address": ADDRESS, "config": CONFIG_REF, "record": or_null(STEP_RECORD)})
)
PARAMS = object_of(
    {},
    {
        "state_address": ADDRESS,
        "api_level": COUNT,
        "from": STREAM_ADDRESS,
        "method": one_of("snapshot", "mirror"),
        "consumers": {"anyOf": [FLAG, map_of(_NEW_CONSUMER)]},
        "sources": list_of(TEXT),
        "flows": list_of(FLOW),
        "position": or_null(UINT64),
        "pause_until": or_null(INSTANT),
        "reset": object_of(
            {"once": TEXT, "seq": or_null(UINT64), "direction": one_of("back", "forward", "exact")}
        ),
        "initial_config": CONFIG_REF,
        "relocated": STREAM_ADDRESS,
        "relocated_sources": map_of(ORIGIN_REF),
        "new_sources": map_of(ORIGIN_REF),
        "continues": CONSUMER_ADDRESS,
        "origin_lost": FLAG,
        "target": STREAM_ADDRESS,
        "leftovers": list_of(UPLOAD_ID),
        "origin_level": COUNT,
        "relocation": object_of(
            {"id": TEXT, "old": object_of({"config": CONFIG_REF, "created": TEXT})}
        ),
        "replacement": object_of(
            {
                "id": TEXT,
                "staging": STREAM_ADDRESS,
                "method": one_of("snapshot", "mirror"),
                "old": object_of({"config": CONFIG_REF, "created": TEXT}),
            }
        ),
    }
    | dict.fromkeys(("into_new", "may_grow", "may_shrink", "managed"), FLAG)
    | dict.fromkeys(("text", "before"), TEXT),
    "Parameters of a step of more than one request; the fields depend on `op`.",
)
#: A configuration, or an object with one under `config`, as CONSUMER.CREATE takes it.
_PAYLOAD: Schema = {"allOf": [CONFIG_REF, object_of({}, {"config": CONFIG_REF})]}
REQUEST = object_of(
    {"api": TEXT, "payload": or_null(_PAYLOAD)},
    description="The subject below the API prefix, and what is sent.",
)
STEP = object_of(
    {
        "id": TEXT,
        "address": ADDRESS,
        "op": one_of(*get_args(Op)),
        "title": TEXT,
        "request": or_null(REQUEST),
        "precondition": PRECONDITION,
        "depends_on": list_of(TEXT),
        "expect": CONFIG_OR_NULL,
        "record": {"anyOf": [{"type": "null"}, STEP_RECORD, RENAME_RECORD]},
    },
    {"object": ADDRESS, "params": PARAMS, "optional_if_offline": list_of(TEXT)},
    description="One call, with its precondition and with the expected read-back.",
)
DEFERRED = object_of({"address": ADDRESS, "reason": TEXT}, description="Deferred to a later plan.")
ESTIMATE = object_of(
    {"seconds": SECONDS, "basis": TEXT},
    description="The estimated time, and the basis of the estimate.",
)
_RANGE = object_of({"first": INT63, "last": INT63, "created": TEXT})
_STREAM: dict[str, Schema] = {"domain": TEXT, "stream": TEXT}
_BOUNDS: dict[str, Schema] = {
    "range": _RANGE,
    "start_seq": UINT64,
    "end_seq": UINT64,
    "start_time": INSTANT,
    "end_time": INSTANT,
    "filter_subjects": list_of(TEXT),
}
_ENDPOINT: Schema = {"anyOf": [object_of(_STREAM, _BOUNDS), object_of({"parquet": TEXT})]}
BACKFILL = object_of(
    {
        "name": TEXT,
        "from": list_of(_ENDPOINT, minItems=1),
        "to": _ENDPOINT,
        "entry_hash": TEXT,
        "strategy": one_of("snapshot", "spark"),
        "reason": TEXT,
        "messages": or_null(UINT64),
        "bytes": or_null(UINT64),
        "estimate": or_null(ESTIMATE),
    },
    description="Elements of `from` have the `range` that apply pins: `first`, `last` and the "
    "origin's `created`. `entry_hash`: the hash of the entry.",
)
REHEARSAL = object_of(
    {
        "servers": list_of(
            object_of({"domain": TEXT, "version": TEXT, "domain_version": or_null(TEXT)})
        ),
        "steps": COUNT,
        "refused": COUNT,
        "blocked": COUNT,
        "not_tried": COUNT,
    },
    description="The result on embedded servers. `blocked`: steps that depend on a refused one.",
)
_TEXTS = list_of(TEXT)
OPTIONS = object_of(
    {},
    {
        "safe_below": UINT64,
        "measure_limit": UINT64,
        "owner": or_null(TEXT),
        "offline": TEXT,
        "revert": object_of(
            {
                "id": COUNT,
                "operation": TEXT,
                "at": TEXT,
                "who": TEXT,
                "host": TEXT,
            }
        ),
    }
    | dict.fromkeys(("adopt", "backfill", "rehearse", "import"), FLAG)
    | {"server_version": TEXT}
    | dict.fromkeys(("excludes", "replace", "reinstalled"), _TEXTS),
    "The planning options.",
)
DOMAIN = object_of(
    {"reachable": FLAG, "server": SERVER, "api_level": COUNT},
    {
        "reason": or_null(TEXT),
        "version": or_null(TEXT),
        "api_prefix": TEXT,
        "connection": TEXT,
        "imports": map_of(TEXT),
        "last_seqs": map_of(UINT64),
    },
    "The connection of a domain, and the server that answered.",
)
HEAD = {"format_version": VERSION}
RUN = {
    "jsplan_version": TEXT,
    "workspace": TEXT,
    "environment": or_null(TEXT),
    "timestamp": TIME,
    "id": TEXT,
}
CHANGE_DEFS: dict[str, Schema] = RECORD_DEFS | {
    "diagnostic": DIAGNOSTIC,
    "field": FIELD,
    "hazard": HAZARD,
    "change": CHANGE,
    "resource": RESOURCE,
    "deferred": DEFERRED,
}

PLAN = (
    HEAD
    | RUN
    | {
        "kind": one_of("plan"),
        "sha256": SHA256,
        "state": object_of({"lineage": or_null(TEXT), "serial": COUNT}),
        "config_hash": TEXT,
        "variables": map_of(TEXT),
        "mode": one_of("normal", "destroy", "refresh-only", "restore", "revert"),
        "targets": list_of(TEXT),
        "complete": FLAG,
        "applyable": FLAG,
        "errored": FLAG,
        "allowed_hazards": list_of(TEXT),
        "options": OPTIONS,
        "domains": map_of(DOMAIN),
        "resource_changes": list_of(ref("resource")),
        "steps": list_of(ref("step")),
        "resource_drift": list_of(ref("resource")),
        "backfills": list_of(ref("backfill")),
        "deferred": list_of(ref("deferred")),
        "diagnostics": list_of(ref("diagnostic")),
        "rehearsal": or_null(REHEARSAL),
        "summary": object_of_counts(
            "import",
            "add",
            "change",
            "replace",
            "replace_deletes",
            "destroy",
            "forget",
            "backfill",
            "deferred",
            "hazards",
        ),
    }
)
