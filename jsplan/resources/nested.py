"""Tables of the objects nested in stream configurations: placement, transforms, republish, origins, limits."""

from __future__ import annotations

from jsplan.resources.fields import Config, Field, Table, ignored

NAME = r"[^.*>\s/\\]+"

TRANSFORM = Table(
    "subject_transform",
    (
        Field("src", "string", "Subject to match; empty is every subject.", default=">"),
        Field("dest", "string", "Subject to store under; `{{wildcard(n)}}` and friends are allowed.", default=""),
    ),
)

EXTERNAL = Table(
    "external",
    (
        Field("api", "string", "API prefix of the other JetStream, as seen from here.", required=True),
        Field("deliver", "string", "Prefix under which the other account delivers.", default=""),
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
        Field("opt_start_seq", "int", "Copy from this sequence on; read only when the source is new.", default=0, minimum=0, update=ignored),
        Field("opt_start_time", "time", "Copy from this time on; read only when the source is new.", update=ignored),
        Field("filter_subject", "string", "Copy only these subjects.", default=""),
        Field("subject_transforms", "objects", "Filters and rewrites, first match wins.", table=TRANSFORM),
        Field("external", "object", "How to reach the origin's JetStream.", table=EXTERNAL),
        Field("consumer", "object", "Use a consumer that the origin's owner made.", table=CONSUMER_SOURCE, level=4),
    ),
)

PLACEMENT = Table(
    "placement",
    (
        Field("cluster", "string", "Cluster to live in.", default=""),
        Field("tags", "strings", "Server tags that all must be present.", unordered=True),
        Field("preferred", "string", "Refused by the server in a configuration.", default=""),
    ),
)

REPUBLISH = Table(
    "republish",
    (
        Field("src", "string", "Subjects to republish.", default=">"),
        Field("dest", "string", "Subject to republish under.", required=True),
        Field("headers_only", "bool", "Leave the payload out.", default=False),
    ),
)

CONSUMER_LIMITS = Table(
    "consumer_limits",
    (
        Field("inactive_threshold", "duration", "Ceiling and default for consumers, ns.", default=0, minimum=0),
        Field("max_ack_pending", "int", "Ceiling and default for consumers.", default=0, minimum=-1),
    ),
)


def origin_key(origin: Config) -> str:
    """What tells two sources of one stream apart: name and API prefix, then the filter where one is set."""
    api = (origin.get("external") or {}).get("api")
    key = f"{origin['name']}@{api}" if api else str(origin["name"])
    subjects = [origin["filter_subject"]] if origin.get("filter_subject") else []
    subjects += [t.get("src", ">") for t in origin.get("subject_transforms") or ()]
    return key + (f"#{','.join(subjects)}" if subjects else "")
