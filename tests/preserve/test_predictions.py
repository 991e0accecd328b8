"""The plan of a replacement predicts its counts, its refusals and its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.transfer.estimate import additional_bytes
from tests.planning.test_limits import limited, space_on
from tests.preserve.test_streams import PERMITTED, PRESERVE, level, replace_stream
from tests.support import stream_content
from tests.support.raw import Raw, streams
from tests.support.state import read_state
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

pytestmark = pytest.mark.matrix

BASE: dict[str, Any] = {
    "name": "A",
    "subjects": ["A.>"],
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}
HOUR = 3600 * 10**9


def deletion_counts(plan: Plan) -> list[tuple[int | None, bool]]:
    """Return the messages of each DELETES_MESSAGES, and whether that is exact."""
    return [
        (h.messages, bool(h.exact))
        for c in plan.resource_changes
        for h in c.hazards
        if h.code == "DELETES_MESSAGES"
    ]


@pytest.mark.parametrize("before", [{"max_consumers": 5}, {}], ids=["unchanged", "set"])
def test_a_limit_of_consumers(before: dict[str, Any], tmp_path: Path, server: Server) -> None:
    """The new stream has `max_consumers` from the start: 2.10 and 2.11 never change it."""
    space = single_space(tmp_path, server).write(streams=[BASE | before])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
        replace_stream(space, BASE | {"max_consumers": 5, "storage": "memory"} | PRESERVE)
        assert raw.config("A")["max_consumers"] == 5
        assert b"seq" in raw.request("A.new", b"")[1]


@pytest.mark.parametrize("headers", [0, 1, 2])
@pytest.mark.parametrize(("storage", "other"), [("file", "memory"), ("memory", "file")])
def test_messages_that_grow_during_the_copy(
    storage: str,
    other: str,
    headers: int,
    tmp_path: Path,
    server: Server,
) -> None:
    """The plan counts exactly what max_bytes deletes when stored messages grow."""
    body = {"name": "A", "subjects": ["A.>"], "max_bytes": 2400, "storage": storage}
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    with Raw(server.url) as raw:
        for number in range(40):
            raw.request(
                f"A.{number}",
                b"x" * 40,
                {"X": "y" * number} if headers and number % headers == 0 else None,
            )
        before = stream_content.messages(raw, "A")
        plan, result = space.write(streams=[body | {"storage": other} | PRESERVE]).apply(
            allow_hazards=PERMITTED
        )
        messages = stream_content.messages(raw, "A")

    assert [s.error for s in result.steps if s.error] == []
    deleted = len(before) - len(messages)
    assert deletion_counts(plan) == ([(deleted, True)] if deleted else [])
    assert (deleted > 0) == (storage == "memory")
    assert (
        stream_content.without_sequences(messages)
        == stream_content.without_sequences(before)[deleted:]
    )


def test_gaps_and_an_earlier_source(tmp_path: Path, server: Server) -> None:
    """A second replacement counts exactly too, with gaps and old source headers."""
    body = {"name": "A", "subjects": ["A.>"], "max_bytes": 4096}
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 50)
        for storage in ("memory", "file"):
            raw.delete(
                "A",
                stream_content.messages(raw, "A")[3][0],
                stream_content.messages(raw, "A")[-1][0],
            )
            before = len(stream_content.messages(raw, "A"))
            plan, result = space.write(streams=[body | {"storage": storage} | PRESERVE]).apply(
                allow_hazards=PERMITTED
            )
            deleted = before - len(stream_content.messages(raw, "A"))
            assert [s.error for s in result.steps if s.error] == []
            assert deletion_counts(plan) == ([(deleted, True)] if deleted else [])


def test_buckets_whose_keys_were_purged(tmp_path: Path, server: Server) -> None:
    """Messages with Nats-Rollup, from purged keys and objects, are preserved."""
    space = single_space(tmp_path, server)
    buckets: dict[str, Any] = {
        "kv": [{"bucket": "K", "history": 5} | PRESERVE],
        "object_stores": [{"bucket": "O"} | PRESERVE],
    }
    space.write(**buckets).apply()
    with Raw(server.url) as raw:
        for key in range(3):
            raw.request(f"$KV.K.k{key}", b"x")
            raw.request(f"$O.O.C.n{key}", b"x" * 50)
            raw.request(f"$O.O.M.m{key}", b"{}", {"Nats-Rollup": "sub"})
        raw.request("$KV.K.k1", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
        raw.request("$KV.K.k2", b"y")
        before = [
            stream_content.without_sequences(stream_content.messages(raw, name))
            for name in ("KV_K", "OBJ_O")
        ]
        _, result = space.write(
            **{
                kind: [bucket | {"storage": "memory"} for bucket in declared]
                for kind, declared in buckets.items()
            }
        ).apply(allow_hazards=PERMITTED)

        assert [s.error for s in result.steps if s.error] == []
        assert [
            stream_content.without_sequences(stream_content.messages(raw, name))
            for name in ("KV_K", "OBJ_O")
        ] == before
        assert [raw.config(name)["allow_rollup_hdrs"] for name in ("KV_K", "OBJ_O")] == [True, True]
    assert not space.plan().has_changes


def test_consumer_limits_stay_set(tmp_path: Path, server: Server) -> None:
    """An inactive_threshold for all consumers stays set during the copy."""
    body = BASE | {
        "consumer_limits": {"inactive_threshold": HOUR},
        "consumers": [{"name": "C", "ack_policy": "none"}],
    }
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
        replace_stream(space, body | {"storage": "memory"} | PRESERVE)
        assert raw.config("A")["consumer_limits"] == {"inactive_threshold": HOUR}


def test_consumer_limits_that_prevent_the_copy(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """Before 2.14, consumer_limits with max_ack_pending are refused by the plan.

    They also limit the consumers of the server's own copy, and cannot be removed.
    """
    body = BASE | {"consumer_limits": {"max_ack_pending": 5}}
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    wanted = space.write(streams=[body | {"storage": "memory"} | PRESERVE])
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
    if level(server_version) >= 4:
        replace_stream(space, body | {"storage": "memory"} | PRESERVE)
        return
    refused = [d.summary for d in wanted.plan().diagnostics if d.code == "JS303"]
    assert len(refused) == 1
    assert (
        "its consumer_limits (max_ack_pending) also limit the consumers by which servers before 2.14 copy"
        in refused[0]
    )


@pytest.mark.parametrize(
    ("limits", "other"),
    [("max_file: 100000", {"retention": "workqueue"}), ("max_mem: 50000", {"storage": "memory"})],
)
def test_an_account_that_cannot_hold_the_copy(
    limits: str, other: dict[str, Any], tmp_path: Path, make_server: MakeServer
) -> None:
    """The plan refuses a copy for which the account has no capacity."""
    server = limited(make_server, limits)
    space = space_on(tmp_path, server)
    space.write(streams=[BASE]).apply()
    with Raw(server.url, server.user, server.password) as raw:
        for _ in range(10):
            raw.request("A.x", b"x" * 8000)
    refused = [
        d.summary
        for d in space.write(streams=[BASE | other | PRESERVE]).plan().diagnostics
        if d.code == "JS303"
    ]

    assert len(refused) == 1
    assert "for a while; the account uses " in refused[0]
    assert f"({'max_storage' if 'file' in limits else 'max_memory'})" in refused[0]


def test_an_account_without_a_free_stream(tmp_path: Path, make_server: MakeServer) -> None:
    """The plan refuses a staging stream above the max_streams of the account."""
    server = limited(make_server, "max_streams: 1")
    space = space_on(tmp_path, server)
    space.write(streams=[BASE]).apply()
    refused = [
        d.summary
        for d in space.write(streams=[BASE | {"storage": "memory"} | PRESERVE]).plan().diagnostics
        if d.code == "JS303"
    ]

    assert len(refused) == 1
    assert "one more stream for a while, and the account uses 1 of 1 (max_streams)" in refused[0]


def test_a_limit_above_the_memory_of_the_server(tmp_path: Path, server: Server) -> None:
    """A limit above the memory of the server is refused on the probe, and nothing is lost."""
    body = BASE | {"max_bytes": "10GiB"}
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 10)
        before = raw.api_ok("$JS.API.STREAM.INFO.A")
        _, result = space.write(streams=[body | {"storage": "memory"} | PRESERVE]).apply(
            allow_hazards=PERMITTED
        )
        failed = [s for s in result.steps if s.status == "failed"]
        after = raw.api_ok("$JS.API.STREAM.INFO.A")

        assert [s.op for s in failed] == ["transfer.probe"]
        assert (failed[0].error or "").startswith(
            "the server refuses the new configuration of main/stream/A: insufficient memory"
        )
        assert (failed[0].error or "").endswith("; the stream was not touched")
        assert (after["config"], after["state"], streams(raw)) == (
            before["config"],
            before["state"],
            ["A"],
        )
    assert (result.exit_code, result.interrupted, read_state(space.folder).replacements) == (
        6,
        [],
        {},
    )


def test_a_stream_that_reserves_most_of_the_disk(tmp_path: Path, server: Server) -> None:
    """The storage that the old stream frees is not required twice."""
    body = BASE | {"max_bytes": 6 << 40}
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
    replace_stream(space, body | {"retention": "workqueue"} | PRESERVE)


def test_the_probe_reserves_the_other_storage() -> None:
    """The probe reserves what the messages take in the other storage, within the limits."""
    old = LiveObject(
        Address.parse("hub/stream/A"),
        {"name": "A", "storage": "file"},
        "",
        {"bytes": 10_000, "messages": 100},
    )

    assert additional_bytes(old, {"storage": "memory"}, {}) == 10_000 - 18 * 100
    assert (
        additional_bytes(old, {"storage": "memory"}, {"limits": {"memory_max_stream_bytes": 500}})
        == 500
    )
    assert additional_bytes(old, {"storage": "file"}, {}) == 0
    assert additional_bytes(old, {"storage": "file"}, {"limits": {"max_bytes_required": True}}) == 1
    assert additional_bytes(old, {"storage": "file", "max_bytes": 50_000}, {}) == 50_000
    bounded = LiveObject(
        old.address, old.raw | {"max_bytes": 30_000, "num_replicas": 3}, "", old.state
    )
    assert additional_bytes(bounded, {"storage": "file", "max_bytes": 50_000}, {}) == 0
    assert (
        additional_bytes(bounded, {"storage": "file", "max_bytes": 50_000, "num_replicas": 3}, {})
        == 20_000
    )


def test_the_plan_shows_consumers_that_start_by_sequence(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """The plan shows which consumers will start by sequence, where positions cannot be set."""
    space = single_space(tmp_path, server).write(streams=[BASE])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
        raw.ack(raw.pull("A", "C", 3))
        plan, _ = space.write(streams=[BASE | {"storage": "memory"} | PRESERVE]).apply(
            allow_hazards=PERMITTED
        )
        config = raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["config"]

    consumer_change = next(c.change for c in plan.resource_changes if c.type == "consumer")
    findings = [
        d.summary
        for d in plan.diagnostics
        if d.code == "JS425" and "by_start_sequence" in d.summary
    ]
    assert consumer_change.actions == ["no-op"]
    assert {
        name: (consumer_change.after or {}).get(name)
        for name in ("deliver_policy", "opt_start_seq")
    } == {name: config.get(name) for name in ("deliver_policy", "opt_start_seq")}
    assert ([*consumer_change.after_unknown], len(findings)) == (
        ([], 0) if level(server_version) >= 4 else (["opt_start_seq"], 1)
    )


def test_the_plan_shows_the_window_of_a_sealed_stream(tmp_path: Path, server: Server) -> None:
    """The plan shows the duplicate_window that the server takes from a dropped max_age."""
    space = single_space(tmp_path, server).write(streams=[BASE])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
        sealed = BASE | {"sealed": True, "max_age": "90s", "storage": "memory"} | PRESERVE
        plan, _ = space.write(streams=[sealed]).apply(allow_hazards=PERMITTED)
        config = raw.config("A")

    after = next(c.change.after or {} for c in plan.resource_changes if c.type == "stream")
    assert (after["duplicate_window"], config["duplicate_window"]) == (
        90 * 10**9,
        90 * 10**9,
    )
    assert not space.plan().has_changes


def test_limits_that_only_the_changed_consumers_satisfy(tmp_path: Path, server: Server) -> None:
    """Limits that only the changed consumers satisfy do not block the new stream."""
    old = {"name": "C", "ack_policy": "explicit", "max_ack_pending": 1000}
    space = single_space(tmp_path, server).write(streams=[BASE | {"consumers": [old]}])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
        limited_now = {
            "consumer_limits": {"max_ack_pending": 10},
            "consumers": [old | {"max_ack_pending": 5}],
        }
        replace_stream(space, BASE | {"storage": "memory"} | limited_now | PRESERVE)
        assert raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["config"]["max_ack_pending"] == 5
