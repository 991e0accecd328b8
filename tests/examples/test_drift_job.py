"""The shipped drift job: its permissions on a real server, and names that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from jsplan.cli.main import root
from jsplan.config.model import LoadOptions
from jsplan.documents.alert import Actor
from jsplan.documents.drift import Drift
from jsplan.drift.service.metrics import Metrics
from jsplan.options import DriftOptions, PlanOptions
from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import User
from jsplan.workflows.access import access
from jsplan.workflows.apply import apply
from jsplan.workflows.drift import drift
from jsplan.workflows.plan import plan
from tests.conftest import PROGRAM
from tests.docs.test_commands import parse
from tests.drift.conftest import WatchJob
from tests.support.account_sharing import start_servers
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Server

#: Generous: a machine may be busy with other things.
pytestmark = pytest.mark.timeout(180)

EXAMPLE = Path(__file__).parent.parent.parent / "examples/drift-job"
TEXT = (EXAMPLE / "nats/permissions.conf").read_text("utf-8")
ACCOUNTS = """
accounts {
  SHOP: { jetstream: enabled, users: [
    {user: admin, password: admin}
    {user: plan, password: plan, permissions: $jsplan-plan_permissions}
    {user: drift, password: drift, permissions: $jsplan-drift_permissions}
    {user: deploy, password: deploy, permissions: $jsplan-deploy_permissions}
    {user: api, password: api, permissions: {publish: {allow: ["$JS.API.>", "$JS.*.API.>"]}}}
  ] }
}
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Server]:
    """Start a server with exactly the permissions of the example."""
    with start_servers(
        f"{TEXT}{ACCOUNTS}", User("SHOP", "admin", "admin"), binary=PROGRAM
    ) as sandbox:
        assert isinstance(sandbox, Sandbox)
        yield sandbox["hub"]


def allowed(block: str, text: str = TEXT) -> list[str]:
    """Return the subjects that a user of the block may publish, by the lines that are in force."""
    found = re.search(rf"{block} = \{{\s*publish: \{{allow: \[(.*?)\]\}}", text, re.DOTALL)
    assert found is not None
    lines = [line for line in found[1].splitlines() if not line.strip().startswith("#")]
    return re.findall(r'"([^"]+)"', "\n".join(lines))


def matches(pattern: str, subject: str) -> bool:
    """Check whether a NATS pattern matches a subject."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, tokens = (
            wanted[:-1],
            tokens[: len(wanted) - 1] if len(tokens) >= len(wanted) else [],
        )
    return len(wanted) == len(tokens) and all(
        w in ("*", t) for w, t in zip(wanted, tokens, strict=True)
    )


class Shop:
    """The example in its own folder, as one of its users."""

    def __init__(self, folder: Path, hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copy(EXAMPLE / "jsplan.yaml", folder)
        self.folder = folder
        self._patch = monkeypatch
        monkeypatch.setenv("SHOP_URL", hub.url)
        monkeypatch.setenv("HOOK", "http://127.0.0.1:1/hook")

    def load(self, user: str) -> LoadOptions:
        """Return the load options of this user."""
        for name in ("SHOP_USER", "SHOP_PASSWORD"):
            self._patch.setenv(name, user)
        return LoadOptions(self.folder, environ=dict(os.environ))


def test_the_file_is_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The permissions are those that `jsplan access --own` prints for the workspace."""
    for name in ("SHOP_URL", "SHOP_USER", "SHOP_PASSWORD", "HOOK"):
        monkeypatch.setenv(name, "nats://x" if name == "SHOP_URL" else "http://x")
    load = LoadOptions(EXAMPLE, environ=dict(os.environ))

    found = access(load, RecordingObserver(), own=True)

    comment, _, text = TEXT.partition("\n\n")
    assert all(line.startswith("#") for line in comment.splitlines())
    assert text == "\n".join(app.configuration for app in found.apps)


@pytest.mark.matrix
def test_drift_and_the_watch_under_their_permissions(
    hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drift and the watch see a new consumer and a change, and report them on their subject."""
    shop = Shop(tmp_path, hub, monkeypatch)
    applied = apply(shop.load("deploy"), PlanOptions(), approve, RecordingObserver())
    assert applied[1].exit_code == 0
    with (
        Raw(hub.url, "admin", "admin") as admin,
        Raw(hub.url, "admin", "admin", timeout=30) as listener,
    ):
        admin.consumer("ORDERS", "X", ack_policy="none")
        found = drift(shop.load("drift"), DriftOptions(), RecordingObserver())
        assert (found.exit_code, [item.address for item in found.unmanaged]) == (
            0,
            ["hub/consumer/ORDERS/X"],
        )

        listener.subscribe("ops.drift")
        job = WatchJob(tmp_path, "--every", "1h")
        try:
            assert job.wait_until_ready().next_alert_key() == (
                "opened",
                "unmanaged",
                "hub/consumer/ORDERS/X",
            )
            config = admin.config("ORDERS")
            admin.api_ok("$JS.API.STREAM.UPDATE.ORDERS", config | {"max_msgs": 9})
            assert job.next_alert_key() == ("opened", "changed", "hub/stream/ORDERS")
            assert job.seen[-1]["by"]["user"] == "admin"
            said = [json.loads(listener.next_message()[2])["alert"]["address"] for _ in range(2)]
        finally:
            job.stop(signal.SIGTERM)
    assert said == ["hub/consumer/ORDERS/X", "hub/stream/ORDERS"]


def test_a_user_who_may_not_ask_for_domain_names(
    hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may not ask for domain names still learns that a domain never answered."""
    shop = Shop(tmp_path, hub, monkeypatch)
    text = (
        (tmp_path / "jsplan.yaml")
        .read_text("utf-8")
        .replace("backend: {kv: {domain: hub, bucket: JSPLAN_STATE}}", "")
    )
    text = text.replace("domains:\n", "domains:\n  hbu: {connection: hub}\n")
    text = text.replace("- name: ORDERS", "- {name: S, domain: hbu}\n  - name: ORDERS")
    (tmp_path / "jsplan.yaml").write_text(text, "utf-8")
    [found] = [
        d
        for d in plan(shop.load("api"), PlanOptions(), RecordingObserver()).diagnostics
        if d.code == "JS482"
    ]

    assert (found.summary, found.address) == ("domain hbu has never answered", "hbu/**")
    assert found.detail.startswith('Did you mean "hub"?\nBehind connection hub there are: hub.\n')


@pytest.mark.parametrize("user", ["plan", "drift"])
def test_users_that_read_cannot_write(hub: Server, user: str) -> None:
    """The users plan and drift may send no writing request, and drift may read no message."""
    writing = [
        pattern
        for pattern in allowed("jsplan-deploy_permissions")
        if pattern not in allowed("jsplan-plan_permissions")
    ]
    reading = (
        ["$JS.hub.API.STREAM.MSG.GET.ORDERS", "$JS.API.DIRECT.GET.ORDERS"]
        if user == "drift"
        else []
    )
    for subject in [*writing, *reading, "$JS.hub.API.STREAM.DELETE.ORDERS", "ORDERS.received"]:
        with Raw(hub.url, user, user) as raw:
            raw.publish(subject.replace("*", "X").replace(">", "X"))
            with pytest.raises(AssertionError, match="Permissions Violation for Publish"):
                raw.flush()


FILES = [path for path in sorted(EXAMPLE.rglob("*")) if path.suffix in (".yaml", ".yml")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(EXAMPLE).as_posix())
def test_files_are_yaml(path: Path) -> None:
    """Each file of the example is valid YAML."""
    assert all(
        isinstance(document, dict) for document in yaml.safe_load_all(path.read_text("utf-8"))
    )


def _lists(node: Any) -> Iterator[list[str]]:
    if isinstance(node, dict):
        for value in node.values():
            yield from _lists(value)
    elif isinstance(node, list):
        if all(isinstance(item, str) for item in node):
            yield node
        for item in node:
            yield from _lists(item)


def test_every_command_line_exists() -> None:
    """Every command line of the example has only commands and options of jsplan."""
    lists = [
        lists
        for path in FILES
        for document in yaml.safe_load_all(path.read_text("utf-8"))
        for lists in _lists(document)
    ]
    texts = [
        path.read_text("utf-8")
        for path in EXAMPLE.rglob("*")
        if path.suffix == ".service" or path.name in ("crontab", "drift.yml")
    ]
    written = [
        line
        for text in texts
        for line in re.findall(r"(?m)\b(jsplan drift[^>|#\n]*?)(?= 2?>| \|\||$)", text)
    ]
    found = [words[1:] for words in lists if words[:1] == ["jsplan"]] + [
        shlex.split(line)[1:] for line in written
    ]
    assert len(found) >= 7
    for arguments in found:
        parse(root, "jsplan", arguments)


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    """Each metric that an alert or a panel names is one that the job exports."""
    metrics = Metrics("shop")
    metrics.observe_check("full", 0.1, done=True)
    metrics.observe_full_check(Drift("0", "shop", None, "", ""), ["hub"], 0.0)
    metrics.set_next_check(0.0)
    metrics.count_advisory()
    metrics.count_event("opened", "functional")
    metrics.set_listening("hub", up=True)
    metrics.update_sink("webhook 1", 0, 1, 0, up=True)
    exported = set(re.findall(r"(?m)^# TYPE (\S+)", metrics.expose().decode()))
    exported |= {f"{name}_bucket" for name in exported}
    asked = {
        name
        for path in ("prometheus/alerts.yml", "grafana/dashboard.json")
        for name in re.findall(r"jsplan_drift_\w+", (EXAMPLE / path).read_text("utf-8"))
    }

    assert asked
    assert asked <= exported
    assert str(Actor("u", "c", "h", "A")) == "u (c) from h"
