"""The position of a consumer, reduced to what a restore must bring back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The fields of CONSUMER.INFO that describe the position.
POSITION_FIELDS = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")


def extract_position(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return sequences without delivery times, and counts, from a consumer's INFO."""
    return {name: _without_times(state.get(name)) for name in POSITION_FIELDS}


def _without_times(value: Any) -> Any:
    return (
        {key: value.get(key, 0) for key in ("consumer_seq", "stream_seq")}
        if isinstance(value, dict)
        else value or 0
    )
