"""Consumers in the format of JetStream's Technical Preview (2020).

It had other keys for start and delivery.
"""

from __future__ import annotations

from typing import Any, Final

from jsplan.config.node import Node
from jsplan.converting.model import NoteWriter

#: Go's zero time: not set.
_NO_TIME: Final = "0001-01-01T00:00:00Z"
_RENAMED: Final = {"delivery_subject": "deliver_subject", "sampling": "sample_freq"}
_START_FIELDS: Final = ("deliver_all", "deliver_last", "stream_seq", "start_time")


def upgrade_consumer(config: dict[str, Any], at: Node, notes: NoteWriter) -> dict[str, Any]:
    """Return the configuration in today's keys; unchanged if it has none of the old keys."""
    if not any(word in config for word in (*_RENAMED, *_START_FIELDS)):
        return config
    notes.info(
        at,
        "written with the keys of the Technical Preview",
        "They are translated: `delivery_subject`, `deliver_all` and similar keys.",
    )
    out = {
        _RENAMED.get(name, name): value
        for name, value in config.items()
        if name not in _START_FIELDS
    }
    if config.get("stream_seq"):
        return out | {"deliver_policy": "by_start_sequence", "opt_start_seq": config["stream_seq"]}
    if config.get("start_time") not in (None, "", _NO_TIME):
        return out | {"deliver_policy": "by_start_time", "opt_start_time": config["start_time"]}
    return out | {"deliver_policy": "last" if config.get("deliver_last") else "all"}
