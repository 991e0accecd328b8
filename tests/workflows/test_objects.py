"""Objects of object stores as code: uploads, other writers, kills, and nats-py."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.js.errors import ObjectNotFoundError

from jsplan.config import load
from jsplan.errors import ConfigError, RefusedError, StalePlanError
from jsplan.options import DriftOptions
from jsplan.resources.stored_object import CHUNK_SIZE
from jsplan.workflows.drift import drift
from jsplan.workflows.revert import RevertOptions, plan_revert
from tests.support.raw import NoResponders, Raw
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import (
    RecordingObserver,
    Space,
    hub_leaf_space,
    left_to_do,
    shown_changes,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from nats.js.object_store import ObjectStore

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.matrix
LOGO = bytes(range(256)) * 2_000  # four chunks


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace of hub and leaf, with the file logo.png."""
    (tmp_path / "logo.png").write_bytes(LOGO)
    (tmp_path / "note.txt").write_text("hello")
    return hub_leaf_space(tmp_path, clean_hub_leaf)


@dataclass
class Client:
    """An object store of the hub, as applications see it with nats-py."""

    sandbox: Sandbox

    def run(self, work: Callable[[ObjectStore], Awaitable[Any]], *, create: bool = False) -> Any:
        """Run something with the store ASSETS."""

        async def main() -> Any:
            hub = self.sandbox["hub"]
            client = await nats.connect(hub.url, user=hub.user, password=hub.password)
            js = client.jetstream(domain="hub")
            make = js.create_object_store if create else js.object_store
            try:
                return await work(await make("ASSETS"))
            finally:
                await client.close()

        return asyncio.run(main())

    def put(self, name: str, content: bytes, *, create: bool = False) -> None:
        """Put an object."""
        self.run(lambda store: store.put(name, content), create=create)

    def get(self, name: str) -> bytes | None:
        """Return the content of an object, whose digest nats-py checks; None for none."""
        try:
            found = self.run(lambda store: store.get(name))
        except ObjectNotFoundError:
            return None
        assert isinstance(found.data, bytes)
        return found.data


@pytest.fixture
def client(clean_hub_leaf: Sandbox) -> Client:
    """A client with nats-py."""
    return Client(clean_hub_leaf)


def store(objects: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The object store ASSETS in domain hub."""
    return {"bucket": "ASSETS", "domain": "hub", "objects": objects} | fields


def chunks(raw: Raw) -> dict[str, int]:
    """The messages on each subject of chunks in the store."""
    query = {"subjects_filter": "$O.ASSETS.C.>"}
    return raw.api("$JS.hub.API.STREAM.INFO.OBJ_ASSETS", query)["state"].get("subjects") or {}


FILE = {"logo.png": {"file": "logo.png"}}


def test_an_upload_is_an_object_of_all_clients(
    space: Space, raw: Raw, client: Client, tmp_path: Path
) -> None:
    """Other clients read it and check its digest; a new content replaces its chunks."""
    space.write(object_stores=[store(FILE | {"docs/a b.txt": {"file": "note.txt"}})])
    plan, result = space.apply()

    assert (result.exit_code, shown_changes(plan, "object")) == (
        0,
        {"logo.png": ["create"], "docs/a b.txt": ["create"]},
    )
    digest = hashlib.sha256(LOGO).hexdigest()
    change = next(c for c in plan.resource_changes if c.name == "ASSETS/logo.png")
    assert change.change.after == {"value": f"sha256:{digest} (512,000 bytes) of logo.png"}
    assert (client.get("logo.png"), client.get("docs/a b.txt")) == (LOGO, b"hello")
    assert sorted(chunks(raw).values()) == [1, 4]
    assert left_to_do(space.plan()) == []

    (tmp_path / "logo.png").write_bytes(b"new")
    plan, result = space.apply()
    assert (result.exit_code, shown_changes(plan, "object")) == (0, {"logo.png": ["update"]})
    assert client.get("logo.png") == b"new"
    assert sorted(chunks(raw).values()) == [1, 1]

    (tmp_path / "logo.png").write_bytes(b"")
    assert space.apply()[1].exit_code == 0
    assert client.get("logo.png") == b""
    assert sorted(chunks(raw).values()) == [1]
    assert left_to_do(space.plan()) == []


def test_objects_of_nats_py_are_adopted_and_replaced(
    space: Space, raw: Raw, client: Client, tmp_path: Path
) -> None:
    """An equal object is imported without a write; a changed one keeps its description."""
    from nats.js.api import ObjectMeta  # noqa: PLC0415

    meta = ObjectMeta(name="logo.png", description="ours", headers={"x": "1"})
    client.run(lambda found: found.put("logo.png", LOGO, meta=meta), create=True)
    client.put("theirs", b"x")
    before = raw.api("$JS.hub.API.STREAM.INFO.OBJ_ASSETS")["state"]["last_seq"]
    plan, result = space.write(object_stores=[store(FILE)]).apply()

    assert (result.exit_code, shown_changes(plan, "object"), plan.summary["import"]) == (0, {}, 2)
    assert raw.api("$JS.hub.API.STREAM.INFO.OBJ_ASSETS")["state"]["last_seq"] == before
    (tmp_path / "logo.png").write_bytes(b"new")
    assert space.apply()[1].exit_code == 0
    info = client.run(lambda found: found.get_info("logo.png"))
    assert (info.description, info.headers, info.size) == ("ours", {"x": "1"}, 3)
    assert (client.get("logo.png"), client.get("theirs")) == (b"new", b"x")

    client.put("logo.png", b"by an application")
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert [c.address for c in found.resource_drift] == ["hub/object/ASSETS/logo.png"]
    assert shown_changes(space.plan(), "object") == {"logo.png": ["update"]}
    client.run(lambda found: found.delete("logo.png"))
    assert shown_changes(space.plan(), "object") == {"logo.png": ["create"]}
    assert space.apply()[1].exit_code == 0
    assert client.get("logo.png") == b"new"


def test_a_difference_needs_adopt(space: Space, client: Client) -> None:
    """An object of another content that is not managed is not overwritten."""
    client.put("logo.png", b"theirs", create=True)
    space.write(object_stores=[store(FILE)])
    with pytest.raises(RefusedError, match="--adopt"):
        space.apply()
    assert client.get("logo.png") == b"theirs"
    assert space.apply(adopt=True)[1].exit_code == 0
    assert client.get("logo.png") == LOGO


def test_an_object_that_leaves_the_files_is_deleted_and_counted(
    space: Space, raw: Raw, client: Client
) -> None:
    """It needs a permission; then its chunks are purged, and clients find it deleted."""
    space.write(object_stores=[store(FILE)]).apply()
    space.write(object_stores=[store({})])
    plan = space.plan()
    hazards = [h for c in plan.resource_changes for h in c.hazards]
    assert [(h.code, h.messages, h.bytes) for h in hazards] == [("DELETES_MESSAGES", 4, 512_000)]
    with pytest.raises(RefusedError, match="DELETES_MESSAGES:hub/object/ASSETS/logo"):
        space.apply()
    flag = "DELETES_MESSAGES:hub/object/ASSETS/logo.png"
    assert space.apply(allow_hazards=(flag,))[1].exit_code == 0
    assert (client.get("logo.png"), chunks(raw)) == (None, {})
    assert left_to_do(space.plan()) == []


def test_a_folder_is_uploaded_and_its_prefix_pruned(
    space: Space, client: Client, tmp_path: Path
) -> None:
    """Files become objects under their paths; other objects below the prefix are deleted."""
    (tmp_path / "www" / "css").mkdir(parents=True)
    (tmp_path / "www" / "index.html").write_text("<p>")
    (tmp_path / "www" / "css" / "a.css").write_text("p{}")
    folder = {"dir": "www", "prefix": "www/", "prune": True}
    space.write(object_stores=[store({}, objects_from=folder)]).apply()
    client.put("www/old.html", b"old")
    client.put("other", b"x")

    assert shown_changes(space.plan(), "object") == {"www/old.html": ["delete"]}
    assert space.apply(allow_hazards=("DELETES_MESSAGES",))[1].exit_code == 0
    assert client.get("www/css/a.css") == b"p{}"
    assert (client.get("www/old.html"), client.get("other")) == (None, b"x")
    assert left_to_do(space.plan()) == []


def test_a_saved_plan_needs_the_same_file(space: Space, client: Client, tmp_path: Path) -> None:
    """A plan has only the digest: another content of the file stops the apply (exit 4)."""
    space.write(object_stores=[store(FILE)])
    plan = space.plan()
    (tmp_path / "logo.png").write_bytes(b"other")
    with pytest.raises(StalePlanError, match=r"hub/object/ASSETS/logo\.png"):
        space.apply_saved(plan)
    (tmp_path / "logo.png").write_bytes(LOGO)
    assert space.apply_saved(plan).exit_code == 0
    assert client.get("logo.png") == LOGO


def test_a_client_that_uploads_meanwhile_wins(
    space: Space, raw: Raw, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload between the last check and ours stays, and ours leaves no chunks (exit 6)."""
    from jsplan.jetstream import DomainApi  # noqa: PLC0415

    space.write(object_stores=[store({"a": {"file": "note.txt"}})]).apply()
    publish = DomainApi.publish_plainly
    upload: list[str] = []

    async def publish_late(self: DomainApi, subject: str, *args: Any, **named: Any) -> Any:
        if ".M." in subject and not upload:
            upload.append(subject)
            await asyncio.to_thread(client.put, "a", b"theirs")
        return await publish(self, subject, *args, **named)

    monkeypatch.setattr(DomainApi, "publish_plainly", publish_late)
    _, result = space.write(object_stores=[store({"a": {"file": "logo.png"}})]).apply()
    monkeypatch.undo()

    assert result.exit_code == 6
    assert "was changed by another client" in str(result.steps[0].error)
    assert client.get("a") == b"theirs"
    assert list(chunks(raw).values()) == [1]
    assert read_state(space.folder).pending == {}
    assert shown_changes(space.plan(), "object") == {"a": ["update"]}


@pytest.mark.since_2_12
@pytest.mark.parametrize("storage", ["file", "memory"], ids=["kept", "replaced"])
def test_a_saved_plan_over_a_changed_object_is_stale(
    storage: str, space: Space, client: Client
) -> None:
    """A write of the same content counts too, also where the plan replaces the store."""
    keep = {"lifecycle": {"on_replace": "preserve"}}
    space.write(object_stores=[store({"a": {"file": "note.txt"}}, **keep)]).apply()
    changed = store({"a": {"file": "logo.png"}}, storage=storage, **keep)
    plan = space.write(object_stores=[changed]).plan()
    client.put("a", b"hello")
    codes = tuple({hazard.code for c in plan.resource_changes for hazard in c.hazards})
    with pytest.raises(StalePlanError, match="hub/object/ASSETS/a"):
        space.apply_saved(plan, allow_hazards=codes)


@pytest.mark.parametrize("first_moment", [1, 2])
def test_a_kill_at_every_second_moment_leaves_no_chunks(
    space: Space, raw: Raw, client: Client, tmp_path: Path, first_moment: int
) -> None:
    """After a kill the next apply completes the work, and purges what the first one left."""
    options: dict[str, Any] = {"allow_hazards": ("DELETES_MESSAGES",), "parallelism": 1}
    first = store({"a": {"file": "logo.png"}, "b": {"file": "note.txt"}})
    then = store({"a": {"file": "new.bin"}, "c": {"file": "logo.png"}})
    (tmp_path / "new.bin").write_bytes(b"x" * (CHUNK_SIZE + 1))
    space.write(object_stores=[first]).apply()
    with kill_after() as whole:
        space.write(object_stores=[then]).apply(**options)
    assert whole.done > 12

    for moment in range(first_moment, whole.done, 2):
        space.write(object_stores=[first]).apply(**options)
        space.write(object_stores=[then])
        with kill_after(moment), suppress(SimulatedKill):
            space.apply(**options)
        assert space.apply(**options)[1].exit_code == 0, moment
        assert sorted(chunks(raw).values()) == [2, 4], moment
        assert read_state(space.folder).pending == {}, moment
        assert left_to_do(space.plan()) == [], moment
    assert client.get("a") == b"x" * (CHUNK_SIZE + 1)
    assert (client.get("b"), client.get("c")) == (None, LOGO)


def test_a_kill_before_the_object_leaves_the_files(space: Space, raw: Raw) -> None:
    """Chunks of an upload that is no longer wanted are purged too."""
    space.write(object_stores=[store({})]).apply()
    space.write(object_stores=[store(FILE)])
    with kill_after() as whole:
        space.apply()
    space.write(object_stores=[store({})]).apply(allow_hazards=("DELETES_MESSAGES",))
    for moment in range(2, whole.done):
        space.write(object_stores=[store(FILE)])
        with kill_after(moment), suppress(SimulatedKill):
            space.apply()
        space.write(object_stores=[store({})]).apply(allow_hazards=("DELETES_MESSAGES",))
        assert chunks(raw) == {}, moment
        assert read_state(space.folder).pending == {}, moment


def test_an_object_of_a_leaf_is_uploaded_through_the_hub(space: Space, raw: Raw) -> None:
    """The leaf has no connection of its own: its object store is reached by its subjects."""
    name = "docs/grüße, 1.png"
    leaf = store({name: {"file": "logo.png"}}) | {"domain": "leaf"}
    _, result = space.write(object_stores=[leaf]).apply()
    assert result.exit_code == 0
    assert left_to_do(space.plan()) == []
    query = {"subjects_filter": "$O.ASSETS.>"}
    found = raw.api("$JS.leaf.API.STREAM.INFO.OBJ_ASSETS", query)["state"]["subjects"]
    assert sorted(found.values()) == [1, 4]
    _, result = space.write(object_stores=[leaf | {"objects": {}}]).apply(
        allow_hazards=("DELETES_MESSAGES",)
    )
    assert result.exit_code == 0
    found = raw.api("$JS.leaf.API.STREAM.INFO.OBJ_ASSETS", query)["state"]["subjects"]
    assert list(found.values()) == [1]


def test_a_revert_deletes_new_objects_only(
    space: Space, raw: Raw, client: Client, tmp_path: Path
) -> None:
    """An object that the apply created goes; one that it changed stays, and is named."""
    space.write(object_stores=[store({"a": {"file": "note.txt"}})]).apply()
    (tmp_path / "note.txt").write_text("new")
    space.write(object_stores=[store({"a": {"file": "note.txt"}} | FILE)]).apply()
    plan = plan_revert(space.load, RevertOptions(number=2), RecordingObserver())

    assert shown_changes(plan, "object") == {"logo.png": ["delete"]}
    assert [d.address for d in plan.diagnostics if "only the digest" in d.summary] == [
        "hub/object/ASSETS/a"
    ]
    assert space.apply_saved(plan, allow_hazards=("DELETES_MESSAGES",)).exit_code == 0
    assert (client.get("a"), client.get("logo.png")) == (b"new", None)
    assert list(chunks(raw).values()) == [1]


def test_missing_chunks_are_found_and_replaced(space: Space, raw: Raw, client: Client) -> None:
    """An object that no client can read is drift, and is uploaded again."""
    space.write(object_stores=[store(FILE)]).apply()
    subject = next(iter(chunks(raw)))
    raw.api_ok("$JS.hub.API.STREAM.PURGE.OBJ_ASSETS", {"filter": subject, "keep": 3})
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert [f.after for c in found.resource_drift for f in c.change.fields] == [
        "incomplete (3 of 4 chunks) (512,000 bytes)"
    ]
    assert space.apply()[1].exit_code == 0
    assert client.get("logo.png") == LOGO
    assert list(chunks(raw).values()) == [4]


def test_a_link_is_a_difference(space: Space, raw: Raw, client: Client) -> None:
    """A link to another object is shown as such, and replaced only with --adopt."""
    client.put("other", b"x", create=True)
    link = {"name": "a", "options": {"link": {"bucket": "ASSETS", "name": "other"}}}
    subject = f"$O.ASSETS.M.{base64.urlsafe_b64encode(b'a').decode()}"
    raw.request(subject, json.dumps(link | {"bucket": "ASSETS", "nuid": "x"}).encode())
    space.write(object_stores=[store({"a": {"file": "note.txt"}})])
    change = next(c for c in space.plan().resource_changes if c.name == "ASSETS/a")
    assert change.change.before == {"value": "link to ASSETS/other (0 bytes)"}
    assert space.apply(adopt=True)[1].exit_code == 0
    assert (client.get("a"), client.get("other")) == (b"hello", b"x")


def test_validate_finds_what_no_store_takes(space: Space) -> None:
    """Names, files and stores that share their subjects are found without a server."""
    for stores, code in (
        ([store({"a*": {"file": "note.txt"}})], "JS131"),
        ([store({"a//b": {"file": "note.txt"}})], "JS131"),
        ([store({"a\u200bb": {"file": "note.txt"}})], "JS131"),
        ([store({"a": "note.txt"})], "JS104"),
        ([store({"a": {}})], "JS106"),
        ([store({"a": {"file": "missing"}})], "JS100"),
        ([store({"a": {"file": "note.txt", "value": 1}})], "JS105"),
        ([store({"a": {"file": "note.txt"}}, sealed=True)], "JS138"),
        ([store({}, objects_from={"dir": "."})], ""),
        ([store({}, objects_from={"dir": ".", "prefix": "app"})], "JS131"),
        ([store(FILE) | {"domain": ["hub", "leaf"]}], "JS139"),
        ([store(FILE), {"bucket": "ASSETS", "domain": "leaf"}], "JS139"),
    ):
        space.write(object_stores=stores)
        try:
            load(space.load)
            found = {""}
        except ConfigError as error:
            found = {d.code for d in error.diagnostics}
        assert code in found, stores


def test_linked_stores_of_one_name_store_each_others_messages(
    raw: Raw, clean_hub_leaf: Sandbox
) -> None:
    """The server maps no object stores below an API prefix, so JS139 has a reason."""
    config = {"name": "OBJ_ASSETS", "subjects": ["$O.ASSETS.C.>", "$O.ASSETS.M.>"]}
    raw.api_ok("$JS.leaf.API.STREAM.CREATE.OBJ_ASSETS", config)
    with pytest.raises(NoResponders):
        raw.request("$JS.leaf.API.$O.ASSETS.C.a", b"x")
    raw.api_ok("$JS.hub.API.STREAM.CREATE.OBJ_ASSETS", config)
    leaf, query = clean_hub_leaf["leaf"], {"subjects_filter": ">"}

    def is_in_both() -> bool:
        raw.request("$O.ASSETS.C.a", b"x")
        names = (
            raw.api(f"$JS.{domain}.API.STREAM.INFO.OBJ_ASSETS", query)["state"].get("subjects")
            for domain in ("hub", "leaf")
        )
        return all(names)

    leaf.wait_until(is_in_both, "store a message of the hub", 10)


def test_an_upload_that_another_domain_answers_fails(
    space: Space, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is recorded as uploaded, and the apply says which domain answered."""
    from jsplan.jetstream import DomainApi  # noqa: PLC0415

    space.write(object_stores=[store({})]).apply()
    stored = DomainApi.store_message

    async def answer_of_leaf(self: DomainApi, *args: Any) -> dict[str, Any]:
        return await stored(self, *args) | {"domain": "leaf"}

    monkeypatch.setattr(DomainApi, "store_message", answer_of_leaf)
    _, result = space.write(object_stores=[store(FILE)]).apply()
    monkeypatch.undo()

    assert result.exit_code == 6
    assert "a stream of domain leaf also stores" in str(result.steps[0].error)
    assert space.apply()[1].exit_code == 0
    assert list(chunks(raw).values()) == [4]
