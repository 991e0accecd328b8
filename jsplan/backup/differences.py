"""Differences between a restored stream or consumer and the saved one, and saved positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsplan.backup.manifest import SavedConsumer, SavedStream

#: The fields of CONSUMER.INFO that describe the position.
POSITION_FIELDS = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")


def extract_position(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return sequences without delivery times, and counts, from a consumer's INFO."""
    return {name: _without_times(state.get(name)) for name in POSITION_FIELDS}


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: value.get(key, 0) for key in ("consumer_seq", "stream_seq")}
    return value or 0


# --- the differences ------------------------------------------------------------------------------


def restore_differences(
    saved: SavedStream, state: Mapping[str, Any], *, expires: bool
) -> list[str]:
    """Describe what a restored stream lacks of the saved one.

    Newer and expired messages are no difference, nor are those of an interest stream that none of
    its consumers is owed. If messages came or went during the snapshot, everything between both
    states is right.
    """
    found = []
    low, high = (_state_bound(saved, pick) for pick in (min, max))
    if saved.is_kept_by_interest:
        low["messages"] = min(low["messages"], max(map(_least_owed, saved.consumers)))
        expires = expires or state["messages"] >= low["messages"]
    if state["last_seq"] < low["last_seq"]:
        found.append(f"last sequence {state['last_seq']:,} instead of {low['last_seq']:,}")
    if state["messages"] < low["messages"] and not expires:
        found.append(f"{state['messages']:,} messages instead of {low['messages']:,}")
    if state["messages"] and state["first_seq"] > max(high["first_seq"], 1) and not expires:
        found.append(f"first sequence {state['first_seq']:,} instead of {high['first_seq']:,}")
    return found


def _least_owed(consumer: SavedConsumer) -> int:
    """Return the messages that a consumer is owed, as far as that is sure.

    Of one with a start of its own the server may count what came before that as pending, also once
    it has delivered something.
    """
    position, policy = consumer.before, str(consumer.config.get("deliver_policy"))
    pending = 0 if policy.startswith("by_start") else int(position["num_pending"])
    return pending + int(position["num_ack_pending"])


def _state_bound(saved: SavedStream, pick: Any) -> dict[str, int]:
    return {
        name: pick(int(saved.before[name]), int(saved.after[name]))
        for name in ("messages", "first_seq", "last_seq")
    }


def position_differences(
    saved: SavedStream, consumer: SavedConsumer, found: Mapping[str, Any]
) -> list[str]:
    """Describe where a restored consumer is before its saved position.

    A consumer that has advanced since is right. An archive that has only the ack floor cannot give
    more back.
    """
    differences = []
    if saved.resets_to_ack_floor(consumer):
        was, now = consumer.before["ack_floor"]["stream_seq"], found["ack_floor"]["stream_seq"]
        return [f"acknowledged up to {now:,} instead of {was:,}"] if now < was else []
    for name, words in (("delivered", "delivered up to"), ("ack_floor", "acknowledged up to")):
        was, now = consumer.before[name]["stream_seq"], found[name]["stream_seq"]
        # INFO counts messages too that it does not want, and the archive only what it was given.
        if now < was and found[name]["consumer_seq"] < consumer.before[name]["consumer_seq"]:
            differences.append(f"{words} {now:,} instead of {was:,}")
    begins = min(int(state["first_seq"]) for state in (saved.before, saved.after))
    if _has_skipped(consumer.before, found) and found["delivered"]["stream_seq"] >= begins:
        pending, before = found["num_pending"], consumer.before["num_pending"]
        differences.append(f"{pending:,} pending instead of {before:,}, although it delivered none")
    still = consumer.before == consumer.after and all(
        consumer.before[name] == found[name] for name in ("delivered", "ack_floor")
    )
    for name, words in (
        ("num_ack_pending", "waiting for acknowledgement"),
        ("num_redelivered", "redelivered"),
    ):
        if still and found[name] != consumer.before[name]:
            differences.append(f"{found[name]:,} {words} instead of {consumer.before[name]:,}")
    return differences


def _has_skipped(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Check whether a consumer advanced without delivering (measured in clusters of 2.10)."""
    same = was["delivered"]["consumer_seq"] == now["delivered"]["consumer_seq"]
    return bool(
        same
        and now["delivered"]["stream_seq"] > was["delivered"]["stream_seq"]
        and now["num_pending"] < was["num_pending"]
    )
