"""The words of plans, such as actions, and the kinds of steps: one row for each operation.

A row says what a step sends, what it deletes, and how apply treats it. Requests that an operation
builds itself are not in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from msgspec import Struct

Action = Literal["no-op", "create", "update", "delete", "forget"]
Effect = Literal["in_place", "one_way", "replace", "ignored"]
Severity = Literal["destructive", "functional", "cosmetic"]
#: The most severe first.
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
Op = Literal[
    "stream.create", "stream.update", "stream.delete",
    "consumer.create", "consumer.update", "consumer.pause", "consumer.delete", "consumer.replace",
    "consumer.cleanup", "consumer.reset",
    "consumer.create_placeholder", "consumer.delete_placeholder",
    "origin.delete", "origin.create", "sources.detach", "sources.attach",
    "state.import", "state.forget", "state.update", "stream.restore", "consumer.verify",
    "replication.verify",
    "transfer.probe", "transfer.mirror", "transfer.compare", "transfer.quiesce",
    "transfer.promote", "transfer.copy", "transfer.retire", "transfer.consumers",
    "transfer.activate", "transfer.clear", "transfer.consumer", "transfer.delete",
    "transfer.end", "transfer.undo", "transfer.release",
    "kv_entry.create", "kv_entry.update", "kv_entry.delete",
    "object.create", "object.update", "object.delete", "object.clean",
    "schedule.create", "schedule.update", "schedule.delete",
    "account.create", "account.update", "account.delete",
]  # fmt: skip
#: The step that checks that a downstream stream receives from its recreated origin.
#: It writes nothing and may wait for a long time.
VERIFY_OP: Final = "replication.verify"
#: The reason of a change that copies a stream and leaves its relocation to a later plan.
TARGET_PREPARED: Final = "prepare_relocation"
#: The reason of a stream that is created from a backup, and of the consumers that come with it.
RESTORED: Final = "restore_from_backup"
#: The reasons of a consumer whose position the files set: it is replaced, or reset in place.
RESET_BY_POSITION: Final = "replace_for_position"
RESET_IN_PLACE: Final = "reset_position"
#: The reason of a stream that would be replaced, and whose content cannot be kept: it is refused.
CANNOT_PRESERVE: Final = "cannot_preserve"
#: How a stream is copied. `mirror`: by a mirror while publishers write. `snapshot`: by a snapshot
#: while they wait. `drain`: by a mirror while they wait, which consumes a work queue.
TransferMethod = Literal["mirror", "snapshot", "drain"]
#: Payloads: a stream configuration, one inside a restore, a consumer configuration, a pause, none.
PayloadKind = Literal["stream", "restore", "consumer", "pause", "nothing"]


_PAYLOADS: Final[Mapping[str, PayloadKind]] = {
    "STREAM.CREATE": "stream",
    "STREAM.UPDATE": "stream",
    "STREAM.RESTORE": "restore",
    "CONSUMER.CREATE": "consumer",
    "CONSUMER.PAUSE": "pause",
}


class StepKind(Struct, frozen=True):
    """The row of an operation.

    Its request is `verb` with this payload, or none; with `optional` either. `on` is the kind of
    its address, `action` that of a consumer's request. `params` are fields that it needs.
    `staging`: it may touch a staging stream or a placeholder consumer of the resource. `relocated`:
    it touches the origin of the relocated resource.

    `does`: it creates, updates or deletes the object of the resource, or writes it otherwise;
    `retire` deletes an object that the same plan replaces; empty for a part of a longer way.
    `loses`: it deletes `all` of what stays otherwise, or `some` messages.

    `is_marked`: its request carries the configuration of the object, with the tag of its owner.
    `begins_flows`: mirrors and sources may begin with it. `is_cutover`: it runs between quiesce and
    activate of a relocation; once begun those are finished, also after Ctrl-C, since publishers get
    no acknowledgement meanwhile. `runs_together`: one request does it, beside others.
    """

    on: Literal["stream", "consumer", "kv_entry", "object", "schedule", "account", "any"]
    verb: str = ""
    action: str = ""
    params: tuple[str, ...] = ()
    optional: bool = False
    staging: bool = False
    relocated: bool = False
    does: Literal["create", "update", "delete", "write", "retire", ""] = ""
    loses: Literal["all", "some", ""] = ""
    is_marked: bool = False
    begins_flows: bool = False
    is_cutover: bool = False
    runs_together: bool = False

    @property
    def payload(self) -> PayloadKind:
        """The content of its request."""
        return _PAYLOADS.get(self.verb, "nothing")

    @property
    def deletes(self) -> bool:
        """Return True if it deletes an object of the resource."""
        return self.does in ("delete", "retire")


_TRANSFER_PARAMS: Final = ("state_address", "from", "to", "api_level", "origin_level")


def _transfer(verb: str = "", *params: str, **more: Any) -> StepKind:
    """Return the row of a part of a transfer, which may need more parameters."""
    return StepKind("stream", verb, params=(*_TRANSFER_PARAMS, *params), **more)


STEP_KINDS: Final[Mapping[Op, StepKind]] = {
    "stream.create": StepKind(
        "stream",
        "STREAM.CREATE",
        does="create",
        is_marked=True,
        begins_flows=True,
        runs_together=True,
    ),
    "stream.update": StepKind(
        "stream", "STREAM.UPDATE", does="update", loses="some", is_marked=True, begins_flows=True
    ),
    "stream.delete": StepKind("stream", "STREAM.DELETE", does="delete"),
    "stream.restore": StepKind("stream", "STREAM.RESTORE", does="write"),
    "origin.delete": StepKind("stream", "STREAM.DELETE", params=("state_address",), does="delete"),
    "origin.create": StepKind(
        "stream",
        "STREAM.CREATE",
        params=("state_address",),
        does="create",
        is_marked=True,
        begins_flows=True,
    ),
    "sources.detach": StepKind("stream", "STREAM.UPDATE", params=("state_address", "sources")),
    "sources.attach": StepKind(
        "stream",
        "STREAM.UPDATE",
        params=("state_address", "sources"),
        does="write",
        is_marked=True,
        begins_flows=True,
    ),
    "consumer.create": StepKind(
        "consumer", "CONSUMER.CREATE", "create", does="create", is_marked=True, runs_together=True
    ),
    "consumer.update": StepKind(
        "consumer", "CONSUMER.CREATE", "update", does="update", loses="some", is_marked=True
    ),
    "consumer.pause": StepKind("consumer", "CONSUMER.PAUSE", does="write"),
    "consumer.delete": StepKind("consumer", "CONSUMER.DELETE", does="delete", loses="some"),
    "consumer.replace": StepKind(
        "consumer",
        "CONSUMER.CREATE",
        "create",
        params=("state_address", "api_level"),
        loses="some",
        is_marked=True,
    ),
    "consumer.cleanup": StepKind("consumer", params=("state_address",)),
    "consumer.reset": StepKind("consumer", params=("state_address", "api_level", "reset")),
    "consumer.create_placeholder": StepKind(
        "consumer", "CONSUMER.CREATE", staging=True, loses="some"
    ),
    "consumer.delete_placeholder": StepKind(
        "consumer", "CONSUMER.DELETE", staging=True, loses="some"
    ),
    "consumer.verify": StepKind("consumer"),
    "replication.verify": StepKind("stream", params=("flows", "managed")),
    "transfer.probe": _transfer("STREAM.UPDATE", "transfer", "initial_config", staging=True),
    "transfer.mirror": _transfer("STREAM.CREATE", staging=True),
    "transfer.compare": _transfer(staging=True, is_cutover=True),
    "transfer.quiesce": _transfer("STREAM.UPDATE", optional=True, relocated=True, loses="all"),
    "transfer.promote": _transfer("STREAM.UPDATE", staging=True, is_cutover=True),
    "transfer.copy": _transfer("STREAM.RESTORE", staging=True, is_cutover=True),
    "transfer.retire": _transfer("STREAM.DELETE", does="retire", is_cutover=True),
    "transfer.consumers": _transfer("", "consumers", is_cutover=True),
    "transfer.activate": _transfer("STREAM.UPDATE", is_marked=True, is_cutover=True),
    "transfer.clear": _transfer("STREAM.DELETE", staging=True),
    "transfer.consumer": StepKind(
        "consumer",
        "CONSUMER.CREATE",
        "create",
        params=(*_TRANSFER_PARAMS, "continues"),
        is_marked=True,
    ),
    "transfer.delete": _transfer("STREAM.DELETE", does="delete"),
    "transfer.end": _transfer("", "origin_lost"),
    "transfer.undo": _transfer("STREAM.UPDATE", is_marked=True),
    "transfer.release": StepKind("stream", "STREAM.UPDATE", params=("state_address",)),
    "kv_entry.create": StepKind("kv_entry", params=("before",), does="create"),
    "kv_entry.update": StepKind("kv_entry", params=("before",), does="update"),
    "kv_entry.delete": StepKind("kv_entry", params=("before",), does="delete", loses="all"),
    "object.create": StepKind("object", params=("before",), does="create"),
    "object.update": StepKind("object", params=("before",), does="update"),
    "object.delete": StepKind("object", params=("before",), does="delete", loses="all"),
    "schedule.create": StepKind("schedule", params=("before",), does="create"),
    "schedule.update": StepKind("schedule", params=("before",), does="update"),
    "schedule.delete": StepKind("schedule", params=("before",), does="delete", loses="all"),
    "account.create": StepKind("account", params=("before",), does="create"),
    "account.update": StepKind("account", params=("before",), does="update"),
    "account.delete": StepKind("account", params=("before",), does="delete", loses="all"),
    "object.clean": StepKind("object", params=("leftovers",)),
    "state.import": StepKind("any", runs_together=True),
    "state.forget": StepKind("any"),
    "state.update": StepKind("any"),
}


def recorded_effect(begun: Mapping[str, Any]) -> str:
    """Return what a step that state has as begun `does`; empty for one of no known operation."""
    kind = STEP_KINDS.get(begun.get("op", ""))
    return kind.does if kind is not None else ""
