"""Bytes that a replacement takes while the old messages and their copies exist together.

An account's usage counts messages, its reservations count `max_bytes`. During the replacement both
include the old and the new stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.facts.live import LiveObject, tier_name
from jsplan.facts.stored_message import size_growth
from jsplan.planning.account_limits import MAX_STREAM_BYTES
from jsplan.planning.transfer.configs import staging_config
from jsplan.resources.fields import Config
from jsplan.units import format_bytes

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs

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
