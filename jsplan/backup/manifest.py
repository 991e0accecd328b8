"""The manifest of a backup: each archive with its stream and consumers. Pure data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from jsplan import __version__
from jsplan.address import Address
from jsplan.documents.base import Document, plain
from jsplan.documents.configs import Config
from jsplan.documents.reading import read_document
from jsplan.documents.state_parts import SequencePair
from jsplan.documents.types import (
    AnyAddress,
    Count,
    Instant,
    Name,
    Sha256,
    Time,
    UInt64,
    kept,
    text,
)

#: The hint for a damaged manifest.
UNUSABLE_HINT = (
    "Its archives cannot be used without it. Take the backup again, or restore another one."
)


class CountsShape(TypedDict):
    """Counts of a stream."""

    messages: Count
    bytes: Count
    first_seq: UInt64
    last_seq: UInt64
    first_ts: Instant
    last_ts: Instant
    consumer_count: NotRequired[Count]


class PositionShape(TypedDict):
    """The position of a consumer."""

    delivered: SequencePair
    ack_floor: SequencePair
    num_ack_pending: UInt64
    num_redelivered: UInt64
    num_pending: UInt64


class SavedServerShape(TypedDict):
    """The server of a stream; what is not known of it is null."""

    js_domain: str | None
    name: str | None
    version: str | None
    api_level: Count
    clustered: bool


class MissingStream(TypedDict):
    """A stream or domain that could not be saved, and why."""

    address: str
    reason: str


class BackupSummary(TypedDict):
    """The sums, with the bytes of messages and of archives."""

    streams: Count
    consumers: Count
    messages: Count
    bytes: Count
    archive_bytes: Count


if TYPE_CHECKING:
    Counts = dict[str, Any]
    Position = dict[str, Any]
    SavedServer = dict[str, Any]
    ArchiveFormat = str
else:
    Counts = kept(CountsShape)
    Position = kept(PositionShape)
    SavedServer = kept(SavedServerShape)
    ArchiveFormat = Literal["natsarc1", "tar"]
#: The name of a file in the same folder.
FileName = Annotated[str, text("a file name", r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}$(?!\n)")]


class StreamSnapshot(Struct, frozen=True):
    """One file beside the manifest.

    `format` is `natsarc1` (2.15 and later) or `tar`; `bytes` is the file's size.
    """

    file: FileName
    sha256: Sha256
    bytes: Count
    format: ArchiveFormat


class SavedConsumer(Struct, frozen=True):
    """A consumer of a saved stream, with its position `before` and `after` the snapshot."""

    name: Name
    config: Config
    created: str
    before: Position
    after: Position


class SavedStream(Struct, frozen=True):
    """One stream, with its `state` `before` and `after` the snapshot: equal if nothing changed.

    `server` is `{"js_domain", "name", "version", "api_level", "clustered"}` as far as they are
    known; `config` is without `_nats.*`.
    """

    address: AnyAddress
    config: Config
    created: str
    before: Counts
    after: Counts
    consumers: list[SavedConsumer]
    archive: StreamSnapshot
    server: SavedServer
    taken_at: Time

    def resets_to_ack_floor(self, consumer: SavedConsumer) -> bool:
        """Return True if the archive may have the consumer only at its ack floor, or not at all.

        Messages delivered or acknowledged above it are not recorded. Clusters since 2.15 save it so
        while anything waits for acknowledgement, and a server since 2.15 restores nothing of a
        position whose floor lies before the stream begins. Before, clusters save the consumers of
        the server that leads the stream, and none in memory (measured); the manifest has the
        position of each.
        """
        if consumer.before["num_ack_pending"] == 0:
            return False
        is_clustered = bool(self.server.get("clustered"))
        if self.archive.format == "natsarc1":
            floor = consumer.before["ack_floor"]["stream_seq"]
            return is_clustered or floor < int(self.before["first_seq"]) - 1
        replicas = consumer.config.get("num_replicas") or self.config.get("num_replicas")
        is_elsewhere = is_clustered and replicas != self.config.get("num_replicas")
        return is_elsewhere or bool(consumer.config.get("mem_storage"))

    @property
    def is_kept_by_interest(self) -> bool:
        """Return True if its server deletes what none of its consumers is owed."""
        return self.config.get("retention") == "interest" and bool(self.consumers)

    @property
    def messages(self) -> int:
        """Messages in it, at the start of the snapshot."""
        return int(self.before["messages"])


if TYPE_CHECKING:
    SavedStreams = dict[Address, SavedStream]
    Missing = dict[str, str]
else:  # in the document they are lists
    SavedStreams = list[SavedStream]
    Missing = list[MissingStream]


class Manifest(Document, tag="backup"):
    """The manifest; `streams` are by address, `missing` could not be saved, with why.

    `complete` is false during a run and after an interrupted one.
    """

    COMPUTED = ("jsplan_version", "summary")

    workspace: str
    environment: str | None
    id: str
    started_at: Time
    finished_at: Time | None
    complete: bool
    streams: SavedStreams
    missing: Missing

    @property
    def jsplan_version(self) -> str:
        """The release that writes the manifest."""
        return __version__

    @property
    def summary(self) -> BackupSummary:
        """The sums of the streams."""
        return summarize(self.streams.values())

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        missing = [
            {"address": address, "reason": reason}
            for address, reason in sorted(self.missing.items())
        ]
        streams = [plain(saved) for _, saved in sorted(self.streams.items())]
        without = replace(self, streams={}, missing={})
        return Document.to_json(without) | {
            "streams": streams,
            "missing": missing,
            "summary": self.summary,
        }

    @classmethod
    def from_json(cls, raw: Any, where: str) -> Manifest:
        """Read a manifest; raise DocumentError for a foreign or damaged one."""
        found = read_document(cls, raw, where, UNUSABLE_HINT)
        streams: Any = found.streams
        missing: Any = found.missing
        found.streams = {Address.parse(saved.address): saved for saved in streams}
        found.missing = {one["address"]: one["reason"] for one in missing}
        return found


def summarize(streams: Iterable[SavedStream]) -> BackupSummary:
    """Return the sums: streams, consumers, messages, their bytes, and bytes of the archives."""
    listed = list(streams)
    return {
        "streams": len(listed),
        "consumers": sum(len(saved.consumers) for saved in listed),
        "messages": sum(saved.messages for saved in listed),
        "bytes": sum(int(saved.before["bytes"]) for saved in listed),
        "archive_bytes": sum(saved.archive.bytes for saved in listed),
    }
