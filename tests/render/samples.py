"""Documents that the views are tested with: one plan with everything in it, and small ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from jsplan.diagnostics import Diagnostic
from jsplan.documents.apply import ApplyResult
from jsplan.documents.drift import Drift
from jsplan.documents.plan import (
    Change,
    FieldChange,
    Hazard,
    Plan,
    ResourceChange,
    Step,
)
from jsplan.documents.step_kinds import Action, Severity
from jsplan.documents.types import Deferred
from jsplan.units import SECOND
from tests.support.yaml_text import read_yaml

FOLDER: Final = Path(__file__).parent / "documents"
DAY = 86400 * SECOND
GIB = 2**30
AS_OF = {"last_seq": 1300, "time": "2026-01-31T12:00:00Z"}

STREAM: dict[str, Any] = {
    "name": "ORDERS",
    "subjects": ["ORDERS.*"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": 10 * GIB,
    "max_age": 365 * DAY,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * SECOND,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "allow_direct": False,
    "mirror_direct": False,
    "compression": "none",
    "metadata": {"team": "shop", "cost.center": "42"},
}
CONSUMER: dict[str, Any] = {
    "name": "NEW",
    "durable_name": "NEW",
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "ack_wait": 30 * SECOND,
    "max_deliver": -1,
    "replay_policy": "instant",
    "filter_subject": "ORDERS.received",
    "sample_freq": "100",
    "max_ack_pending": 1000,
    "max_waiting": 512,
    "num_replicas": 0,
}


def resource(
    address: str,
    actions: list[Action],
    *,
    fields: tuple[FieldChange, ...] = (),
    hazards: tuple[Hazard, ...] = (),
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    replace_paths: tuple[str, ...] = (),
    importing: bool = False,
    severity: Severity | None = None,
    previous: str | None = None,
) -> ResourceChange:
    """Return one element of `resource_changes` with the parts that a test cares for."""
    domain, kind, name = address.split("/", 2)
    change = Change(
        actions,
        before,
        after,
        list(fields),
        [[p] for p in replace_paths],
        {"id": address} if importing else None,
    )
    return ResourceChange(
        address,
        kind,  # type: ignore[arg-type]
        domain,
        name,
        change,
        "update_because_config_changed",
        list(hazards),
        "sha256:" + "0" * 64,
        [],
        previous,
        severity,
    )


def plan(*changes: ResourceChange, **more: Any) -> Plan:
    """Return a plan of these resources, with a step for each that changes."""
    changing = [c for c in changes if c.change.actions != ["no-op"] or c.change.importing]
    steps = [
        Step(
            f"s{n}",
            c.address,
            "stream.update",
            f"update {c.address}",
            {"api": f"STREAM.UPDATE.{c.name}", "payload": {"name": c.name}},
            {},
        )
        for n, c in enumerate(changing, 1)
    ]
    return Plan(
        **(
            {
                "jsplan_version": "0.1.0",
                "workspace": "shop",
                "environment": None,
                "timestamp": "2026-01-31T12:00:00Z",
                "id": "p1",
                "state": {"lineage": "l1", "serial": 7},
                "config_hash": "sha256:" + "1" * 64,
                "variables": {"keep": "30d"},
                "applyable": True,
                "resource_changes": list(changes),
                "steps": steps,
            }
            | more
        )
    )


def deletes_messages(address: str, *, allowed: bool = False) -> Hazard:
    """The counted hazard of a shorter max_age."""
    return Hazard(
        "DELETES_MESSAGES",
        "messages older than 1d are deleted at once",
        allowed=allowed,
        flag=f"--allow-hazard DELETES_MESSAGES:{address}",
        messages=1203,
        bytes=88211,
        exact=True,
        as_of=AS_OF,
        causes=["max_age"],
    )


def read(name: str) -> dict[str, Any]:
    """Read a document of `documents/`."""
    document: dict[str, Any] = read_yaml((FOLDER / f"{name}.yaml").read_bytes())
    document.pop("x", None)
    return document


def everything() -> Plan:
    """A plan with each action, each effect, hazards, drift, a backfill, deferrals and findings."""
    return msgspec.convert(read("plan_everything"), Plan)


def fleet(size: int) -> Plan:
    """Return the same small change in many domains, one of them with a hazard."""
    change = (FieldChange("max_age", 30 * DAY, 90 * DAY, "in_place"),)
    changes = [
        resource(
            f"store-{n:03}/stream/SALES", ["update"], before=STREAM, after=STREAM, fields=change
        )
        for n in range(1, size + 1)
    ]
    if size > 6:
        changes[6].hazards = [deletes_messages("store-007/stream/SALES")]
    return plan(*changes)


def store_opening(size: int) -> Plan:
    """Return so many new stores: a stream in each, and a source for each in the aggregate.

    Half of them are offline, and there are findings on all.
    """
    stores = [f"store-{n:03}" for n in range(1, size + 1)]
    apis = [f"$JS.{s}.API" for s in stores]
    source = [
        FieldChange(
            f'sources["SALES@{api}"]', None, {"name": "SALES", "external": {"api": api}}, "in_place"
        )
        for api in apis
    ]
    plain = {"name": "SALES", "max_bytes": GIB}
    made = [
        resource(f"{s}/stream/SALES", ["create"], after=plain | {"subjects": [f"sales.{s}.>"]})
        for s in stores[: size // 2]
    ]
    gone = [
        (s, f"domain {s} is offline: no responders on $JS.{s}.API") for s in stores[size // 2 :]
    ]
    deferred = [Deferred(f"{s}/stream/{name}", reason) for s, reason in gone for name in "AB"]
    odd = [
        Diagnostic("warning", "JS999", f"{s} is odd", "Look at it.", f"{s}/stream/SALES")
        for s in stores
    ]
    rates = [
        Diagnostic("warning", "JS998", f"{n} messages a day", "", f"{s}/stream/SALES")
        for n, s in enumerate(stores)
    ]
    every = resource(
        "hub/stream/ALL_SALES", ["update"], before=STREAM, after=STREAM, fields=tuple(source)
    )
    return plan(every, *made, deferred=deferred, diagnostics=[*odd, *rates])


def partial_apply() -> ApplyResult:
    """One step done, one failed, one without an answer, one skipped."""
    return msgspec.convert(read("apply_partial"), ApplyResult)


def complete_apply() -> ApplyResult:
    """An apply whose steps all succeeded."""
    return msgspec.convert(read("apply_complete"), ApplyResult)


def drift() -> Drift:
    """Each kind of finding once."""
    return msgspec.convert(read("drift"), Drift)


def state() -> dict[str, Any]:
    """A state document with a stream and a consumer."""
    return read("state")
