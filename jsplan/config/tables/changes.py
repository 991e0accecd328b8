"""`moved:`, `relocate:`, `removed:` and `backfills:`."""

from __future__ import annotations

import re
from typing import Final

from jsplan import units
from jsplan.config.schema_parts import any_of, list_of, or_reference, ref, texts
from jsplan.config.sections import (
    ADDRESS,
    FLAG,
    PATH,
    TEXT,
    TEXTS,
    TIME,
    Key,
    Section,
    choice,
    mapping,
    name_check,
    parsed,
    written,
)

_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def _parse_sequence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a sequence is a whole number from 1")
    return value


def _parse_rate(value: object) -> int:
    if isinstance(value, str) and not value.endswith("/s"):
        raise ValueError(f'"{value}" is not a rate; write 2MB/s')
    return units.parse_size(value.removesuffix("/s") if isinstance(value, str) else value)


_SEQUENCE: Final = parsed(
    "number ≥ 1", _parse_sequence, or_reference({"type": "integer", "minimum": 1})
)
_RATE: Final = parsed(
    "size per second", _parse_rate, any_of({"type": ["integer", "null"]}, {"type": "string"})
)
_SELECTOR: Final = written("name, list or glob of domains", ref("domains"))
_ENVIRONMENTS: Final = written("name, or a list of names", texts())
_PARQUET: Final = Key("parquet", PATH, "Instead of a stream, an [archive](archive.md): a folder, or a URL of an object store.")  # fmt: skip

MOVED: Final = Section("moved", "a moved entry", (
    Key("from", ADDRESS, "The old address, or a glob. Nothing is declared there.", required=True),
    Key("to", ADDRESS, "The new one, with the same kind and the same wildcards.", required=True),
))  # fmt: skip
RELOCATE: Final = Section("relocate", "a relocate entry", (
    Key("from", ADDRESS, "The address, or a glob, where the stream is. Nothing is declared there.", required=True),
    Key("to", ADDRESS, "The address where it is declared, with the same kind and the same wildcards.", required=True),
))  # fmt: skip
REMOVED: Final = Section("removed", "a removed entry", (
    Key("address", ADDRESS, "What left the files: an address, or a glob.", required=True),
    Key("destroy", FLAG, "`true` deletes it. `false` forgets it and leaves it on the server.", required=True, missing="Write destroy: false to leave it on the server, or destroy: true."),
    Key("prevent_destroy", FLAG, "`false` removes the guard that is kept in state."),
))  # fmt: skip
SUBJECT_TRANSFORM: Final = Section("backfill.subject_transform", "`subject_transform`", (
    Key("src", TEXT, "The subjects to map.", required=True),
    Key("dest", TEXT, "Their new subjects.", required=True),
))  # fmt: skip
BACKFILL_FROM: Final = Section("backfill.from", "a side of a backfill", (
    Key("domain", _SELECTOR, "One side for each domain. By default `defaults.domain`, or the only domain."),
    Key("stream", TEXT, "The stream."),
    Key("start_seq", _SEQUENCE, "The first sequence."),
    Key("end_seq", _SEQUENCE, "The last sequence."),
    Key("start_time", TIME, "The time of the first message, instead of `start_seq`."),
    Key("end_time", TIME, "The time of the last message, instead of `end_seq`."),
    Key("filter_subject", TEXT, "Only messages with this subject; wildcards work."),
    Key("filter_subjects", TEXTS, "Only messages with one of these subjects.", default=()),
    _PARQUET,
), one_of=("stream", "parquet"))  # fmt: skip
BACKFILL_TO: Final = Section("backfill.to", "a side of a backfill", (
    Key("domain", _SELECTOR, "The domain. By default `defaults.domain`, or the only domain."),
    Key("stream", TEXT, "The stream."),
    _PARQUET,
), one_of=("stream", "parquet"))  # fmt: skip
_ORIGINS: Final = written(
    "mapping, or a list of them",
    any_of(ref(BACKFILL_FROM.id), list_of(ref(BACKFILL_FROM.id))),
    BACKFILL_FROM,
)
_TARGET: Final = written("mapping", ref(BACKFILL_TO.id), BACKFILL_TO)
BACKFILL: Final = Section("backfill", "a backfill", (
    Key("name", TEXT, "The name of the entry.", required=True, check=name_check(_NAME_PATTERN, "a backfill")),
    Key("from", _ORIGINS, "What is copied.", required=True, missing="Add from: {domain: …, stream: …} or from: {parquet: PATH}."),
    Key("to", _TARGET, "Where to.", required=True, missing="Add to: {domain: …, stream: …} or to: {parquet: PATH}."),
    Key("order", choice("stream", "subject", "none"), "What stays in order: all messages, those of each subject, or nothing.", default="stream"),
    Key("strategy", choice("auto", "snapshot", "spark"), "How to copy.", default="auto"),
    Key("mode", choice("tagged", "exact"), "`tagged` adds a header that names the origin. `exact` adds nothing, and keeps sequence and time where the strategy can.", default="tagged"),
    Key("oversize", choice("error", "skip"), "What to do with messages that exceed `max_payload` once the header is added.", default="error"),
    Key("rate", _RATE, "The most bytes per second, as in `2MB/s`, for thin links."),
    Key("where", TEXT, "SQL over the message columns."),
    Key("transform", PATH, "`FILE.py:FUNCTION`, from DataFrame to DataFrame."),
    Key("subject_transform", mapping(SUBJECT_TRANSFORM), "Other subjects in the target."),
    Key("environments", _ENVIRONMENTS, "Only in these environments."),
))  # fmt: skip
