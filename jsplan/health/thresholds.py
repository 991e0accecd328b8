"""Thresholds in the metadata of streams and consumers. Pure.

They mean what they mean to `nats server check`. `ROWS` is the only table of them: `status` and
`drift` evaluate it, lint checks the files with it, and the reference is made from it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from jsplan.facts.live import LiveObject
from jsplan.units import (
    SECOND,
    count_text,
    format_duration,
    parse_duration,
    parse_instant,
)

PREFIX: Final = "io.nats.monitor."
#: The keys of findings that are in no metadata.
OWN_PREFIX: Final = "jsplan."
ENABLED: Final = "enabled"

Kind = Literal["stream", "consumer"]
Level = Literal["critical", "warning"]
Values = Mapping[str, int]
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class Reading(Struct, frozen=True):
    """One live object, all its thresholds, and the time (ns since 1970) of the reading."""

    live: LiveObject
    values: Values
    now: int

    def seconds_since(self, moment: object) -> int | None:
        """Return whole seconds since an RFC 3339 time, None if there is none."""
        if not isinstance(moment, str) or moment.startswith("0001"):
            return None
        return max(0, self.now - parse_instant(moment)) // SECOND


#: Returns what is beyond the threshold, in words, or an empty text.
Check = Callable[[Reading, int], str]
#: Returns why a configuration is always or never beyond a threshold, or an empty text.
CheckConfig = Callable[[Mapping[str, Any], int], str]


class Row(Struct, frozen=True):
    """One key. `value` is the type of its value; a threshold of 0 is off."""

    kind: Kind
    key: str
    value: Literal["unsigned", "integer", "duration", "flag"]
    text: str
    check: Check
    check_config: CheckConfig = lambda config, value: ""  # noqa: ARG005

    @property
    def level(self) -> Level:
        """The level of a breach."""
        return "warning" if self.key.endswith("-warn") else "critical"


class Breach(Struct, frozen=True):
    """A threshold that is exceeded, or one whose value cannot be read.

    `key` is without the prefix of metadata. One that begins with `jsplan.` needs no threshold,
    which is empty then (see `losses`).
    """

    key: str
    level: Level
    threshold: str
    cause: str

    def to_json(self) -> dict[str, Any]:
        """The element of `thresholds` in the documents."""
        return {
            "key": self.key if self.key.startswith(OWN_PREFIX) else PREFIX + self.key,
            "level": self.level,
            "threshold": self.threshold,
            "cause": self.cause,
        }


# --- streams --------------------------------------------------------------------------------------


def _copies_nothing(config: Mapping[str, Any]) -> bool:
    return not (config.get("mirror") or config.get("sources"))


def _check_lag(reading: Reading, most: int) -> str:
    if _copies_nothing(reading.live.raw):
        return "neither a mirror nor sources"
    lag, name = _find_most(reading.live.flows, "lag")
    return f"{name} is {lag:,} messages behind" if lag >= most else ""


def _check_seen(reading: Reading, most: int) -> str:
    if _copies_nothing(reading.live.raw):
        return "neither a mirror nor sources"
    silent, name = _find_most(reading.live.flows, "active")
    return f"{name} was last seen {format_duration(_round(silent))} ago" if silent >= most else ""


def _find_most(found: Iterable[Mapping[str, Any]], field: str) -> tuple[int, str]:
    """Return the largest number of a field, and the first origin or replica that has it."""
    numbers = [(int(each.get(field) or 0), str(each.get("name"))) for each in found]
    return max(numbers, key=lambda pair: pair[0], default=(0, ""))


def _need_origin(config: Mapping[str, Any], value: int) -> str:  # noqa: ARG001
    return "there is neither a mirror nor a source" if _copies_nothing(config) else ""


def _sources_that(is_wrong: Callable[[int, int], bool]) -> tuple[Check, CheckConfig]:
    def count(config: Mapping[str, Any], value: int) -> str:
        number = len(config.get("sources") or ())
        return count_text(number, "source") if is_wrong(number, value) else ""

    def check_config(config: Mapping[str, Any], value: int) -> str:
        return f"there are {found}" if (found := count(config, value)) else ""

    return lambda reading, value: count(reading.live.raw, value), check_config


def _replicas(config: Mapping[str, Any]) -> int:
    return int(config.get("num_replicas") or 1)


def _check_peers(reading: Reading, expected: int) -> str:
    if not reading.live.is_clustered or _replicas(reading.live.raw) <= 1:
        return "it is not replicated"
    if not reading.live.server.get("leader"):
        return "it has no leader"
    count = len(reading.live.peers) + 1
    if count != expected:
        return count_text(count, "replica")
    offline = reading.live.offline_peers
    return f"{', '.join(offline)} offline" if offline else ""


def _check_peer_lag(reading: Reading, most: int) -> str:
    late = [p for p in reading.live.peers if int(p.get("lag") or 0) > most]
    return f"{late[0]['name']} is {int(late[0]['lag']):,} operations behind" if late else ""


def _check_peer_seen(reading: Reading, most: int) -> str:
    silent = [p for p in reading.live.peers if int(p.get("active") or 0) > most]
    if not silent:
        return ""
    return f"{silent[0]['name']} was last seen {format_duration(_round(silent[0]['active']))} ago"


def _other_replicas(config: Mapping[str, Any], expected: int) -> str:
    count = _replicas(config)
    return f"num_replicas is {count}" if count != expected or count == 1 else ""


def _need_replicas(config: Mapping[str, Any], value: int) -> str:  # noqa: ARG001
    return "num_replicas is 1" if _replicas(config) == 1 else ""


def _check_messages(reading: Reading, least: int) -> str:
    count = int(reading.live.state.get("messages") or 0)
    return count_text(count, "message") if count <= least else ""


def _keeps_fewer(config: Mapping[str, Any], least: int) -> str:
    most = int(config.get("max_msgs") or -1)
    return f"max_msgs is {most}" if 0 < most <= least else ""


def _subjects_are_limited(values: Values) -> bool:
    """Return True if many subjects are critical; a critical value below warn means few."""
    return values.get("subjects-warn", 0) < values.get("subjects-critical", 0)


def _check_subjects(reading: Reading, value: int) -> str:
    count = int(reading.live.state.get("num_subjects") or 0)
    exceeded = count >= value if _subjects_are_limited(reading.values) else count <= value
    return count_text(count, "subject") if exceeded else ""


# --- consumers ------------------------------------------------------------------------------------


def _check_number(field: str, noun: str) -> Check:
    def check(reading: Reading, most: int) -> str:
        count = int(reading.live.state.get(field) or 0)
        return f"{count:,} {noun}" if count >= most else ""

    return check


def _check_age(field: str, noun: str) -> Check:
    def check(reading: Reading, most: int) -> str:
        position: dict[str, Any] = reading.live.state.get(field) or {}
        age = reading.seconds_since(position.get("last_active"))
        if age is None:
            return f"no {noun} yet"
        return f"last {noun} {format_duration(age * SECOND)} ago" if age * SECOND >= most else ""

    return check


def _never_acknowledged(config: Mapping[str, Any]) -> bool:
    return bool(config.get("ack_policy", "none") == "none")


def _fewer_acks(config: Mapping[str, Any], most: int) -> str:
    if _never_acknowledged(config):
        return "ack_policy is none"
    limit = int(config.get("max_ack_pending") or -1)
    return f"max_ack_pending is {limit}" if 0 < limit < most else ""


def _fewer_pulls(config: Mapping[str, Any], most: int) -> str:
    if config.get("deliver_subject"):
        return "it is a push consumer"
    limit = int(config.get("max_waiting") or -1)
    return f"max_waiting is {limit}" if 0 < limit < most else ""


def _no_redelivery(config: Mapping[str, Any], most: int) -> str:  # noqa: ARG001
    if _never_acknowledged(config):
        return "ack_policy is none"
    return "max_deliver is 1" if config.get("max_deliver") == 1 else ""


def _need_acks(config: Mapping[str, Any], most: int) -> str:  # noqa: ARG001
    return "ack_policy is none" if _never_acknowledged(config) else ""


def _check_pinned(reading: Reading, value: int) -> str:
    if reason := _need_pinning(reading.live.raw, value):
        return reason
    groups = reading.live.raw["priority_groups"]
    states: list[dict[str, Any]] = reading.live.state.get("priority_groups") or []
    pinned = sum(1 for state in states if state.get("pinned_client_id"))
    return f"{pinned} of {len(groups)} groups have a client" if pinned != len(groups) else ""


def _need_pinning(config: Mapping[str, Any], value: int) -> str:  # noqa: ARG001
    pinned = config.get("priority_policy") == "pinned_client" and config.get("priority_groups")
    return "" if pinned else "priority_policy is not pinned_client"


ROWS: Final = (
    Row("stream", "lag-critical", "unsigned",
        "The mirror or a source is that many messages behind.", _check_lag, _need_origin),
    Row("stream", "seen-critical", "duration",
        "The mirror or a source was not seen for that time.", _check_seen, _need_origin),
    Row("stream", "min-sources", "integer",
        "There are fewer sources.", *_sources_that(operator.lt)),
    Row("stream", "max-sources", "integer",
        "There are more sources.", *_sources_that(operator.gt)),
    Row("stream", "peer-expect", "integer",
        "There is another number of replicas, no leader, or a replica is offline.",
        _check_peers, _other_replicas),
    Row("stream", "peer-lag-critical", "unsigned",
        "A replica is more operations behind.", _check_peer_lag, _need_replicas),
    Row("stream", "peer-seen-critical", "duration",
        "A replica was not seen for a longer time.", _check_peer_seen, _need_replicas),
    Row("stream", "msgs-warn", "unsigned",
        "There are that many messages, or fewer.", _check_messages, _keeps_fewer),
    Row("stream", "msgs-critical", "unsigned",
        "There are that many messages, or fewer.", _check_messages, _keeps_fewer),
    Row("stream", "subjects-warn", "integer",
        "There are that many subjects or more; or fewer, if `subjects-critical` is less.",
        _check_subjects),
    Row("stream", "subjects-critical", "integer",
        "There are that many subjects or more; or fewer, if it is below `subjects-warn`.",
        _check_subjects),
    Row("consumer", "outstanding-ack-critical", "integer",
        "That many messages or more wait for their acknowledgement.",
        _check_number("num_ack_pending", "unacknowledged messages"), _fewer_acks),
    Row("consumer", "waiting-critical", "integer",
        "That many pull requests or more wait.",
        _check_number("num_waiting", "waiting pull requests"), _fewer_pulls),
    Row("consumer", "unprocessed-critical", "integer",
        "That many messages or more were not delivered yet.",
        _check_number("num_pending", "pending messages")),
    Row("consumer", "redelivery-critical", "integer",
        "That many messages or more are being redelivered.",
        _check_number("num_redelivered", "redelivered messages"), _no_redelivery),
    Row("consumer", "last-delivery-critical", "duration",
        "Nothing was delivered for that time.", _check_age("delivered", "delivery")),
    Row("consumer", "last-ack-critical", "duration",
        "Nothing was acknowledged for that time.",
        _check_age("ack_floor", "acknowledgement"), _need_acks),
    Row("consumer", "pinned", "flag",
        "A priority group has no pinned client.", _check_pinned, _need_pinning),
)  # fmt: skip
_BY_KEY: Final = {(row.kind, row.key): row for row in ROWS}


def kind_of(address_kind: str) -> Kind:
    """Return the kind of the thresholds: buckets and object stores have those of streams."""
    return "consumer" if address_kind == "consumer" else "stream"


def known_keys(kind: Kind) -> list[str]:
    """Return the keys of a kind without their prefix."""
    return [ENABLED, *(row.key for row in ROWS if row.kind == kind)]


def find_row(kind: Kind, key: str) -> Row | None:
    """Return the row of a key without its prefix."""
    return _BY_KEY.get((kind, key))


def list_keys(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the thresholds in metadata, without the prefix of their keys."""
    return {
        name.removeprefix(PREFIX): str(value)
        for name, value in metadata.items()
        if name.startswith(PREFIX)
    }


def parse_value(value: str, text: str) -> int:
    """Return a value as an integer (ns, 1 for true). Raises ValueError in words."""
    if value == "flag":
        if text not in _TRUE | _FALSE:
            raise ValueError("not true or false")
        return int(text in _TRUE)
    if value == "duration":
        try:
            return parse_duration(text.strip())
        except ValueError:
            raise ValueError("not a duration such as 30s or 5m") from None
    if not re.fullmatch(r"\d+" if value == "unsigned" else r"[+-]?\d+", text, re.ASCII):
        raise ValueError("not a whole number")
    return int(text)


def is_enabled(keys: Mapping[str, str]) -> bool:
    """Return False if the thresholds are switched off: `enabled` with a false value."""
    return keys.get(ENABLED) not in _FALSE


def find_exceeded_thresholds(live: LiveObject, now: int) -> list[Breach]:
    """Return the thresholds of a live object that are exceeded, in the order of the table.

    `now` is ns since 1970; the server's own time of the answer is preferred.
    """
    keys = list_keys(live.raw.get("metadata") or {})
    if not keys or not is_enabled(keys):
        return []
    found, values = [], dict[str, int]()
    rows = [row for row in ROWS if row.kind == kind_of(live.address.kind) and row.key in keys]
    for row in rows:
        try:
            values[row.key] = parse_value(row.value, keys[row.key])
        except ValueError as error:
            cause = f"{row.key}: {keys[row.key]} is {error}"
            found.append(Breach(row.key, "critical", keys[row.key], cause))
    at = parse_instant(live.answered_at) if live.answered_at else now
    reading = Reading(live, values, at)
    for row in rows:
        value = values.get(row.key, 0)
        if value > 0 and (fact := row.check(reading, value)):
            cause = f"{fact} ({row.key}: {keys[row.key]})"
            found.append(Breach(row.key, row.level, keys[row.key], cause))
    critical = {breach.key for breach in found if breach.level == "critical"}
    return [b for b in found if b.key.replace("-warn", "-critical") not in critical - {b.key}]


def _round(duration: int) -> int:
    """Round a duration to whole seconds."""
    return int(duration) // SECOND * SECOND
