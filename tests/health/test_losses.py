"""Lost messages, missed messages and pauses, as drift, status and plan name them."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.errors import JsplanError
from jsplan.facts.live import LiveObject
from jsplan.health.losses import NOTHING_KNOWN, LastApplied, find_losses
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.applying.consumer_helpers import pull
from tests.support.older_store import keep_store, put_store_back
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeHubLeaf, MakeServer

pytestmark = pytest.mark.matrix


def attention(space: Space) -> list[tuple[str, str, str]]:
    """Return address, key and level of what drift names; status must say the same."""
    found = drift(space.load, DriftOptions(replication=False), RecordingObserver())
    critical = any(breach["level"] == "critical" for breach in found.thresholds)
    assert found.exit_code == (2 if critical else 0)
    seen = status(space.load, RecordingObserver())
    shown = [
        {"address": item["address"]} | breach
        for item in (*seen.streams, *seen.consumers)
        for breach in item["thresholds"]
    ]
    assert sorted(shown, key=str) == sorted(found.thresholds, key=str)
    assert seen.exit_code == found.exit_code
    return [(b["address"], b["key"], b["level"]) for b in found.thresholds]


def causes(space: Space) -> list[str]:
    """Return what drift says."""
    found = drift(space.load, DriftOptions(replication=False), RecordingObserver())
    return [str(breach["cause"]) for breach in found.thresholds]


def test_messages_that_a_server_lost(make_server: MakeServer, tmp_path: Path) -> None:
    """Unreadable messages, and a last sequence that fell, are critical, with numbers.

    The plan warns; after an apply the sequence of today is what counts.
    """
    server = make_server()
    space = single_space(tmp_path, server)
    stream: dict[str, Any] = {"name": "K", "subjects": ["k.>"]}
    space.write(streams=[stream]).apply()
    with Raw(server.url) as raw:
        for number in range(200):
            raw.request("k.a", b"payload-%03d" % number)
    space.write(streams=[stream | {"description": "applied with 200 messages"}]).apply()
    assert attention(space) == []
    # Kill the server, flip a bit in the 101st of the messages of K, and start it again.
    server.kill()
    for block in server.store_path.rglob("streams/K/msgs/*.blk"):
        content = bytearray(block.read_bytes())
        content[content.index(b"payload-100")] ^= 1
        block.write_bytes(content)
    server.start()

    address = "main/stream/K"
    assert attention(space) == [
        (address, "jsplan.lost-messages", "critical"),
        (address, "jsplan.lost-sequences", "critical"),
    ]
    unread, fell = causes(space)
    assert "could not read when it started (4.3 KiB)" in unread
    assert (
        "lost 100 messages: it ended at sequence 200 when it was last applied, and ends at 100"
        in fell
    )
    space.write(streams=[stream | {"description": "changed"}])
    plan, _ = space.apply()
    assert [(d.code, d.summary) for d in plan.diagnostics] == [("JS476", fell)]
    assert attention(space) == [(address, "jsplan.lost-messages", "critical")]


def test_messages_that_are_lost_between_two_checks(make_server: MakeServer, tmp_path: Path) -> None:
    """A store that goes back is named at each check, with its range, until an apply accepts it.

    What age, purges and deletions by clients remove is no loss.
    """
    server = make_server()
    space = single_space(tmp_path, server)
    streams: list[dict[str, Any]] = [
        {"name": "K", "subjects": ["k.>"]},
        {"name": "N", "subjects": ["n.>"], "deny_purge": True, "deny_delete": True},
        {"name": "P", "subjects": ["p.>"], "max_msgs": 50},
    ]
    space.write(streams=streams, drift={"watermarks": "marks.json"}).apply()

    def publish(count: int, subjects: str = "knp") -> None:
        with Raw(server.url) as raw:
            for number in range(count):
                for subject in subjects:
                    raw.request(f"{subject}.a", b"%d" % number)

    publish(100)
    assert attention(space) == []
    keep_store(server)
    publish(30)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.PURGE.K", {"seq": 20})
        raw.api_ok("$JS.API.STREAM.MSG.DELETE.K", {"seq": 60})
    assert attention(space) == []
    put_store_back(server)
    publish(10, "k")  # at sequences that were lost

    for _ in range(2):
        assert attention(space) == [
            (f"main/stream/{name}", "jsplan.lost-sequences", "critical") for name in "KNP"
        ]
    found = causes(space)
    assert "lost 20 messages: it ended at sequence 130 at 20" in found[0]
    assert "and ends at 110 now. New messages get the sequences 111 to 130 again" in found[0]
    publish(30, "knp")
    assert len(attention(space)) == 3
    assert "message 130 is another one than at 20" in causes(space)[0]
    space.write(streams=streams, drift={"watermarks": "marks.json"}).apply()
    streams[0]["description"] = "accepts what is there"
    space.write(streams=streams, drift={"watermarks": "marks.json"}).apply()
    assert attention(space) == []
    keep_store(server)
    server.kill()
    for block in server.store_path.rglob("streams/N/msgs/*.blk"):
        block.write_bytes(b"")
    server.start()
    assert ("main/stream/N", "jsplan.lost-sequences", "critical") in attention(space)
    streams[0]["description"] = "accepts it again"
    space.write(streams=streams, drift={"watermarks": "marks.json"}).apply()
    assert attention(space) == []


def test_what_clients_delete_is_no_loss(server: Server, tmp_path: Path) -> None:
    """Deletions are no loss where a stream allows them, nor is what a mirror leaves out."""
    space = single_space(tmp_path, server)
    mirror = {"name": "O", "filter_subject": "o.a"}
    streams: list[dict[str, Any]] = [
        {"name": "K", "subjects": ["k.>"], "deny_purge": True},
        {"name": "O", "subjects": ["o.>"]},
        {"name": "M", "mirror": mirror, "deny_purge": True, "deny_delete": True},
    ]
    space.write(streams=streams, drift={"watermarks": "marks.json"}).apply()

    with Raw(server.url) as raw:

        def publish(total: int) -> None:
            for _ in range(3):
                for subject in ("k.a", "o.b", "o.a"):
                    raw.request(subject, b"x")
            raw.wait_for("M", total)

        publish(3)
        assert attention(space) == []
        raw.api_ok("$JS.API.STREAM.MSG.DELETE.K", {"seq": 1})
        publish(6)
    assert attention(space) == []


def test_messages_that_are_gone_from_a_stream_that_keeps_them(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Messages that no client may delete stay a finding until an apply accepts the stream."""
    server = make_server()
    space = single_space(tmp_path, server)
    keeps = {"deny_purge": True, "deny_delete": True}
    stream: dict[str, Any] = {"name": "K", "subjects": ["k.>"]} | keeps
    space.write(streams=[stream], drift={"watermarks": "marks.json"}).apply()
    with Raw(server.url) as raw:
        for _ in range(200):
            raw.request("k.a", b"payload")
    assert attention(space) == []
    server.kill()
    for index in server.store_path.rglob("streams/K/msgs/index.db"):
        index.unlink()
    for block in server.store_path.rglob("streams/K/msgs/*.blk"):
        content = block.read_bytes()
        block.write_bytes(content[len(content) // 4 :])  # the first 50 are gone
    server.start()

    for _ in range(2):
        assert attention(space) == [("main/stream/K", "jsplan.lost-interior", "critical")]
        assert "its server lost 50 messages since 20" in causes(space)[0]
    stream["description"] = "accepts it"
    space.write(streams=[stream], drift={"watermarks": "marks.json"}).apply()
    assert attention(space) == []


def test_a_file_of_watermarks_that_is_not_ours(tmp_path: Path, server: Server) -> None:
    """A damaged file, and that of another workspace, are refused with a way out."""
    space = single_space(tmp_path, server)
    space.write(streams=[{"name": "K"}], drift={"watermarks": "marks.json"}).apply()
    for content, words in {
        "{": "marks.json is no JSON",
        '{"format_version": "1.0", "kind": "watermarks", "workspace": "other"}': "of workspace other",
        '{"format_version": "1.0", "kind": "watermarks", "workspace": "test", "streams": {"x": 1}}': "is damaged",
    }.items():
        (tmp_path / "marks.json").write_text(content)
        with pytest.raises(JsplanError, match=words):
            drift(space.load, DriftOptions(), RecordingObserver())


LIMITED = {"name": "L", "subjects": ["l.>"], "max_msgs": 5}


def write_consumer(space: Space, stream: dict[str, Any], **consumer: Any) -> None:
    """Declare L with one consumer, and apply it."""
    body = {"name": "C", "ack_policy": "none"} | consumer
    space.write(streams=[stream | {"consumers": [body]}]).apply()


@pytest.mark.parametrize(
    ("stream", "consumer", "expected"),
    [
        ({}, {}, ("critical", "it missed at most 15 messages")),
        ({}, {"filter_subject": "l.>"}, ("critical", "it missed at most 15 messages")),
        ({}, {"filter_subject": "l.a"}, ("warning", "at most 15, of all subjects")),
        ({}, {"filter_subject": "l.other"}, None),
        ({}, {"deliver_policy": "last_per_subject", "filter_subject": "l.>"}, None),
        ({"max_msgs_per_subject": 1}, {}, None),
        ({"retention": "interest"}, {}, ("critical", "it missed at most 15 messages")),
        ({"retention": "interest"}, {"filter_subject": "l.a"}, None),
        ({"max_msgs": 500}, {}, None),
    ],
)
def test_messages_that_a_consumer_missed(
    stream: dict[str, Any],
    consumer: dict[str, Any],
    expected: tuple[str, str] | None,
    tmp_path: Path,
    server: Server,
) -> None:
    """A consumer whose next messages a limit deleted is named with their number at most."""
    space = single_space(tmp_path, server)
    write_consumer(space, LIMITED | stream, **consumer)
    with Raw(server.url) as raw:
        for _ in range(20):
            raw.request("l.a", b"x")

    found = [(level, key) for _, key, level in attention(space)]
    assert found == ([(expected[0], "jsplan.missed")] if expected else [])
    assert expected is None or expected[1] in causes(space)[0]


def test_messages_that_a_copy_missed(make_hub_leaf: MakeHubLeaf, tmp_path: Path) -> None:
    """They are counted from where the copy was at the last check, and named until an apply."""
    sandbox = make_hub_leaf()
    hub, leaf = sandbox["hub"], sandbox["leaf"]
    space = hub_leaf_space(tmp_path, sandbox)
    origin = {"name": "O", "domain": "leaf", "subjects": ["o", "p"], "max_msgs": 10}
    mirror = {"name": "O", "domain": "leaf"}
    streams: list[dict[str, Any]] = [
        origin,
        {"name": "M", "domain": "hub", "mirror": mirror},
        {"name": "PART", "domain": "hub", "mirror": mirror | {"filter_subject": "p"}},
        {"name": "S", "domain": "hub", "sources": [mirror], "max_msgs": 60},
        {"name": "SOME", "domain": "hub", "sources": [mirror | {"filter_subject": "p"}]},
    ]
    space.write(streams=streams, drift={"watermarks": "marks.json"}).apply()

    def publish(*numbers: int) -> None:
        with Raw(leaf.url, leaf.user, leaf.password) as raw:
            for number in numbers:
                raw.api_ok("op"[number % 2], f"number {number}")

    def follow(last: int) -> None:
        def has_last(raw: Raw, name: str) -> bool:
            seq = raw.state(name)["last_seq"]
            found = raw.api(f"$JS.API.STREAM.MSG.GET.{name}", {"seq": seq}).get("message", {})
            return b64decode(found.get("data", "")) == json.dumps(f"number {last}").encode()

        with Raw(hub.url, hub.user, hub.password) as raw:
            names = [stream["name"] for stream in streams[1:]]
            hub.wait_until(lambda: all(has_last(raw, name) for name in names), "follow", 120.0)

    publish(*range(36))  # what limits delete behind a mirror is not missed
    follow(35)
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        raw.delete("O", 30)
    assert attention(space) == []
    publish(*range(36, 56))
    follow(55)
    assert attention(space) == []

    hub.stop()
    publish(*range(56, 70))
    hub.start()
    sandbox.wait_ready()
    follow(69)
    for _ in range(2):
        assert attention(space) == [
            (f"hub/stream/{name}", "jsplan.missed", "critical") for name in ("M", "S")
        ]
    for cause in causes(space):
        assert "it missed at most 4 messages, which its origin deleted before they" in cause
    streams[1]["description"] = "accepts what is there"
    space.write(streams=streams, drift={"watermarks": "marks.json"}).apply()
    assert attention(space) == []


def test_what_is_no_missed_message(tmp_path: Path, server: Server) -> None:
    """A consumer that reads on, one that is new, and a purge miss nothing."""
    space = single_space(tmp_path, server)
    write_consumer(space, LIMITED)
    with Raw(server.url) as raw:
        for _ in range(3):
            for _ in range(5):
                raw.request("l.a", b"x")
            assert len(pull(raw, "L", "C", 5)) == 5
        assert attention(space) == []
        raw.api_ok("$JS.API.STREAM.PURGE.L")
        assert attention(space) == []
        raw.request("l.a", b"x")
        raw.consumer("L", "NEW")
        assert attention(space) == []


def test_a_consumer_that_another_client_paused(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A pause that the files do not know is critical; one of the files is a warning."""
    if server_version < (2, 11):
        return
    space = single_space(tmp_path, server)
    until = {"pause_until": "2100-01-01T00:00:00Z"}
    write_consumer(space, LIMITED)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.CONSUMER.PAUSE.L.C", until)
    address = "main/consumer/L/C"
    assert attention(space) == [(address, "jsplan.paused", "critical")]
    notes = [(d.code, d.address) for d in space.plan().diagnostics]
    assert ("JS476", address) in notes

    write_consumer(space, LIMITED, **until)
    assert attention(space) == [(address, "jsplan.paused", "warning")]
    assert "JS476" not in [d.code for d in space.plan().diagnostics]


@pytest.mark.parametrize(
    ("config", "lost", "named"),
    [
        ({"deny_purge": True}, {"msgs": [1, 2], "bytes": 88}, "(2 messages, 88 B)"),
        ({}, {"msgs": [1, 12], "bytes": 88}, "(2 messages, 88 B)"),
        ({}, {"msgs": [1, 2], "bytes": 88}, "all are before the first one"),
        ({"allow_msg_ttl": True}, {"msgs": [1, 2], "bytes": 88}, ""),
        ({"max_age": 10**9}, {"msgs": [1, 2], "bytes": 88}, ""),
        ({"retention": "interest"}, {"msgs": [1, 2], "bytes": 88}, ""),
        ({"retention": "workqueue"}, {"msgs": [1, 12, 13], "bytes": 132}, "(2 messages, 132 B)"),
        ({"retention": "workqueue"}, {"msgs": None, "bytes": 132}, "(132 B)"),
    ],
)
def test_what_a_killed_server_reports(
    config: dict[str, Any], lost: dict[str, Any], named: str
) -> None:
    """Messages that had expired or were finished before a server was killed are no loss."""
    address = Address("main", "stream", "Q")
    state = {"first_seq": 10, "last_seq": 20, "messages": 11, "lost": lost}
    live = LiveObject(address, {"name": "Q"} | config, "", state)

    found = find_losses(live, 0, None, NOTHING_KNOWN)

    assert [breach.cause.endswith(named) for breach in found] == [True] * bool(named)
    levels = ["warning" if "purged" in breach.cause else "critical" for breach in found]
    assert [breach.level for breach in found] == levels


@pytest.mark.parametrize(
    ("mirror", "origin", "was_at", "missed"),
    [
        ({}, {}, 6, "3 messages"),
        ({}, {}, 8, "1 message"),
        ({}, {}, 9, ""),
        ({"mirror": {"name": "O", "filter_subject": "a"}}, {}, 6, ""),
        ({"mirror": {"name": "O", "subject_transforms": [{"src": "a"}]}}, {}, 6, ""),
        ({}, {"max_msgs_per_subject": 5}, 6, ""),
        ({}, {"allow_rollup_hdrs": True}, 6, ""),
        ({"max_msgs_per_subject": 1}, {}, 6, ""),
    ],
)
def test_what_a_mirror_missed(
    mirror: dict[str, Any], origin: dict[str, Any], was_at: int, missed: str
) -> None:
    """New gaps count up to the first message of the origin, unless they have another reason."""
    copy = Address("hub", "stream", "M")
    state = {"first_seq": 1, "last_seq": 20, "num_deleted": 5}
    live = LiveObject(copy, {"name": "M", "mirror": {"name": "O"}} | mirror, "", state)
    stream = LiveObject(
        Address("leaf", "stream", "O"), {"name": "O"} | origin, "", {"first_seq": 10}
    )
    last = LastApplied(was_at, seen_at="2026-11-30T00:00:00Z", first_seq=1, deleted=2)

    found = [breach.cause for breach in find_losses(live, 0, stream, last)]

    assert [f"at most {missed}, which" in cause for cause in found] == [True] * bool(missed)
