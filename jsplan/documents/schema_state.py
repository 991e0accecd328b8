"""Schemas of the state document, its journal, its lock and the head of a state in parts."""

from __future__ import annotations

from jsplan.documents.schema_configs import CONFIG_DEFS, CONFIG_REF
from jsplan.documents.schema_types import (
    ADDRESS,
    FLAG,
    INT63,
    TEXT,
    UINT64,
    VERSION,
    Schema,
    list_of,
    map_of,
    object_of,
    one_of,
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
RECORD_DEFS: dict[str, Schema] = CONFIG_DEFS | {"remembered": untyped(STATE_RECORD)}
