"""Backfills between an embedded hub and leaf, and raw reads of both sides."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from jsplan.backfill.protocol import RawConnection, publish, read
from jsplan.backfill.protocol.frames import BYTES, concat_rows, format_numbers
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions, VerifyOptions
from tests.backfill.thread_runner import DyingRunner, ThreadRunner, use_runner
from tests.support.raw import NoResponders, Raw, encode_raw, streams
from tests.support.simulated_kill import SimulatedKill
from tests.support.stream_content import read_each
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from jsplan.config.model import LoadOptions
    from jsplan.documents.backfill import BackfillResult, OriginResult
    from jsplan.sandbox import Sandbox, Server

#: Subject, header block, payload.
Row = tuple[bytes, bytes, bytes]
ORIGIN_HEADER = re.compile(rb"\r\nJsplan-Origin: ([^\r]*)")
SOURCE_HEADER = re.compile(rb"\r\nNats-Stream-Source: ([^\r]*)")


@dataclass(frozen=True)
class StoredMessage:
    """One message as a stream has it."""

    seq: int
    time: str
    subject: str
    headers: bytes
    data: bytes

    @property
    def origin(self) -> str | None:
        """The value of its `Jsplan-Origin` header."""
        found = ORIGIN_HEADER.search(self.headers)
        return found[1].decode() if found else None

    @property
    def without_added_headers(self) -> Row:
        """Subject, headers and payload without the headers that the copy and servers add."""
        block = SOURCE_HEADER.sub(b"", ORIGIN_HEADER.sub(b"", self.headers))
        return self.subject.encode(), b"" if block == b"NATS/1.0\r\n\r\n" else block, self.data


def connection_target(server: Server, **settings: Any) -> ConnectionSettings:
    """Return the settings that connect to a server as its JetStream user."""
    own = {"user": server.user, "password": server.password}
    named = {"key": server.name, "url": server.url, "shown": server.url}
    return ConnectionSettings(**(named | own | settings))


def verify_counts(load: LoadOptions, name: str = "x") -> dict[str, int]:
    """Return the counts of `verify` for an entry, without zeros."""
    counts: Counter[str] = Counter()
    for origin in backfill.verify(load, VerifyOptions(name=name), RecordingObserver()).origins:
        counts.update(origin.counts)
    return {kind: count for kind, count in counts.items() if count}


def export_parquet(pair: Pair, spark: SparkSession, name: str) -> DataFrame:
    """Export the origin as Parquet with Spark alone, and read it back."""
    hub, folder = pair.sandbox["hub"], str(pair.space.folder / name)
    options = {
        "url": hub.url,
        "user": str(hub.user),
        "password": "${env.HUB_PASSWORD}",
        "domain": "leaf",
        "stream": "S",
    }
    spark.read.format("jetstream").options(**options).load().write.parquet(folder)
    return spark.read.parquet(folder)


def interrupt_run(pair: Pair, last: int) -> None:
    """Let a run end without a word after it has staged the messages up to a sequence."""

    class Runner(DyingRunner):
        pass

    Runner.last = last
    with use_runner(Runner), pytest.raises(SimulatedKill):
        backfill.run(pair.space.load, BackfillOptions(name="x"), RecordingObserver())


@contextmanager
def without_spark() -> Iterator[None]:
    """Run the tasks of backfills inside in threads."""
    with use_runner(ThreadRunner):
        yield


@dataclass
class Pair:
    """A workspace over a hub and a leaf, with `S` in the leaf and `T` in the hub."""

    space: Space
    sandbox: Sandbox
    entry: dict[str, Any] = field(default_factory=dict)
    #: The folder or URL of the archive in entries.
    archive: str = "archive"

    @classmethod
    def create(cls, folder: Path, sandbox: Sandbox, **entry: Any) -> Pair:
        """Create a workspace with one entry, `x`, that copies `S` into `T`."""
        pair = cls(hub_leaf_space(folder, sandbox), sandbox)
        pair.write_entry(**entry)
        return pair

    def write_entry(self, **entry: Any) -> None:
        """Write the workspace file with this entry."""
        origin = {"domain": "leaf", "stream": "S"} | entry.pop("origin", {})
        target = {"domain": "hub", "stream": "T"} | entry.pop("target", {})
        self.entry = {"name": "x", "from": origin, "to": target} | entry
        self.space.write(backfills=[self.entry])

    def run(self, *, observer: RecordingObserver | None = None, **options: Any) -> OriginResult:
        """Run the entry without Spark and return the result of its only origin."""
        return self.result(observer=observer, **options).origins[0]

    def result(
        self, *, observer: RecordingObserver | None = None, **options: Any
    ) -> BackfillResult:
        """Run the entry without Spark."""
        with without_spark():
            return backfill.run(
                self.space.load,
                BackfillOptions(**({"name": "x"} | options)),
                observer or RecordingObserver(),
            )

    @contextmanager
    def raw(self, domain: str = "hub") -> Iterator[Raw]:
        """Open a raw connection to one of the servers."""
        server = self.sandbox[domain]
        with Raw(server.url, server.user, server.password, timeout=20) as raw:
            yield raw

    def ask(self, domain: str, verb: str, payload: Any = None) -> dict[str, Any]:
        """Send a request that has to succeed."""
        with self.raw(domain) as raw:
            return raw.api_ok(f"$JS.{domain}.API.{verb}", payload)

    def start_leaf(self) -> None:
        """Start the leaf again, and wait until the hub reaches its JetStream."""
        self.sandbox["leaf"].start()
        self.sandbox.wait_ready()
        self.sandbox["hub"].wait_until(self._reaches_leaf, "reach the leaf again", 60)

    def _reaches_leaf(self) -> bool:
        with self.raw("hub") as raw:
            try:
                return "error" not in raw.api("$JS.leaf.API.INFO")
            except NoResponders:
                return False

    def stream(self, domain: str, name: str, rows: Sequence[Row] = (), **config: Any) -> None:
        """Create a stream with these messages, each acknowledged."""
        self.ask(
            domain,
            f"STREAM.CREATE.{name}",
            {"name": name, "subjects": [f"{name.lower()}.>"]} | config,
        )
        self.publish(domain, rows)

    def publish(self, domain: str, rows: Sequence[Row]) -> None:
        """Publish messages, each acknowledged."""
        with self.raw(domain) as raw:
            inbox = f"_INBOX.{id(rows)}"
            raw.subscribe(inbox)
            raw.publish_all(
                encode_raw(f"{subject.decode()} {inbox}", block, data)
                for subject, block, data in rows
            )
            for _ in rows:
                ack = json.loads(raw.next_message()[2])
                assert "error" not in ack, ack

    def raw_info(self, domain: str, name: str) -> dict[str, Any] | None:
        """Return the answer to STREAM.INFO, or None if the stream does not exist."""
        with self.raw(domain) as raw:
            answer: dict[str, Any] = raw.api(f"$JS.{domain}.API.STREAM.INFO.{name}")
        return None if "error" in answer else answer

    def update(self, domain: str, name: str, **config: Any) -> None:
        """Change the configuration of a stream. None removes a field."""
        wanted = self.ask(domain, f"STREAM.INFO.{name}")["config"] | config
        self.ask(
            domain,
            f"STREAM.UPDATE.{name}",
            {key: value for key, value in wanted.items() if value is not None},
        )

    def delete(self, domain: str, name: str, *seqs: int) -> None:
        """Delete messages."""
        for seq in seqs:
            self.ask(domain, f"STREAM.MSG.DELETE.{name}", {"seq": seq})

    def state(self, domain: str, name: str) -> dict[str, Any]:
        """Return the state of a stream."""
        found: dict[str, Any] = self.ask(domain, f"STREAM.INFO.{name}")["state"]
        return found

    def stored(self, domain: str, name: str) -> list[StoredMessage]:
        """Return all messages of a small stream."""
        found = []
        with self.raw(domain) as raw:
            for answer in read_each(raw, name, f"$JS.{domain}.API"):
                if message := answer.get("message"):
                    blocks = (base64.b64decode(message.get(part, "")) for part in ("hdrs", "data"))
                    row = message["seq"], message["time"], message["subject"]
                    found.append(StoredMessage(*row, *blocks))
        return found

    @property
    def state_record(self) -> dict[str, Any]:
        """The record of the entry in state."""
        found: dict[str, Any] = json.loads(
            (self.space.folder / "state" / "test.json").read_text("utf-8")
        )["backfills"]["x"]
        return found

    def require_copied(
        self, *, seqs: Sequence[int] | None = None, others: int = 0
    ) -> list[StoredMessage]:
        """Require each message of the origin once in the target, in order; return the copies.

        `seqs` limits the messages of the origin. `others` counts further messages of the
        target.
        """
        origin = [one for one in self.stored("leaf", "S") if seqs is None or one.seq in seqs]
        target = self.stored("hub", "T")
        copies = [one for one in target if one.origin is not None]
        assert [one.origin for one in copies] == [
            f"leaf/S/{one.seq}/{with_nanoseconds(one.time)}" for one in origin
        ]
        assert [one.without_added_headers for one in copies] == [
            one.without_added_headers for one in origin
        ]
        assert len(target) - len(copies) == others
        self.require_nothing_left()
        return copies

    def require_nothing_left(self, readers: int = 0) -> None:
        """Require that no staging stream, source of jsplan or consumer is left on the servers.

        `readers` allows consumers of lost connections, which the server removes after
        some seconds.
        """
        for domain in self.sandbox.servers:
            with self.raw(domain) as raw:
                for name in streams(raw, f"$JS.{domain}.API"):
                    assert not name.startswith("JSPLAN_"), name
                    info = raw.api_ok(f"$JS.{domain}.API.STREAM.INFO.{name}")
                    assert not [
                        s
                        for s in info["config"].get("sources") or []
                        if s["name"].startswith("JSPLAN_")
                    ], info["config"]
                    assert info["state"]["consumer_count"] <= readers, f"{domain} {name}"


def with_nanoseconds(time: str) -> str:
    """Return a time as `Jsplan-Origin` has it, with nine digits."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return f"{whole}.{fraction.ljust(9, '0')}Z"


def numbered_rows(count: int, first: int = 1, subject: bytes = b"s.x") -> list[Row]:
    """Return so many messages that hold their number."""
    return [(subject, b"", b"%d" % number) for number in range(first, first + count)]


def create_bulk_stream(
    server: Server, name: str, count: int, size: int = 100, **config: Any
) -> None:
    """Create a stream of so many messages, numbered in their payload and in a header."""
    wire = RawConnection(connection_target(server))
    try:
        wire.request(
            f"$JS.API.STREAM.CREATE.{name}",
            {"name": name, "subjects": [f"{name.lower()}.>"], **config},
        )
        publish(
            wire,
            (
                _rows(f"{name.lower()}.x", first, min(count, first + 4999), size)
                for first in range(1, count + 1, 5000)
            ),
        )
    finally:
        wire.close()


def _rows(subject: str, first: int, last: int, size: int) -> tuple[Any, Any, Any]:
    numbers = pa.array(range(first, last + 1), pa.int64())
    texts = format_numbers(numbers)
    return (
        pa.repeat(pa.scalar(subject.encode(), BYTES), len(numbers)),
        concat_rows(b"NATS/1.0\r\nNumber: ", texts, b"\r\n\r\n"),
        concat_rows(texts, b" ", b"." * size),
    )


def read_all(server: Server, api_prefix: str, name: str) -> list[tuple[int, bytes, bytes, bytes]]:
    """Read sequence, subject, headers and payload of every message of a large stream."""
    found: list[tuple[int, bytes, bytes, bytes]] = []
    for batch in read(
        lambda: RawConnection(connection_target(server)), ReadRequest(api_prefix, name, 1, 1 << 60)
    ):
        found += list(
            zip(
                *(batch[column].to_pylist() for column in ("seq", "subject", "headers", "data")),
                strict=True,
            )
        )
    return found


def duplicated_origins(found: Sequence[StoredMessage]) -> list[str]:
    """Return the origins that occur more than once."""
    return [
        origin
        for origin, count in Counter(one.origin for one in found if one.origin).items()
        if count > 1
    ]
