from __future__ import annotations

import json
import shutil
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.backup.folder import MANIFEST, BackupError, open_for_writing
from jsplan.backup.run import BackupOptions, BackupResult
from jsplan.errors import JsplanError, NotApprovedError, PlanError, RefusedError, UsageError
from jsplan.sandbox import Sandbox
from jsplan.workflows.backup import backup
from jsplan.workflows.restore import RestoreOptions, restore
from tests.conftest import PROGRAM
from tests.support import api_audit
from tests.support.backup_streams import capture_stream, create_lively_stream
from tests.support.buckets import bucket_config
from tests.support.explained_steps import require_explained
from tests.support.process import jsplan, start_process
from tests.support.raw import Raw, api_prefix
from tests.support.relay import Clogged, Failing
from tests.support.schemas import validator
from tests.support.workspaces import RecordingObserver, Space, approve, hub_leaf_space, single_space

if TYPE_CHECKING:
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server
    from tests.conftest import MakeServer
    from tests.support.relay import Relay

HUB, LEAF, PLAIN = "hub", "leaf", ""
DELETING = ("DELETES_STREAM", "DELETES_CONSUMER", "DELETES_MESSAGES", "LOSES_CONSUMER_POSITION")


def save(space: Space, *addresses: str, folder: str = "bk", **options: Any) -> BackupResult:
    return backup(
        space.load, BackupOptions(addresses, space.folder / folder, **options), RecordingObserver()
    )


def restore_backup(space: Space, folder: str = "bk", **options: Any) -> tuple[Plan, ApplyResult]:
    plan, result = restore(
        space.load, RestoreOptions(space.folder / folder, **options), approve, RecordingObserver()
    )
    return require_explained(plan), result


def manifest(space: Space, folder: str = "bk") -> dict[str, Any]:
    read = json.loads((space.folder / folder / MANIFEST).read_bytes())
    assert isinstance(read, dict)
    return read


def over(space: Space, relay: Relay, **sections: Any) -> None:
    """Write the workspace with the address of a relay."""
    connections = {"main": {"url": f"nats://127.0.0.1:{relay.port}"}}
    space.write(connections=connections, **sections)


def raw_of(server: Server) -> Raw:
    return Raw(server.url, server.user, server.password, timeout=30)


def declared(*names: str, domain: str, **config: Any) -> list[dict[str, Any]]:
    consumers = [
        {"name": "BUSY", "ack_policy": "explicit", "ack_wait": "1h"},
        {"name": "DONE", "ack_policy": "none"},
    ]
    return [
        {"name": name, "domain": domain, "subjects": [f"{name}.*"], "consumers": consumers} | config
        for name in names
    ]


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_restore_after_destroy_restores_everything(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """Backup, destroy and restore of an account give equal streams and an empty plan.

    In two domains, with pending, acknowledged and redelivered messages, a bucket and an object
    store. Sequences, times, headers, gaps and positions are equal.
    """
    hub = clean_hub_leaf["hub"]
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    memory = declared("QUICK", domain="hub", storage="memory") if server_version >= (2, 15) else []
    space.write(
        streams=[*declared("ORDERS", domain="hub"), *declared("SALES", domain="leaf"), *memory],
        kv=[{"bucket": "CONFIG", "domain": "hub", "history": 5}],
        object_stores=[{"bucket": "ASSETS", "domain": "hub"}],
    )
    saved_streams = [
        ("ORDERS", HUB),
        ("SALES", LEAF),
        ("KV_CONFIG", HUB),
        ("OBJ_ASSETS", HUB),
        *([("QUICK", HUB)] if memory else []),
    ]
    with raw_of(hub) as raw:
        create_lively_stream(raw, "ORDERS", HUB)
        create_lively_stream(raw, "SALES", LEAF, retention="interest")
        if memory:
            create_lively_stream(raw, "QUICK", HUB, storage="memory")
        space.apply(adopt=True)
        # Write a bucket with history and a deleted key, and an object in chunks.
        for number in range(4):
            raw.request(
                f"{api_prefix(HUB)}.$KV.CONFIG.key" if HUB != PLAIN else "$KV.CONFIG.key",
                b"%d" % number,
            )
        subject = f"{api_prefix(HUB)}.$KV.CONFIG.gone" if HUB != PLAIN else "$KV.CONFIG.gone"
        raw.request(subject, b"x")
        raw.request(subject, b"", {"KV-Operation": "DEL"})
        for number in range(3):
            raw.publish("$O.ASSETS.C.nuid", bytes([number]) * 100_000)
        raw.publish(
            "$O.ASSETS.M.bmFtZQ==", b'{"name": "name", "chunks": 3}', {"Nats-Rollup": "sub"}
        )
        raw.wait_for("OBJ_ASSETS", 4, HUB)
        before = {name: capture_stream(raw, name, domain) for name, domain in saved_streams}

        saved = save(space, "**")
        assert saved.exit_code == 0
        assert len(saved.saved) == len(saved_streams)
        space.apply(destroy=True, allow_hazards=DELETING)
        for name, domain in saved_streams:
            assert raw.api(f"{api_prefix(domain)}.STREAM.INFO.{name}")["error"]["err_code"] == 10059
        plan, result = restore_backup(space)

        assert [step.error for step in result.steps if step.error] == []
        assert result.exit_code == 0
        for name, domain in saved_streams:
            assert capture_stream(raw, name, domain) == before[name], name
    assert {r.change.actions[0] for r in plan.resource_changes} == {"create"}
    assert not space.plan().has_changes
    assert not [r for r in space.plan().resource_changes if r.change.importing]


@pytest.mark.matrix
@pytest.mark.download
def test_archives_of_other_releases_of_the_server(
    tmp_path: Path, make_server: MakeServer, server: Server
) -> None:
    """2.15 restores an archive of an older server; an older server refuses one of 2.15."""
    newest, space = make_server(version="2.15.1"), single_space(tmp_path, server)
    with raw_of(server) as raw:
        create_lively_stream(raw, "ORDERS", PLAIN)
        before = capture_stream(raw, "ORDERS", PLAIN)
    space.write()
    save(space, "main/**")
    new = single_space(tmp_path, newest).write()
    restore_backup(new)
    with raw_of(newest) as raw:
        after = capture_stream(raw, "ORDERS", PLAIN)
        assert (after["messages"], after["consumers"]) == (before["messages"], before["consumers"])
        raw.create("NEW")
    save(new, "main/stream/NEW", folder="new")
    old = single_space(tmp_path, server).write()
    if manifest(space)["streams"][0]["archive"]["format"] == "natsarc1":
        assert restore_backup(old, "new")[1].exit_code == 0
        return
    with pytest.raises(PlanError) as caught:
        restore_backup(old, "new")
    assert "older servers cannot read" in caught.value.diagnostics[0].summary
    with pytest.raises(PlanError) as caught:
        restore_backup(new, "bk", rename="main/stream/COPY", subjects=("copy.*",))
    assert "can only keep its name" in caught.value.diagnostics[0].summary


@pytest.mark.matrix
def test_memory_streams_before_2_15_are_reported(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A memory stream that cannot be saved ends backup with 6, after saving the others."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        raw.create("DISK")
        raw.create("RAM", storage="memory")
    result = save(space, "main/**")
    if server_version >= (2, 15):
        assert (result.exit_code, result.manifest.missing) == (0, {})
        return
    assert result.exit_code == 6
    assert result.saved == ["main/stream/DISK"]
    assert "in memory, and servers before 2.15" in result.manifest.missing["main/stream/RAM"]
    assert not manifest(space)["complete"]
    assert save(space, "main/stream/RAM", folder="only").exit_code == 1


def test_a_backup_changes_nothing_on_the_servers(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A backup sends only reads and snapshots, and leaves no consumer and no lock."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=declared("ORDERS", domain="hub"))
    space.apply()
    with api_audit.audit_requests(clean_hub_leaf) as requests:
        save(space, "**")
    assert api_audit.writes(requests) == ["hub STREAM.SNAPSHOT.ORDERS"]
    assert not list(tmp_path.glob("state/*.lock.info"))


def test_unchanged_streams_are_not_saved_again(tmp_path: Path, server: Server) -> None:
    """A second backup keeps unchanged streams, saves changed ones and keeps deleted ones."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        for name in ("SAME", "MOVED", "POSITION", "GONE"):
            create_lively_stream(raw, name, PLAIN)
        save(space, "main/**")
        files = {entry["address"]: entry["archive"]["file"] for entry in manifest(space)["streams"]}
        raw.request("MOVED.1", b"new")
        raw.api_ok("$JS.API.CONSUMER.DELETE.POSITION.DONE")
        raw.api_ok("$JS.API.STREAM.DELETE.GONE")
        result = save(space, "main/**")

    assert result.kept == ["main/stream/SAME"]
    assert sorted(result.saved) == ["main/stream/MOVED", "main/stream/POSITION"]
    again = {entry["address"]: entry["archive"]["file"] for entry in manifest(space)["streams"]}
    assert again["main/stream/GONE"] == files["main/stream/GONE"]
    assert again["main/stream/MOVED"] != files["main/stream/MOVED"]
    assert sorted(path.name for path in (tmp_path / "bk").glob("*.snap")) == sorted(again.values())
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "bk").iterdir()} == {0o600}
    assert (tmp_path / "bk").stat().st_mode & 0o777 == 0o700


def test_a_damaged_snapshot_is_taken_again(tmp_path: Path, server: Server) -> None:
    """A snapshot file without its content is saved again."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        create_lively_stream(raw, "S", PLAIN)
    save(space, "main/**")
    next((tmp_path / "bk").glob("*.snap")).write_bytes(b"")
    assert save(space, "main/**").saved == ["main/stream/S"]
    assert save(space, "main/**").kept == ["main/stream/S"]


def test_a_killed_backup_resumes(tmp_path: Path, server: Server) -> None:
    """After a kill -9 of a backup, its manifest names complete archives only, and it resumes."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        for number in range(6):
            create_lively_stream(raw, f"S{number}", PLAIN, size=20_000)
        before = {
            f"S{number}": capture_stream(raw, f"S{number}", PLAIN)["state"] for number in range(6)
        }
    folder = tmp_path / "bk"
    with Failing(server.port, "hole", 2.5 * 60 * 20_000) as relay:
        over(space, relay)
        process = start_process(tmp_path, "backup", "main/**", "bk", "--parallelism", "1")
        deadline = time.monotonic() + 40
        # The manifest names an archive soon after it is whole, not at once.
        while not (
            list(folder.glob("main_*.part"))
            and (folder / MANIFEST).exists()
            and manifest(space)["streams"]
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    space.write()
    cut = manifest(space)
    assert not cut["complete"]
    assert cut["finished_at"] is None
    assert all((folder / entry["archive"]["file"]).exists() for entry in cut["streams"])

    result = save(space, "main/**")

    assert result.exit_code == 0
    assert len(result.kept) >= len(cut["streams"]) >= 1
    assert len(result.kept) + len(result.saved) == 6
    assert not list(folder.glob("*.part"))
    with raw_of(server) as raw:
        for name in before:
            raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")
        assert restore_backup(space)[1].exit_code == 0
        assert {name: capture_stream(raw, name, PLAIN)["state"] for name in before} == before


@pytest.mark.parametrize("harm", ["flipped", "cut", "longer", "gone"])
def test_a_damaged_snapshot_is_refused_before_any_request(
    tmp_path: Path, server: Server, harm: str
) -> None:
    """A wrong checksum stops the restore with the name of the file, before any request."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        create_lively_stream(raw, "A", PLAIN)
        create_lively_stream(raw, "B", PLAIN)
        save(space, "main/**")
        for name in ("A", "B"):
            raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")
    document = manifest(space)
    path = tmp_path / "bk" / document["streams"][1]["archive"]["file"]
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        half = len(data) // 2
        path.write_bytes(
            {
                "flipped": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
                "cut": data[:-1],
                "longer": data + b"\0",
            }[harm]
        )
    server.kill()
    with pytest.raises(
        BackupError, match=r"bk is damaged, nothing was restored:\n  - .*main_stream_B"
    ):
        restore_backup(space)
    server.start()
    assert restore_backup(space, targets=("main/stream/A",))[1].exit_code == 0


def test_a_stream_that_is_saved_while_the_manifest_is_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams end in threads: one that ends while replaced archives are removed keeps its own."""
    with open_for_writing(tmp_path / "bk", "w", None) as folder:
        draft = folder.create_draft(Address.of_stream("main", "S"))
        look: Any = Path.glob
        saved: list[Any] = []

        def finish_meanwhile(path: Path, pattern: str) -> Any:
            if not saved:
                draft.write(b"snapshot")
                saved.append(draft.finish("s2"))
            return look(path, pattern)

        monkeypatch.setattr(Path, "glob", finish_meanwhile)
        with draft:
            folder.write()
        folder.write()

    assert (tmp_path / "bk" / saved[0].file).read_bytes() == b"snapshot"


def test_folders_that_cannot_hold_the_backup(tmp_path: Path, server: Server) -> None:
    """A folder with other files, another backup or a running backup is refused unchanged."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        raw.create("S")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(BackupError, match=r"mine holds something else than a backup: thesis.txt"):
        save(space, "main/**", folder="mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    with open_for_writing(tmp_path / "theirs", "other", None):
        pass
    with pytest.raises(BackupError, match="holds a backup of workspace other"):
        save(space, "main/**", folder="theirs")
    with (
        open_for_writing(tmp_path / "busy", "test", None),
        pytest.raises(BackupError, match="another jsplan is writing a backup"),
    ):
        save(space, "main/**", folder="busy")
    with pytest.raises(BackupError, match=r"is not a backup folder: it has no manifest\.json"):
        restore_backup(space, "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(BackupError, match="cannot write"):
        save(space, "main/**", folder="file")


def test_addresses_that_cannot_be_backed_up(tmp_path: Path, server: Server) -> None:
    """A consumer, an unknown domain and an unmatched name are refused without a folder."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        create_lively_stream(raw, "S", PLAIN)
    for address, error, words in (
        ("main/consumer/S/BUSY", UsageError, "consumers are saved with their stream"),
        ("mian/**", UsageError, 'there is no domain mian. Did you mean "main"?'),
        ("main/stream/T*", JsplanError, "matches no stream"),
    ):
        with pytest.raises(error, match=words.replace("?", r"\?")):
            save(space, address)
    assert not (tmp_path / "bk").exists()


def test_a_glob_omits_buckets_with_state(tmp_path: Path, server: Server) -> None:
    """A glob omits buckets with state, and an exact address saves them.

    State changes with every lock. A backup of its bucket could not be restored.
    """
    space = single_space(tmp_path, server)
    space.base |= {"backend": {"kv": {"domain": "main", "bucket": "OURS"}}}
    space.write(streams=declared("S", domain="main"))
    with raw_of(server) as raw:
        # Created outside jsplan: only the files say that OURS holds state.
        for bucket in ("OURS", "PLAIN"):
            raw.api_ok(f"$JS.API.STREAM.CREATE.KV_{bucket}", bucket_config(bucket))
        raw.api_ok(
            "$JS.API.STREAM.CREATE.KV_THEIRS", bucket_config("THEIRS", metadata={"jsplan": "state"})
        )
    space.apply()

    assert save(space, "main/**").saved == ["main/kv/PLAIN", "main/stream/S"]
    space.apply(destroy=True, allow_hazards=DELETING)
    assert restore_backup(space)[1].exit_code == 0
    assert save(space, "main/kv/OURS", folder="other").saved == ["main/kv/OURS"]
    with pytest.raises(JsplanError, match="matches no stream"):
        save(space, "main/kv/O*", folder="other")


def test_an_offline_domain(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A domain that is offline ends backup with 6, or with 0 if it may be offline."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=declared("ORDERS", domain="hub"))
    space.apply()
    clean_hub_leaf["leaf"].stop()
    result = save(space, "**")
    assert (result.exit_code, list(result.manifest.missing)) == (6, ["leaf/**"])
    assert result.saved == ["hub/stream/ORDERS"]
    domains = {"hub": {"connection": "hub"}, "leaf": {"connection": "hub", "may_be_offline": "7d"}}
    space.write(domains=domains)
    assert save(space, "**").exit_code == 0
    assert not manifest(space)["complete"]
    clean_hub_leaf["leaf"].start()
    clean_hub_leaf.wait_ready()


def test_only_messages_older_than_max_age_are_a_warning(tmp_path: Path, server: Server) -> None:
    """A restore warns only about messages that are older than max_age."""
    space, now = single_space(tmp_path, server).write(), datetime.now(UTC)
    aged = {"NEW": (0, 0), "PART": (7200, 0), "ALL": (9000, 7200)}
    with raw_of(server) as raw:
        for name in aged:
            raw.create(name, subjects=[f"{name}.*"], max_age=3600 * 10**9)
        raw.create("FOREVER", subjects=["FOREVER.*"])
        raw.create("EMPTY", max_age=10**9)
        for name in (*aged, "FOREVER"):
            raw.request(f"{name}.1", b"x")
        save(space, "main/**")
        for name in (*aged, "FOREVER", "EMPTY"):
            raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")
    saved = manifest(space)
    for entry in saved["streams"]:
        for name, seconds in zip(
            ("first_ts", "last_ts"), aged.get(entry["config"]["name"], (0, 0)), strict=True
        ):
            if seconds:
                entry["before"][name] = (
                    (now - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
                )
    (space.folder / "bk" / MANIFEST).write_text(json.dumps(saved))
    plan, result = restore_backup(space)

    assert result.exit_code == 0
    assert {
        d.address: d.summary.partition(" by now")[0] for d in plan.diagnostics if d.code == "JS471"
    } == {
        "main/stream/PART": "its oldest messages are older than max_age (1h)",
        "main/stream/ALL": "all of its messages are older than max_age (1h)",
    }


def test_no_existing_stream_is_overwritten(tmp_path: Path, server: Server) -> None:
    """An existing stream that differs stops a restore with 3; an equal one is kept."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        for name in ("SAME", "OTHER", "GONE"):
            create_lively_stream(raw, name, PLAIN)
        raw.create("EMPTY")
        save(space, "main/**")
        raw.request("OTHER.1", b"more")
        raw.api_ok("$JS.API.STREAM.DELETE.GONE")
        with pytest.raises(
            RefusedError, match=r"main/stream/OTHER: exists already and differs from the saved one"
        ) as caught:
            restore_backup(space)
        assert "SAME" not in str(caught.value)
        assert raw.api("$JS.API.STREAM.INFO.GONE")["error"]["err_code"] == 10059

        with pytest.raises(RefusedError, match="exists already"):
            restore_backup(space, targets=("*/stream/OTHER",))
        plan, result = restore_backup(space, excludes=("*/stream/OTHER",))

        assert result.exit_code == 0
        assert [step.address for step in result.steps if step.op == "stream.restore"] == [
            "main/stream/GONE"
        ]
        assert {entry["address"] for entry in plan.options["restore"] if entry["exists"]} == {
            "main/stream/SAME",
            "main/stream/EMPTY",
        }


@pytest.mark.matrix
def test_sources_of_a_restored_origin(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """Since 2.15, a source that receives a restored origin again is a blocking hazard."""
    hub = clean_hub_leaf["hub"]
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write()
    with raw_of(hub) as raw:
        raw.create("ORIGIN", "hub", subjects=["origin"])
        raw.create("ALL", "leaf", sources=[{"name": "ORIGIN", "external": {"api": "$JS.hub.API"}}])
        for number in range(20):
            raw.request("origin", b"%d" % number)
        raw.wait_for("ALL", 20, LEAF)
        save(space, "**")
        raw.api_ok("$JS.leaf.API.STREAM.DELETE.ALL")
        raw.api_ok("$JS.hub.API.STREAM.DELETE.ORIGIN")
        if server_version < (2, 15):
            plan, result = restore_backup(space)
            assert [h for r in plan.resource_changes for h in r.hazards] == []
        else:
            with pytest.raises(
                RefusedError,
                match=r"leaf/stream/ALL stores up to 20 messages twice: what hub/stream/ORIGIN",
            ):
                restore_backup(space)
            assert raw.api("$JS.hub.API.STREAM.INFO.ORIGIN")["error"]["err_code"] == 10059
            plan, result = restore_backup(
                space, allow_hazards=("DUPLICATES_MESSAGES:hub/stream/ORIGIN",)
            )
        assert result.exit_code == 0
        for number in range(10):
            raw.request("origin", b"%d" % number)
        expected = 30 if server_version < (2, 15) else 50
        raw.wait_for("ALL", expected, LEAF)


def positions(consumer: Any, *, old: bool) -> Any:
    """Return the fields of a consumer that an old cluster restores exactly, or all fields."""
    return {name: consumer[name] for name in ("delivered", "ack_floor")} if old else consumer


@pytest.mark.matrix
def test_consumers_that_a_cluster_saves(tmp_path: Path, server_version: tuple[int, ...]) -> None:
    """A cluster since 2.15 saves the acknowledgement floor, and redeliveries are a hazard."""
    with Sandbox.cluster(binary=PROGRAM) as cluster:
        server = next(iter(cluster.servers.values()))
        space = single_space(tmp_path, server)
        space.base["connections"]["main"] |= {"user": server.user, "password": server.password}
        space.write()
        with raw_of(server) as raw:
            create_lively_stream(raw, "S", PLAIN, num_replicas=3)
            before = capture_stream(raw, "S", PLAIN)
            save(space, "main/**")
            raw.api_ok("$JS.API.STREAM.DELETE.S")
            assert manifest(space)["streams"][0]["server"]["clustered"]
            if server_version < (2, 15):
                _, result = restore_backup(space)
                lost = [step.address for step in result.steps if step.error]
                assert lost in ([], ["main/consumer/S/FRESH"])
                # 2.10 may restore FRESH at the end of the stream, also after this check,
                # and may count one pending message too many or too few.
                assert lost == [] or (server_version < (2, 11) and result.exit_code == 6)
                old = server_version < (2, 11)

                def kept(info: dict[str, Any]) -> dict[str, Any]:
                    """Return what a cluster restores: it may count deleted messages as pending."""
                    found = positions(info, old=old)
                    return {name: value for name, value in found.items() if name != "num_pending"}

                expected = {
                    name: kept(info)
                    for name, info in before["consumers"].items()
                    if not (old and name == "FRESH")
                }

                def now() -> dict[str, Any]:
                    return {
                        name: kept(info)
                        for name, info in capture_stream(raw, "S", PLAIN)["consumers"].items()
                        if name in expected
                    }

                server.wait_until(
                    lambda: now() == expected, "bring consumers back as they were", 30
                )
                return
            with pytest.raises(
                RefusedError, match=r"main/consumer/S/BUSY: up to 3 messages .* are delivered again"
            ):
                restore_backup(space)
            _, result = restore_backup(space, allow_hazards=("DUPLICATES_MESSAGES",))
            assert [step.error for step in result.steps if step.error] == []
            # num_pending may be wrong by some for a while: the server counts deleted messages.
            idle = positions(before["consumers"]["DONE"], old=True)
            server.wait_until(
                lambda: (
                    positions(capture_stream(raw, "S", PLAIN)["consumers"]["DONE"], old=True)
                    == idle
                ),
                "bring the idle one back",
                30,
            )
            after = capture_stream(raw, "S", PLAIN)
            assert len(raw.pull("S", "BUSY", 51)) == 51
    assert after["messages"] == before["messages"]
    assert after["consumers"]["BUSY"]["ack_floor"] == before["consumers"]["BUSY"]["ack_floor"]


def test_an_approval_is_required(tmp_path: Path, server: Server) -> None:
    """Without approval nothing is restored."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        create_lively_stream(raw, "S", PLAIN)
        save(space, "main/**")
        raw.api_ok("$JS.API.STREAM.DELETE.S")

        def no(plan: Plan) -> None:
            raise NotApprovedError("no")

        with pytest.raises(NotApprovedError):
            restore(space.load, RestoreOptions(tmp_path / "bk"), no, RecordingObserver())
        assert raw.api("$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10059


def test_into_another_domain_and_under_another_name(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """`--as` restores into another domain or with another name and other subjects."""
    hub = clean_hub_leaf["hub"]
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write()
    with raw_of(hub) as raw:
        create_lively_stream(raw, "ORDERS", HUB)
        raw.create("KV_CONFIG", "hub", subjects=["$KV.CONFIG.>"], max_msgs_per_subject=1)
        save(space, "hub/**")
        assert restore_backup(space, rename="leaf/**")[1].exit_code == 0
        assert capture_stream(raw, "ORDERS", LEAF) == capture_stream(raw, "ORDERS", HUB)

        only: dict[str, Any] = {"targets": ("hub/stream/ORDERS",), "rename": "hub/stream/COPY"}
        with pytest.raises(PlanError) as caught:
            restore_backup(space, **only)
        (found,) = caught.value.diagnostics
        assert found.summary == 'subjects: "ORDERS.*" overlaps with hub/stream/ORDERS (10065)'
        assert found.detail.endswith("Give the restored stream other subjects: --subjects SUBJECT")
        assert restore_backup(space, **only, subjects=("copy.>",))[1].exit_code == 0
        copy = capture_stream(raw, "COPY", HUB)
        assert copy["messages"] == capture_stream(raw, "ORDERS", HUB)["messages"]
        assert copy["config"]["subjects"] == ["copy.>"]
        with pytest.raises(PlanError) as caught:
            restore_backup(space, targets=("hub/kv/*",), rename="hub/kv/OTHER")
        assert "cannot be restored under another name" in caught.value.diagnostics[0].summary


def test_restore_options_that_do_not_fit(tmp_path: Path, server: Server) -> None:
    """Options of restore that do not fit the backup are wrong usage."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        for name in ("A", "B"):
            create_lively_stream(raw, name, PLAIN)
    save(space, "main/**")
    for options, words in (
        ({"rename": "main/stream/C"}, "one place for 2 streams"),
        ({"rename": "main/kv/C", "targets": ("*/*/A",)}, "main/stream/A is a stream"),
        ({"rename": "other/**"}, "there is no domain other"),
        ({"targets": ("main/stream/C",)}, "names nothing in the backup"),
        ({"subjects": ("x",)}, "--subjects is for one stream"),
        ({"subjects": ("x..",), "targets": ("*/*/A",)}, "is not a subject"),
    ):
        with pytest.raises(UsageError, match=words):
            restore_backup(space, **options)


def test_a_refused_restore_leaves_nothing(tmp_path: Path, server: Server) -> None:
    """A stream that the server refuses is not created, and the others are restored with exit 6."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        for name in ("GOOD", "BAD"):
            create_lively_stream(raw, name, PLAIN)
        save(space, "main/**")
        for name in ("GOOD", "BAD"):
            raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")
        document = manifest(space)
        document["streams"][0]["config"]["subjects"] = ["BAD.*", "BAD.1"]
        (tmp_path / "bk" / MANIFEST).write_text(json.dumps(document))
        _, result = restore_backup(space)
        assert result.exit_code == 6
        failed = {step.address: step for step in result.steps if step.status == "failed"}
        assert "overlaps" in str(failed["main/stream/BAD"].error)
        assert raw.api("$JS.API.STREAM.INFO.BAD")["error"]["err_code"] == 10059
        assert raw.state("GOOD")["messages"] == 56


def test_a_snapshot_without_its_messages_is_reported(tmp_path: Path, server: Server) -> None:
    """A restored stream with less content than its manifest says is an error."""
    space = single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        create_lively_stream(raw, "S", PLAIN)
        save(space, "main/**")
        raw.api_ok("$JS.API.STREAM.DELETE.S")
        document = manifest(space)
        for moment in ("before", "after"):
            document["streams"][0][moment] |= {"messages": 70, "last_seq": 75}
            document["streams"][0]["consumers"][0][moment]["delivered"]["stream_seq"] = 70
        (tmp_path / "bk" / MANIFEST).write_text(json.dumps(document))
        _, result = restore_backup(space)
    assert result.exit_code == 6
    errors = " ".join(step.error or "" for step in result.steps)
    assert "last sequence 60 instead of 75, 56 messages instead of 70" in errors


def test_a_killed_restore_is_completed_by_the_next_one(tmp_path: Path, server: Server) -> None:
    """After a kill -9 of a restore, the next restore completes all streams."""
    streams = declared("S0", "S1", "S2", domain="main")
    space = single_space(tmp_path, server).write(streams=streams)
    with raw_of(server) as raw:
        for number in range(3):
            create_lively_stream(raw, f"S{number}", PLAIN, size=20_000)
        space.apply(adopt=True)
        before = {f"S{number}": capture_stream(raw, f"S{number}", PLAIN) for number in range(3)}
        save(space, "main/**")
        space.apply(destroy=True, allow_hazards=DELETING)
    with Clogged(server.port, 3 * 60 * 20_000 // 2) as relay:
        over(space, relay, streams=streams)
        process = start_process(tmp_path, "restore", "bk", "-y", "--parallelism", "1")
        assert relay.is_clogged.wait(40)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    space.write(streams=streams)
    journal = next(iter(tmp_path.glob("state/*.json"))).with_name("test.json.journal")
    assert b"stream.restore" in journal.read_bytes()
    with raw_of(server) as raw:
        server.wait_until(
            lambda: restore_backup(space)[1].exit_code == 0, "take the restore again", 40
        )
        for name, was in before.items():
            assert capture_stream(raw, name, PLAIN) == was
    assert not space.apply(adopt=True)[1].exit_code
    assert not space.plan().has_changes


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_apply_saves_streams_before_it_deletes_messages(tmp_path: Path, server: Server) -> None:
    """With `--backup`, each stream is saved before the first step that deletes messages."""
    space = single_space(tmp_path, server)
    streams = [
        {"name": name, "subjects": [f"{name}.*"]}
        for name in ("GOES", "TRIMMED", "REPLACED", "SAME")
    ]
    space.write(streams=streams)
    with raw_of(server) as raw:
        for stream in streams:
            create_lively_stream(raw, stream["name"], PLAIN)  # type: ignore[arg-type]
        space.apply(adopt=True)
        before = {
            name: capture_stream(raw, name, PLAIN) for name in ("GOES", "TRIMMED", "REPLACED")
        }
        space.write(
            streams=[
                {"name": "TRIMMED", "subjects": ["TRIMMED.*"], "max_msgs": 5},
                {
                    "name": "REPLACED",
                    "subjects": ["REPLACED.*"],
                    "retention": "workqueue",
                    "lifecycle": {"on_replace": "recreate"},
                },
                {"name": "SAME", "subjects": ["SAME.*"], "description": "still the same"},
            ]
        )
        _, result = space.apply(
            allow_hazards=(*DELETING, "BREAKS_REPLICATION"), backup=tmp_path / "safe"
        )
        assert result.exit_code == 0, [step.error for step in result.steps]
        assert result.backup is not None
        assert result.backup["streams"] == [
            "main/stream/GOES",
            "main/stream/REPLACED",
            "main/stream/TRIMMED",
        ]
        assert raw.state("TRIMMED")["messages"] == 5
        folder = Path(result.backup["folder"])
        assert folder.parent == tmp_path / "safe"
        assert json.loads((folder / MANIFEST).read_bytes())["complete"]
        for name in ("TRIMMED", "REPLACED"):
            raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")
        assert restore_backup(space, str(folder.relative_to(tmp_path)))[1].exit_code == 0
        assert {name: capture_stream(raw, name, PLAIN) for name in before} == before


def test_without_a_snapshot_nothing_is_deleted(tmp_path: Path, server: Server) -> None:
    """A backup that cannot be written stops the deletion, with exit 6."""
    space = single_space(tmp_path, server).write(streams=[{"name": "S"}])
    space.apply()
    (tmp_path / "file").write_text("no folder")
    _, result = space.apply(destroy=True, allow_hazards=DELETING, backup=tmp_path / "file")
    assert result.exit_code == 6
    assert "could not be saved first" in str(result.steps[0].error)
    assert "nothing was written" in str(result.steps[0].error)
    with raw_of(server) as raw:
        assert raw.api_ok("$JS.API.STREAM.INFO.S")


@pytest.mark.download
def test_memory_streams_stop_an_apply_with_backup_beforehand(
    tmp_path: Path, make_server: MakeServer
) -> None:
    """Before 2.15, an apply that would have to save a memory stream is refused unchanged."""
    server = make_server(version="2.14.6")
    space = single_space(tmp_path, server).write(
        streams=[{"name": "RAM", "storage": "memory"}, {"name": "DISK"}]
    )
    space.apply()
    with pytest.raises(
        RefusedError, match=r"in memory, and servers before 2.15.*\n  - main/stream/RAM"
    ):
        space.apply(destroy=True, allow_hazards=DELETING, backup=tmp_path / "safe")
    assert not (tmp_path / "safe").exists()
    with raw_of(server) as raw:
        assert raw.api_ok("$JS.API.STREAM.INFO.DISK")


def test_the_command_line(tmp_path: Path, server: Server) -> None:
    """Output, progress, JSON and exit codes are as documented."""
    single_space(tmp_path, server).write()
    with raw_of(server) as raw:
        create_lively_stream(raw, "S", PLAIN)
        ended = jsplan(tmp_path, "backup", "main/**", "bk")
        assert ended.code == 0, ended.err
        assert "Backup complete! Streams: 1 saved, 0 unchanged, 0 not saved." in ended.out
        assert "+ main/stream/S  56 messages" in ended.out
        assert "[1/1] done: main/stream/S" in ended.err
        document = json.loads(jsplan(tmp_path, "backup", "main/**", "bk", "--json").out)
        validator("backup").validate(json.loads((tmp_path / "bk" / MANIFEST).read_bytes()))
        assert (document["kind"], document["kept"], document["exit_code"]) == (
            "backup",
            ["main/stream/S"],
            0,
        )
        raw.api_ok("$JS.API.STREAM.DELETE.S")
        refused = jsplan(tmp_path, "restore", "bk")
        assert refused.code == 1
        assert "needs approval" in refused.err
        assert "main/stream/S  56 messages" in refused.out
        ended = jsplan(tmp_path, "restore", "bk", "-y")
        assert ended.code == 0, ended.err
        assert "Restore complete! Streams: 1 restored, 0 there already." in ended.out
        again = json.loads(jsplan(tmp_path, "restore", "bk", "-y", "--json").out)
        assert (again["kind"], again["steps"], again["exit_code"]) == ("apply", [], 0)
        assert jsplan(tmp_path, "backup", "bk").code == 64
        assert jsplan(tmp_path, "backup", "main/consumer/S/BUSY", "bk").code == 64
        raw.request("S.1", b"more")
        assert jsplan(tmp_path, "restore", "bk", "-y").code == 3
    shutil.rmtree(tmp_path / "bk")
    assert jsplan(tmp_path, "restore", "bk", "-y").code == 1
