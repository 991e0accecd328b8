"""Data at risk in buckets, and where whole streams and consumers go: the plan's numbers are what is gone afterwards."""

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

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]  # a slow machine pours and tries again

#: What a client gives every bucket, on the stream behind it.
BUCKET_DEFAULTS = {
    "max_msgs_per_subject": 64,
    "deny_delete": True,
    "allow_rollup_hdrs": True,
    "allow_direct": True,
    "discard": "new",
}


@dataclass
class BucketServer:
    """A server with a bucket SRC of many values, old and young; mirrors of it are tried on."""

    lake: FilledServer
    created_count: int = 0

    def new_mirror(self) -> str:
        """A new bucket that has all of SRC; its name."""
        self.created_count += 1
        bucket = f"M{self.created_count}"
        config = BUCKET_DEFAULTS | {
            "name": f"KV_{bucket}",
            "mirror": {"name": "KV_SRC"},
            "mirror_direct": True,
        }
        self.lake.raw.api_ok(f"$JS.API.STREAM.CREATE.KV_{bucket}", config)
        self.lake.wait_complete(f"KV_{bucket}", self.lake.state("KV_SRC")["messages"])
        return bucket


def fill_bucket(filled_server: FilledServer) -> None:
    """SRC, and nothing else."""
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
    """Filled once for all tests."""
    with (
        Sandbox.single(binary=PROGRAM) as sandbox,
        open_filled_server(sandbox["server"], fill_bucket) as lake,
    ):
        yield BucketServer(lake)


@pytest.mark.parametrize(
    "words",
    [("history",), ("ttl",), ("history", "ttl"), ("history", "ttl", "max_bytes")],
    ids="+".join,
)
def test_values_that_a_bucket_gives_up(
    bucket_server: BucketServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A shorter history, a shorter life, and both take as many values and bytes as planned; a bucket's max_bytes takes none."""
    space, lake = slow_machine_space(tmp_path, bucket_server.lake.server), bucket_server.lake

    def once() -> Outcome:
        before = lake.state(f"KV_{bucket}")
        values = {"history": 2, "ttl": lake.max_age_for_old(), "max_bytes": before["bytes"] * 2}
        body = {"bucket": bucket, "mirror": {"name": "SRC"}, "history": 64} | {
            word: values[word] for word in words
        }
        plan, result = space.write(kv=[body]).apply(adopt=True, allow_hazards=("DELETES_MESSAGES",))
        assert result.exit_code == 0
        return deletes_messages(plan), lost_counts(before, lake.state(f"KV_{bucket}"))

    done = None
    while done is None:
        bucket = bucket_server.new_mirror()
        done = attempt_in_time(lake, space, once)
    hazard, gone = done
    assert hazard is not None
    assert gone[0] > 0
    if len(words) > 1 and lake.level == 0:  # 2.10 may take its time to expire what is left
        assert (hazard.at_least or 0) <= gone[0] <= (hazard.at_most or 0)
        return
    assert (hazard.exact, hazard.messages, hazard.bytes) == (True, *gone)
    assert f"kv/{bucket}" in hazard.flag


def hazards(plan: Plan) -> dict[str, list[Hazard]]:
    """The hazards by address."""
    return {change.address: change.hazards for change in plan.resource_changes if change.hazards}


@pytest.mark.parametrize("kind", ["stream", "kv", "object_store"])
def test_whole_streams(filled_server: FilledServer, change_trial: ChangeTrial, kind: str) -> None:
    """What goes with a stream is its messages and bytes as they are stored, and its consumers, those of other people too."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "stream": (
            "S",
            {"streams": [{"name": "S", "subjects": ["S.>"], "consumers": [{"name": "OURS"}]}]},
        ),
        "kv": ("KV_B", {"kv": [{"bucket": "B", "history": 64}]}),
        "object_store": ("OBJ_B", {"object_stores": [{"bucket": "B"}]}),
    }
    name, declared = cases[kind]
    assert change_trial.space.write(**declared).apply()[1].exit_code == 0
    prefix = {"stream": "S", "kv": "$KV.B", "object_store": "$O.B.C"}[kind]
    fill(filled_server.raw, prefix, 500, seed=7)
    filled_server.server.wait_until(
        lambda: filled_server.state(name)["last_seq"] == 500, "500 messages", 20
    )
    filled_server.consumer(name, "THEIRS")
    there = filled_server.state(name)

    plan, result = change_trial.space.write().apply(allow_hazards=("DELETES_STREAM",))

    assert result.exit_code == 0
    ((address, (hazard,)),) = hazards(plan).items()
    assert address.startswith(f"main/{kind}/")
    assert (hazard.code, hazard.messages, hazard.bytes, hazard.consumers, hazard.exact) == (
        "DELETES_STREAM",
        there["messages"],
        there["bytes"],
        2 if kind == "stream" else 1,
        True,
    )
    assert hazard.as_of == {"last_seq": 500, "time": there["last_ts"]}
    assert filled_server.raw.api(f"$JS.API.STREAM.INFO.{name}")["error"]["err_code"] == 10059


def consumer_info(filled_server: FilledServer, stream: str, consumer: str) -> dict[str, Any]:
    """The consumer as INFO shows it."""
    return filled_server.raw.api_ok(f"$JS.API.CONSUMER.INFO.{stream}.{consumer}")


def consumed_stream(change_trial: ChangeTrial) -> tuple[Space, dict[str, Any]]:
    """A stream of 300 messages with a consumer that was given 120 and acknowledged all but every tenth."""
    lake, stream = change_trial.lake, {"name": "S", "subjects": ["S.>"]}
    consumer = {"name": "C", "ack_policy": "explicit", "lifecycle": {"on_replace": "recreate"}}
    assert (
        change_trial.space.write(streams=[stream | {"consumers": [consumer]}]).apply()[1].exit_code
        == 0
    )
    fill(lake.raw, "S", 300, seed=3)
    lake.server.wait_until(lambda: lake.state("S")["last_seq"] == 300, "300 messages", 20)
    lake.fetch_and_ack("S", "C", 120, skip=10)
    return change_trial.space, stream | {"consumers": [consumer]}


def test_a_consumer_that_goes(filled_server: FilledServer, change_trial: ChangeTrial) -> None:
    """The hazard has what it has not finished: 180 that it was not given and 12 that it did not acknowledge."""
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


def test_a_consumer_that_starts_over(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """Replaced without its position it is given everything once more: the hazard says after how many deliveries."""
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
