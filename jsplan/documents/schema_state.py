"""Schemas of the state document, its journal, its lock and the head of a state in parts."""

from __future__ import annotations

from typing import get_args

from jsplan.codes import HAZARDS
from jsplan.documents.apply import STATE_COMMANDS, StepStatus
from jsplan.documents.base import MAX_BYTES
from jsplan.documents.plan_types import DELETE_OPS, VERIFY_OP, Op
from jsplan.documents.schema_configs import CONFIG_DEFS, CONFIG_OR_NULL, CONFIG_REF, ORIGIN_REF
from jsplan.documents.schema_types import (
    ADDRESS,
    CONSUMER_ADDRESS,
    COUNT,
    FLAG,
    INSTANT,
    INT63,
    SECONDS,
    SHA256,
    STREAM_ADDRESS,
    TEXT,
    TIME,
    UINT64,
    UPLOAD_ID,
    VERSION,
    Schema,
    document,
    list_of,
    map_by_address,
    map_of,
    object_of,
    one_of,
    or_null,
    ref,
    untyped,
)

ACTIONS = (
    ["no-op"],
    ["create"],
    ["update"],
    ["delete"],
    ["delete", "create"],
    ["create", "delete"],
    ["forget"],
)
_HEAD = {"format_version": VERSION}
_TEXTS = list_of(TEXT)
SEQ_RANGE = list_of(INT63, minItems=2, maxItems=2)

# --- resources ------------------------------------------------------------------------------------

STATE_RECORD = object_of(
    {
        "declared": CONFIG_REF,
        "origin": one_of("created", "imported"),
        "prevent_destroy": FLAG,
        "depends_on": list_of(ADDRESS),
    },
    {"starts": map_of(UINT64), "sensitive": FLAG, "position_once": TEXT},
    "The part of a resource in state that does not come from the server.",
)
STATE_ENTRY = {"allOf": [ref("remembered")]} | object_of(
    {"config": CONFIG_REF, "created": TEXT, "applied_at": TEXT},
    {"seen": TEXT, "last_seq": UINT64},
    "`config` is live after the last apply; `declared` is from the files then, null for the "
    "server's default. `seen` is the server's time when this was last known to be the object. "
    "`last_seq` is the last sequence that the stream was known to have.",
)
#: The record of a step in state when it is done; the executor adds the read-back.
STEP_RECORD = {"allOf": [ref("remembered")]} | object_of(
    {},
    {"previous_address": ADDRESS, "replaced": ADDRESS},
    "The record in state when the step is done.",
)
#: A step without a record may still have the previous address.
RENAME_RECORD = object_of({"previous_address": ADDRESS})
FLOW = object_of(
    {
        "origin": STREAM_ADDRESS,
        "kind": one_of("mirror", "source"),
        "config": ORIGIN_REF,
        "from_start": FLAG,
    }
)
_PENDING_STEP = {"id": TEXT, "address": ADDRESS, "expect": CONFIG_OR_NULL}
_OTHER_OPS = tuple(op for op in get_args(Op) if op != VERIFY_OP and op not in DELETE_OPS)
_PENDING_CHECK = object_of(
    _PENDING_STEP
    | {"op": one_of(VERIFY_OP), "params": object_of({"flows": list_of(FLOW), "managed": FLAG})}
)
_CHECK = {"check": _PENDING_CHECK, "uploads": list_of(UPLOAD_ID)}
PENDING: Schema = {
    "anyOf": [
        object_of(
            _PENDING_STEP | {"op": one_of(*_OTHER_OPS), "record": or_null(STEP_RECORD)}, _CHECK
        ),
        object_of(
            _PENDING_STEP | {"op": one_of(*DELETE_OPS), "record": or_null(RENAME_RECORD)}, _CHECK
        ),
        _PENDING_CHECK,
    ],
    "description": "A step that has started.",
}

# --- replacements ---------------------------------------------------------------------------------

#: The last phase that is done. From `compared` on the staging stream is complete.
PHASES = (
    "started", "quiesced", "consumers_paused", "copied", "compared", "old_deleted", "refilled",
    "recompared", "consumers_resumed", "activated",
)  # fmt: skip
_COUNTS = (
    "messages", "bytes", "first_seq", "last_seq", "consumer_count", "num_pending",
    "num_ack_pending", "num_redelivered",
)  # fmt: skip
_SEQUENCES = object_of({}, dict.fromkeys(_COUNTS, or_null(UINT64)))
_SEQUENCE_PAIR = object_of({"consumer_seq": UINT64, "stream_seq": UINT64})
_CONSUMER_STATE = object_of(
    {"delivered": _SEQUENCE_PAIR, "ack_floor": _SEQUENCE_PAIR}, _SEQUENCES["properties"]
)
_CREATED = {"record": or_null(STEP_RECORD), "expect": CONFIG_OR_NULL}
_STREAM_REPLACED = object_of(
    {
        "address": STREAM_ADDRESS,
        "id": TEXT,
        "staging": STREAM_ADDRESS,
        "method": one_of("snapshot", "mirror"),
        "old": object_of({"config": CONFIG_REF, "created": TEXT}, {"state": _SEQUENCES}),
        "phase": one_of(*PHASES),
    },
    {
        "quiesced_state": _SEQUENCES,
        "end_marker": UINT64,
        "copied": map_of(UINT64),
        "new_created": TEXT,
        "made_seen": TEXT,
        "allowed": map_of(UINT64),
        "consumers": map_of(
            object_of({"config": CONFIG_REF, "created": TEXT, "state": _CONSUMER_STATE})
        ),
    },
)
_CONSUMER_REPLACED = object_of(
    {"address": CONSUMER_ADDRESS, "created": TEXT, "hold_until": INSTANT},
    {"pause_until": or_null(INSTANT), "position": or_null(UINT64), "stream_created": TEXT}
    | {"position_once": TEXT}
    | _CREATED,
)
_PLACEHOLDER = object_of(
    {"address": CONSUMER_ADDRESS, "last_seq": UINT64, "consumers": map_of(list_of(UINT64))}
)
_ORIGIN_REPLACED = object_of({"address": STREAM_ADDRESS, "first_seq": UINT64}, {"detached": _TEXTS})
_SOURCES_DETACHED = object_of(
    {"address": STREAM_ADDRESS, "detached": _TEXTS}, {"first_seq": UINT64}
)
#: The last phase of a relocation that is done, or `activating`: the call that activates is sent.
RELOCATION_PHASES = ("started", "mirrored", "quiesced", "promoted", "activating", "activated")
_RELOCATED = object_of(
    {
        "address": STREAM_ADDRESS,
        "relocates": STREAM_ADDRESS,
        "id": TEXT,
        "old": object_of({"config": CONFIG_REF, "created": TEXT}),
        "phase": one_of(*RELOCATION_PHASES),
    },
    {
        "allowed": map_of(UINT64),
        "target_created": TEXT,
        "made_seen": TEXT,
        "compared": UINT64,
        "prepared": INSTANT,
        "strategy": one_of("mirror", "snapshot"),
        "compared_from": UINT64,
        "end_marker": UINT64,
        "last_seq": UINT64,
        "consumers": map_of(
            object_of(
                {
                    "config": CONFIG_REF,
                    "created": TEXT,
                    "state": _CONSUMER_STATE,
                    "target": CONSUMER_ADDRESS,
                },
                _CREATED,
            )
        ),
    }
    | _CREATED,
)
REPLACEMENT: Schema = {
    "anyOf": [
        _RELOCATED,
        _SOURCES_DETACHED,
        _ORIGIN_REPLACED,
        _CONSUMER_REPLACED,
        _STREAM_REPLACED,
        _PLACEHOLDER,
    ],
    "description": "Detached sources, the start of a new origin, an interrupted replacement or "
    "relocation, or a placeholder consumer.",
}

# --- backfills ------------------------------------------------------------------------------------

_FILTERS: dict[str, Schema] = {"filters": _TEXTS}
BACKFILL_ORIGIN = object_of(
    _FILTERS
    | dict.fromkeys(("target", "created", "target_created"), TEXT)
    | dict.fromkeys(("first", "last", "target_next"), INT63)
    | {"origin": STREAM_ADDRESS},
    {
        "status": one_of("planned", "done"),
        "copied": COUNT,
        "gaps": list_of(SEQ_RANGE),
        "skipped": list_of(INT63),
        "gap_messages": COUNT,
        "strategy": one_of("snapshot", "spark"),
        "seconds": SECONDS,
        "archive": TEXT,
    },
)
PINNED_RANGE = object_of(
    {"name": TEXT, "entry_hash": TEXT, "origins": list_of(BACKFILL_ORIGIN), "pinned_at": TEXT},
    {"done_at": TEXT, "planned": FLAG},
    "The pinned range of an entry of `backfills:`, and its progress.",
)

# --- the history ----------------------------------------------------------------------------------

HISTORY_ENTRY = object_of(
    {
        "id": COUNT,
        "at": TIME,
        "ended": or_null(TIME),
        "who": TEXT,
        "host": TEXT,
        "environment": or_null(TEXT),
        "operation": one_of(
            "apply", "destroy", "import", "restore", "refresh", "revert", *STATE_COMMANDS
        ),
        "plan": or_null(object_of({"id": TEXT, "sha256": TEXT})),
        "summary": map_of(COUNT),
        "jsplan_version": TEXT,
        "result": one_of("started", "done", "partial", "failed", "interrupted"),
    },
    {
        "changes": {
            "anyOf": [
                object_of({"zlib": TEXT, "bytes": COUNT | {"maximum": MAX_BYTES}}),
                {"type": ["array", "null"]},
            ]
        },
        "backfills": _TEXTS,
        "reverts": COUNT,
        "backup": TEXT,
        "running": FLAG,
    },
    "One session that changed something. `id` is the serial of the state that it wrote. "
    "`changes` may be compressed, or omitted (null).",
)
_COST = object_of(
    {"code": one_of(*HAZARDS)},
    dict.fromkeys(("messages", "at_least", "at_most", "consumers"), UINT64),
)
_CHANGE: dict[str, Schema] = {
    "address": ADDRESS,
    "actions": one_of(*ACTIONS),
    "status": one_of("started", *get_args(StepStatus)),
}
_AFTER = or_null(
    object_of({"created": or_null(TEXT), "sha256": or_null(TEXT), "values": CONFIG_REF})
)
_BEFORE = {"allOf": [ref("remembered")]} | object_of(
    {"created": TEXT, "applied_at": TEXT}, {"config": CONFIG_REF}
)
_CHANGE_OPTIONAL: dict[str, Schema] = {
    "importing": FLAG,
    "moved_from": ADDRESS,
    "relocated_from": ADDRESS,
    "relocated_to": ADDRESS,
    "costs": list_of(_COST),
    "error": or_null(TEXT),
}
CHANGES = list_of(
    object_of(
        _CHANGE
        | {"reason": TEXT, "before": CONFIG_OR_NULL, "entry": or_null(_BEFORE), "after": _AFTER},
        _CHANGE_OPTIONAL,
    )
)
CHANGES_BY_HAND = list_of(object_of(_CHANGE, _CHANGE_OPTIONAL))

# --- the documents --------------------------------------------------------------------------------

SERVER = object_of(
    {},
    {"name": or_null(TEXT), "cluster": or_null(TEXT), "js_domain": or_null(TEXT), "seen": TEXT}
    | {"former": list_of(or_null(TEXT))},
)
OWNER = object_of({}, {"id": TEXT})
DEFERRED_STEPS = object_of({"plan": TEXT, "steps": _TEXTS})
STATE = _HEAD | {
    "kind": one_of("state"),
    "jsplan_version": TEXT,
    "lineage": TEXT,
    "serial": COUNT,
    "workspace": TEXT,
    "environment": or_null(TEXT),
    "domains": map_of(SERVER),
    "ownership": OWNER,
    "pending": map_by_address(ref("pending")),
    "replacements": map_by_address(ref("replacing")),
    "deferred": list_of(DEFERRED_STEPS),
    "backfills": map_of(ref("range")),
    "history": list_of(ref("applied")),
    "resources": map_by_address(ref("entry")),
}
RECORD_DEFS: dict[str, Schema] = CONFIG_DEFS | {"remembered": untyped(STATE_RECORD)}
STATE_DEFS: dict[str, Schema] = RECORD_DEFS | {
    "entry": STATE_ENTRY,
    "pending": PENDING,
    "replacing": REPLACEMENT,
    "range": PINNED_RANGE,
    "applied": HISTORY_ENTRY,
}

STATE_HEAD = _HEAD | {
    "kind": one_of("state-in-parts"),
    "encoding": TEXT,
    "parts": {"type": "string", "pattern": r"^\d{1,16}\.[0-9a-f]{1,64}$(?!\n)"},
    "count": COUNT | {"minimum": 1, "maximum": 1_000_000},
    "bytes": COUNT | {"maximum": MAX_BYTES},
    "sha256": SHA256,
    "serial": COUNT,
    "workspace": TEXT,
    "environment": or_null(TEXT),
    "lineage": TEXT,
}

_ENTRY = object_of({"address": ADDRESS, "entry": ref("entry")})
_LINES: dict[str, Schema] = {
    "session": object_of({"lineage": TEXT, "serial": COUNT}),
    "domain": object_of({"key": TEXT, "server": SERVER}),
    "ownership": object_of({"id": TEXT}),
    "begin": ref("pending"),
    "put": _ENTRY,
    "drop": ADDRESS,
    "replacing": ref("replacing"),
    "replaced": ADDRESS,
    "deferred": DEFERRED_STEPS,
    "backfill": ref("range"),
    "history": ref("applied"),
    "end": ADDRESS,
    "seen": object_of({"address": ADDRESS, "at": TEXT}),
    "last_seqs": map_of(UINT64),
}
JOURNAL_LINE: Schema = {
    "type": "object",
    "properties": _LINES,
    "additionalProperties": False,
    "minProperties": 1,
    "description": "One line of the journal.",
}


def state_schema() -> Schema:
    """Return the schema of the state, which nearly every command reads."""
    return document("state", STATE, STATE_DEFS)
