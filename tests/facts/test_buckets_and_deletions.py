"""The plan counts what goes from buckets and with deleted streams and consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.facts.conftest import (
    MESSAGES,
    OLD,
    ChangeTrial,
    FilledServer,
    attempt_in_time,
    deletes_messages,
    fill,
    lost_counts,
    open_filled_server,
    slow_machine_space,
)
from tests.support.raw import delete_all_streams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.plan import Hazard, Plan
    from tests.facts.conftest import Outcome
    from tests.support.workspaces import Space

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]  # a slow machine fills the server again

#: The configuration that a client gives the stream of every bucket.
BUCKET_DEFAULTS = {
    "max_msgs_per_subject": 64,
    "deny_delete": True,
    "allow_rollup_hdrs": True,
    "allow_direct": True,
    "discard": "new",
}


@dataclass
class BucketServer:
    """A server with a bucket SRC of old and young values; tests change mirrors of it."""

    filled: FilledServer
    created_count: int = 0

    def new_mirror(self) -> str:
        """Create a bucket that mirrors all of SRC and return its name."""
        self.created_count += 1
        bucket = f"M{self.created_count}"
        config = BUCKET_DEFAULTS | {
            "name": f"KV_{bucket}",
            "mirror": {"name": "KV_SRC"},
            "mirror_direct": True,
        }
        self.filled.raw.api_ok(f"$JS.API.STREAM.CREATE.KV_{bucket}", config)
        self.filled.wait_complete(f"KV_{bucket}", self.filled.raw.state("KV_SRC")["messages"])
        return bucket


def fill_bucket(filled_server: FilledServer) -> None:
    """Create and fill SRC, and delete all else."""
    delete_all_streams(filled_server.raw)
    filled_server.raw.api_ok(
        "$JS.API.STREAM.CREATE.KV_SRC",
        BUCKET_DEFAULTS | {"name": "KV_SRC", "subjects": ["$KV.SRC.>"]},
    )
    fill(filled_server.raw, "$KV.SRC", OLD, seed=1)
    filled_server.wait_last("KV_SRC", OLD)
    filled_server.end_old_messages()
    fill(filled_server.raw, "$KV.SRC", MESSAGES - OLD, seed=2)
    filled_server.wait_last("KV_SRC", MESSAGES)


@pytest.fixture(scope="module")
def bucket_server() -> Iterator[BucketServer]:
    """A server that is filled once for all tests of the module."""
    with (
        Sandbox.single(binary=PROGRAM) as sandbox,
        open_filled_server(sandbox["server"], fill_bucket) as filled,
    ):
        yield BucketServer(filled)


@pytest.mark.parametrize(
    "fields",
    [("history",), ("ttl",), ("history", "ttl"), ("history", "ttl", "max_bytes")],
    ids="+".join,
)
def test_values_that_a_bucket_deletes(
    bucket_server: BucketServer, tmp_path: Path, fields: tuple[str, ...]
) -> None:
    """A lower history or TTL deletes as many values as planned; max_bytes deletes none."""
    space, filled = slow_machine_space(tmp_path, bucket_server.filled.server), bucket_server.filled

    def apply_change() -> Outcome:
        before = filled.raw.state(f"KV_{bucket}")
        values = {"history": 2, "ttl": filled.max_age_for_old(), "max_bytes": before["bytes"] * 2}
        body = {"bucket": bucket, "mirror": {"name": "SRC"}, "history": 64} | {
            word: values[word] for word in fields
        }
        plan, result = space.write(kv=[body]).apply(adopt=True, allow_hazards=("DELETES_MESSAGES",))
        assert result.exit_code == 0
        return deletes_messages(plan), lost_counts(before, filled.raw.state(f"KV_{bucket}"))

    outcome = None
    while outcome is None:
        bucket = bucket_server.new_mirror()
        outcome = attempt_in_time(filled, space, apply_change)
    hazard, lost = outcome
    assert hazard is not None
    assert lost[0] > 0
    if len(fields) > 1 and filled.level == 0:  # 2.10 may expire messages late
        assert (hazard.at_least or 0) <= lost[0] <= (hazard.at_most or 0)
        return
    assert (hazard.exact, hazard.messages, hazard.bytes) == (True, *lost)
    assert f"kv/{bucket}" in hazard.flag


def hazards(plan: Plan) -> dict[str, list[Hazard]]:
    """Return the hazards by address."""
    return {change.address: change.hazards for change in plan.resource_changes if change.hazards}


@pytest.mark.parametrize("kind", ["stream", "kv", "object_store"])
def test_whole_streams(filled_server: FilledServer, change_trial: ChangeTrial, kind: str) -> None:
    """The hazard of a deleted stream has its messages, bytes and all consumers."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "stream": (
            "S",
            {"streams": [{"name": "S", "subjects": ["S.>"], "consumers": [{"name": "DECLARED"}]}]},
        ),
        "kv": ("KV_B", {"kv": [{"bucket": "B", "history": 64}]}),
        "object_store": ("OBJ_B", {"object_stores": [{"bucket": "B"}]}),
    }
    name, declared = cases[kind]
    assert change_trial.space.write(**declared).apply()[1].exit_code == 0
    prefix = {"stream": "S", "kv": "$KV.B", "object_store": "$O.B.C"}[kind]
    fill(filled_server.raw, prefix, 500, seed=7)
    filled_server.server.wait_until(
        lambda: filled_server.raw.state(name)["last_seq"] == 500, "500 messages", 20
    )
    filled_server.consumer(name, "UNMANAGED")
    before = filled_server.raw.state(name)

    plan, result = change_trial.space.write().apply(allow_hazards=("DELETES_STREAM",))

    assert result.exit_code == 0
    ((address, (hazard,)),) = hazards(plan).items()
    assert address.startswith(f"main/{kind}/")
    assert (hazard.code, hazard.messages, hazard.bytes, hazard.consumers, hazard.exact) == (
        "DELETES_STREAM",
        before["messages"],
        before["bytes"],
        2 if kind == "stream" else 1,
        True,
    )
    assert hazard.as_of == {"last_seq": 500, "time": before["last_ts"]}
    assert filled_server.raw.api(f"$JS.API.STREAM.INFO.{name}")["error"]["err_code"] == 10059


def consumer_info(filled_server: FilledServer, stream: str, consumer: str) -> dict[str, Any]:
    """Return the consumer as INFO shows it."""
    return filled_server.raw.api_ok(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")


def consumed_stream(change_trial: ChangeTrial) -> tuple[Space, dict[str, Any]]:
    """A stream of 300 messages, 120 of them delivered, and all but every tenth acknowledged."""
    filled, stream = change_trial.filled, {"name": "S", "subjects": ["S.>"]}
    consumer = {"name": "C", "ack_policy": "explicit", "lifecycle": {"on_replace": "recreate"}}
    assert (
        change_trial.space.write(streams=[stream | {"consumers": [consumer]}]).apply()[1].exit_code
        == 0
    )
    fill(filled.raw, "S", 300, seed=3)
    filled.server.wait_until(lambda: filled.raw.state("S")["last_seq"] == 300, "300 messages", 20)
    filled.fetch_and_ack("S", "C", 120, skip=10)
    return change_trial.space, stream | {"consumers": [consumer]}


def test_a_deleted_consumer(filled_server: FilledServer, change_trial: ChangeTrial) -> None:
    """The hazard of a deleted consumer counts 180 undelivered and 12 unacknowledged messages."""
    space, stream = consumed_stream(change_trial)
    info = consumer_info(filled_server, "S", "C")

    plan = space.write(streams=[stream | {"consumers": []}]).plan()

    (hazard,) = hazards(plan)["main/consumer/S/C"]
    assert (info["num_pending"], info["num_ack_pending"]) == (180, 12)
    assert (hazard.code, hazard.messages, hazard.exact, hazard.blocking) == (
        "DELETES_CONSUMER",
        192,
        True,
        True,
    )


@pytest.mark.since_2_12
def test_a_consumer_without_its_position(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """A consumer that is recreated without its position gets every message again."""
    space, stream = consumed_stream(change_trial)
    changed = stream["consumers"][0] | {"ack_policy": "all"}

    plan, result = space.write(streams=[stream | {"consumers": [changed]}]).apply(
        allow_hazards=("LOSES_CONSUMER_POSITION",)
    )

    assert result.exit_code == 0
    (hazard,) = hazards(plan)["main/consumer/S/C"]
    assert (hazard.code, hazard.messages) == ("LOSES_CONSUMER_POSITION", 192)
    assert "after 120 deliveries" in hazard.message
    assert consumer_info(filled_server, "S", "C")["num_pending"] == 300
