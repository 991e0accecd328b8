"""`jsplan import --generate-config` on real servers: what is taken, what is left out and said, and that nothing is ever overwritten."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.errors import StalePlanError
from jsplan.jetstream import DomainApi
from jsplan.workflows.imports import import_writing
from jsplan.workflows.options import PlanOptions
from tests.support.raw import Raw
from tests.support.workspaces import Quiet, Space, hub_leaf_space, single_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeHubLeaf, MakeServer

HOUR = 3_600_000_000_000
BUCKET = {"max_msgs_per_subject": 1, "discard": "new", "deny_delete": True, "allow_rollup_hdrs": True, "allow_direct": True}


class Shop:
    """A hub with streams that nobody manages, a leaf, and the command line over both."""

    def __init__(self, space: Space, raw: Raw, capsys: pytest.CaptureFixture[str]) -> None:
        self.space, self.raw, self.capsys = space.write(), raw, capsys

    def stream(self, domain: str, name: str, **config: Any) -> dict[str, Any]:
        return self.raw.done(f"$JS.{domain}.API.STREAM.CREATE.{name}", {"name": name} | config)

    def consumer(self, domain: str, stream: str, name: str, **config: Any) -> None:
        body = {"stream_name": stream, "config": {"name": name, "ack_policy": "explicit"} | config}
        self.raw.done(f"$JS.{domain}.API.CONSUMER.CREATE.{stream}.{name}", body)

    @property
    def file(self) -> Path:
        return self.space.folder / "found.jsplan.yaml"

    def run(self, *line: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of one command."""
        self.capsys.readouterr()
        code = main(["-C", str(self.space.folder), *line])
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    def adopt(self, *line: str) -> tuple[int, str, str]:
        return self.run("import", *line, "--generate-config", str(self.file), "-y")

    def empty(self) -> None:
        """The plan is empty, and says so to scripts."""
        code, out, err = self.run("plan", "--detailed-exitcode")
        assert (code, out.strip()) == (0, "No changes. Your streams match the configuration."), err


@pytest.fixture
def shop(tmp_path: Path, clean_hub_leaf: Sandbox, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        yield Shop(hub_leaf_space(tmp_path, clean_hub_leaf), raw, capsys)


@pytest.mark.matrix
def test_everything_in_one_command(shop: Shop) -> None:
    """Streams, consumers, buckets and stores of two domains are one file as a person would write it; the plan after it is empty."""
    shop.stream("hub", "ORDERS", subjects=["ORDERS.*"], max_age=365 * 24 * HOUR, max_bytes=10 * 1024**2)
    shop.consumer("hub", "ORDERS", "NEW", durable_name="NEW", filter_subject="ORDERS.received", sample_freq="100")
    shop.stream("leaf", "COPY", mirror={"name": "ORDERS", "external": {"api": "$JS.hub.API", "deliver": ""}})
    for domain in ("hub", "leaf"):
        shop.stream(domain, "KV_CONFIG", subjects=["$KV.CONFIG.>"], duplicate_window=120 * 10**9, **BUCKET)
        shop.stream(domain, "SALES", subjects=[f"sales.{domain}.>"])
    code, out, err = shop.adopt("--all")
    assert code == 0, err
    assert "7 imported" in out
    assert f"{shop.file} is new: 7 resources in 15 lines." in err
    assert shop.file.read_text("utf-8") == """\
# What jsplan import found in hub, leaf. It is yours now: change it as you like.

streams:
  - {name: COPY, domain: leaf, mirror: {name: ORDERS, domain: hub}}
  - name: ORDERS
    domain: hub
    subjects: ["ORDERS.*"]
    max_bytes: 10MiB
    max_age: 1y
    consumers:
      - {name: NEW, ack_policy: explicit, filter_subject: ORDERS.received, sample_freq: 100}
  - {name: SALES, domain: [hub, leaf], subjects: ["sales.${domain}.>"]}

kv:
  - {bucket: CONFIG, domain: [hub, leaf]}
"""  # fmt: skip
    shop.empty()


def test_what_is_named_and_nothing_else(shop: Shop) -> None:
    """Globs, domains, labels and single addresses limit what is taken, and a second file takes what is left."""
    for domain in ("hub", "leaf"):
        shop.stream(domain, "A", subjects=[f"{domain}.a"])
        shop.stream(domain, "TMP", subjects=[f"{domain}.tmp"])
    assert shop.adopt("--all", "--domain", "label:edge")[0] == 0
    assert "domain: leaf" in shop.file.read_text("utf-8")
    assert "hub" not in shop.file.read_text("utf-8")
    shop.empty()
    shop.file.rename(shop.space.folder / "leaf.jsplan.yaml")
    assert shop.adopt("h*/stream/T*")[0] == 0
    assert "TMP" in shop.file.read_text("utf-8")
    assert "name: A" not in shop.file.read_text("utf-8")
    shop.file.rename(shop.space.folder / "tmp.jsplan.yaml")
    assert shop.adopt("hub/stream/A")[0] == 0
    shop.empty()
    code, out, _ = shop.run("import", "--all", "--generate-config", str(shop.space.folder / "more.jsplan.yaml"), "-y")
    assert (code, "Nothing to import" in out) == (0, True)
    assert not (shop.space.folder / "more.jsplan.yaml").exists()


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["hub/stream/A"], 1, "hub/stream/A: is in no file"),
        (["--all", "--domain", "hup"], 64, 'there is no domain "hup". There are hub, leaf. Did you mean "hub"?'),
        (["--all", "--domain", "label:none"], 64, "label:none matches no domain"),
        (["hub/stream/NONE", "--generate-config", "found.jsplan.yaml"], 1, "hub/stream/NONE: does not exist on the server"),
        (["--all", "--generate-config", "jsplan.yaml"], 1, "jsplan.yaml exists; nothing was written"),
        (["--all", "--generate-config", "found.json"], 64, "found.json would hold YAML"),
        (["--all", "--generate-config", "no/such/found.jsplan.yaml"], 1, "there is no such folder"),
        (["--all", "--generate-config", "elsewhere.yaml"], 64, "this workspace does not read"),
    ],
    ids=str,
)
def test_refusals(shop: Shop, monkeypatch: pytest.MonkeyPatch, line: list[str], code: int, says: str) -> None:
    """What cannot be done is said with what to do; no file is made, none is touched, and nothing is in state."""
    shop.stream("hub", "A", subjects=["a"])
    monkeypatch.chdir(shop.space.folder)
    before = {path: path.read_bytes() for path in shop.space.folder.iterdir() if path.is_file()}
    found, _, err = shop.run("import", *line, "-y")
    assert (found, says in err) == (code, True), err
    assert {path: path.read_bytes() for path in shop.space.folder.iterdir() if path.is_file()} == before
    assert shop.run("state", "list")[1].strip() == ""


def test_a_file_that_nobody_approved_goes_again(shop: Shop) -> None:
    """Without an approval nothing is adopted, and no file stays behind that would claim so."""
    shop.stream("hub", "A", subjects=["a"])
    code, out, err = shop.run("import", "--all", "--generate-config", str(shop.file), "--no-input")
    assert (code, "hub/stream/A will be imported as it is" in out) == (1, True)
    assert "--auto-approve" in err
    assert not shop.file.exists()


def test_a_file_of_a_plan_that_came_too_late_goes_again(shop: Shop) -> None:
    """What somebody changed while it was looked at is not adopted, and no file claims that it was."""
    shop.stream("hub", "A", subjects=["a"])

    def slowly(plan: Plan) -> None:
        shop.raw.done("$JS.hub.API.STREAM.UPDATE.A", {"name": "A", "subjects": ["a", "b"]})

    with pytest.raises(StalePlanError, match="Nothing was changed"):
        import_writing(shop.space.load, ("**",), PlanOptions(), slowly, Quiet(), shop.file)
    assert not shop.file.exists()
    assert shop.adopt("--all")[0] == 0
    shop.empty()


def test_what_is_left_out_is_said(shop: Shop) -> None:
    """Consumers that come and go, jsplan's own, another workspace's, and what `drift: ignore` names stay out, each with the reason."""
    shop.space.base["drift"] = {"ignore": ["hub/stream/TMP_*"]}
    shop.space.base["backend"] = {"kv": {"domain": "hub", "bucket": "PLANS"}}
    shop.space.write(streams=[{"name": "OURS", "domain": "hub"}])
    assert shop.run("apply", "-y")[0] == 0
    shop.stream("hub", "A", subjects=["a"])
    shop.consumer("hub", "A", "WORK", inactive_threshold=HOUR)
    shop.consumer("hub", "A", "STAYS", durable_name="STAYS", inactive_threshold=HOUR)
    shop.stream("hub", "TMP_X", subjects=["x"])
    shop.stream("hub", "JSPLAN_STAGING_Z", subjects=["z"])
    shop.stream("hub", "THEIRS", subjects=["t"], metadata={"jsplan.owner": "other/1234"})
    shop.stream("leaf", "HOME", mirror={"name": "OTHER", "external": {"api": "$JS.leaf.API", "deliver": ""}})
    code, _, err = shop.adopt("--all")
    assert code == 0, err
    for said in (
        "hub/consumer/A/WORK: it is not durable and comes and goes with its client",
        "hub/kv/PLANS: jsplan keeps its own state there",
        "hub/stream/TMP_X: `drift: ignore` names it",
        "hub/stream/JSPLAN_STAGING_Z: it is the server's own, or stands in for something",
        "hub/stream/THEIRS: it carries the mark of another workspace (other/1234)",
        "leaf/stream/HOME: one of its origins leads back to its own domain",
    ):
        assert f"not written: {said}" in err, (said, err)
    text = shop.file.read_text("utf-8")
    assert [name for name in ("WORK", "PLANS", "TMP_X", "THEIRS", "HOME", "STAGING", "OURS") if name in text] == []
    assert "{name: STAYS, ack_policy: explicit, inactive_threshold: 1h}" in text
    shop.empty()
    shop.file.rename(shop.space.folder / "first.jsplan.yaml")
    assert shop.adopt("hub/consumer/A/WORK", "hub/stream/TMP_X")[0] == 0
    assert "{stream: A, name: WORK, domain: hub, durable_name: null" in shop.file.read_text("utf-8")
    shop.empty()


def test_beside_what_is_there_already(shop: Shop) -> None:
    """Streams and defaults that the workspace has stay what they are: no `defaults:` is written over them, and the plan is empty."""
    shop.space.write(
        streams=[{"name": "OURS", "domain": "hub", "subjects": ["ours"]}], defaults={"domain": "hub", "stream": {"max_age": "1h"}}
    )
    assert shop.run("apply", "-y")[0] == 0
    for number in range(5):
        shop.stream("hub", f"S{number}", subjects=[f"s{number}"], max_bytes=1024**2, max_age=HOUR if number else 0)
    shop.consumer("hub", "OURS", "THEIRS", durable_name="THEIRS")
    assert shop.adopt("--all")[0] == 0
    text = shop.file.read_text("utf-8")
    assert "defaults" not in text
    assert "- {name: S0, subjects: [s0], max_bytes: 1MiB, max_age: 0s}" in text
    assert "- {name: S1, subjects: [s1], max_bytes: 1MiB}" in text
    assert "- {stream: OURS, name: THEIRS, ack_policy: explicit}" in text
    shop.empty()


def test_a_difference_in_older_files_is_refused(shop: Shop) -> None:
    """Where an older file says something else than what is live, nothing is adopted and the new file goes, unless `--adopt` is given."""
    shop.stream("hub", "A", subjects=["a"])
    shop.stream("hub", "B", subjects=["b"])
    shop.space.write(streams=[{"name": "A", "domain": "hub", "subjects": ["a"], "max_age": "1h"}])
    code, _, err = shop.adopt("--all")
    assert (code, "hub/stream/A: differs from the files (max_age)" in err) == (3, True), err
    assert not shop.file.exists()
    assert shop.adopt("--all", "--adopt")[0] == 0
    assert shop.run("plan", "--detailed-exitcode")[0] == 2


def test_nothing_is_written_to_a_server(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adoption asks, and changes nothing: no verb that writes leaves this process."""
    shop.stream("hub", "A", subjects=["a"])
    verbs: set[str] = set()
    send = DomainApi.request

    async def remembering(self: DomainApi, api: str, *args: Any, **more: Any) -> dict[str, Any]:
        verbs.add(".".join(api.split(".")[:2]))
        return await send(self, api, *args, **more)

    monkeypatch.setattr(DomainApi, "request", remembering)
    assert shop.adopt("--all")[0] == 0
    assert verbs <= {"INFO", "STREAM.INFO", "STREAM.NAMES", "STREAM.LIST", "CONSUMER.LIST", "CONSUMER.INFO", "CONSUMER.NAMES"}
    assert verbs


def test_json_has_one_document(shop: Shop) -> None:
    """With --json stdout is the apply's document alone; what is new is said on stderr."""
    shop.stream("hub", "A", subjects=["a"])
    code, out, err = shop.run("import", "--all", "--generate-config", str(shop.file), "-y", "--json")
    assert code == 0
    assert json.loads(out)["summary"]["imported"] == 1
    assert "is new: 1 resource in" in err


def test_an_empty_domain_is_no_error(tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing is, nothing is written, and that is said."""
    with Raw(server.url) as raw:
        shop = Shop(single_space(tmp_path, server), raw, capsys)
        code, out, err = shop.adopt("--all", "--domain", "main")
    assert code == 0, err
    assert "Nothing to import" in out
    assert not shop.file.exists()


def test_two_hundred_domains(tmp_path: Path, make_server: MakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """200 JetStreams with equal streams, each an account of one server, are adopted with a file of a few lines."""
    names = [f"store-{number:03d}" for number in range(1, 201)]
    accounts = "".join(f"  {name}: {{jetstream: enabled, users: [{{user: {name}, password: p}}]}}\n" for name in names)
    server = make_server(extra=f"accounts {{\n{accounts}}}\nno_auth_user: {names[0]}\n")
    for name in names:
        with Raw(server.url, name, "p") as raw:
            raw.done("$JS.API.STREAM.CREATE.SALES", {"name": "SALES", "subjects": [f"sales.{name}.>"], "max_age": 24 * HOUR})
            config = {"name": "UP", "durable_name": "UP", "ack_policy": "explicit"}
            raw.done("$JS.API.CONSUMER.CREATE.SALES.UP", {"stream_name": "SALES", "config": config})
    base = {
        "jsplan": 1, "workspace": "fleet",
        "connections": {name: {"url": server.url, "user": name, "password": "p"} for name in names},
        "domains": {name: {"connection": name, "js_domain": None, "labels": ["edge"]} for name in names},
    }  # fmt: skip
    with Raw(server.url, names[0], "p") as raw:
        shop = Shop(Space(tmp_path, base), raw, capsys)
        code, out, err = shop.adopt("--all", "--domain", "label:edge")
        assert code == 0, err
        assert "400 imported" in out
        assert "--target store-005/** and 195 more\n" in out
        assert "is new: 400 resources in 9 lines." in err
        assert shop.file.read_text("utf-8").endswith("""\
streams:
  - name: SALES
    domain: label:edge
    subjects: ["sales.${domain}.>"]
    max_age: 1d
    consumers:
      - {name: UP, ack_policy: explicit}
""")
        shop.empty()


def test_a_domain_that_is_away_waits(tmp_path: Path, make_hub_leaf: MakeHubLeaf, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be read is not guessed: the selector leaves the leaf out, and it is adopted by a second import when it is back."""
    sandbox = make_hub_leaf(leaves=("east", "west"))
    hub = sandbox["hub"]
    space = hub_leaf_space(tmp_path, sandbox)
    space.base["domains"] = {"hub": {}, "east": {"labels": ["edge"]}, "west": {"labels": ["edge"]}}
    with Raw(hub.url, hub.user, hub.password) as raw:
        shop = Shop(space, raw, capsys)
        for domain in ("hub", "east", "west"):
            shop.stream(domain, "S", subjects=[f"s.{domain}"])
        sandbox["west"].stop()
        code, _, err = shop.adopt("--all")
        assert code == 0, err
        assert "not written: domain west: it is away, and nothing is known of it" in err
        assert "domain: [hub, east]" in shop.file.read_text("utf-8")
        sandbox["west"].start()
        sandbox.wait_ready()
        shop.empty()
        shop.file.rename(shop.space.folder / "first.jsplan.yaml")
        assert shop.adopt("--all")[0] == 0
        assert "domain: west" in shop.file.read_text("utf-8")
        shop.empty()


def test_what_another_account_lets_us_reach(tmp_path: Path, make_server: MakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """What is behind another account's import is not listed, which is said; what is named there is adopted."""
    accounts = """
      A: {jetstream: enabled, users: [{user: a, password: p}], exports: [{service: "$JS.API.>"}]}
      B: {jetstream: enabled, users: [{user: b, password: p}],
          imports: [{service: {account: A, subject: "$JS.API.>"}, to: "JS.A.API.>"}]}"""
    server = make_server(extra=f"accounts {{{accounts}\n}}\nno_auth_user: a\n")
    domains = {"own": {"connection": "b", "js_domain": None}, "theirs": {"connection": "b", "api_prefix": "JS.A.API", "js_domain": None}}
    connections = {"b": {"url": server.url, "user": "b", "password": "p"}}
    with Raw(server.url, "a", "p") as raw:
        raw.done("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        shop = Shop(Space(tmp_path, {"jsplan": 1, "workspace": "b", "connections": connections, "domains": domains}), raw, capsys)
        code, out, err = shop.adopt("--all")
        assert (code, "Nothing to import" in out) == (0, True), err
        assert "not written: domain theirs: what another account lets us reach is not listed; name the addresses" in err
        assert shop.adopt("theirs/stream/S")[0] == 0
        assert "{name: S, domain: theirs, subjects: [s]}" in shop.file.read_text("utf-8")
        shop.empty()


def test_a_file_that_does_not_fit_into_the_workspace(shop: Shop) -> None:
    """The finding is about a file that is removed again: the message says so, and points to no line of it."""
    shop.stream("hub", "A", subjects=["a"])
    shop.space.write(overrides=[{"address": "hub/stream/*", "max_msgs": "many"}])
    code, _, err = shop.adopt("hub/stream/A")
    assert code == 1
    assert "found.jsplan.yaml was generated and does not fit into the workspace: max_msgs" in err
    assert "(jsplan.yaml:1:" in err
    assert "found.jsplan.yaml:" not in err
    assert not shop.file.exists()


def test_what_others_decide_is_not_missed(shop: Shop) -> None:
    """A bucket and a sealed stream that refuse new messages by subject are adopted, with all else."""
    fields = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
    shop.stream("hub", "KV_STRICT", subjects=["$KV.STRICT.>"], **BUCKET | fields)
    made = shop.stream("hub", "CLOSED", subjects=["closed.>"], **fields)["config"]
    shop.raw.done("$JS.hub.API.STREAM.UPDATE.CLOSED", made | {"sealed": True})
    shop.stream("hub", "PLAIN", subjects=["plain"])

    code, _, err = shop.adopt("--all")
    assert (code, "not written" in err) == (0, False), err
    shop.empty()


def test_a_bucket_may_refuse_values_by_key(shop: Shop) -> None:
    """What makes a bucket brings `discard: new`, which refusing by key needs: the files say one word."""
    shop.space.write(kv=[{"bucket": "ONCE", "domain": "hub", "history": 2, "discard_new_per_subject": True}])

    assert shop.run("apply", "-y")[0] == 0
    shop.empty()


def test_one_that_cannot_be_declared_is_named_and_the_others_are_adopted(shop: Shop) -> None:
    """Where the workspace makes something impossible of one stream, it alone is left out, with the reason."""
    for name in ("A", "B", "C"):
        shop.stream("hub", name, subjects=[name.lower()])
        shop.consumer("hub", name, "W", durable_name="W")
    shop.space.write(overrides=[{"address": "hub/stream/B", "max_age": "1s", "duplicate_window": "1h"}])

    code, out, err = shop.adopt("--all")
    assert code == 0, err
    assert "not written: hub/stream/B: duplicate_window 1h is longer than max_age 1s (10052)" in err
    assert "5 to import" in out
    assert "{name: B" not in shop.file.read_text("utf-8")


def test_one_that_was_named_is_not_left_out(shop: Shop) -> None:
    """Whoever names an address wants it: nothing is adopted without it."""
    for name in ("A", "B"):
        shop.stream("hub", name, subjects=[name.lower()])
    shop.space.write(overrides=[{"address": "hub/stream/B", "max_age": "1s", "duplicate_window": "1h"}])

    code, _, err = shop.adopt("hub/stream/A", "hub/stream/B")
    assert (code, shop.file.exists()) == (1, False)
    assert "does not fit into the workspace: duplicate_window" in err
