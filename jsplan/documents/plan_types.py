"""The words of the plan document: actions, effects, severities and the operations of steps."""

from __future__ import annotations

from typing import Final, Literal, get_args

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
