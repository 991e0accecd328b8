"""Estimates of a transfer: its time, and the bytes while both copies exist.

The times are by measured rates of one machine with two cores. A copy takes as long as its messages
or its bytes do, whichever is slower; links between servers may be slower.

An account's usage counts messages, its reservations count `max_bytes`. During a replacement both
include the old and the new stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.documents.step_kinds import TransferMethod
from jsplan.facts.limit_trimming import size_growth
from jsplan.facts.live import LiveObject, get_retention, tier_name
from jsplan.planning.account_limits import MAX_STREAM_BYTES
from jsplan.planning.transfer.configs import staging_config
from jsplan.planning.transfer.methods import second_method
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources.fields import Config
from jsplan.resources.server_features import BATCH_LEVEL
from jsplan.units import format_bytes

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs


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


# --- the bytes that it takes meanwhile ------------------------------------------------------------

#: The fields of what an account uses of each storage, and of what it may use.
_USAGE_FIELDS: Final = {"file": ("storage", "max_storage"), "memory": ("memory", "max_memory")}


def sized_staging_config(inputs: PlanInputs, address: Address, old: LiveObject) -> Config:
    """Return the configuration of the staging stream, with `max_bytes` where required."""
    limits = inputs.live.domains[address.domain].info.get("limits") or {}
    memory = limits.get("max_storage") == 0
    config = staging_config(address, old, inputs.level(address), memory=memory)
    return with_required_max_bytes(config, old, limits)


def with_required_max_bytes(config: Config, old: LiveObject, limits: Mapping[str, Any]) -> Config:
    """Set `max_bytes` to twice the current bytes if the account requires a limit."""
    if not limits.get("max_bytes_required"):
        return config
    twice = 2 * int(old.state.get("bytes") or 0) + 1_048_576
    return config | {"max_bytes": max(int(old.raw.get("max_bytes") or 0), twice)}


def additional_bytes(old: LiveObject, final: Config, info: Mapping[str, Any]) -> int:
    """Return what the new stream reserves per replica beyond the old one.

    In the same storage the old one frees its part before. In another storage the current bytes are
    the minimum. 1 if the result is 0 and the account requires a limit.
    """
    limits, storage = _tier_usage(info, final).get("limits") or {}, _storage(final)
    asked, same = max(0, int(final.get("max_bytes") or 0)), _storage(old.raw) == storage
    most = limits.get(MAX_STREAM_BYTES[storage], 0)
    current = 0 if same else _min_bytes(old, storage)
    needed = max(asked, min(current, most) if most > 0 else current)
    freed = max(0, int(old.raw.get("max_bytes") or 0)) * _replicas(old.raw) if same else 0
    more = max(0, -(-(needed * _replicas(final) - freed) // _replicas(final)))
    return more or int(bool(limits.get("max_bytes_required")))


def capacity_problem(
    old: LiveObject, final: Config, staging: Config, info: Mapping[str, Any]
) -> str | None:
    """Explain why the account cannot hold the stream twice; None if it can, or if unknown."""
    whole = _tier_usage(info, staging)
    streams = (whole.get("limits") or {}).get("max_streams", -1)
    if 0 < streams <= (used_streams := int(whole.get("streams") or 0)):
        return (
            "that takes one more stream for a while, and the account uses "
            f"{used_streams:,} of {streams:,} (max_streams)"
        )
    for config in (staging, final):
        part, storage = _tier_usage(info, config), _storage(config)
        used, limit = _USAGE_FIELDS[storage]
        most = (part.get("limits") or {}).get(limit, -1)
        needed = _min_bytes(old, storage) * _replicas(config)
        if 0 <= most < int(part.get(used) or 0) + needed and needed:
            usage = f"{format_bytes(int(part.get(used) or 0))} of {format_bytes(most)} ({limit})"
            return (
                f"a second copy of its messages takes {format_bytes(needed)} of {storage} storage "
                f"for a while; the account uses {usage}"
            )
    return None


def _tier_usage(info: Mapping[str, Any], config: Config) -> Mapping[str, Any]:
    """Return the use and the limits of the account for streams with as many replicas."""
    tiers = info.get("tiers")
    return (tiers.get(tier_name(_replicas(config))) or {}) if tiers else info


def _min_bytes(old: LiveObject, storage: str) -> int:
    """Return the least bytes per replica that its messages take in the storage."""
    messages, size = int(old.state.get("messages") or 0), int(old.state.get("bytes") or 0)
    return max(0, size + messages * size_growth(_storage(old.raw), storage)[0])


def _storage(config: Mapping[str, Any]) -> str:
    return str(config.get("storage") or "file")


def _replicas(config: Mapping[str, Any]) -> int:
    return int(config.get("num_replicas") or 1)
