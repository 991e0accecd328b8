"""Entries of buckets beside other clients: their buckets, their writes, and secrets."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import nats
import pytest

from jsplan.errors import StalePlanError
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

SECRET = "correct-horse-battery"
KEY = "$KV.CONFIG.n"


def bucket(entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The bucket CONFIG in domain hub."""
    return {"bucket": "CONFIG", "domain": "hub", "entries": entries} | fields


# --- buckets that other clients made ---


async def put_with_nats_py(url: str, user: str | None, password: str | None) -> None:
    """Make CONFIG and write, change, delete and purge keys with nats-py."""
    client = await nats.connect(url, user=user, password=password)
    kv = await client.jetstream(domain="hub").create_key_value(bucket="CONFIG", history=5)
    await kv.put("a", b"old")
    await kv.put("a", b"one")
    await kv.create("b.c", b'{"x":1}')
    for key in ("deleted", "purged"):
        await kv.put(key, b"was")
    await kv.delete("deleted")
    await kv.purge("purged")
    await client.close()


#: The stream of a bucket as nats.go and the nats CLI make it (`nats kv add CONFIG --history 5`).
GO_STREAM = {
    "name": "KV_CONFIG", "subjects": ["$KV.CONFIG.>"], "max_msgs_per_subject": 5,
    "duplicate_window": 120_000_000_000, "discard": "new", "deny_delete": True,
    "allow_rollup_hdrs": True, "allow_direct": True, "num_replicas": 1, "storage": "file",
    "max_bytes": -1, "max_msg_size": -1, "max_msgs": -1, "max_consumers": -1,
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("maker", ["nats-py", "nats.go"])
def test_a_bucket_of_another_client_is_adopted_without_a_difference(
    space: Space, raw: Raw, clean_hub_leaf: Sandbox, maker: str
) -> None:
    """Equal keys are imported, deleted ones are absent, and nothing is written."""
    hub = clean_hub_leaf["hub"]
    if maker == "nats-py":
        asyncio.run(put_with_nats_py(hub.url, hub.user, hub.password))
    else:
        # Write the messages that nats.go and the nats CLI write for the same operations.
        raw.api_ok("$JS.hub.API.STREAM.CREATE.KV_CONFIG", GO_STREAM)

        def put(key: str, value: bytes = b"", headers: dict[str, str] | None = None) -> None:
            _, answer = raw.request(f"$JS.hub.API.$KV.CONFIG.{key}", value, headers)
            assert b'"seq"' in answer, answer

        put("a", b"old")
        put("a", b"one")
        put("b.c", b'{"x":1}', {"Nats-Expected-Last-Subject-Sequence": "0"})
        put("deleted", b"was")
        put("purged", b"was")
        put("deleted", headers={"KV-Operation": "DEL"})
        put("purged", headers={"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    before = raw.api("$JS.API.STREAM.INFO.KV_CONFIG")["state"]["last_seq"]
    space.write(kv=[bucket({"a": "one", "b.c": {"x": 1}}, history=5)])
    plan, result = space.apply()

    assert {
        c.address: (c.change.actions, bool(c.change.importing)) for c in plan.resource_changes
    } == {
        "hub/kv/CONFIG": (["no-op"], True),
        "hub/kv_entry/CONFIG/a": (["no-op"], True),
        "hub/kv_entry/CONFIG/b.c": (["no-op"], True),
    }
    assert (result.exit_code, space.plan().steps) == (0, [])
    assert raw.api("$JS.API.STREAM.INFO.KV_CONFIG")["state"]["last_seq"] == before

    again = {"a": "one", "b.c": {"x": 1}, "deleted": "2", "purged": "2"}
    plan = space.write(kv=[bucket(again, history=5)]).plan()
    created = [c.name for c in plan.resource_changes if c.change.actions == ["create"]]
    assert created == ["CONFIG/deleted", "CONFIG/purged"]


# --- an application that writes at the same time ---


def count_up(raw: Raw, stop: threading.Event, done: list[int], pause: float) -> None:
    """Add one to the key with a condition, as applications do, until `stop`."""
    while not stop.wait(pause):
        query = {"last_by_subj": KEY}
        message = raw.api("$JS.API.STREAM.MSG.GET.KV_CONFIG", query)["message"]
        number = int(base64.b64decode(message["data"])) + 1
        condition = {"Nats-Expected-Last-Subject-Sequence": str(message["seq"])}
        _, answer = raw.request(KEY, str(number).encode(), condition)
        done[0] += b'"error"' not in answer


@pytest.mark.soak
@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_two_writers_for_a_minute(space: Space, raw: Raw, clean_hub_leaf: Sandbox) -> None:
    """Of two applications and applies that count up one key, no update is overwritten."""
    hub = clean_hub_leaf["hub"]
    space.write(kv=[bucket({"n": "0"}, history=64)]).apply()
    stop, done, ours, end = threading.Event(), ([0], [0]), 0, time.monotonic() + 60
    with Raw(hub.url, hub.user, hub.password) as other:
        writers = [
            threading.Thread(target=count_up, args=(client, stop, added, pause))
            for client, added, pause in ((raw, done[0], 0.05), (other, done[1], 0.13))
        ]
        for writer in writers:
            writer.start()
        try:
            while time.monotonic() < end:
                ours += apply_next(space)
        finally:
            stop.set()
            for writer in writers:
                writer.join()

    message = raw.api("$JS.API.STREAM.MSG.GET.KV_CONFIG", {"last_by_subj": KEY})["message"]
    assert int(base64.b64decode(message["data"])) == done[0][0] + done[1][0] + ours
    assert min(done[0][0], done[1][0]) > 100
    assert ours > 0


def apply_next(space: Space) -> bool:
    """Plan the value after the one that the plan shows, and apply it; True if it was written."""
    seen = value_before(space)
    space.write(kv=[bucket({"n": str(seen + 1)}, history=64)])
    plan = space.plan()
    change = next(c for c in plan.resource_changes if c.type == "kv_entry")
    if change.change.before != {"value": str(seen)}:
        return False
    try:
        return space.apply_saved(plan).exit_code == 0
    except StalePlanError:
        return False


def value_before(space: Space) -> int:
    """The value of the key when it was planned."""
    change = next(c for c in space.plan().resource_changes if c.type == "kv_entry")
    assert change.change.before is not None
    return int(change.change.before["value"])


# --- secrets ---


def test_no_command_shows_a_secret(
    space: Space, raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views, logs and reports of all commands, and the manifest of a backup, have digests."""
    monkeypatch.setenv("PASSWORD", SECRET)
    space.write(kv=[bucket({"a": "${env.PASSWORD}", "b": {"value": SECRET, "sensitive": True}})])
    commands = (
        ["plan", "-o", "saved.plan"],
        *(["plan", "--format", view] for view in ("json", "markdown", "html")),
        ["apply", "saved.plan", "--log-format", "json", "-v"],
        ["drift", "--format", "json"],
        ["drift", "--format", "markdown"],
        *(
            [name, "--format", "json"]
            for name in ("plan", "status", "history", "graph", "validate")
        ),
        ["apply", "-y", "-v", "--log-format", "json"],
        ["show", "--state"],
        ["state", "list"],
        ["backup", "hub/kv/CONFIG", "saved"],
    )
    shown = []
    for number, words in enumerate(commands):
        if number == 5:
            raw.request("$KV.CONFIG.a", f"{SECRET} of another".encode())
        done = jsplan(tmp_path, *words)
        assert done.code in (0, 2), (words, done.err)
        assert SECRET not in done.out + done.err, words
        shown.append(done.out)

    assert sum("sha256:" in text for text in shown) > 5
    manifests = list((tmp_path / "saved").rglob("*.json"))
    assert manifests
    files = [*manifests, *(tmp_path / "state").rglob("*"), tmp_path / "saved.plan"]
    assert [] == [f for f in files if f.is_file() and SECRET.encode() in f.read_bytes()]
    assert json.loads((tmp_path / "saved.plan").read_text())["kind"] == "plan"
