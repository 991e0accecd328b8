"""`jsplan compare` on real servers: mirrors, sources, backfills, and stores that went back."""

from __future__ import annotations

import base64
import io
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from rich.console import Console

from jsplan.address import Address
from jsplan.backup.folder import BackupError
from jsplan.backup.run import BackupOptions
from jsplan.errors import RefusedError, UsageError
from jsplan.options import DriftOptions
from jsplan.render.compare_text import render
from jsplan.workflows import compare as workflow
from jsplan.workflows.backup import backup
from jsplan.workflows.compare import CompareOptions
from jsplan.workflows.drift import drift
from tests.backfill.backfill_pair import without_spark
from tests.support.older_store import keep_store, put_store_back
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space, left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.comparison import Comparison
    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeHubLeaf

pytestmark = pytest.mark.matrix

A: dict[str, Any] = {"name": "A", "domain": "hub", "subjects": ["a.>"]}
M: dict[str, Any] = {"name": "M", "domain": "leaf", "mirror": {"name": "A", "domain": "hub"}}
S: dict[str, Any] = {
    "name": "S",
    "domain": "leaf",
    "subjects": ["s.>"],
    "sources": [{"name": "A", "domain": "hub"}],
}
ENDS = ("hub/stream/A", "leaf/stream/M")


def compare(space: Space, one: str, other: str | None, **options: Any) -> Comparison:
    """Compare two streams."""
    found = CompareOptions(one, other, **options)
    return workflow.compare(space.load, found, RecordingObserver())


def differences(found: Comparison) -> list[tuple[str, int, list[list[int]], bool]]:
    """Return kind, number, ranges and whether it is expected, of each part."""
    return [(part.kind, part.count, part.ranges, part.expected) for part in found.parts]


def publish(server: Server, count: int, begin: int = 0) -> None:
    """Publish messages with and without headers, which say their number."""
    with Raw(server.url, server.user, server.password) as raw:
        for number in range(begin, begin + count):
            headers = {"N": str(number), "Nats-Msg-Id": str(number)} if number % 3 == 0 else None
            raw.request(f"a.{number % 5}", b"%d" % number, headers)


@pytest.fixture(params=["pages", "rows"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to read by sequence."""
    monkeypatch.setattr(workflow, "MIN_ROWS", 1 if request.param == "rows" else 1 << 60)


@pytest.mark.usefixtures("reader")
def test_a_mirror_that_lost_and_changed_nothing_is_equal(
    clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """The order of the addresses says nothing. A kept result is continued while it holds."""
    hub, kept = clean_hub_leaf["hub"], tmp_path / "kept.json"
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, M])
    space.apply()
    publish(hub, 30)
    for ends in (ENDS, ENDS[::-1]):
        found = compare(space, *ends, out=kept)
        assert (found.origin.address, found.relation, found.by) == (ENDS[0], "mirror", "sequence")
        assert (found.equal, found.parts, found.exit_code) == (30, [], 0)
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.api_ok("$JS.hub.API.STREAM.MSG.DELETE.A", {"seq": 7})
    publish(hub, 10, 100)

    found = compare(space, *ENDS, since=kept, out=kept)
    assert (found.since, found.equal) == ("", 39)
    assert found.kept == "hub/stream/A has lost or deleted messages since"
    assert differences(found) == [("extra", 1, [[7, 7]], False)]
    assert "a client has deleted them there" in found.parts[0].reason
    assert (
        compare(space, *ENDS, since=kept).kept == "it is of another comparison, or has differences"
    )


def test_a_kept_result_saves_the_reading(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Only newer messages are read, also of a source. The streams must be those of the result."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, M, S])
    space.apply()
    publish(clean_hub_leaf["hub"], 20)
    for copy in (ENDS[1], "leaf/stream/S"):
        assert compare(space, ENDS[0], copy, out=tmp_path / copy[-1]).equal == 20
    publish(clean_hub_leaf["hub"], 5, 20)
    for copy in (ENDS[1], "leaf/stream/S"):
        found = compare(space, ENDS[0], copy, since=tmp_path / copy[-1])
        assert (found.equal, found.parts, bool(found.since)) == (25, [], True)

    space.write(streams=[A, S]).apply(allow_hazards=("DELETES_STREAM", "DELETES_MESSAGES"))
    space.write(streams=[A, M, S]).apply()
    found = compare(space, *ENDS, since=tmp_path / "M")
    assert (found.kept, found.equal) == ("leaf/stream/M is another stream now", 25)


@pytest.mark.since_2_12
def test_a_source_of_a_relocated_stream(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Messages that a source brought before its origin moved name it as it was then."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, S])
    space.apply()
    publish(clean_hub_leaf["hub"], 20)
    assert compare(space, "hub/stream/A", "leaf/stream/S").equal == 20
    moved = {"from": "hub/stream/A", "to": "leaf/stream/A2"}
    a2, source = A | {"name": "A2", "domain": "leaf"}, {"name": "A2", "domain": "leaf"}
    space.write(streams=[a2, S | {"sources": [source]}], relocate=[moved])
    space.apply(allow_hazards=("REMOVES_SUBJECTS",))
    publish(clean_hub_leaf["hub"], 5, 20)
    with Raw(clean_hub_leaf["hub"].url, "acc", "acc") as raw:
        raw.wait_for("S", 25, "leaf")

    found = compare(space, "leaf/stream/A2", "leaf/stream/S")

    assert (found.equal, found.parts) == (25, [])


def lose_messages(servers: Sandbox, folder: Path) -> Space:
    """Let a hub lose the last 50 of 150 messages, which the mirror in the leaf has."""
    hub, space = servers["hub"], hub_leaf_space(folder, servers)
    space.write(streams=[A]).apply()
    publish(hub, 100)
    keep_store(hub)
    servers.wait_ready()
    space.write(streams=[A, M]).apply()  # a mirror that loses its origin is slow to find it again
    publish(hub, 50, 100)
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.wait_for("M", 150, "leaf")
    put_store_back(hub)
    servers.wait_ready()
    return space


def counts_back(hub: Server) -> bool:
    """Return True if a mirror counts back to the end of its origin within 10 s, as before 2.14."""
    with Raw(hub.url, hub.user, hub.password) as raw:
        return raw.api_level() < 4


@pytest.mark.parametrize("copy", [ENDS[1], "leaf/stream/S"])
def test_while_messages_arrive(copy: str, clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A message that arrives during a comparison is no difference, and counts once."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, M, S])
    space.apply()
    kept, stopped = tmp_path / "kept.json", threading.Event()

    def publish_on() -> None:
        begin = 0
        while not stopped.wait(0.01):
            publish(clean_hub_leaf["hub"], 20, begin)
            begin += 20

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        for _ in range(6):
            found = compare(space, ENDS[0], copy, since=kept, out=kept)
            # Counts of a busy server may not fit together; then all is read again.
            assert (found.parts, found.equal) == ([], found.last)
    finally:
        stopped.set()
        publisher.join()


@pytest.mark.usefixtures("reader")
def test_an_origin_that_went_back(make_hub_leaf: MakeHubLeaf, tmp_path: Path) -> None:
    """The lost messages are named with their range, also where new ones have their sequences."""
    servers = make_hub_leaf()
    hub = servers["hub"]
    space = lose_messages(servers, tmp_path)

    seen = drift(space.load, DriftOptions(), RecordingObserver()).replication
    assert [str(flow["cause"]).partition(":")[0] for flow in seen] == ["origin went back"]
    if counts_back(hub):
        return
    found = compare(space, *ENDS)
    assert differences(found) == [("extra", 50, [[101, 150]], False)]
    assert (found.lost, found.exit_code) == (50, 2)
    assert found.parts[0].reason == "hub/stream/A ends at 100: it went back"
    publish(hub, 20, 1000)
    found = compare(space, *ENDS)
    assert (found.equal, found.lost) == (100, 50)
    assert differences(found) == [
        ("extra", 30, [[121, 150]], False),
        ("different", 20, [[101, 120]], False),
    ]
    assert "has received new messages at the lost sequences" in found.parts[1].reason


@pytest.mark.since_2_12
def test_lost_messages_come_back(make_hub_leaf: MakeHubLeaf, tmp_path: Path) -> None:
    """The printed steps bring back each message that the mirror has, once, after the new ones."""
    servers = make_hub_leaf()
    hub = servers["hub"]
    if counts_back(hub):
        return  # what the mirror still has is a matter of seconds
    space = lose_messages(servers, tmp_path)
    publish(hub, 20, 1000)

    entry = printed_entry(compare(space, *ENDS))
    promoted = {"name": "M", "domain": "leaf", "subjects": ["kept.a"]}
    space.write(streams=[A, promoted], backfills=entry)
    with without_spark():
        space.apply(allow_hazards=("BREAKS_REPLICATION",))

    with Raw(hub.url, hub.user, hub.password) as raw:
        stored = [message(raw, "hub", "A", seq) for seq in range(1, 171)]
    assert stored == [b"%d" % n for n in (*range(100), *range(1000, 1020), *range(100, 150))]
    assert left_to_do(space.plan()) == []


@pytest.mark.since_2_12
def test_lost_messages_come_back_with_their_sequences(
    make_hub_leaf: MakeHubLeaf, tmp_path: Path
) -> None:
    """The steps of the page: the copy becomes the stream, and the newcomers are appended once."""
    servers = make_hub_leaf()
    hub = servers["hub"]
    if counts_back(hub):
        return  # what the mirror still has is a matter of seconds
    space = lose_messages(servers, tmp_path)
    publish(hub, 20, 1000)
    kept, fork = {"name": "M", "domain": "leaf", "subjects": ["kept.a"]}, A | {"name": "A_FORK"}
    space.write(streams=[A, kept]).apply(allow_hazards=("BREAKS_REPLICATION",))

    moved = {"from": "hub/stream/A", "to": "hub/stream/A_FORK"}
    allowed = ("REMOVES_SUBJECTS",)
    _, result = space.write(streams=[fork, kept], relocate=[moved]).apply(allow_hazards=allowed)
    assert result.exit_code == 0, result
    publish(hub, 5, 2000)
    back = {"from": "leaf/stream/M", "to": "hub/stream/A"}
    _, result = space.write(streams=[fork, A | {"subjects": ["kept.a"]}], relocate=[back]).apply(
        allow_hazards=allowed
    )
    assert result.exit_code == 0, result
    ended = fork | {"subjects": ["fork.a"]}
    origin = {"domain": "hub", "stream": "A_FORK", "start_seq": 101}
    to = {"domain": "hub", "stream": "A"}
    newcomers = {"name": "newcomers", "from": [origin], "to": to}
    space.write(streams=[ended, A], backfills=[newcomers])
    with without_spark():
        _, result = space.apply(allow_hazards=allowed)

    assert result.exit_code == 0, result
    with Raw(hub.url, hub.user, hub.password) as raw:
        stored = [message(raw, "hub", "A", seq) for seq in range(1, 176)]
    assert stored == [b"%d" % n for n in (*range(150), *range(1000, 1020), *range(2000, 2005))]
    assert left_to_do(space.plan()) == []


def test_an_entry_of_some_of_the_lost_messages(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """An entry names 20 ranges. The text says how many messages are lost beyond these."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, M])
    space.apply()
    hub = clean_hub_leaf["hub"]
    publish(hub, 60)
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.wait_for("M", 60, "leaf")
        for seq in range(1, 50, 2):
            raw.api_ok("$JS.hub.API.STREAM.MSG.DELETE.A", {"seq": seq})

    found = compare(space, *ENDS)

    assert (found.lost, len(printed_entry(found)[0]["from"])) == (25, 20)
    words = " ".join(shown(found).split())
    assert "this brings back those of 20 ranges. 5 messages more are lost." in words


def shown(found: Comparison) -> str:
    """Return the text view."""
    file = io.StringIO()
    render(found, Console(file=file, width=80))
    return file.getvalue()


def printed_entry(found: Comparison) -> list[dict[str, Any]]:
    """Return the entry of `backfills:` that the text view prints."""
    text = shown(found)
    begin, end = text.index("     backfills:"), text.index(". See what") - 3
    listed = yaml.safe_load(text[begin:end])["backfills"]
    assert isinstance(listed, list)
    return listed


def message(raw: Raw, domain: str, stream: str, seq: int) -> bytes:
    """Read the payload of one message."""
    api = f"$JS.{domain}.API.STREAM.MSG.GET.{stream}"
    return base64.b64decode(raw.api_ok(api, {"seq": seq})["message"].get("data", ""))


def test_a_stream_with_a_source(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Messages are matched by the origin that they name: lacking, changed and doubled ones."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, S])
    space.apply()
    publish(clean_hub_leaf["hub"], 20)
    assert differences(compare(space, "leaf/stream/S", ENDS[0])) == []

    leaf = clean_hub_leaf["leaf"]
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        for seq in (5, 6, 9):
            raw.api_ok("$JS.leaf.API.STREAM.MSG.DELETE.S", {"seq": seq})
        # As a backfill stores them: later servers let no client name a source.
        raw.request("s.1", b"other", {"Jsplan-Origin": "hub/A/5/2026-01-01T00:00:00Z"})
        raw.request("s.1", b"0", {"Jsplan-Origin": "hub/A/1/2026-01-01T00:00:00Z"})

    found = compare(space, ENDS[0], "leaf/stream/S")
    assert (found.by, found.relation, found.equal) == ("header", "source", 17)
    assert differences(found) == [
        ("missing", 2, [[6, 6], [9, 9]], False),
        ("different", 1, [[5, 5]], False),
        ("twice", 1, [[1, 1]], False),
    ]


def test_an_origin_with_a_source_that_went_back(make_hub_leaf: MakeHubLeaf, tmp_path: Path) -> None:
    """The printed range is that of the copy, which has other sequences."""
    servers = make_hub_leaf()
    leaf, hub = servers["leaf"], servers["hub"]
    space = hub_leaf_space(tmp_path, servers).write(streams=[A])
    space.apply()
    publish(hub, 10)
    keep_store(hub)
    servers.wait_ready()
    own = S | {"sources": []}
    space.write(streams=[A, own]).apply()
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        raw.request("s.own", b"own")
    space.write(streams=[A, S]).apply()
    publish(hub, 5, 10)
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.wait_for("S", 16, "leaf")
    put_store_back(hub)
    servers.wait_ready()

    found = compare(space, ENDS[0], "leaf/stream/S")
    assert differences(found) == [("extra", 5, [[11, 15]], False)]
    sides = [{"domain": "leaf", "stream": "S", "start_seq": 12, "end_seq": 16}]
    assert printed_entry(found)[0]["from"] == sides


@pytest.mark.parametrize(
    ("origin", "copy", "expected"),
    [
        ({}, {"max_msgs": 10}, ("missing", 10, [[1, 10]], True)),
        ({"max_msgs": 10}, {}, ("extra", 15, [[1, 15]], True)),
        ({"max_msgs_per_subject": 1}, {}, ("extra", 20, [[1, 20]], True)),
    ],
)
def test_limits_explain_a_difference(
    clean_hub_leaf: Sandbox,
    tmp_path: Path,
    origin: dict[str, Any],
    copy: dict[str, Any],
    expected: tuple[Any, ...],
) -> None:
    """A stream that deletes messages by its configuration has lost nothing."""
    if origin:  # the mirror is there before the origin deletes
        streams = [A, M]
        space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams)
        space.apply()
        publish(clean_hub_leaf["hub"], 20)
        hub = clean_hub_leaf["hub"]
        with Raw(hub.url, hub.user, hub.password) as raw:
            raw.wait_for("M", 20, "leaf")
        space.write(streams=[A | origin, M]).apply(allow_hazards=("DELETES_MESSAGES",))
        # Up to 2.12 a server deletes at the next message of a subject.
        publish(clean_hub_leaf["hub"], 5, 20)
    else:
        space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, M | copy])
        space.apply()
        publish(clean_hub_leaf["hub"], 20)

    found = compare(space, *ENDS)

    assert differences(found) == [expected]
    assert (found.exit_code, found.lost) == (0, 0)
    assert next(iter(origin | copy)) in found.parts[0].reason


def test_what_cannot_be_compared_is_refused(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """The message says why, and what to do instead."""
    entry = {
        "name": "some",
        "from": {"domain": "hub", "stream": "A"},
        "to": {"domain": "leaf", "stream": "T"},
        "where": "seq > 5",
    }
    target = {"name": "T", "domain": "leaf", "subjects": ["t"]}
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=[A, target], backfills=[entry]).apply(backfill=False)

    with pytest.raises(RefusedError, match="backfill some changes messages") as refused:
        compare(space, "leaf/stream/T", ENDS[0])
    assert refused.value.hint == "Compare them with it: jsplan backfill verify some"
    with pytest.raises(RefusedError, match="leaf/stream/M does not exist"):
        compare(space, *ENDS)
    for one, other in (("hub/stream/A", "hub/stream/A"), ("hub/consumer/A/C", "hub/stream/A")):
        with pytest.raises(UsageError):
            compare(space, one, other)


@pytest.mark.parametrize("limits", [{}, {"max_msgs": 1000, "max_age": "1h", "allow_direct": True}])
def test_a_backup(clean_hub_leaf: Sandbox, tmp_path: Path, limits: dict[str, Any]) -> None:
    """A backup is compared with its stream, which may have lost messages since."""
    hub, saved = clean_hub_leaf["hub"], tmp_path / "saved"
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A | limits])
    space.apply()
    publish(hub, 30)
    backup(space.load, BackupOptions(("hub/stream/A",), saved), RecordingObserver())
    assert differences(compare(space, ENDS[0], None, backup=saved)) == []
    publish(hub, 5, 30)
    with Raw(hub.url, hub.user, hub.password) as raw:
        for seq in (7, 8):
            raw.api_ok("$JS.hub.API.STREAM.MSG.DELETE.A", {"seq": seq})

    found = compare(space, ENDS[0], None, backup=saved)

    assert (found.relation, found.copy.address, found.equal) == ("backup", "backup/stream/A", 28)
    assert differences(found) == [("missing", 5, [[31, 35]], True), ("extra", 2, [[7, 8]], False)]
    assert found.parts[0].reason == "the backup ends at 30"
    assert (found.lost, found.exit_code) == (2, 2)
    assert f"--as {found.beside} --subjects A_SAVED" in shown(found)


@pytest.mark.since_2_12
def test_lost_messages_come_back_from_a_backup(make_hub_leaf: MakeHubLeaf, tmp_path: Path) -> None:
    """The printed steps restore the backup beside the stream, and copy what is lost."""
    servers = make_hub_leaf()
    hub, saved = servers["hub"], tmp_path / "saved"
    space = hub_leaf_space(tmp_path, servers).write(streams=[A])
    space.apply()
    publish(hub, 10)
    backup(space.load, BackupOptions(("hub/stream/A",), saved), RecordingObserver())
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.api_ok("$JS.hub.API.STREAM.MSG.DELETE.A", {"seq": 4})
    found = compare(space, ENDS[0], None, backup=saved)
    text = shown(found)
    begin = text.index("jsplan restore ")
    command = text[begin : text.index("2. Add this")].replace("\\\n", " ").split()

    assert jsplan(tmp_path, *command[1:], "-y").code == 0
    restored = Address.parse(found.beside)  # before 2.15 it keeps its name, so in the leaf
    beside = {"name": restored.name, "domain": restored.domain, "subjects": ["A_SAVED"]}
    _, result = space.write(streams=[A, beside], backfills=printed_entry(found)).apply()

    assert result.exit_code == 0, result
    with Raw(hub.url, hub.user, hub.password) as raw:
        assert message(raw, "hub", "A", 11) == b"3"
    assert left_to_do(space.plan()) == []


def test_a_backup_that_cannot_be_compared(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """One that lacks the stream, and one that is damaged, are named."""
    saved = tmp_path / "saved"
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[A, M])
    space.apply()
    publish(clean_hub_leaf["hub"], 5)
    backup(space.load, BackupOptions(("hub/stream/A",), saved), RecordingObserver())

    with pytest.raises(RefusedError, match="the backup has no leaf/stream/M"):
        compare(space, ENDS[1], None, backup=saved)
    next(saved.glob("*.snap")).write_bytes(b"x")
    with pytest.raises(BackupError, match="the backup of hub/stream/A is damaged"):
        compare(space, ENDS[0], None, backup=saved)
    with pytest.raises(BackupError, match="is not a backup folder"):
        compare(space, ENDS[0], None, backup=tmp_path)
