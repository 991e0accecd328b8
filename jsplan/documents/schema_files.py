"""Schemas of a backup's manifest and an archive's log."""

from __future__ import annotations

from jsplan.documents.schema_configs import CONFIG_DEFS, CONFIG_REF
from jsplan.documents.schema_types import (
    ADDRESS,
    COUNT,
    FLAG,
    INSTANT,
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
