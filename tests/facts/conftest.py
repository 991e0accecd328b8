from __future__ import annotations

import json
import os
import random
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config.model import Connection, Domain
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from jsplan.documents.plan import Hazard, Plan
    from jsplan.jetstream import DomainApi
    from jsplan.sandbox import Server

#: Messages of a stream, several batches of a reader, and how many are old. The pauses, in seconds, separate old and
#: young messages. The long one is for nats-server 2.10, where each message is one request.
MESSAGES, OLD, PAUSE, LONG_PAUSE = 4_800, 2_800, 5.0, 15.0
SOURCES = ("ORIGIN", "HOLED")


def fill(raw: Raw, stream: str, count: int, seed: int) -> None:
    """Publish messages of varying size and subject, some with headers."""
    chance = random.Random(seed)
    for number in range(count):
        subject = f"{stream}.{'abc'[number % 3]}.{int(chance.paretovariate(0.6)) % 400}"
        headers = (
            {"Kind": "x" * chance.randrange(40), "Nats-Sequence": "7"} if number % 4 == 0 else None
        )
        raw.publish(subject, b"x" * chance.randrange(600), headers)
        if number % 2_000 == 0:
            raw.flush()
    raw.flush()


@dataclass
class FilledServer:
    """A server with a stream ORIGIN of many messages, and mirrors of it for the tests.

    HOLED is such a stream with deleted messages. They are deleted there and not in its mirrors:
    servers before 2.15 sometimes never answer a deletion in a mirror.

    `fill_streams` fills the server. `old_until` is the begin of the pause between old and young
    messages, in seconds since the epoch. `pause` is its length.
    """

    server: Server
    raw: Raw
    fill_streams: Callable[[FilledServer], None]
    level: int
    pause: float
    old_until: float = 0.0
    created_count: int = 0

    def new_mirror(self, of: str = "ORIGIN", **config: Any) -> str:
        """Create a complete mirror of ORIGIN or HOLED and return its name."""
        self.created_count += 1
        name, wanted = f"COPY{self.created_count}", self.raw.state(of)["messages"]
        self.raw.create(name, mirror={"name": of}, **config)
        self.wait_complete(name, wanted)
        return name

    def new_stream(self, count: int = MESSAGES, **config: Any) -> str:
        """Create a stream with messages of its own and return its name."""
        self.created_count += 1
        name = f"OWN{self.created_count}"
        self.raw.create(name, subjects=[f"{name}.>"], **config)
        self.created_count -= 1
        self.fill_stream(name, count)
        return name

    def fill_stream(self, name: str, count: int) -> None:
        """Publish messages to a new stream."""
        self.created_count += 1
        fill(self.raw, name, count, seed=self.created_count)
        self.wait_last(name, count)

    def wait_complete(self, stream: str, messages: int = MESSAGES) -> None:
        """Wait until a stream has all its messages."""
        self.raw.wait_for(stream, messages)

    def wait_last(self, stream: str, seq: int) -> None:
        """Wait until `seq` messages were stored, even if some were deleted since."""
        self.server.wait_until(
            lambda: self.raw.state(stream)["last_seq"] == seq, f"{stream} to be complete", 60
        )

    def restart(self) -> None:
        """Stop the server and start it with the same data."""
        self.server.stop()
        self.server.start()
        self.reconnect()

    def reconnect(self) -> None:
        """Connect again: a server ends a connection that is silent for some minutes."""
        self.raw.close()
        self.raw = Raw(self.server.url, self.server.user, self.server.password, timeout=20)

    def end_old_messages(self) -> None:
        """Make the stored messages old and the next ones young, by a pause."""
        self.old_until = time.time()
        time.sleep(self.pause)

    def max_age_for_old(self) -> int:
        """Return a max_age, in ns, that separates old from young for the next seconds."""
        return int((time.time() - self.old_until - 0.2) * 1e9)

    def consumer(self, stream: str, name: str, **config: Any) -> None:
        """Create or change a durable pull consumer without a limit of what is not acknowledged."""
        self.raw.consumer(stream, name, **{"max_ack_pending": -1} | config)

    def fetch_and_ack(
        self, stream: str, consumer: str, count: int, *, skip: int = 0
    ) -> dict[int, str]:
        """Fetch messages and acknowledge all but every `skip`-th.

        Return sequence and subject of the acknowledged ones.
        """
        inbox = f"_INBOX.{os.urandom(6).hex()}"
        unacknowledged = self.raw.consumer_info(stream, consumer)["num_ack_pending"] + count
        acked: dict[int, str] = {}
        with Raw(self.server.url, self.server.user, self.server.password) as raw:
            raw.subscribe(inbox)
            wanted = json.dumps({"batch": count, "no_wait": True}).encode()
            raw.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", wanted, reply=inbox)
            for number in range(count):
                subject, reply, _, _ = raw.next_with_reply()
                if not (skip and number % skip == 0):
                    raw.publish(reply, b"+ACK")
                    # $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQ.…
                    acked[int(reply.split(".")[5])] = subject
            raw.flush()
        unacknowledged -= len(acked)
        self.server.wait_until(
            lambda: self.raw.consumer_info(stream, consumer)["num_ack_pending"] == unacknowledged,
            "the acknowledgements to arrive",
            60,
        )
        return acked


def fill_sources(filled_server: FilledServer) -> None:
    """Create and fill ORIGIN and HOLED, and delete all else."""
    raw = filled_server.raw
    delete_all_streams(raw)
    for name in SOURCES:
        raw.create(name, subjects=[f"{name}.>"], allow_direct=True)
        fill(raw, name, OLD, seed=1)
    filled_server.end_old_messages()
    for name in SOURCES:
        fill(raw, name, MESSAGES - OLD, seed=2)
        filled_server.wait_complete(name)
    raw.delete("HOLED", *range(5, OLD - 20, 53), *range(OLD - 20, OLD + 20))
    raw.delete("HOLED", *range(OLD + 200, MESSAGES, 53))


@pytest.fixture
async def api(server: Server) -> AsyncIterator[DomainApi]:
    """The API of the same server, on a connection that only reads."""
    async with Pool({"main": Connection("main", url=server.url)}, {}, read_only=True) as pool:
        await pool.open(["main"])
        yield pool.api(Domain("main", "main", None, "$JS.API"))


@contextmanager
def open_filled_server(
    server: Server, fill_streams: Callable[[FilledServer], None] = fill_sources
) -> Iterator[FilledServer]:
    """Fill the server and close the connection afterwards."""
    raw = Raw(server.url, server.user, server.password, timeout=20)
    level = raw.api_level()
    filled = FilledServer(server, raw, fill_streams, level, PAUSE if level else LONG_PAUSE)
    try:
        fill_streams(filled)
        yield filled
    finally:
        filled.raw.close()


def delete_other_streams(filled_server: FilledServer) -> None:
    """Delete all streams but the sources."""
    for name in streams(filled_server.raw):
        if name not in SOURCES:
            filled_server.raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")


@pytest.fixture(scope="session")
def _filled_server() -> Iterator[FilledServer]:
    with Sandbox.single(binary=PROGRAM) as sandbox, open_filled_server(sandbox["server"]) as filled:
        yield filled


@pytest.fixture
def filled_server(_filled_server: FilledServer) -> Iterator[FilledServer]:
    """The filled server of the worker; a test's other streams are deleted."""
    _filled_server.reconnect()
    yield _filled_server
    delete_other_streams(_filled_server)


@dataclass
class ChangeTrial:
    """A workspace that applies one change, to compare the prediction with the loss."""

    filled: FilledServer
    space: Space

    def change(
        self, stream: str, kind: str = "streams", body: dict[str, Any] | None = None, **options: Any
    ) -> tuple[Plan, Hazard | None]:
        """Adopt the stream with the fields of `body` changed.

        Return the plan, and its DELETES_MESSAGES or None.
        """
        live = self.filled.raw.config(stream)
        current = {
            k: v
            for k, v in live.items()
            if k not in ("metadata", "placement", "duplicate_window", "consumer_limits")
        }
        changed = current | (body or {})
        self.space.write(**{kind: [{k: v for k, v in changed.items() if v is not None}]})
        plan, result = self.space.apply(
            adopt=True,
            allow_hazards=("DELETES_MESSAGES", "DELETES_CONSUMER", "BREAKS_REPLICATION"),
            **options,
        )
        assert [s.error for s in result.steps if s.error] == []
        assert result.exit_code == 0, result
        return plan, deletes_messages(plan)


def deletes_messages(plan: Plan) -> Hazard | None:
    """Return the only DELETES_MESSAGES of a plan."""
    matching = [
        hazard
        for change in plan.resource_changes
        for hazard in change.hazards
        if hazard.code == "DELETES_MESSAGES"
    ]
    assert len(matching) <= 1
    return matching[0] if matching else None


@pytest.fixture
def change_trial(filled_server: FilledServer, tmp_path: Path) -> ChangeTrial:
    """A workspace on the filled server."""
    return ChangeTrial(filled_server, slow_machine_space(tmp_path, filled_server.server))


def slow_machine_space(folder: Path, server: Server) -> Space:
    """A workspace with a long timeout, because an unanswered request turns counts into bounds."""
    space = single_space(folder, server)
    space.base["connections"]["main"]["timeout"] = "30s"
    return space


def lost_counts(before: dict[str, Any], after: dict[str, Any]) -> tuple[int, int]:
    """Return the messages and bytes that were deleted."""
    return before["messages"] - after["messages"], before["bytes"] - after["bytes"]


#: The predicted hazard, and the messages and bytes that were deleted.
Outcome = tuple["Hazard | None", tuple[int, int]]


def try_change(
    filled_server: FilledServer,
    change_trial: ChangeTrial,
    store: dict[str, Any],
    body: Callable[[], dict[str, Any]],
    of: str = "ORIGIN",
    **options: Any,
) -> Outcome:
    """Change a mirror; return the predicted hazard and the deletions."""

    def apply_change() -> Outcome:
        before = filled_server.raw.state(stream)
        _, hazard = change_trial.change(stream, body=body(), **options)
        return hazard, lost_counts(before, filled_server.raw.state(stream))

    while True:
        stream = filled_server.new_mirror(of, **store)
        if outcome := attempt_in_time(filled_server, change_trial.space, apply_change):
            return outcome


def attempt_in_time(
    filled_server: FilledServer, space: Space, attempt: Callable[[], Outcome]
) -> Outcome | None:
    """Return the outcome of an attempt, or None where young messages grew old during it.

    Such an attempt proves nothing. Then the server is filled again with a longer pause.
    """
    started = time.time()
    try:
        outcome = attempt()
    except (AssertionError, JsplanError):
        if time.time() - started < filled_server.pause - 0.5:
            raise
    else:
        if time.time() - started < filled_server.pause - 0.5:
            return outcome
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    filled_server.pause *= 2
    filled_server.fill_streams(filled_server)
    return None
