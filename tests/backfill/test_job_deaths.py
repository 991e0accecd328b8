from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.tasks.target_scan import scan_promotions
from jsplan.errors import JsplanError, LeaseLostError
from jsplan.sandbox import Sandbox
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import (
    Pair,
    create_bulk_stream,
    duplicated_origins,
    interrupt_run,
    numbered_rows,
    read_all,
    without_spark,
)
from tests.conftest import PROGRAM
from tests.support.raw import Raw, streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.timeout(180)


@pytest.mark.matrix
def test_dying_before_any_write(pair: Pair) -> None:
    """A run that dies before any write is completed by the next, once and in order."""
    pair.stream("leaf", "S", numbered_rows(20))
    # Begun, the record, staged, sealed, attached, removed, detached, the record.
    for after in range(8):
        pair.stream("hub", "T", [(b"t.a", b"", b"own")])
        with kill_after(after) as kill, pytest.raises(SimulatedKill):
            pair.run()
        assert kill.done == after
        pair.publish("hub", [(b"t.a", b"", b"other")])

        pair.run()

        assert pair.state_record["done_at"]
        pair.require_copied(others=2)
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")


@pytest.mark.matrix
def test_dying_while_resuming(pair: Pair) -> None:
    """A run that resumes a promotion may die repeatedly, and the next one completes it."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    for after in (4, 1, 2, 1, 2):  # sealed; begun; attached; begun; removed, but not detached
        with kill_after(after), pytest.raises(SimulatedKill):
            pair.run()

    pair.run()

    pair.require_copied()


def test_an_interrupted_copy_is_resumed(pair: Pair) -> None:
    """Staged messages are promoted first, and only the rest is read again."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    interrupt_run(pair, 12)
    assert pair.state("hub", "T")["messages"] == 0

    found = pair.run()

    assert (found.copied, found.verified, pair.state_record["origins"][0]["copied"]) == (
        20,
        True,
        20,
    )
    pair.require_copied()


def test_staged_messages_survive_expiry_at_the_origin(pair: Pair) -> None:
    """Messages that expire at the origin after they were staged are not lost."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    interrupt_run(pair, 12)
    origin = pair.stored("leaf", "S")
    pair.ask("leaf", "STREAM.PURGE.S", {"seq": 16})

    found = pair.run()

    assert (found.copied, found.gaps) == (17, [[13, 15]])
    assert [one.without_added_headers for one in pair.stored("hub", "T")] == [
        one.without_added_headers for one in origin if one.seq not in {13, 14, 15}
    ]


def test_staging_of_a_changed_entry_is_dropped(pair: Pair) -> None:
    """Messages that were staged for another range do not reach the target."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    interrupt_run(pair, 12)
    pair.write_entry(origin={"start_seq": 10})

    assert pair.run().copied == 11
    pair.require_copied(seqs=range(10, 21))


def test_staging_of_a_recreated_origin_is_dropped(pair: Pair) -> None:
    """Messages that were staged from the previous origin of that name do not reach the target."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    interrupt_run(pair, 12)
    pair.ask("leaf", "STREAM.DELETE.S")
    pair.stream("leaf", "S", numbered_rows(5, first=101))

    assert pair.run(reset_range=True).copied == 5
    pair.require_copied()


@pytest.mark.matrix
def test_promoted_messages_that_were_deleted(pair: Pair) -> None:
    """Messages that the target deletes during an interrupted promotion are copied again."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    # Begun, the record, staged, sealed, attached.
    with kill_after(5), pytest.raises(SimulatedKill):
        pair.run()
    pair.sandbox["hub"].wait_until(
        lambda: pair.state("hub", "T")["last_seq"] == 20, "all messages arrived"
    )
    pair.delete("hub", "T", 3, 20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "jsplan.backfill.staging.scan_promotions", partial(scan_promotions, patience=1.0)
        )
        found = pair.run()

    assert sorted(int(one.data) for one in pair.stored("hub", "T")) == list(range(1, 21))
    assert not duplicated_origins(pair.stored("hub", "T"))
    assert found.copied >= 2
    pair.require_nothing_left()


def test_a_source_without_its_staging_stream(pair: Pair) -> None:
    """A source whose staging stream was removed by an interrupted run is detached."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T", sources=[{"name": "JSPLAN_STAGING_BACKFILL_0123"}])

    pair.run()

    pair.require_copied()


def test_an_unknown_staging_stream_stays(pair: Pair) -> None:
    """A staging stream of another workspace is unchanged, since it may be in use."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream(
        "hub",
        "JSPLAN_STAGING_BACKFILL_FF",
        metadata={"jsplan.backfill": "other/x", "jsplan.backfill.origin": "leaf/stream/S"},
    )
    pair.stream("hub", "T", sources=[{"name": "JSPLAN_STAGING_BACKFILL_FF"}])

    pair.run()

    assert [s["name"] for s in pair.ask("hub", "STREAM.INFO.T")["config"]["sources"]] == [
        "JSPLAN_STAGING_BACKFILL_FF"
    ]
    assert len(pair.stored("hub", "T")) == 3


def test_without_the_lock_nothing_is_written(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that has lost the lock writes nothing."""
    pair.stream("leaf", "S", numbered_rows(3))
    pair.stream("hub", "T")

    def lose_lock(self: object, seconds: float) -> float:
        raise LeaseLostError("the lock ran out")

    monkeypatch.setattr("jsplan.state.local.LocalBackend.may_write", lose_lock)
    with pytest.raises(LeaseLostError):
        pair.run()
    pair.require_nothing_left()


# --- servers ---------------------------------------------------------------------------------------------------------


def strike_while_copying(pair: Pair, share: float, total: int, strike: Callable[[], None]) -> Any:
    """Run, and call `strike` once when that share of `total` is staged; return the result."""
    with ThreadPoolExecutor(2) as threads:
        done = threading.Event()
        striking = threads.submit(_strike_at, pair, int(share * total), strike, done)
        try:
            found = pair.run()
        finally:
            done.set()
        assert striking.result(), "the copy was over before it was struck"
        return found


def _strike_at(pair: Pair, count: int, strike: Callable[[], None], done: threading.Event) -> bool:
    with pair.raw("hub") as raw:
        while not done.wait(0.005):
            infos = raw.api_ok("$JS.hub.API.STREAM.LIST")["streams"] or []
            staged = [
                i["state"]["messages"] for i in infos if i["config"]["name"].startswith("JSPLAN_")
            ]
            if staged and count <= staged[0]:
                break
        else:
            return False
    strike()
    return True


def kill_and_restart(server: Server) -> None:
    """Kill a server and start it again."""
    server.kill()
    server.start()


@pytest.mark.matrix
@pytest.mark.parametrize(("who", "share"), [("hub", 0.35), ("leaf", 0.6)])
def test_a_server_that_is_killed(pair: Pair, who: str, share: float) -> None:
    """A copy completes although the hub or the leaf is killed and restarted."""
    count, server = 20_000, pair.sandbox[who]
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T", [(b"t.a", b"", b"own")])
    pair.write_entry(rate="4MB/s")

    found = strike_while_copying(pair, share, count, partial(kill_and_restart, server))

    copies = [
        row
        for row in read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
        if b"Jsplan-Origin" in row[2]
    ]
    assert [int(data.split()[0]) for _, _, _, data in copies] == list(range(1, count + 1))
    assert found.verified
    pair.require_nothing_left(readers=1)


def test_an_origin_that_loses_messages_meanwhile(pair: Pair) -> None:
    """Messages that the origin deletes before they are read are gaps."""
    count = 30_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count, size=1000)
    pair.stream("hub", "T")
    pair.write_entry(rate="16MB/s")

    found = strike_while_copying(
        pair, 0.1, count, lambda: pair.delete("leaf", "S", count - 5, count - 2, count - 1)
    )

    assert found.gaps == [[count - 5, count - 5], [count - 2, count - 1]]
    assert found.copied == count - 3


def test_a_target_that_is_written_meanwhile(pair: Pair) -> None:
    """Messages that are published to the target during a copy are kept, in order."""
    count, stop = 20_000, threading.Event()
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")

    def publish() -> int:
        number = 0
        with pair.raw("hub") as raw:
            while not stop.is_set():
                number += 1
                raw.request("t.live", b"%d" % number)
        return number

    with ThreadPoolExecutor(1) as threads:
        live = threads.submit(publish)
        try:
            pair.run()
        finally:
            stop.set()

    rows = read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    assert [int(data) for _, subject, _, data in rows if subject == b"t.live"] == list(
        range(1, live.result() + 1)
    )
    assert [int(data.split()[0]) for _, subject, _, data in rows if subject != b"t.live"] == list(
        range(1, count + 1)
    )
    pair.require_nothing_left()


def test_a_target_that_refuses_messages(pair: Pair) -> None:
    """A limit that is set during a copy stops it with an error, and a later run completes it."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "jsplan.backfill.staging.scan_promotions", partial(scan_promotions, patience=1.0)
        )
        patch.setattr("jsplan.backfill.run_context.find_capacity_problem", lambda *_: None)
        pair.update("hub", "T", max_msgs=8, discard="new")
        with pytest.raises(
            JsplanError,
            match=r"hub/stream/T took only 8 of 20 messages of staging stream JSPLAN_STAGING_BACKFILL_\w+",
        ):
            pair.run()
    pair.update("hub", "T", max_msgs=-1)

    pair.run()

    pair.require_copied()


@pytest.mark.soak
def test_replicas_in_a_cluster(tmp_path: Path) -> None:
    """Streams with three replicas are copied once and in order, and nothing is left."""
    count = 20_000
    with Sandbox.cluster(binary=PROGRAM) as sandbox:
        server = next(iter(sandbox.servers.values()))
        connection = {"url": server.url} | (
            {"user": server.user, "password": server.password} if server.user else {}
        )
        base = {
            "jsplan": 1,
            "workspace": "test",
            "connections": {"c": connection},
            "domains": {"c": {"connection": "c", "js_domain": None}},
        }
        sides = {"from": {"domain": "c", "stream": "S"}, "to": {"domain": "c", "stream": "T"}}
        space = Space(tmp_path, base).write(backfills=[{"name": "x"} | sides])
        create_bulk_stream(server, "S", count, num_replicas=3)
        create_bulk_stream(server, "T", 0, num_replicas=3)

        with without_spark():
            found = backfill.run(
                space.load, BackfillOptions(name="x"), RecordingObserver()
            ).origins[0]

        assert (found.copied, found.gaps, found.verified) == (count, [], True)
        assert [int(data.split()[0]) for *_, data in read_all(server, "$JS.API", "T")] == list(
            range(1, count + 1)
        )
        with Raw(server.url, server.user, server.password) as raw:
            assert sorted(streams(raw)) == ["S", "T"]
