"""Schemas of a plan and of its parts, several of which are parts of other documents too."""

from __future__ import annotations

from typing import get_args

from jsplan.address import ADDRESS_KINDS
from jsplan.codes import HAZARDS
from jsplan.documents.plan_types import SEVERITIES, Effect
from jsplan.documents.schema_configs import CONFIG_OR_NULL
from jsplan.documents.schema_state import (
    ACTIONS,
    RECORD_DEFS,
)
from jsplan.documents.schema_types import (
    ADDRESS,
    ANYTHING,
    COUNT,
    FINGERPRINT,
    FLAG,
    OBJECT,
    SECONDS,
    TEXT,
    TIME,
    UINT64,
    VERSION,
    Schema,
    list_of,
    object_of,
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
DEFERRED = object_of({"address": ADDRESS, "reason": TEXT}, description="Deferred to a later plan.")
ESTIMATE = object_of(
    {"seconds": SECONDS, "basis": TEXT},
    description="The estimated time, and the basis of the estimate.",
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
