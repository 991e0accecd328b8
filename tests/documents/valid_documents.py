"""One document of each kind that jsplan reads back, with as many of its parts as there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jsplan.documents.base import digest
from tests.render import samples
from tests.support.yaml_text import read_yaml

FOLDER: Final = Path(__file__).parent
CREATED, AT = "2026-01-01T00:00:00.123456789Z", "2026-01-02T00:00:00Z"
STATE_RECORD: dict[str, Any] = {
    "declared": {"max_age": None},
    "origin": "created",
    "prevent_destroy": True,
    "depends_on": ["hub/kv/C"],
}
BACKFILL_ORIGIN: dict[str, Any] = {
    "origin": "leaf/stream/A", "target": "hub/stream/B", "created": CREATED, "first": 1, "last": 90, "filters": ["a.>"], "skipped": [5],
    "target_created": CREATED, "target_next": 1, "status": "planned", "copied": 3, "gaps": [[1, 2]], "target_last": 0, "gap_messages": 2,
    "strategy": "spark", "seconds": 1.5, "archive": "",
}  # fmt: skip
PINNED_RANGE: dict[str, Any] = {
    "name": "history", "entry_hash": "0" * 32, "origins": [BACKFILL_ORIGIN], "pinned_at": AT, "done_at": "", "planned": True,
}  # fmt: skip
CHANGE: dict[str, Any] = {
    "address": "hub/stream/ORDERS", "actions": ["update"], "reason": "update_because_config_changed", "status": "done", "error": None,
    "before": samples.STREAM, "entry": STATE_RECORD | {"created": CREATED, "applied_at": AT},
    "after": {"created": CREATED, "sha256": None, "values": {"max_age": 5}}, "costs": [{"code": "DELETES_MESSAGES", "at_most": 7}],
}  # fmt: skip


def more(section: str) -> dict[str, Any]:
    """Read the parts that the sample documents do not have."""
    more: dict[str, Any] = read_yaml((FOLDER / "more_parts.yaml").read_bytes())[section]
    return more


def plan() -> dict[str, Any]:
    """A plan with each action and steps of several kinds."""
    found, rest = samples.everything().to_json(), more("plan")
    return found | {"steps": found["steps"] + rest["steps"], "domains": rest["domains"]}


def with_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """Return a plan whose checksum fits."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    return body | {"sha256": digest(body).removeprefix("sha256:")}


def state() -> dict[str, Any]:
    """A state with every part of a running apply."""
    found = samples.state()
    for name, entries in more("state").items():
        found[name] |= entries
    found["backfills"] = {"history": PINNED_RANGE}
    found["history"][0]["changes"] = [CHANGE]
    found["resources"]["hub/stream/ORDERS"]["starts"] = {"SALES@$JS.leaf.API": 7}
    return found


LOCK: dict[str, Any] = {
    "lock": {"id": "x", "who": "ann", "host": "ops-1", "pid": 7, "operation": "apply", "since": AT}, "lease": 60.0,
}  # fmt: skip
JOURNAL: list[dict[str, Any]] = [
    {"session": {"lineage": "l1", "serial": 8}},
    {"domain": {"key": "hub", "server": {"name": "hub", "seen": AT}}},
    {"ownership": {"id": "x"}},
    {
        "begin": {
            "id": "s1",
            "address": "hub/kv/C",
            "op": "stream.update",
            "expect": None,
            "record": None,
        }
    },
    {
        "put": {"address": "hub/kv/C", "entry": samples.state()["resources"]["hub/stream/ORDERS"]},
        "replaced": "hub/stream/ORDERS",
    },
    {"replacing": {"address": "hub/stream/FROM", "detached": ["SALES"]}},
    {"deferred": {"plan": "p1", "steps": ["s1"]}},
    {"backfill": PINNED_RANGE},
    {"history": samples.state()["history"][0]},
    {"drop": "hub/kv/C", "end": "hub/kv/C"},
]
_CHUNK = "s-A-000000000001-000000000009-0123456789ab.parquet"
ARCHIVE: dict[str, Any] = {
    "format": "jsplan-archive/1", "id": "0123abcd", "expected": ["hub/A"],
    "origins": [
        {
            "origin": {"domain": "hub", "stream": "A", "created": CREATED, "filters": [], "where": None, "transform": None,
                       "subject_transform": ["a.>", "b.>"]},
            "gaps": [[3, 4]], "gap_messages": 2,
            "chunks": [
                {
                    "name": _CHUNK, "first": 1, "last": 9,
                    "file": {"name": _CHUNK, "rows": 7, "bytes": 70, "sha256": "0" * 64, "first_seq": 1, "last_seq": 9, "first_time": 5,
                             "last_time": 6, "content": 9},
                },
                {"name": _CHUNK.replace("s-A", "s-B"), "first": 10, "last": 12, "file": None},
            ],
        }
    ],
}  # fmt: skip
