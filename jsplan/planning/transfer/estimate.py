"""Estimates of the times of a transfer, by measured rates of one machine with two cores.

A copy takes as long as its messages or its bytes do, whichever is slower. Links between servers
may be slower: these are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsplan.documents.plan_types import TransferMethod
from jsplan.facts.live import LiveObject, get_retention
from jsplan.planning.transfer.methods import second_method
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources.server_features import BATCH_LEVEL

#: Messages and bytes a second that each method copies.
RATES: Final[Mapping[TransferMethod, tuple[int, int]]] = {
    "mirror": (80_000, 60 << 20),
    "drain": (80_000, 60 << 20),
    "snapshot": (250_000, 80 << 20),
}
#: Messages a second that are compared, in batches and one by one; and bytes a second.
COMPARED: Final = (30_000, 10_000)
COMPARED_BYTES: Final = 20 << 20
#: Seconds of a cut-over in which only the newest messages are copied and compared.
CUTOVER_SECONDS: Final = 1


def copy_seconds(method: TransferMethod, state: Mapping[str, Any]) -> int:
    """Return the seconds of a copy, at least 1."""
    messages, size = RATES[method]
    return max(
        1,
        round(int(state.get("messages") or 0) / messages),
        round(int(state.get("bytes") or 0) / size),
    )


def compare_seconds(origin: LiveObject, level: int, *, quiesced: bool) -> int:
    """Return the seconds of the comparison, at least 1. A quiesced origin allows direct reads."""
    in_batches = level >= BATCH_LEVEL and (quiesced or bool(origin.raw.get("allow_direct")))
    rate = COMPARED[0] if in_batches else COMPARED[1]
    return max(
        1,
        round(int(origin.state.get("messages") or 0) / rate),
        round(int(origin.state.get("bytes") or 0) / COMPARED_BYTES),
    )


def cutover_seconds(transfer: Transfer, origin: LiveObject, level: int) -> int:
    """Return the seconds in which publishers wait.

    `level` is the API level of the origin. A work queue that moves, and a stream that is replaced,
    are compared meanwhile, unless a mirror was compared before. The second hop of a replacement is
    copied meanwhile.
    """
    method, seconds = transfer.method, CUTOVER_SECONDS
    is_queue = get_retention(origin.compact) == "workqueue"
    if method != "mirror":
        seconds += copy_seconds(method, origin.state)
    if method == "snapshot" and (is_queue or not transfer.is_relocation):
        seconds += compare_seconds(origin, level, quiesced=True)
    if not transfer.is_relocation:
        seconds += copy_seconds(second_method(level), origin.state)
    return seconds


def duration_text(seconds: int) -> str:
    """Return a duration that was estimated: `40 s`, `12 min`, `3 h`."""
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 2 * 3600:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600):,} h"
