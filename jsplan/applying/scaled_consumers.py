"""The replicas of consumers after a server has scaled their stream (tests/clusters).

A consumer with replicas of its own gets those of its stream if it has more, and in a work queue or
interest stream always. Nothing happens to one with `num_replicas` 0, as many as its stream.
"""

from __future__ import annotations

from typing import Final

from jsplan.facts.live import LiveObject

#: The most replicas of a stream.
MAX_REPLICAS: Final = 5


def is_scaled_with_stream(live: LiveObject | None, planned: str, replicas: int | None) -> bool:
    """Check whether a consumer is the planned one, apart from the replicas of its stream.

    `planned` is a fingerprint, `replicas` what a step of this apply scaled the stream to, or None.
    """
    if live is None or replicas is None or live.raw.get("num_replicas") != replicas:
        return False
    return any(
        live.with_raw(live.raw | {"num_replicas": n}).fingerprint == planned
        for n in range(1, MAX_REPLICAS + 1)
    )
