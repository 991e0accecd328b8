"""Entries of KV buckets as code: who may write, what is shown, and what happens in between."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config import kv_entries, load
from jsplan.config.model import LoadOptions
from jsplan.documents.apply import StepStarted
from jsplan.errors import ApiTimeoutError, ConfigError, PlanError, RefusedError, StalePlanError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.workflows import apply as applying
from jsplan.workflows.drift import drift
from jsplan.workflows.plan import save_plan
from jsplan.workflows.revert import RevertOptions, plan_revert
from tests.support.raw import Raw, encode
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, approve, left_to_do, shown_changes

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.matrix
SECRET = "correct-horse-battery"


@pytest.fixture
def plain(space: Space) -> Space:
    """The same, for tests with an environment of their own."""
    return space


def bucket(entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The bucket CONFIG in domain hub."""
    return {"bucket": "CONFIG", "domain": "hub", "entries": entries} | fields


def put(raw: Raw, key: str, value: str, headers: dict[str, str] | None = None) -> int:
    """Put a key of CONFIG as an application does; return its revision."""
    _, answer = raw.request(f"$KV.CONFIG.{key}", value.encode(), headers)
    return int(json.loads(answer)["seq"])


def get(raw: Raw, key: str) -> str | None:
    """Return the value of a key of CONFIG; None for a deleted one."""
    answer = raw.api("$JS.API.STREAM.MSG.GET.KV_CONFIG", {"last_by_subj": f"$KV.CONFIG.{key}"})
    if "message" not in answer:
        return None
    message = answer["message"]
    headers = base64.b64decode(message.get("hdrs", ""))
    if b"KV-Operation" in headers or b"Nats-Marker-Reason" in headers:
        return None
    return base64.b64decode(message.get("data", "")).decode()


# --- beside streams and consumers ---


def test_steps_of_entries_wait_for_their_bucket_alone(space: Space) -> None:
    """One plan has all kinds: changes by address, and steps of entries at the end."""
    other = {"bucket": "OTHER", "domain": "hub", "entries": {"b": "two"}}
    streams = [{"name": "Z", "domain": "hub", "subjects": ["z"]}]
    plan = space.write(streams=streams, kv=[bucket({"a": "one"}), other]).plan()
    assert [change.address for change in plan.resource_changes] == [
        "hub/kv/CONFIG",
        "hub/kv/OTHER",
        "hub/kv_entry/CONFIG/a",
        "hub/kv_entry/OTHER/b",
        "hub/stream/Z",
    ]
    ids = {step.address: step.id for step in plan.steps}
    after = {step.address: step.depends_on for step in plan.steps}
    assert [step.op for step in plan.steps[3:]] == ["kv_entry.create"] * 2
    assert after["hub/kv_entry/CONFIG/a"] == [ids["hub/kv/CONFIG"]]
    assert after["hub/kv_entry/OTHER/b"] == [ids["hub/kv/OTHER"]]


def test_a_flag_for_all_kinds_replaces_no_entry(space: Space, raw: Raw) -> None:
    """`--replace` is for streams and consumers; what names only an entry names nothing."""
    kept = {"lifecycle": {"on_replace": "preserve"}}
    space.write(kv=[bucket({"a": "one"}, **kept)]).apply()
    with pytest.raises(PlanError, match="--replace hub/kv_entry/CONFIG/a names nothing"):
        space.plan(replace=("hub/kv_entry/CONFIG/a",))
    assert shown_changes(space.plan(replace=("**",)), "kv_entry") == {}
    assert get(raw, "a") == "one"


def test_a_targeted_entry_brings_its_bucket(space: Space, raw: Raw) -> None:
    """A target includes what it depends on, and nothing else."""
    space.write(kv=[bucket({"a": "one", "b": "two"})])
    plan = space.plan(targets=("hub/kv_entry/CONFIG/a",))
    assert [step.address for step in plan.steps] == ["hub/kv/CONFIG", "hub/kv_entry/CONFIG/a"]
    space.apply(targets=("hub/kv_entry/CONFIG/a",))
    assert (get(raw, "a"), get(raw, "b")) == ("one", None)


def test_a_domain_that_stops_while_entries_are_read_defers_them(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket was read before, and is planned; the entry waits, in a plan and in drift."""
    space.write(kv=[bucket({"a": "one"})]).apply()
    space.write(kv=[bucket({"a": "two"}, description="new")])

    async def stop(*_: object) -> None:
        raise ApiTimeoutError("no answer")

    monkeypatch.setattr("jsplan.facts.contents.read_entries", stop)
    plan, found = space.plan(), drift(space.load, DriftOptions(), RecordingObserver())
    assert [step.address for step in plan.steps] == ["hub/kv/CONFIG"]
    assert (plan.complete, plan.diagnostics) == (False, [])
    for deferred in (*plan.deferred, *found.deferred):
        assert deferred.address == "hub/kv_entry/CONFIG/a"
        assert deferred.reason.startswith("domain hub is offline: no answer")
    assert len(plan.deferred) == len(found.deferred) == 1


# --- values that are too large ---


def test_a_value_over_the_limit_of_a_bucket_is_an_error_of_the_plan(space: Space, raw: Raw) -> None:
    """The limit counts that the bucket has, also where no file names it; the server agrees."""
    kept: dict[str, Any] = {"lifecycle": {"ignore_changes": ["max_value_size"]}}
    space.write(kv=[bucket({"a": "one"}, **kept)]).apply()
    fits, most = "x" * (1024 - 80), 1024
    config = raw.api("$JS.API.STREAM.INFO.KV_CONFIG", {})["config"] | {"max_msg_size": most}
    assert "error" not in raw.api("$JS.API.STREAM.UPDATE.KV_CONFIG", config)
    space.write(kv=[bucket({"a": fits}, **kept)]).apply()
    assert get(raw, "a") == fits

    plan = space.write(kv=[bucket({"a": fits + "x"}, **kept)]).plan()
    (found,) = (d for d in plan.diagnostics if d.severity == "error")
    assert (found.code, found.address) == ("JS138", "hub/kv_entry/CONFIG/a")
    assert f"hub/kv/CONFIG takes {most:,} in a message" in found.summary
    assert (plan.errored, plan.steps) == (True, [])
    _, answer = raw.request("$KV.CONFIG.a", b"x" * (most + 1))
    assert json.loads(answer)["error"]["err_code"] == 10054


def test_a_raised_limit_counts_in_the_same_plan(space: Space, raw: Raw) -> None:
    """The value may have the size that the bucket takes after its own step."""
    space.write(kv=[bucket({"a": "one"}, max_value_size=1024)]).apply()
    space.write(kv=[bucket({"a": "x" * 2000}, max_value_size=4096)]).apply()
    assert get(raw, "a") == "x" * 2000


def test_a_value_over_max_payload_is_an_error_of_the_plan(space: Space) -> None:
    """A server takes messages of 1 MiB, headers included, unless it is configured otherwise."""
    most = 1 << 20
    (space.folder / "large").write_text("x" * (most - 80))
    space.write(kv=[bucket({"a": {"file": "large"}})]).apply()

    (space.folder / "large").write_text("x" * (most - 79))
    (found,) = (d for d in space.plan().diagnostics if d.severity == "error")
    assert (found.code, found.address) == ("JS138", "hub/kv_entry/CONFIG/a")
    assert f"the server takes {most:,} in a message" in found.summary
    assert "max_payload" in found.detail


# --- an application writes in between ---


def test_a_key_that_changed_since_the_plan_makes_it_stale(space: Space, raw: Raw) -> None:
    """A saved plan over a key that an application wrote since is refused, and writes nothing."""
    space.write(kv=[bucket({"a": "one", "b": "one"})]).apply()
    plan = space.write(kv=[bucket({"a": "two", "b": "two"})]).plan()
    put(raw, "a", "theirs")

    with pytest.raises(StalePlanError, match="hub/kv_entry/CONFIG/a"):
        space.apply_saved(plan)
    assert (get(raw, "a"), get(raw, "b")) == ("theirs", "one")


def test_a_write_of_the_same_value_makes_a_plan_stale_too(space: Space, raw: Raw) -> None:
    """The revision counts, not the value alone."""
    space.write(kv=[bucket({"a": "one"})]).apply()
    plan = space.write(kv=[bucket({"a": "two"})]).plan()
    put(raw, "a", "one")

    with pytest.raises(StalePlanError, match="hub/kv_entry/CONFIG/a"):
        space.apply_saved(plan)


def test_a_key_that_appeared_since_the_plan_is_not_overwritten(space: Space, raw: Raw) -> None:
    """A key that was absent when planned and is there now is refused."""
    space.write(kv=[bucket({})]).apply()
    plan = space.write(kv=[bucket({"a": "ours"})]).plan()
    put(raw, "a", "theirs")

    with pytest.raises(StalePlanError, match="hub/kv_entry/CONFIG/a"):
        space.apply_saved(plan)
    assert get(raw, "a") == "theirs"


def test_an_application_between_check_and_write_wins(
    space: Space, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is written after its last check keeps that value; the rest is applied (exit 6)."""
    from jsplan.jetstream import DomainApi  # noqa: PLC0415

    space.write(kv=[bucket({"a": "one", "b": "one"})]).apply()
    space.write(kv=[bucket({"a": "two", "b": "two"})])
    publish = DomainApi.publish

    async def publish_late(self: DomainApi, subject: str, *args: Any, **named: Any) -> Any:
        if subject.endswith(".a"):
            put(raw, "a", "theirs")
        return await publish(self, subject, *args, **named)

    monkeypatch.setattr(DomainApi, "publish", publish_late)
    _, result = space.apply()
    monkeypatch.undo()

    assert result.exit_code == 6
    assert (get(raw, "a"), get(raw, "b")) == ("theirs", "two")
    assert [s.error for s in result.steps if s.status == "failed"] == [
        (
            "hub/kv_entry/CONFIG/a was changed by another client since it was planned; "
            "nothing was written"
        )
    ]
    assert shown_changes(space.plan(), "kv_entry") == {"a": ["update"]}


def test_an_application_that_writes_right_after_us(
    space: Space, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement proves our write, and the next plan shows the application's value."""
    from jsplan.jetstream import DomainApi  # noqa: PLC0415

    space.write(kv=[bucket({"a": "one"})]).apply()
    space.write(kv=[bucket({"a": "two"})])
    publish = DomainApi.publish

    async def publish_early(self: DomainApi, *args: Any, **named: Any) -> Any:
        answer = await publish(self, *args, **named)
        put(raw, "a", "theirs")
        return answer

    monkeypatch.setattr(DomainApi, "publish", publish_early)
    _, result = space.apply()
    monkeypatch.undo()

    assert result.exit_code == 0
    plan = space.plan()
    assert [c.action_reason for c in plan.resource_drift] == ["drift_changed"]
    assert shown_changes(plan, "kv_entry") == {"a": ["update"]}


def test_no_update_of_an_application_is_overwritten(space: Space, raw: Raw) -> None:
    """Of an application and applies that count up one key at once, no update is lost."""
    space.write(kv=[bucket({"n": "0"}, history=64)]).apply()
    stop, added, ours = threading.Event(), [0], 0

    def count() -> None:
        while not stop.wait(0.02):
            answer = raw.api("$JS.API.STREAM.MSG.GET.KV_CONFIG", {"last_by_subj": "$KV.CONFIG.n"})[
                "message"
            ]
            number = int(base64.b64decode(answer["data"])) + 1
            condition = {"Nats-Expected-Last-Subject-Sequence": str(answer["seq"])}
            _, done = raw.request("$KV.CONFIG.n", str(number).encode(), condition)
            added[0] += b'"error"' not in done

    application = threading.Thread(target=count)
    application.start()
    try:
        for _ in range(15):
            seen = value_before(space.plan())
            plan = space.write(kv=[bucket({"n": str(int(seen) + 1)}, history=64)]).plan()
            if value_before(plan) == seen:
                try:
                    ours += space.apply_saved(plan).exit_code == 0
                except StalePlanError:
                    continue
    finally:
        stop.set()
        application.join()

    assert get(raw, "n") == str(added[0] + ours)


def value_before(plan: Plan) -> str:
    """The value of the one entry when it was planned."""
    change = next(c for c in plan.resource_changes if c.type == "kv_entry")
    assert change.change.before is not None
    return str(change.change.before["value"])


# --- secrets ---


@dataclass
class SecretSpace(Space):
    """A workspace whose environment has PASSWORD."""

    environ: dict[str, str] = field(default_factory=lambda: {"PASSWORD": SECRET})

    @property
    def load(self) -> LoadOptions:
        """The options to load it."""
        return LoadOptions(self.folder, environ=self.environ)


def secret_space(plain: Space, entries: dict[str, Any]) -> SecretSpace:
    """The same folder, with the environment and these entries."""
    space = SecretSpace(plain.folder, plain.base)
    space.write(kv=[bucket(entries)])
    return space


@pytest.mark.parametrize(
    "entry",
    [
        "${env.PASSWORD}",
        "user:${env.PASSWORD}",
        {"login": {"password": "${env.PASSWORD}"}},
        {"value": SECRET, "sensitive": True},
        {"file": "secret.txt", "sensitive": True},
    ],
    ids=["alone", "in-text", "in-json", "marked", "file"],
)
def test_a_secret_is_in_nothing_that_is_written(
    space: Space, raw: Raw, tmp_path: Path, entry: Any
) -> None:
    """Plans, state, history, drift and results have a digest of it, before and after a change."""
    written = tmp_path / "written"
    written.mkdir()
    (tmp_path / "secret.txt").write_text(SECRET)
    space = secret_space(space, {"a": entry})
    plan = space.plan()
    save_plan(plan, written / "create.plan")
    result = space.apply_saved(plan)

    assert result.exit_code == 0
    assert SECRET in str(get(raw, "a"))
    put(raw, "a", f"{SECRET} of another")
    found = drift(space.load, DriftOptions(), RecordingObserver())
    save_plan(space.plan(), written / "update.plan")
    (written / "drift").write_text(json.dumps(found.to_json()) + repr(found))
    (written / "result").write_text(json.dumps(result.to_json()) + repr(space.plan()))
    space.write(kv=[bucket({"a": "plain"})])
    save_plan(space.plan(), written / "plain.plan")
    space.write(kv=[bucket({})])
    save_plan(space.plan(), written / "delete.plan")
    space.apply(allow_hazards=("DELETES_MESSAGES",))

    files = [p for p in (*written.iterdir(), *(tmp_path / "state").rglob("*")) if p.is_file()]
    assert len(files) > 6
    assert [] == [path.name for path in files if SECRET.encode() in path.read_bytes()]
    assert get(raw, "a") is None


def test_a_saved_plan_takes_a_secret_from_the_files(plain: Space, raw: Raw) -> None:
    """The value is read again, and one that is not the planned one stops the apply (exit 4)."""
    space = secret_space(plain, {"a": "${env.PASSWORD}"})
    plan = space.plan()
    space.environ["PASSWORD"] = "another-password"
    with pytest.raises(StalePlanError, match="hub/kv_entry/CONFIG/a"):
        space.apply_saved(plan)
    assert get(raw, "a") is None

    space.environ["PASSWORD"] = SECRET
    assert space.apply_saved(plan).exit_code == 0
    assert get(raw, "a") == SECRET
    assert not space.plan().has_changes


def test_only_a_plan_needs_the_environment(plain: Space) -> None:
    """Without the variable a plan is refused, and drift compares digests all the same."""
    space = secret_space(plain, {"a": "${env.PASSWORD}"})
    space.apply()
    space.environ.clear()

    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert (found.exit_code, found.pending) == (0, 0)
    plan = space.plan()
    assert [(d.code, d.address) for d in plan.diagnostics if d.severity == "error"] == [
        ("JS111", "hub/kv_entry/CONFIG/a")
    ]
    assert (plan.errored, plan.steps) == (True, [])


def test_a_value_becomes_sensitive_without_a_write(space: Space, raw: Raw) -> None:
    """The mark alone changes only what is shown."""
    space.write(kv=[bucket({"a": SECRET})]).apply()
    revision = raw.api("$JS.API.STREAM.INFO.KV_CONFIG")["state"]["last_seq"]
    plan, result = space.write(kv=[bucket({"a": {"value": SECRET, "sensitive": True}})]).apply()

    assert (result.exit_code, plan.has_changes) == (0, False)
    assert SECRET not in json.dumps(plan.to_json())
    assert raw.api("$JS.API.STREAM.INFO.KV_CONFIG")["state"]["last_seq"] == revision
    assert left_to_do(space.plan()) == []


def test_a_file_outside_of_the_workspace_is_not_shown(space: Space, tmp_path: Path) -> None:
    """A workspace may name any file of the machine, and plans end up on pull requests."""
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text(SECRET)
    plan = Space(folder, space.base).write(kv=[bucket({"a": {"file": "../outside.txt"}})]).plan()

    assert shown_changes(plan, "kv_entry") == {"a": ["create"]}
    assert SECRET not in json.dumps(plan.to_json())


# --- what the files own ---


def test_a_folder_is_read_and_its_prefix_pruned(space: Space, raw: Raw, tmp_path: Path) -> None:
    """Files become keys; below a pruned prefix other keys are deleted, and counted."""
    conf = tmp_path / "conf"
    (conf / "web").mkdir(parents=True)
    (conf / "mode").write_text("fast")
    (conf / "web" / "limits.json").write_text("{}")
    (conf / "logo.bin").write_bytes(b"\x00\xff")
    (conf / ".hidden").write_text("x")
    source = {"dir": "conf", "prefix": "app.", "prune": True}
    space.write(kv=[bucket({"app.inline": "1"}, entries_from=source)]).apply()
    put(raw, "app.old", "theirs")
    put(raw, "other.old", "theirs")

    plan = space.plan()
    assert shown_changes(plan, "kv_entry") == {"app.old": ["delete"]}
    with pytest.raises(RefusedError, match=r"DELETES_MESSAGES:hub/kv_entry/CONFIG/app\.old"):
        space.apply()
    flag = "DELETES_MESSAGES:hub/kv_entry/CONFIG/app.old"
    _, result = space.apply(allow_hazards=(flag,))

    assert result.exit_code == 0
    assert get(raw, "app.web.limits.json") == "{}"
    assert (get(raw, "app.old"), get(raw, "other.old")) == (None, "theirs")
    assert left_to_do(space.plan()) == []


def test_a_removed_block_keeps_a_key(space: Space, raw: Raw, tmp_path: Path) -> None:
    """It is left on the server: a managed one, and one below a pruned prefix."""
    (tmp_path / "conf").mkdir()
    source = {"dir": "conf", "prefix": "app.", "prune": True}
    space.write(kv=[bucket({"app.a": "1", "app.b": "1"}, entries_from=source)]).apply()
    put(raw, "app.theirs", "1")
    removed = [
        {"address": f"hub/kv_entry/CONFIG/app.{key}", "destroy": False} for key in ("a", "theirs")
    ]
    space.write(kv=[bucket({"app.b": "1"}, entries_from=source)], removed=removed)

    assert shown_changes(space.plan(), "kv_entry") == {"app.a": ["forget"]}
    assert space.apply()[1].exit_code == 0
    assert left_to_do(space.plan()) == []
    assert (get(raw, "app.a"), get(raw, "app.theirs")) == ("1", "1")

    space.write(kv=[bucket({"app.a": "1"})], removed=removed)
    with pytest.raises(ConfigError) as caught:
        load(space.load)
    assert [d.code for d in caught.value.diagnostics] == ["JS144"]


def test_more_keys_than_one_batch_are_read(space: Space, raw: Raw) -> None:
    """Batches of the server end at 1,024 keys and at a number of bytes."""
    space.write(kv=[bucket({})]).apply()
    value = "x" * 9_000
    raw.publish_all(encode(f"$KV.CONFIG.k{number}", value.encode()) for number in range(1_100))
    raw.flush()
    put(raw, "k1099", "theirs")
    put(raw, "k7", "", {"KV-Operation": "DEL"})
    many = {f"k{number}": value for number in range(1_101)}
    plan = space.write(kv=[bucket(many)]).plan()

    assert shown_changes(plan, "kv_entry") == {
        "k1099": ["update"],
        "k7": ["create"],
        "k1100": ["create"],
    }
    assert plan.summary["import"] == 1_099


def test_target_and_exclude_select_entries(space: Space) -> None:
    """A target takes its bucket along, and an excluded key is left alone."""
    space.write(kv=[bucket({"a": "1", "b": "2"})], streams=[{"name": "S", "domain": "hub"}])
    plan = space.plan(targets=("hub/kv_entry/CONFIG/a",))
    assert [s.address for s in plan.steps] == ["hub/kv/CONFIG", "hub/kv_entry/CONFIG/a"]

    plan = space.plan(excludes=("hub/kv_entry/CONFIG/a",))
    assert shown_changes(plan, "kv_entry") == {"b": ["create"]}
    plan = space.plan(excludes=("hub/kv/CONFIG",))
    assert plan.errored
    assert {d.code for d in plan.diagnostics if d.severity == "error"} == {"JS416"}


def test_destroy_deletes_the_bucket_once(space: Space, raw: Raw) -> None:
    """A destroy counts the values with the bucket and forgets the entries."""
    space.write(kv=[bucket({"a": "1"})]).apply()
    _, result = space.apply(destroy=True, allow_hazards=("DELETES_STREAM",))

    assert result.exit_code == 0
    assert [s.op for s in result.steps] == ["stream.delete", "state.forget"]
    assert raw.api("$JS.API.STREAM.INFO.KV_CONFIG")["error"]["code"] == 404


@pytest.mark.since_2_12
def test_a_preserved_bucket_keeps_its_entries(space: Space, raw: Raw) -> None:
    """Values of an application stay, a changed value follows, and nothing has to be adopted.

    Its messages have conditions of their publish, which mirrors of servers before 2.15 lose.
    """
    keep = {"lifecycle": {"on_replace": "preserve"}}
    space.write(kv=[bucket({"a": "one", "b": "two"}, storage="file", **keep)]).apply()
    put(raw, "other", "theirs")
    space.write(kv=[bucket({"a": "new", "b": "two"}, storage="memory", **keep)])
    plan = space.plan()
    codes = tuple({h.code for c in plan.resource_changes for h in c.hazards})
    _, result = space.apply(allow_hazards=codes)

    assert shown_changes(plan, "kv_entry") == {"a": ["update"]}
    assert result.exit_code == 0, result
    assert [get(raw, key) for key in ("a", "b", "other")] == ["new", "two", "theirs"]
    assert left_to_do(space.plan()) == []
    assert raw.api("$JS.API.STREAM.INFO.KV_CONFIG")["config"]["storage"] == "memory"


@pytest.mark.since_2_12
def test_an_application_that_writes_during_a_replacement_wins(space: Space, raw: Raw) -> None:
    """The step after the replacement finds another value than planned, and writes nothing."""

    class Application(RecordingObserver):
        """Writes the key when the first step begins: all preconditions were checked before."""

        def event(self, event: ApplyEvent) -> None:
            if isinstance(event, StepStarted) and not self.texts.count("written"):
                put(raw, "a", "theirs")
                self.texts.append("written")

    keep = {"lifecycle": {"on_replace": "preserve"}}
    space.write(kv=[bucket({"a": "one"}, storage="file", **keep)]).apply()
    plan = space.write(kv=[bucket({"a": "new"}, storage="memory", **keep)]).plan()
    codes = tuple({h.code for c in plan.resource_changes for h in c.hazards})
    options = PlanOptions(allow_hazards=codes)
    _, result = applying.apply(space.load, options, approve, Application())

    assert result.exit_code == 6
    assert get(raw, "a") == "theirs"
    assert shown_changes(space.plan(), "kv_entry") == {"a": ["update"]}


def test_entries_of_an_offline_domain_are_deferred(space: Space, clean_hub_leaf: Sandbox) -> None:
    """They stay in state, and the rest is applied."""
    entries = {"a": "1"}
    kv = [{"bucket": "CONFIG", "domain": ["hub", "leaf"], "entries": entries}]
    space.write(kv=kv).apply()
    offline = {"leaf": {"connection": "hub", "js_domain": "nowhere", "may_be_offline": "7d"}}
    state = json.loads((space.folder / "state" / "test.json").read_text())
    state["domains"]["leaf"]["js_domain"] = "nowhere"
    (space.folder / "state" / "test.json").write_text(json.dumps(state))
    domains = space.base["domains"] | offline
    kv[0]["entries"] = {"a": "2"}
    plan, result = space.write(kv=kv, domains=domains).apply()

    assert result.exit_code == 0
    assert sorted(d.address for d in plan.deferred) == ["leaf/kv/CONFIG", "leaf/kv_entry/CONFIG/a"]
    assert shown_changes(plan, "kv_entry") == {"a": ["update"]}


def test_a_moved_domain_takes_its_entries_along(space: Space) -> None:
    """A new name of a domain is no change of its keys."""
    space.write(kv=[bucket({"a": "1"})]).apply()
    domains = {"center": {"connection": "hub", "js_domain": "hub"}}
    space.write(
        domains=domains,
        kv=[bucket({"a": "1"}) | {"domain": "center"}],
        moved=[{"from": "hub/**", "to": "center/**"}],
    )
    plan, result = space.apply()
    assert (result.exit_code, plan.has_changes) == (0, False)
    assert left_to_do(space.plan()) == []


def test_a_bucket_of_someone_else_under_the_same_name(space: Space, raw: Raw) -> None:
    """After a bucket was recreated outside jsplan its keys are not ours: nothing is overwritten."""
    space.write(kv=[bucket({"a": "1"})]).apply()
    config = raw.api("$JS.API.STREAM.INFO.KV_CONFIG")["config"]
    raw.api_ok("$JS.API.STREAM.DELETE.KV_CONFIG")
    raw.api_ok("$JS.API.STREAM.CREATE.KV_CONFIG", config)
    put(raw, "a", "theirs")

    with pytest.raises(RefusedError, match="--adopt"):
        space.write(kv=[bucket({"a": "2"})]).apply()
    assert get(raw, "a") == "theirs"


def test_markers_of_the_server_are_no_values(space: Space, raw: Raw) -> None:
    """A key that expired by its own TTL is absent, also while its marker is there."""
    space.write(kv=[bucket({}, limit_marker_ttl="1h")])
    if space.plan().errored:  # before 2.11 there are no markers
        return
    space.apply()
    put(raw, "a", "", {"Nats-Marker-Reason": "MaxAge"})
    space.write(kv=[bucket({"a": "1"}, limit_marker_ttl="1h")])

    assert shown_changes(space.plan(), "kv_entry") == {"a": ["create"]}
    assert space.apply()[1].exit_code == 0
    assert get(raw, "a") == "1"


def test_a_value_that_expired_is_no_drift(space: Space, raw: Raw, clean_hub_leaf: Sandbox) -> None:
    """The server deleted it as the files said: it is written again only when they change."""
    entry = {"value": "1", "ttl": "1s"}
    space.write(kv=[bucket({"a": entry, "b": entry | {"ttl": "1h"}}, limit_marker_ttl="1h")])
    if space.plan().errored:  # before 2.11 messages have no TTL
        return
    assert space.apply()[1].exit_code == 0
    assert left_to_do(space.plan()) == []
    clean_hub_leaf["hub"].wait_until(lambda: get(raw, "a") is None, "delete the value", 10)
    assert left_to_do(space.plan()) == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    _, result = space.apply(refresh_only=True)
    assert (result.exit_code, space.plan().steps) == (0, [])

    put(raw, "b", "", {"KV-Operation": "DEL"})
    changed = entry | {"value": "2", "ttl": "1h"}
    space.write(kv=[bucket({"a": changed, "b": entry | {"ttl": "1h"}}, limit_marker_ttl="1h")])
    assert shown_changes(space.plan(), "kv_entry") == {"a": ["create"], "b": ["create"]}
    assert space.apply()[1].exit_code == 0
    put(raw, "a", "2")
    plan, _ = space.apply()
    change = next(c for c in plan.resource_changes if c.name == "CONFIG/a")
    assert [(f.path, f.before, f.after) for f in change.change.fields] == [
        ("ttl", 0, 3_600_000_000_000)
    ]
    assert left_to_do(space.plan()) == []


@pytest.mark.parametrize("first_moment", [1, 2])
def test_a_kill_at_every_second_moment(space: Space, raw: Raw, first_moment: int) -> None:
    """After a kill the next apply completes the work, without `--adopt` and without a doubt."""
    first, then = {"a": "1", "b": "1"}, {"a": "2", "c": "2"}
    options: dict[str, Any] = {"allow_hazards": ("DELETES_MESSAGES",), "parallelism": 1}
    space.write(kv=[bucket(first)]).apply()
    with kill_after() as whole:
        space.write(kv=[bucket(then)]).apply(**options)
    assert whole.done > 8

    for moment in range(first_moment, whole.done, 2):
        space.write(kv=[bucket(first)]).apply(**options)
        space.write(kv=[bucket(then)])
        with kill_after(moment), suppress(SimulatedKill):
            space.apply(**options)
        found = drift(space.load, DriftOptions(), RecordingObserver())
        assert found.resource_drift == [], moment
        assert space.apply(**options)[1].exit_code == 0, moment
        assert [get(raw, key) for key in "abc"] == ["2", None, "2"], moment
        assert read_state(space.folder).pending == {}, moment
        assert left_to_do(space.plan()) == [], moment


def test_backup_before_a_key_is_deleted(space: Space, raw: Raw, tmp_path: Path) -> None:
    """With --backup the bucket is saved before its key goes."""
    space.write(kv=[bucket({"a": "1", "b": "1"})]).apply()
    space.write(kv=[bucket({"b": "1"})])
    _, result = space.apply(allow_hazards=("DELETES_MESSAGES",), backup=tmp_path / "saved")

    assert result.exit_code == 0
    assert result.backup is not None
    assert result.backup["streams"] == ["hub/kv/CONFIG"]
    assert get(raw, "a") is None


def test_refresh_only_takes_over_what_others_did(space: Space, raw: Raw) -> None:
    """State follows the server, and the next plan shows the difference to the files."""
    space.write(kv=[bucket({"a": "1", "b": "1"})]).apply()
    put(raw, "a", "theirs")
    put(raw, "b", "", {"KV-Operation": "DEL"})
    _, result = space.apply(refresh_only=True)

    assert result.exit_code == 0
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    assert shown_changes(space.plan(), "kv_entry") == {"a": ["update"], "b": ["create"]}
    assert get(raw, "a") == "theirs"


def undo(space: Space, number: int) -> Plan:
    """The plan that undoes an apply."""
    return plan_revert(space.load, RevertOptions(number=number), RecordingObserver())


def test_a_revert_puts_values_back(space: Space, raw: Raw) -> None:
    """An old value that the plan showed comes back, a new key is deleted, and both are named."""
    secret = {"value": SECRET, "sensitive": True}
    space.write(kv=[bucket({"a": "one", "s": secret, "same": "x"})]).apply()
    secret = {"value": "another", "sensitive": True}
    space.write(kv=[bucket({"a": "two", "b": "new", "s": secret, "same": "x"})]).apply()
    plan = undo(space, 2)

    assert shown_changes(plan, "kv_entry") == {"a": ["update"], "b": ["delete"]}
    assert {h.code for c in plan.resource_changes for h in c.hazards} == {"DELETES_MESSAGES"}
    assert [d.address for d in plan.diagnostics if "only the digest" in d.summary] == [
        "hub/kv_entry/CONFIG/s"
    ]
    (named,) = [d.detail.splitlines()[1:] for d in plan.diagnostics if d.code == "JS492"]
    assert named == ["hub/kv_entry/CONFIG/a", "hub/kv_entry/CONFIG/b"]
    assert SECRET not in json.dumps(plan.to_json())
    result = space.apply_saved(plan, allow_hazards=("DELETES_MESSAGES",))
    assert result.exit_code == 0
    assert [get(raw, key) for key in ("a", "b", "s", "same")] == ["one", None, "another", "x"]
    assert shown_changes(space.plan(), "kv_entry") == {"a": ["update"], "b": ["create"]}


def test_a_revert_takes_back_what_an_application_wrote(space: Space, raw: Raw) -> None:
    """A key that was written since the apply is a difference of the plan, and is named."""
    space.write(kv=[bucket({"a": "one"})]).apply()
    space.write(kv=[bucket({"a": "two", "b": "new"})]).apply()
    put(raw, "a", "theirs")
    put(raw, "b", "theirs")
    plan = undo(space, 2)

    assert shown_changes(plan, "kv_entry") == {"a": ["update"], "b": ["delete"]}
    assert sorted(d.address or "" for d in plan.diagnostics if d.code == "JS489") == [
        "hub/kv_entry/CONFIG/a",
        "hub/kv_entry/CONFIG/b",
    ]
    assert space.apply_saved(plan, allow_hazards=("DELETES_MESSAGES",)).exit_code == 0
    assert [get(raw, key) for key in ("a", "b")] == ["one", None]


def test_a_revert_of_a_bucket_takes_its_entries_along(space: Space, raw: Raw) -> None:
    """The bucket is deleted with all its entries, and later ones are named."""
    streams = [{"name": "S", "domain": "hub"}]
    space.write(kv=[], streams=streams).apply()
    space.write(kv=[bucket({"a": "1"})], streams=streams).apply()
    space.write(kv=[bucket({"a": "1", "later": "1"})], streams=streams).apply()
    plan = undo(space, 2)

    assert [(c.address, c.change.actions) for c in plan.resource_changes] == [
        ("hub/kv/CONFIG", ["delete"]),
        ("hub/kv_entry/CONFIG/a", ["delete"]),
        ("hub/kv_entry/CONFIG/later", ["delete"]),
    ]
    (said,) = [d.summary for d in plan.diagnostics if d.code == "JS489"]
    assert said.startswith("hub/kv_entry/CONFIG/later is deleted with it, although apply 3 of ")
    assert space.apply_saved(plan, allow_hazards=("DELETES_STREAM",)).exit_code == 0
    assert {str(a) for a in read_state(space.folder).resources} == {"hub/stream/S"}


def test_a_revert_brings_a_bucket_back_without_its_entries(space: Space, raw: Raw) -> None:
    """Values that are not in the history are named; an adopted key is only forgotten."""
    space.write(kv=[bucket({"a": "1"})]).apply()
    put(raw, "b", "theirs")
    space.write(kv=[bucket({"a": "1", "b": "theirs"})]).apply()
    assert shown_changes(undo(space, 2), "kv_entry") == {"b": ["forget"]}
    streams = [{"name": "S", "domain": "hub"}]
    space.write(kv=[], streams=streams).apply(allow_hazards=("DELETES_STREAM",))
    plan = undo(space, 3)

    assert shown_changes(plan, "kv_entry") == {}
    assert [d.address for d in plan.diagnostics if "only the digest" in d.summary] == [
        "hub/kv_entry/CONFIG/a",
        "hub/kv_entry/CONFIG/b",
    ]
    assert space.apply_saved(plan).exit_code == 0
    assert get(raw, "a") is None


def test_too_many_files_are_not_read(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was named by mistake, such as /, is refused before it fills the memory."""
    (tmp_path / "conf").mkdir()
    for number in range(5):
        (tmp_path / "conf" / str(number)).write_text("value")
    space.write(kv=[bucket({}, entries_from={"dir": "conf"})])
    assert sum(a.is_content for a in load(space.load).resources) == 5
    for limit, value in (("MAX_FILES", 4), ("MAX_BYTES", 20)):
        monkeypatch.setattr(kv_entries, limit, value)
        with pytest.raises(ConfigError) as caught:
            load(space.load)
        assert {d.code for d in caught.value.diagnostics} == {"JS148"}
        monkeypatch.undo()
