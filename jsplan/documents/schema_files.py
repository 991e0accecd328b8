"""Schemas of a backup's manifest and an archive's log."""

from __future__ import annotations

from jsplan.documents.schema_configs import CONFIG_DEFS, CONFIG_REF
from jsplan.documents.schema_state import SEQ_RANGE
from jsplan.documents.schema_types import (
    ADDRESS,
    COUNT,
    FLAG,
    INSTANT,
    INT63,
    NAME,
    SHA256,
    TEXT,
    TIME,
    UINT64,
    VERSION,
    Schema,
    list_of,
    object_of,
    object_of_counts,
    one_of,
    or_null,
    ref,
)

# --- backups --------------------------------------------------------------------------------------

_SEQUENCES = object_of({"consumer_seq": UINT64, "stream_seq": UINT64})
POSITION = object_of(
    dict.fromkeys(("delivered", "ack_floor"), _SEQUENCES)
    | dict.fromkeys(("num_ack_pending", "num_redelivered", "num_pending"), UINT64)
)
_STATE = object_of(
    {
        "messages": COUNT,
        "bytes": COUNT,
        "first_seq": UINT64,
        "last_seq": UINT64,
        "first_ts": INSTANT,
        "last_ts": INSTANT,
    },
    {"consumer_count": COUNT},
)
#: The name of a file in the same folder.
_FILE: Schema = {"type": "string", "pattern": r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}$(?!\n)"}
SAVED_STREAM = object_of(
    {
        "address": ADDRESS,
        "config": CONFIG_REF,
        "created": TEXT,
        "before": _STATE,
        "after": _STATE,
        "taken_at": TIME,
        "consumers": list_of(
            object_of(
                {
                    "name": NAME,
                    "config": CONFIG_REF,
                    "created": TEXT,
                    "before": POSITION,
                    "after": POSITION,
                }
            )
        ),
        "archive": object_of(
            {"file": _FILE, "sha256": SHA256, "bytes": COUNT, "format": one_of("natsarc1", "tar")}
        ),
        "server": object_of(
            {
                "js_domain": or_null(TEXT),
                "name": or_null(TEXT),
                "version": or_null(TEXT),
                "api_level": COUNT,
                "clustered": FLAG,
            }
        ),
    },
    description="One stream. `before` and `after` are from the start and the end of the snapshot. "
    "They are equal if nothing changed in between.",
)
BACKUP = {
    "format_version": VERSION,
    "kind": one_of("backup"),
    "jsplan_version": TEXT,
    "workspace": TEXT,
    "environment": or_null(TEXT),
    "id": TEXT,
    "started_at": TIME,
    "finished_at": or_null(TIME),
    "complete": FLAG,
    "streams": list_of(ref("saved")),
    "missing": list_of(object_of({"address": TEXT, "reason": TEXT})),
    "summary": object_of_counts("streams", "consumers", "messages", "bytes", "archive_bytes"),
}
BACKUP_DEFS: dict[str, Schema] = CONFIG_DEFS | {"saved": SAVED_STREAM}

# --- archives -------------------------------------------------------------------------------------

ARCHIVE_FORMAT = "jsplan-archive/1"
#: A file in the folder of one day.
_PARQUET: Schema = {
    "type": "string",
    "pattern": r"^day=\d{4}-\d\d-\d\d/[A-Za-z0-9_-][A-Za-z0-9_.-]*\.parquet$(?!\n)",
}
#: A part of the name of a folder.
_ATTEMPT: Schema = {"type": "string", "pattern": r"^[A-Za-z0-9_-]{1,64}$(?!\n)"}
_TIME_NS: Schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
FILE = object_of(
    {
        "name": _PARQUET,
        "rows": COUNT,
        "bytes": COUNT,
        "sha256": SHA256,
        "first_seq": INT63,
        "last_seq": INT63,
        "first_time": _TIME_NS,
        "last_time": _TIME_NS,
    },
    {"content": COUNT},
)
COMMIT = {
    "format": one_of(ARCHIVE_FORMAT),
    "entry": TEXT,
    "origin": object_of({"domain": TEXT, "stream": TEXT, "created": TEXT}),
    "first": INT63,
    "last": INT63,
    "filters": list_of(TEXT),
    "spans": list_of(SEQ_RANGE),
    "attempt": _ATTEMPT,
    "at": TEXT,
    "files": list_of(ref("file")),
    "gaps": list_of(SEQ_RANGE),
    "gap_messages": COUNT,
    "origins": list_of(TEXT),
    "lost": list_of(_PARQUET),
}
COMMIT_OPTIONAL: dict[str, Schema] = {
    "where": or_null(TEXT),
    "transform": or_null(TEXT),
    "subject_transform": or_null(list_of(TEXT)),
    "rows": COUNT,
}
#: The marker of an attempt, as JSON.
ATTEMPT = {"entry": TEXT, "hash": TEXT, "origin": TEXT}
RECEIPT = {"span": SEQ_RANGE, "rows": COUNT, "bytes": COUNT, "files": list_of(ref("file"))}
