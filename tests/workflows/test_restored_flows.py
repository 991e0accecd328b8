"""Restores of streams that read others, and of streams that the files and state know."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying import restore as restoring
from jsplan.applying.restore import read_snapshot
from jsplan.applying.step_context import StepFailed
from jsplan.backup.run import BackupOptions
from jsplan.errors import PlanError, RefusedError, StalePlanError, UsageError
from jsplan.jetstream import snapshots
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL, RESTORE_ANY_NAME_LEVEL
from jsplan.workflows.backup import backup
from jsplan.workflows.restore import RestoreOptions, restore
from jsplan.workflows.status import status
from tests.support.explained_steps import require_explained
from tests.support.raw import NoResponders, Raw
from tests.support.simulated_kill import SimulatedKill
from tests.support.workspaces import (
    RecordingObserver,
    Space,
    approve,
    hub_leaf_space,
    left_to_do,
    single_space,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeHubLeaf

HUB, LEAF, PLAIN = "$JS.hub.API", "$JS.leaf.API", "$JS.API"
ORIGIN: dict[str, Any] = {"name": "ORIGIN", "domain": "hub", "subjects": ["origin"]}
SOURCE: dict[str, Any] = {"name": "ORIGIN", "domain": "hub"}


def save(space: Space, *addresses: str) -> None:
    backup(space.load, BackupOptions(addresses, space.folder / "bk"), RecordingObserver())


def restore_backup(space: Space, **options: Any) -> tuple[Plan, ApplyResult]:
    chosen = RestoreOptions(space.folder / "bk", **options)
    plan, result = restore(space.load, chosen, approve, RecordingObserver())
    return require_explained(plan), result


def raw_of(sandbox: Sandbox) -> Raw:
    hub = sandbox["hub"]
    return Raw(hub.url, hub.user, hub.password, timeout=30)


def publish(raw: Raw, count: int) -> None:
    for number in range(count):
        raw.request("origin", b"%d" % number)


def hazards_of(plan: Plan) -> list[tuple[str, str]]:
    return [(h.code, c.address) for c in plan.resource_changes for h in c.hazards]


@pytest.mark.matrix
def test_restored_readers_continue(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A restored mirror or source takes what its origin has got since, and nothing again.

    It is managed again with its consumer, and its plan has no hazard and no note.
    """
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    consumers = [{"name": "C", "ack_policy": "explicit"}]
    readers: dict[str, dict[str, Any]] = {
        "MIRROR": {"mirror": SOURCE},
        "SOURCE": {"sources": [SOURCE]},
        "LATE": {"sources": [SOURCE | {"opt_start_seq": 5}]},
    }
    streams = [
        {"name": name, "domain": "leaf", "consumers": consumers} | origin
        for name, origin in readers.items()
    ]
    space.write(streams=[ORIGIN, *streams]).apply()
    copied = {"MIRROR": 20, "SOURCE": 20, "LATE": 16}
    with raw_of(clean_hub_leaf) as raw:
        publish(raw, 20)
        for name, count in copied.items():
            raw.wait_for(name, count, "leaf")
        save(space, "leaf/**")
        for name in copied:
            raw.api_ok(f"{LEAF}.STREAM.DELETE.{name}")
        publish(raw, 5)

        plan, result = restore_backup(space)

        assert result.exit_code == 0
        assert (hazards_of(plan), plan.diagnostics, plan.resource_drift) == ([], [], [])
        for name, count in copied.items():
            raw.wait_for(name, count + 5, "leaf")
    assert left_to_do(space.plan()) == []


def test_what_reads_a_restored_origin(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """Copies that a source of 2.15 makes again are found along every path, also while offline."""
    sandbox = make_hub_leaf()
    space = hub_leaf_space(tmp_path, sandbox)
    streams = [
        ORIGIN,
        {"name": "COPY", "domain": "leaf", "sources": [SOURCE], "max_msgs": 8},
        {"name": "DEEP", "domain": "leaf", "sources": [{"name": "COPY"}]},
    ]
    space.write(streams=streams).apply()
    with raw_of(sandbox) as raw:
        publish(raw, 5)
        for name in ("COPY", "DEEP"):
            raw.wait_for(name, 5, "leaf")
        save(space, "hub/**")
        raw.api_ok(f"{HUB}.STREAM.DELETE.ORIGIN")

    def found() -> list[str]:
        with pytest.raises(RefusedError) as caught:
            restore_backup(space)
        return [line for line in str(caught.value).splitlines() if "hub/stream/ORIGIN: " in line]

    twice, pushed_out = found()
    assert "leaf/stream/COPY stores up to 5 messages twice: what hub/stream/ORIGIN" in twice
    assert "leaf/stream/DEEP stores up to 5 messages twice: what hub/stream/ORIGIN" in twice
    assert "up to 2 messages of leaf/stream/COPY leave it for what" in pushed_out
    sandbox["leaf"].stop()
    twice, pushed_out = found()
    assert "leaf/stream/COPY stores up to 5 messages twice: what hub/stream/ORIGIN" in twice


def test_a_mirror_that_has_more_than_the_backup(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A warning says which messages of the restored origin its mirror will not get.

    The mirror waits until the origin has passed it (measured).
    """
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    mirror = {"name": "MIRROR", "domain": "leaf", "mirror": SOURCE}
    space.write(streams=[ORIGIN, mirror]).apply()
    with raw_of(clean_hub_leaf) as raw:
        publish(raw, 5)
        raw.wait_for("MIRROR", 5, "leaf")
        save(space, "hub/**")
        publish(raw, 5)
        raw.wait_for("MIRROR", 10, "leaf")
        raw.api_ok(f"{HUB}.STREAM.DELETE.ORIGIN")
    plan, result = restore_backup(space)
    assert (result.exit_code, hazards_of(plan)) == (0, [])
    (found,) = plan.diagnostics
    assert (found.severity, found.code, found.address) == ("warning", "JS483", "hub/stream/ORIGIN")
    assert "will not get what is stored from 6 to 10" in found.summary


@pytest.mark.matrix
def test_a_source_that_has_more_than_the_backup(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A source that continues leaves out what its restored origin stores at known sequences.

    nats-server 2.15 copies all of it again instead.
    """
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=[ORIGIN, {"name": "COPY", "domain": "leaf", "sources": [SOURCE]}]).apply()
    with raw_of(clean_hub_leaf) as raw:
        copies_again = raw.api_level() >= ORIGIN_IDENTITY_LEVEL
        publish(raw, 5)
        raw.wait_for("COPY", 5, "leaf")
        save(space, "hub/**")
        publish(raw, 5)
        raw.wait_for("COPY", 10, "leaf")
        raw.api_ok(f"{HUB}.STREAM.DELETE.ORIGIN")
        plan, result = restore_backup(space, allow_hazards=("DUPLICATES_MESSAGES",))
        publish(raw, 8)
        raw.wait_for("COPY", 23 if copies_again else 13, "leaf")
    assert result.exit_code == 0
    found = [(one.severity, one.code) for one in plan.diagnostics]
    assert found == ([] if copies_again else [("warning", "JS483")])
    if not copies_again:
        assert "sources it up to sequence 10" in plan.diagnostics[0].summary
        assert "will not get what is stored from 6 to 10" in plan.diagnostics[0].summary


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("limits", "own", "finished", "again", "again_before"),
    [
        ({"retention": "workqueue"}, 0, range(1, 9), 8, 0),
        ({"max_msgs": 3, "subjects": ["own"]}, 4, [], 8, 0),
        ({"retention": "workqueue"}, 0, [1, 2, 3], 0, 0),
        ({"retention": "workqueue"}, 0, [7, 8], 2, 2),
        ({"retention": "workqueue", "subjects": ["own"]}, 1, [1, 8], 2, 1),
    ],
    ids=["all finished", "pushed out", "the first finished", "the last finished", "two writers"],
)
def test_a_source_whose_newest_message_is_not_saved(
    tmp_path: Path,
    clean_hub_leaf: Sandbox,
    limits: dict[str, Any],
    own: int,
    finished: Sequence[int],
    again: int,
    again_before: int,
) -> None:
    """A restored stream copies again what was finished behind the newest one of its source.

    Without one nats-server 2.15 copies all of it (`again`), older servers nothing.
    """
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    reader = {"name": "READER", "domain": "leaf", "sources": [SOURCE]} | limits
    space.write(streams=[ORIGIN, reader]).apply()
    with raw_of(clean_hub_leaf) as raw:
        if raw.api_level() < ORIGIN_IDENTITY_LEVEL:
            again = again_before

        def wait_for_end(seq: int) -> None:
            def has_it() -> bool:
                return bool(raw.api_ok(f"{LEAF}.STREAM.INFO.READER")["state"]["last_seq"] >= seq)

            clean_hub_leaf["hub"].wait_until(has_it, "copy")

        publish(raw, 8)
        wait_for_end(8)
        for _ in range(own):
            raw.request("own", b"")
        for seq in finished:
            raw.api_ok(f"{LEAF}.STREAM.MSG.DELETE.READER", {"seq": seq})
        save(space, "leaf/**")
        raw.api_ok(f"{LEAF}.STREAM.DELETE.READER")
        allowed = ("DUPLICATES_MESSAGES", "DELETES_MESSAGES")
        plan, result = restore_backup(space, allow_hazards=allowed)
        assert result.exit_code == 0
        copied = min(again, 1) if own == 1 else again  # of two writers, either may be the last
        wait_for_end(8 + own + copied)
        publish(raw, 1)
        wait_for_end(9 + own + copied)
        assert raw.api_ok(f"{LEAF}.STREAM.INFO.READER")["state"]["last_seq"] == 9 + own + copied
    twice = [("DUPLICATES_MESSAGES", again)] if again else []
    if again and "max_msgs" in limits:
        twice.append(("DELETES_MESSAGES", 3))
    assert [(h.code, h.messages) for c in plan.resource_changes for h in c.hazards] == twice
    assert (left_to_do(space.plan()), space.plan().diagnostics) == ([], [])


def test_a_bucket_that_copies_another_one_continues(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A restored bucket with a history has what it copied last, and the plan has no hazard."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    copy = {"bucket": "COPY", "domain": "leaf", "sources": [{"name": "ALL", "domain": "hub"}]}
    buckets = [{"bucket": "ALL", "domain": "hub"}, copy | {"history": 2}]
    space.write(kv=buckets).apply()
    with raw_of(clean_hub_leaf) as raw:
        for number in range(6):
            raw.request(f"$KV.ALL.k{number % 3}", b"%d" % number)
        clean_hub_leaf["hub"].wait_until(
            lambda: raw.api_ok(f"{LEAF}.STREAM.INFO.KV_COPY")["state"]["messages"] >= 3, "copy"
        )
        save(space, "leaf/**")
        raw.api_ok(f"{LEAF}.STREAM.DELETE.KV_COPY")
        plan, result = restore_backup(space)
    assert (result.exit_code, hazards_of(plan)) == (0, [])


def test_what_a_restored_stream_copies_since_its_backup(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A restored stream copies again what its backup lacks: that counts for those that read it."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    middle = {"name": "MIDDLE", "domain": "hub", "sources": [SOURCE]}
    last = {"name": "LAST", "domain": "leaf", "sources": [SOURCE, SOURCE | {"name": "MIDDLE"}]}
    space.write(streams=[ORIGIN, middle, last]).apply()
    with raw_of(clean_hub_leaf) as raw:
        save(space, "hub/stream/MIDDLE")
        publish(raw, 4)
        raw.wait_for("LAST", 8, "leaf")
        raw.api_ok(f"{HUB}.STREAM.DELETE.MIDDLE")
        with pytest.raises(RefusedError, match="leaf/stream/LAST stores up to 4 messages twice"):
            restore_backup(space)
        restore_backup(space, allow_hazards=("DUPLICATES_MESSAGES",))
        raw.wait_for("LAST", 12, "leaf")


def test_a_reader_that_is_created_before_the_answer(tmp_path: Path, server: Server) -> None:
    """A stream that reads a restored one only since its plan was shown makes that stale."""
    space = single_space(tmp_path, server).write()
    with Raw(server.url) as raw:
        raw.api_ok(f"{PLAIN}.STREAM.CREATE.ORIGIN", {"name": "ORIGIN"})
        save(space, "main/**")
        raw.api_ok(f"{PLAIN}.STREAM.DELETE.ORIGIN")

        def create_reader(plan: Plan) -> None:
            assert plan.steps
            reader = {"name": "READER", "sources": [{"name": "ORIGIN"}]}
            raw.api_ok(f"{PLAIN}.STREAM.CREATE.READER", reader)

        chosen = RestoreOptions(space.folder / "bk")
        with pytest.raises(StalePlanError, match="is read by main/stream/READER now"):
            restore(space.load, chosen, create_reader, RecordingObserver())


def test_a_copy_of_a_queue_reader_is_a_hazard(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A restored source of a work queue continues; a copy of it beside takes messages of both."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    reader = {"name": "READER", "domain": "leaf", "sources": [SOURCE]}
    space.write(streams=[ORIGIN | {"retention": "workqueue"}, reader]).apply()
    with raw_of(clean_hub_leaf) as raw:
        publish(raw, 5)
        raw.wait_for("READER", 5, "leaf")
        save(space, "leaf/**")
        raw.api_ok(f"{LEAF}.STREAM.DELETE.READER")
        publish(raw, 2)
        plan, result = restore_backup(space)
        assert (result.exit_code, hazards_of(plan)) == (0, [])
        raw.wait_for("READER", 7, "leaf")
        publish(raw, 1)
        with pytest.raises(RefusedError, match=r"leaf/stream/BESIDE: copying removes messages"):
            restore_backup(space, rename="leaf/stream/BESIDE")


def test_a_mirror_of_its_own_domain_is_a_warning(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A mirror that is restored into the domain of its origin copies nothing, and says so."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    mirror = {"name": "MIRROR", "domain": "leaf", "mirror": SOURCE}
    space.write(streams=[ORIGIN, mirror]).apply()
    with raw_of(clean_hub_leaf) as raw:
        publish(raw, 3)
        raw.wait_for("MIRROR", 3, "leaf")
    save(space, "**")
    plan, result = restore_backup(space, targets=("leaf/**",), rename="hub/**")
    assert result.exit_code == 0
    assert [(d.severity, d.code, d.address) for d in plan.diagnostics] == [
        ("warning", "JS409", "hub/stream/MIRROR")
    ]


def test_two_streams_for_one_address_are_refused(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Two saved streams that `--as` gives the same address are wrong usage."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=[{"name": "S", "domain": d} for d in ("hub", "leaf")]).apply()
    save(space, "**")
    with pytest.raises(UsageError, match="hub/stream/S and leaf/stream/S would both be leaf"):
        restore_backup(space, rename="leaf/**")


def test_a_domain_that_lost_everything(tmp_path: Path, server: Server) -> None:
    """Streams that state knows and that are gone are restored: state is no side of it.

    A consumer that no file has comes back with its stream, and is not managed.
    """
    space = single_space(tmp_path, server)
    consumers = [{"name": "C", "ack_policy": "explicit"}]
    guard = {"prevent_destroy": True}
    streams = [{"name": "A", "consumers": consumers}, {"name": "B", "lifecycle": guard}]
    space.write(streams=streams).apply()
    with Raw(server.url) as raw:
        body = {"stream_name": "B", "config": {"durable_name": "THEIRS"}}
        raw.api_ok(f"{PLAIN}.CONSUMER.CREATE.B.THEIRS", body)
        save(space, "main/**")
        for name in "AB":
            raw.api_ok(f"{PLAIN}.STREAM.DELETE.{name}")
        raw.api_ok(f"{PLAIN}.STREAM.CREATE.NEW", {"name": "NEW"})
    assert [d.code for d in space.plan().diagnostics if d.severity == "error"] == ["JS305"]

    plan, result = restore_backup(space)

    assert (result.exit_code, plan.diagnostics, plan.resource_drift) == (0, [], [])
    records = {step.address: step.record for step in plan.steps}
    assert records["main/consumer/B/THEIRS"] is None
    assert records["main/stream/B"] == {
        "declared": {"name": "B"},
        "origin": "created",
        "depends_on": [],
        "prevent_destroy": True,
    }
    assert [change.change.actions for change in space.plan().resource_changes] == [["no-op"]] * 3


@pytest.mark.parametrize("lost_by", ["destroy", "another client"])
def test_a_position_is_not_set_again(lost_by: str, tmp_path: Path, server: Server) -> None:
    """A restored consumer stays where it stood, although the files have set it before."""
    space = single_space(tmp_path, server)
    consumer: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}
    stream = {"name": "S", "subjects": ["origin"]}
    space.write(streams=[stream | {"consumers": [consumer]}]).apply()
    with Raw(server.url) as raw:
        publish(raw, 10)
        positioned = consumer | {"position": {"seq": 5, "once": "word"}}
        space.write(streams=[stream | {"consumers": [positioned]}])
        space.apply(allow_hazards=("LOSES_CONSUMER_POSITION",))
        save(space, "main/**")
        if lost_by == "destroy":
            space.apply(destroy=True, allow_hazards=("DELETES_STREAM", "DELETES_CONSUMER"))
        else:
            raw.api_ok(f"{PLAIN}.STREAM.DELETE.S")
        assert restore_backup(space)[1].exit_code == 0
        assert raw.api_ok(f"{PLAIN}.CONSUMER.INFO.S.C")["num_pending"] == 6
    assert left_to_do(space.plan()) == []


def test_what_the_server_would_refuse(tmp_path: Path, server: Server) -> None:
    """More consumers than the stream may have are refused; a sealed stream is restored."""
    space = single_space(tmp_path, server).write()
    with Raw(server.url) as raw:
        for name, last in (("FULL", {"max_consumers": 1}), ("SEALED", {"sealed": True})):
            raw.api_ok(f"{PLAIN}.STREAM.CREATE.{name}", {"name": name, "max_consumers": 2})
            for consumer in "ab":
                body = {"stream_name": name, "config": {"durable_name": consumer}}
                raw.api_ok(f"{PLAIN}.CONSUMER.CREATE.{name}.{consumer}", body)
            updated = {"name": name, "subjects": [name], "max_consumers": 2} | last
            raw.api_ok(f"{PLAIN}.STREAM.UPDATE.{name}", updated)
        save(space, "main/**")
        for name in ("FULL", "SEALED"):
            raw.api_ok(f"{PLAIN}.STREAM.DELETE.{name}")
    with pytest.raises(PlanError) as caught:
        restore_backup(space)
    assert [(d.code, d.address) for d in caught.value.diagnostics] == [
        ("JS439", "main/consumer/FULL/b")
    ]
    assert restore_backup(space, excludes=("main/stream/FULL",))[1].exit_code == 0


def test_an_offline_domain_is_an_error(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """Nothing of a restore is deferred: a domain that does not answer stops all of it."""
    sandbox = make_hub_leaf()
    space = hub_leaf_space(tmp_path, sandbox)
    space.write(streams=[ORIGIN, {"name": "S", "domain": "leaf"}]).apply()
    save(space, "**")
    sandbox["leaf"].stop()
    with pytest.raises(PlanError) as caught:
        restore_backup(space)
    (found,) = caught.value.diagnostics
    assert (found.code, found.address) == ("JS470", "leaf/**")
    assert found.summary.startswith("domain leaf is offline: ")


def test_a_restore_that_was_not_recorded(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that an interrupted restore made is left alone by the next, which notes it."""
    space = single_space(tmp_path, server)
    space.write(streams=[{"name": "S", "consumers": [{"name": "C", "ack_policy": "explicit"}]}])
    space.apply()
    save(space, "main/**")
    with Raw(server.url) as raw:
        raw.api_ok(f"{PLAIN}.STREAM.DELETE.S")

    async def end(*_: object) -> None:
        raise StepFailed("interrupted", "unknown")

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_wait_for_leader", end)
        assert restore_backup(space)[1].exit_code == 6
    plan, result = restore_backup(space)
    assert ([step.op for step in plan.steps], result.exit_code) == (["state.import"] * 2, 0)
    assert plan.options["restore"][0]["exists"]
    assert not space.plan().steps
    assert left_to_do(space.plan()) == []


@pytest.mark.matrix
@pytest.mark.parametrize("left", ["nothing", "a part", "a part with a new message"])
def test_a_restore_that_was_killed_in_the_middle(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """A part that a killed restore left is named and not adopted; the next one begins again.

    nats-server 2.15 activates a part after five seconds. With a new message it is not deleted.
    A restore that is killed before its first block of 1 MiB has arrived leaves nothing.
    """
    space = single_space(tmp_path, server)
    space.write(streams=[{"name": "S", "subjects": ["origin"]}]).apply()
    noise, is_written = random.Random(1), left == "a part with a new message"
    with Raw(server.url, timeout=30) as raw:
        for _ in range(40):
            raw.request("origin", noise.randbytes(100_000))
        save(space, "main/**")
        raw.api_ok(f"{PLAIN}.STREAM.DELETE.S")
        is_left = left != "nothing" and raw.api_level() >= RESTORE_ANY_NAME_LEVEL

        def wait() -> None:
            if is_left:
                server.wait_until(lambda: _takes_messages(raw, is_written=False), "restore a part")

        with monkeypatch.context() as patch:
            _die_in_the_middle(patch, 0 if left == "nothing" else 2_000_000, wait)
            with pytest.raises(SimulatedKill):
                restore_backup(space)
        if is_left:
            server.wait_until(
                lambda: _takes_messages(raw, is_written=is_written), "end the restore"
            )
            errors = [d for d in space.plan().diagnostics if d.severity == "error"]
            assert [(d.code, d.summary[:30]) for d in errors] == [
                ("JS302", "its restore was interrupted: i")
            ]
            (item,) = status(space.load, RecordingObserver()).interrupted
            assert (item["address"], "of 40 messages" in item["summary"]) == ("main/stream/S", True)
        if is_left and is_written:
            with pytest.raises(RefusedError, match="its restore was interrupted, and it has"):
                restore_backup(space)
            assert space.apply(adopt=True)[1].exit_code == 0
        else:
            assert restore_backup(space)[1].exit_code == 0
            assert raw.api_ok(f"{PLAIN}.STREAM.INFO.S")["state"]["messages"] == 40
    assert left_to_do(space.plan()) == []
    assert status(space.load, RecordingObserver()).interrupted == []


@pytest.mark.matrix
def test_a_restore_that_was_killed_before_its_retention(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that gets its retention by an update is restored again if that did not come."""
    early = {"name": "C", "deliver_policy": "by_start_sequence", "opt_start_seq": 9}
    body = {"name": "S", "subjects": ["origin"], "retention": "interest", "consumers": [early]}
    space = single_space(tmp_path, server)
    space.write(streams=[body]).apply()

    async def die(*_: object) -> None:
        raise SimulatedKill

    with Raw(server.url, timeout=30) as raw:
        raw.request("origin", b"x")
        save(space, "main/**")
        raw.api_ok(f"{PLAIN}.STREAM.DELETE.S")
        with monkeypatch.context() as patch:
            patch.setattr(restoring, "_wait_for_leader", die)
            with pytest.raises(SimulatedKill):
                restore_backup(space)
        assert restore_backup(space)[1].exit_code == 0
        found = raw.api_ok(f"{PLAIN}.STREAM.INFO.S")
        assert (found["config"]["retention"], found["state"]["messages"]) == ("interest", 1)
    space.apply()
    assert left_to_do(space.plan()) == []


def _die_in_the_middle(patch: pytest.MonkeyPatch, size: int, wait: Callable[[], None]) -> None:
    """Let a restore end without clean-up when it has sent this many bytes, and `wait` returns."""

    async def send_a_part(*where: Any) -> AsyncGenerator[bytes, None]:
        sent = 0
        async for chunk in read_snapshot(*where):
            if sent >= size:
                await asyncio.to_thread(wait)
                raise SimulatedKill
            yield chunk
            sent += len(chunk)

    async def leave_it(*_: object) -> None: ...

    patch.setattr(restoring, "read_snapshot", send_a_part)
    patch.setattr(snapshots, "_clean_up_failed", leave_it)


def _takes_messages(raw: Raw, *, is_written: bool) -> bool:
    """Check whether what is left of a restore is active; it gets a message if `is_written`."""
    try:
        has = raw.api_ok(f"{PLAIN}.STREAM.INFO.S")["state"]["messages"] > 0
        return has and (not is_written or b'"seq"' in raw.request("origin", b"new")[1])
    except (AssertionError, NoResponders):
        return False
