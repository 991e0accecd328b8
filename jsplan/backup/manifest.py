"""The manifest of a backup: each archive with its stream and consumers. Pure data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from jsplan import __version__
from jsplan.address import Address
from jsplan.documents.base import check_format, known_fields
from jsplan.documents.validation import require_valid

FORMAT_VERSION = "1.0"
#: The hint for a damaged manifest.
UNUSABLE_HINT = (
    "Its archives cannot be used without it. Take the backup again, or restore another one."
)


class StreamSnapshot(Struct, frozen=True):
    """One file beside the manifest.

    `format` is `natsarc1` (2.15 and later) or `tar`; `bytes` is the file's size.
    """

    file: str
    sha256: str
    bytes: int
    format: str

    def to_json(self) -> dict[str, Any]:
        """Return the value of `archive`."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "format": self.format,
        }


class SavedConsumer(Struct, frozen=True):
    """A consumer of a saved stream, with its position `before` and `after` the snapshot."""

    name: str
    config: dict[str, Any]
    created: str
    before: dict[str, Any]
    after: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the element of `consumers`."""
        return {
            "name": self.name,
            "config": self.config,
            "created": self.created,
            "before": self.before,
            "after": self.after,
        }


class SavedStream(Struct, frozen=True):
    """One stream, with its `state` `before` and `after` the snapshot: equal if nothing changed.

    `server` is `{"js_domain", "name", "version", "api_level", "clustered"}` as far as they are
    known; `config` is without `_nats.*`.
    """

    address: Address
    config: dict[str, Any]
    created: str
    before: dict[str, Any]
    after: dict[str, Any]
    consumers: tuple[SavedConsumer, ...]
    archive: StreamSnapshot
    server: dict[str, Any]
    taken_at: str

    def resets_to_ack_floor(self, consumer: SavedConsumer) -> bool:
        """Return True if the archive may have the consumer only at its ack floor, or not at all.

        Messages delivered or acknowledged above it are not recorded. Clusters since 2.15 save it so
        while anything waits for acknowledgement. Before, they save the consumers of the server that
        leads the stream, and none in memory (measured); the manifest has the position of each.
        """
        if consumer.before["num_ack_pending"] == 0:
            return False
        is_clustered = bool(self.server.get("clustered"))
        if self.archive.format == "natsarc1":
            return is_clustered
        replicas = consumer.config.get("num_replicas") or self.config.get("num_replicas")
        is_elsewhere = is_clustered and replicas != self.config.get("num_replicas")
        return is_elsewhere or bool(consumer.config.get("mem_storage"))

    @property
    def messages(self) -> int:
        """Messages in it, at the start of the snapshot."""
        return int(self.before["messages"])

    def to_json(self) -> dict[str, Any]:
        """Return the element of `streams`."""
        return {
            "address": str(self.address),
            "config": self.config,
            "created": self.created,
            "before": self.before,
            "after": self.after,
            "consumers": [consumer.to_json() for consumer in self.consumers],
            "archive": self.archive.to_json(),
            "server": self.server,
            "taken_at": self.taken_at,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> SavedStream:
        """Parse the result of `to_json`."""
        consumers = tuple(
            SavedConsumer(**known_fields(SavedConsumer, one)) for one in raw["consumers"]
        )
        archive = StreamSnapshot(**known_fields(StreamSnapshot, raw["archive"]))
        return cls(
            Address.parse(raw["address"]),
            raw["config"],
            raw["created"],
            raw["before"],
            raw["after"],
            consumers,
            archive,
            raw["server"],
            raw["taken_at"],
        )


class Manifest(Struct):
    """The manifest; `streams` are by address, `missing` could not be saved, with why.

    `complete` is false during a run and after an interrupted one.
    """

    workspace: str
    environment: str | None
    id: str
    started_at: str
    finished_at: str | None = None
    complete: bool = False
    streams: dict[Address, SavedStream] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        streams = [saved for _, saved in sorted(self.streams.items())]
        return {
            "format_version": FORMAT_VERSION,
            "kind": "backup",
            "jsplan_version": __version__,
            "workspace": self.workspace,
            "environment": self.environment,
            "id": self.id,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "complete": self.complete,
            "streams": [saved.to_json() for saved in streams],
            "missing": [
                {"address": address, "reason": reason}
                for address, reason in sorted(self.missing.items())
            ],
            "summary": summarize(streams),
        }

    @classmethod
    def from_json(cls, raw: Any, where: str) -> Manifest:
        """Read a manifest; raise DocumentError for a foreign or damaged one."""
        raw = check_format(raw, "backup", FORMAT_VERSION, where)
        require_valid(raw, "backup", where, UNUSABLE_HINT)
        streams = [SavedStream.from_json(one) for one in raw["streams"]]
        missing = {one["address"]: one["reason"] for one in raw["missing"]}
        return cls(
            raw["workspace"],
            raw["environment"],
            raw["id"],
            raw["started_at"],
            raw["finished_at"],
            raw["complete"],
            {saved.address: saved for saved in streams},
            missing,
        )


def summarize(streams: Iterable[SavedStream]) -> dict[str, int]:
    """Return the sums: streams, consumers, messages, their bytes, and bytes of the archives."""
    listed = list(streams)
    return {
        "streams": len(listed),
        "consumers": sum(len(saved.consumers) for saved in listed),
        "messages": sum(saved.messages for saved in listed),
        "bytes": sum(int(saved.before["bytes"]) for saved in listed),
        "archive_bytes": sum(saved.archive.bytes for saved in listed),
    }
