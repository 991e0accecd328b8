"""The field table of consumers: every field, its default, and the effect of a change.

From server_semantics section 3. An update can never move a consumer's position; a change that the
server does not make in place is a replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsplan.resources.fields import Config, Effect, Field, FieldUpdate, Table, require_replacement
from jsplan.resources.nested import NAME
from jsplan.units import SECOND

#: The filter that every subject passes.
EVERY_SUBJECT: Final = ">"


def filters_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the filters of a consumer's configuration, raw or compact; `>` is no filter."""
    single, multiple = config.get("filter_subject"), config.get("filter_subjects") or ()
    filters = (single,) if single else tuple(multiple)
    return () if filters == (EVERY_SUBJECT,) else filters


def _deliver_subject_effect(change: FieldUpdate) -> Effect:
    """Pull and push cannot be converted; a push subject can change without subscribers."""
    return "in_place" if change.before and change.after else "replace"


def fill_derived(config: Config, level: int) -> None:
    """Fill in what the server derives from other fields, in place, on a compact configuration.

    The `consumer_limits` of the stream are passed under that key and removed again;
    `account_max_ack_pending` among them is the account's limit.
    """
    limits = config.pop("consumer_limits", {})
    for name in ("max_ack_pending", "inactive_threshold"):
        if limits.get(name):
            config.setdefault(name, limits[name])
    _fill_ack_fields(
        config, config.get("ack_policy", "none"), limits.get("account_max_ack_pending", 1000)
    )
    if not config.get("deliver_subject"):
        config.setdefault("max_waiting", 512)
    if not config.get("durable_name"):
        config.setdefault("inactive_threshold", 5 * SECOND)
    if config.get("priority_policy") == "pinned_client":
        config.setdefault("priority_timeout", 120 * SECOND)


def _fill_ack_fields(config: Config, policy: str, most: int) -> None:
    if policy == "flow_control":
        config |= {"flow_control": True, "idle_heartbeat": SECOND}
    if config.get("backoff"):
        config["ack_wait"] = config["backoff"][0]
        if not config["ack_wait"]:
            del config["ack_wait"]
    elif policy in ("all", "explicit"):
        config.setdefault("ack_wait", 30 * SECOND)
    if policy != "none":
        config.setdefault("max_ack_pending", min(1000, most))


CONSUMER = Table(
    "consumer",
    (
        Field("name", "string", "Name of the consumer.", required=True, pattern=NAME, max_length=255, default=None, update=require_replacement),
        Field("durable_name", "string", "Kept until it is deleted; implied by `name`, null for one that may expire.", default=None, pattern=NAME, update=require_replacement),
        Field("description", "string", "For people.", default="", max_length=4096),
        Field("deliver_policy", "enum", "Where a new consumer starts.", default="all", echoed=True, update=require_replacement,
              values=("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")),
        Field("opt_start_seq", "int", "First sequence, with by_start_sequence.", default=0, minimum=0, update=require_replacement),
        Field("opt_start_time", "time", "First time, with by_start_time.", update=require_replacement),
        Field("ack_policy", "enum", "What counts as processed; the server's default is none.", default="none", echoed=True, update=require_replacement,
              values=("none", "all", "explicit", "flow_control"), value_levels={"flow_control": 4}),
        Field("ack_wait", "duration", "Time until an unacknowledged message is delivered again, ns.", default=None, minimum=0),
        Field("max_deliver", "int", "Most deliveries of one message.", default=-1, unlimited=True, echoed=True),
        Field("backoff", "durations", "Waits between deliveries; the first replaces ack_wait.", default=[]),
        Field("filter_subject", "string", "Deliver only these subjects.", default="", like_omitted=EVERY_SUBJECT),
        Field("filter_subjects", "strings", "Deliver only these subjects.", default=[], unordered=True, like_omitted=[EVERY_SUBJECT]),
        Field("replay_policy", "enum", "As fast as possible, or at the original pace.", default="instant", values=("instant", "original"), echoed=True, update=require_replacement),
        Field("sample_freq", "percent", "Share of acknowledgements to sample, in percent.", default=""),
        Field("rate_limit_bps", "int", "Bits per second, push only.", default=0, minimum=0),
        Field("max_ack_pending", "int", "Most unacknowledged messages.", default=None, floor=-1),
        Field("max_waiting", "int", "Most pull requests waiting.", default=None, floor=0, update=require_replacement),
        Field("max_batch", "int", "Most messages of one pull request.", default=0, floor=0),
        Field("max_expires", "duration", "Longest pull request, ns.", default=0, floor=0),
        Field("max_bytes", "size", "Most bytes of one pull request.", default=0, floor=0),
        Field("headers_only", "bool", "Deliver without payloads.", default=False),
        Field("inactive_threshold", "duration", "Deleted after this long without a client, ns.", default=None, floor=0),
        Field("deliver_subject", "string", "Push to this subject; without it clients pull.", default="", update=_deliver_subject_effect),
        Field("deliver_group", "string", "Queue group of the push subscribers.", default=""),
        Field("idle_heartbeat", "duration", "Heartbeat of an idle push consumer, ns.", default=0, floor=0, update=require_replacement),
        Field("flow_control", "bool", "Flow control of a push consumer.", default=False, update=require_replacement),
        Field("num_replicas", "int", "Replicas; 0 is as many as the stream has.", default=0, minimum=0, maximum=5, echoed=True),
        Field("mem_storage", "bool", "Keep the position in memory.", default=False, update=require_replacement),
        Field("direct", "bool", "Internal to the server.", default=False, update=require_replacement),
        Field("sourcing", "bool", "Internal to the server.", default=False, level=4, update=require_replacement),
        Field("metadata", "metadata", "Labels; keys that begin with `_nats.` are the server's own.", default={}),
        Field("pause_until", "time", "Deliver nothing before this time.", level=1, operational=True),
        Field("priority_groups", "strings", "Names of priority groups.", default=[], level=1),
        Field("priority_policy", "enum", "How a group shares messages.", default="none", level=1,
              values=("none", "overflow", "pinned_client", "prioritized"), value_levels={"prioritized": 2}),
        Field("priority_timeout", "duration", "Time until a pin moves, ns.", default=None, floor=0, level=1),
    ),
    fill_derived,
)  # fmt: skip
