"""Bytes that a replacement takes while old messages and their copies are there at once. Pure.

An account's usage counts messages, its reservations `max_bytes`: for as long as the replacement lasts both count what is old and new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.facts.live import LiveObject, tier_name
from jsplan.facts.stored_message import TargetStorage
from jsplan.planning.preserve.staging import staging_config
from jsplan.resources.fields import Config
from jsplan.units import format_bytes

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs

#: What an account uses of each storage, and what it may use.
_USAGE_FIELDS: Final = {"file": ("storage", "max_storage"), "memory": ("memory", "max_memory")}
_MAX_STREAM_BYTES: Final = {"file": "storage_max_stream_bytes", "memory": "memory_max_stream_bytes"}


def sized_staging_config(inputs: PlanInputs, address: Address, old: LiveObject) -> Config:
    """The stand-in as it is made."""
    limits = inputs.live.domains[address.domain].info.get("limits") or {}
    return with_required_max_bytes(
        staging_config(address, old, memory=limits.get("max_storage") == 0), old, limits
    )


def with_required_max_bytes(config: Config, old: LiveObject, limits: Mapping[str, Any]) -> Config:
    """Where the account wants every stream bounded, twice what is there."""
    if not limits.get("max_bytes_required"):
        return config
    return config | {
        "max_bytes": max(
            int(old.raw.get("max_bytes") or 0), 2 * int(old.state.get("bytes") or 0) + 1_048_576
        )
    }


def additional_bytes(old: LiveObject, final: Config, info: Mapping[str, Any]) -> int:
    """What the new stream reserves per replica beyond the old one, which frees its part before; in another storage at least what is there.

    1 where that is nothing and the account requires a limit.
    """
    limits, storage = _tier_usage(info, final).get("limits") or {}, _storage(final)
    asked, same = max(0, int(final.get("max_bytes") or 0)), _storage(old.raw) == storage
    most = limits.get(_MAX_STREAM_BYTES[storage], 0)
    held = 0 if same else _min_bytes(old, storage)
    needed = max(asked, min(held, most) if most > 0 else held)
    freed = max(0, int(old.raw.get("max_bytes") or 0)) * _replicas(old.raw) if same else 0
    more = max(0, -(-(needed * _replicas(final) - freed) // _replicas(final)))
    return more or int(bool(limits.get("max_bytes_required")))


def capacity_problem(
    old: LiveObject, final: Config, staging: Config, info: Mapping[str, Any]
) -> str | None:
    """Why the account cannot hold the stream twice, in words; None where it can, or where only the server knows."""
    whole = _tier_usage(info, staging)
    streams, used_streams = (
        (whole.get("limits") or {}).get("max_streams", -1),
        int(whole.get("streams") or 0),
    )
    if 0 < streams <= used_streams:
        return f"that takes one more stream for a while, and the account uses {used_streams:,} of {streams:,} (max_streams)"
    for config in (staging, final):
        part, storage = _tier_usage(info, config), _storage(config)
        used, limit = _USAGE_FIELDS[storage]
        most = (part.get("limits") or {}).get(limit, -1)
        needed = _min_bytes(old, storage) * _replicas(config)
        if 0 <= most < int(part.get(used) or 0) + needed and needed:
            there = f"the account uses {format_bytes(int(part.get(used) or 0))} of {format_bytes(most)} ({limit})"
            return f"a copy of its messages takes {format_bytes(needed)} of {storage} storage while the others are there; {there}"
    return None


def _tier_usage(info: Mapping[str, Any], config: Config) -> Mapping[str, Any]:
    """Use and limits of the account for streams with as many replicas."""
    tiers = info.get("tiers")
    return (tiers.get(tier_name(_replicas(config))) or {}) if tiers else info


def _min_bytes(old: LiveObject, storage: str) -> int:
    """What its messages take in the storage at least, per replica."""
    messages, size = int(old.state.get("messages") or 0), int(old.state.get("bytes") or 0)
    return max(0, size + messages * TargetStorage(storage).min_growth(_storage(old.raw)))


def _storage(config: Mapping[str, Any]) -> str:
    return str(config.get("storage") or "file")


def _replicas(config: Mapping[str, Any]) -> int:
    return int(config.get("num_replicas") or 1)
