"""The configurations of the copies that a plan sends: as a mirror, promoted, and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jsplan.address import Address
from jsplan.planning.decide import table_of
from jsplan.planning.merge import build_create
from jsplan.planning.transfer.configs import (
    REPLACEMENT_ID_KEY,
    REPLACES_KEY,
    initial_config,
    parking_subject,
    rollups_of_copy,
)
from jsplan.planning.transfer.estimate import sized_staging_config, with_required_max_bytes
from jsplan.planning.transfer.methods import second_method
from jsplan.resources.fields import Config
from jsplan.topology.routes import external_of
from jsplan.units import DURATIONS

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.transfer.progress import Transfer

#: Messages that a mirror may have more than its origin: those that were deleted since. They are
#: deleted in the copy too. More are a sign of a mistake.
MAX_EXTRA: Final = 10_000
#: What the copy has from the beginning: what no update can set, and where the messages are.
_INITIAL_FIELDS: Final = (
    "storage",
    "persist_mode",
    "compression",
    "num_replicas",
    "placement",
    "max_consumers",
    "allow_msg_ttl",
)


def mirror_config(inputs: PlanInputs, transfer: Transfer, origin: LiveObject) -> Config:
    """Return the copy of the first hop while it is a mirror: without subjects of its own.

    It keeps as many messages per subject as the origin, whose server deletes the others too.
    """
    copy = copy_config(inputs, transfer, origin)
    out = {name: value for name, value in copy.items() if name != "subjects"}
    out |= _wider_limits(origin.raw, copy, may_reserve=transfer.is_relocation)
    if transfer.promotes:  # as the mirror is that exists, or existed before
        return out | {"mirror": inputs.entries[transfer.target].config["mirror"]}
    mirror: Config = {"name": transfer.origin.stream}
    if transfer.is_relocation:
        route = inputs.topology.routes.find_route(transfer.target.domain, transfer.origin.domain)
        mirror |= {"external": external_of(route, transfer.target)} if route.api else {}
    return out | {"mirror": mirror}


def copy_config(inputs: PlanInputs, transfer: Transfer, origin: LiveObject) -> Config:
    """Return the copy of the first hop as a stream of its own that no client writes to."""
    if transfer.is_relocation:
        out = _target_config(inputs, transfer, origin)
        out["retention"] = "limits"
        out |= rollups_of_copy(origin.raw, inputs.level(transfer.target))
    else:
        out = sized_staging_config(inputs, transfer.origin, origin)
    if int(origin.raw.get("max_msgs_per_subject") or 0) > 0:
        out["max_msgs_per_subject"] = origin.raw["max_msgs_per_subject"]
    return out


def restored_config(inputs: PlanInputs, transfer: Transfer, origin: LiveObject) -> Config:
    """Return the copy that a snapshot is restored as: without limits, and with no writer."""
    if not transfer.is_relocation:
        return sized_staging_config(inputs, transfer.origin, origin)
    out = _target_config(inputs, transfer, origin)
    creation = _creation(inputs, transfer.target)
    out["retention"] = "workqueue" if creation.get("retention") == "workqueue" else "limits"
    if creation.get("allow_msg_counter"):
        out["allow_msg_counter"] = True
    return out


def _creation(inputs: PlanInputs, address: Address) -> Config:
    return build_create(table_of(address), inputs.creation_body(address), inputs.level(address))


def _target_config(inputs: PlanInputs, transfer: Transfer, origin: LiveObject) -> Config:
    """Return what the target of a relocation has as a copy, by each method."""
    target, creation = transfer.target, _creation(inputs, transfer.target)
    out: Config = {"name": target.stream, "allow_direct": True} | {
        key: creation[key] for key in _INITIAL_FIELDS if key in creation
    }
    if creation.get("subject_delete_marker_ttl"):
        out["allow_msg_ttl"] = True
    # Another one than that of the origin: in linked domains both would store a message.
    out["subjects"] = [f"{parking_subject(target.stream, transfer.id)}.copy"]
    out["metadata"] = {REPLACES_KEY: str(transfer.origin), REPLACEMENT_ID_KEY: transfer.id}
    limits = inputs.live.domains[target.domain].info.get("limits") or {}
    return with_required_max_bytes(out, origin, limits)


def _wider_limits(origin: Config, copy: Config, *, may_reserve: bool) -> Config:
    """Return limits that keep a copy of days from growing, a little wider than the origin's.

    `may_reserve`: `max_bytes` too, for which the server reserves storage.

    What the origin deletes stays in a mirror. With the same limits the mirror would delete messages
    that the origin still has: it counts others too, and clocks differ.
    """
    found: Config = {}
    if int(origin.get("max_age") or 0) > 0:
        found["max_age"] = int(origin["max_age"]) + DURATIONS["h"]
    if int(origin.get("max_msgs") or 0) > 0:
        found["max_msgs"] = int(origin["max_msgs"]) + MAX_EXTRA
    same = origin.get("storage", "file") == copy.get("storage", "file")  # else sizes differ
    limited = int(origin.get("max_bytes") or 0) > 0 and origin.get("discard") != "new"
    if limited and same and may_reserve:
        found["max_bytes"] = int(origin["max_bytes"]) * 5 // 4
    return found


def new_config(inputs: PlanInputs, address: Address, old: LiveObject) -> Config:
    """Return the new stream of a replacement before its limits, with the current files."""
    level = inputs.level(address)
    can_mirror = second_method(level) == "snapshot"
    config = initial_config(address, old, _creation(inputs, address), level, can_mirror=can_mirror)
    limits = inputs.live.domains[address.domain].info.get("limits") or {}
    return with_required_max_bytes(config, old, limits)
