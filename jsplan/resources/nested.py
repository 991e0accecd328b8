"""Tables of the objects nested in stream configurations: placement, transforms, origins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jsplan.resources.fields import Config, Field, Table, ignore_change

NAME = r"[^.*>\s/\\]+"

TRANSFORM = Table(
    "subject_transform",
    (
        Field(
            "src", "string", "Subject to match; empty is every subject.", default=">", echoed=True
        ),
        Field(
            "dest",
            "string",
            "Subject to store under; `{{wildcard(n)}}` and friends are allowed.",
            default="",
            echoed=True,
        ),
    ),
)

EXTERNAL = Table(
    "external",
    (
        Field(
            "api", "string", "API prefix of the other JetStream, as seen from here.", required=True
        ),
        Field(
            "deliver",
            "string",
            "Prefix under which the other account delivers.",
            default="",
            echoed=True,
        ),
    ),
)

CONSUMER_SOURCE = Table(
    "consumer_source",
    (
        Field("name", "string", "A consumer that exists on the origin.", required=True),
        Field("deliver_subject", "string", "Where that consumer delivers.", required=True),
    ),
)

ORIGIN = Table(
    "stream_source",
    (
        Field("name", "string", "Name of the origin stream.", required=True, pattern=NAME),
        Field(
            "opt_start_seq",
            "int",
            "Copy from this sequence on; used only when the source is new.",
            default=0,
            minimum=0,
            update=ignore_change,
        ),
        Field(
            "opt_start_time",
            "time",
            "Copy from this time on; used only when the source is new.",
            update=ignore_change,
        ),
        Field("filter_subject", "string", "Copy only these subjects.", default=""),
        Field(
            "subject_transforms",
            "objects",
            "Filters and rewrites, first match wins.",
            table=TRANSFORM,
        ),
        Field("external", "object", "How to reach the origin's JetStream.", table=EXTERNAL),
        Field(
            "consumer",
            "object",
            "Use a consumer that the origin's owner made.",
            table=CONSUMER_SOURCE,
            level=4,
        ),
    ),
)

PLACEMENT = Table(
    "placement",
    (
        Field("cluster", "string", "Cluster of the stream.", default=""),
        Field("tags", "strings", "Server tags that all must be present.", unordered=True),
        Field("preferred", "string", "Refused by the server in a configuration.", default=""),
    ),
)

REPUBLISH = Table(
    "republish",
    (
        Field("src", "string", "Subjects to republish.", default=">", echoed=True),
        Field(
            "dest", "string", "Subject to republish under.", required=True, default="", echoed=True
        ),
        Field("headers_only", "bool", "Leave the payload out.", default=False),
    ),
)

CONSUMER_LIMITS = Table(
    "consumer_limits",
    (
        Field(
            "inactive_threshold",
            "duration",
            "Ceiling and default for consumers, ns.",
            default=0,
            floor=0,
        ),
        Field("max_ack_pending", "int", "Ceiling and default for consumers.", default=0, floor=-1),
    ),
)


def origin_api(origin: Mapping[str, Any]) -> str | None:
    """Return the API prefix by which a mirror or source reads; None in its own domain."""
    api: str | None = (origin.get("external") or {}).get("api")
    return api


def origin_key(origin: Config) -> str:
    """Return the identity of a source in its stream, as the server sees it (10140), in words.

    Name and API prefix; then filters, their destinations and a consumer, if they are set.
    """
    api = origin_api(origin)
    key = f"{origin['name']}@{api}" if api else str(origin["name"])
    filters = ",".join(_origin_filters(origin))
    consumer = (origin.get("consumer") or {}).get("name")
    return key + (f"#{filters}" if filters != ">" else "") + (f"!{consumer}" if consumer else "")


def key_in_info(origin: Mapping[str, Any]) -> str:
    """Return its key without the consumer, which INFO does not name beside a flow."""
    return origin_key({name: value for name, value in origin.items() if name != "consumer"})


def reported_seq(key: str, reported: Iterable[Mapping[str, Any]]) -> int:
    """Return the last copied sequence of a source in INFO, which has it since 2.15; else 0.

    It does not name consumers, so of two sources that differ only in that none is known.
    """
    found = [int(info.get("seq") or 0) for info in reported if key_in_info(info) == key]
    return found[0] if len(found) == 1 else 0


def source_keys(config: Config) -> set[str]:
    """Return the keys of the sources of a stream."""
    return {origin_key(source) for source in config.get("sources") or ()}


def _origin_filters(origin: Config) -> list[str]:
    transforms = origin.get("subject_transforms") or [{"src": origin.get("filter_subject")}]
    pairs = [(t.get("src") or ">", t.get("dest") or ">") for t in transforms]
    return [src if dest == ">" else f"{src}>{dest}" for src, dest in pairs]
