"""The shipped examples of one account converge on real servers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config.model import LoadOptions
from jsplan.options import DriftOptions, PlanOptions
from jsplan.units import DURATIONS
from jsplan.workflows.apply import apply
from jsplan.workflows.drift import drift
from jsplan.workflows.init import TEMPLATES, init
from jsplan.workflows.plan import plan
from tests.support.raw import Raw, publish
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Sandbox, Server

ROOT = Path(__file__).parent.parent.parent


def converge(load: LoadOptions, count: int) -> None:
    """Apply everything; check that the second plan is empty and nothing drifted."""
    first, result = apply(load, PlanOptions(), approve, RecordingObserver())
    again = plan(load, PlanOptions(), RecordingObserver())
    found = drift(load, DriftOptions(), RecordingObserver())

    assert result.exit_code == 0
    assert first.summary["add"] == count
    assert not again.steps
    assert (found.summary["changed"], found.summary["missing"], found.summary["unmanaged"]) == (
        0,
        0,
        0,
    )


def test_orders(tmp_path: Path, server: Server) -> None:
    """ORDERS and LOGS with their consumers become what the technical preview describes."""
    shutil.copy(ROOT / "examples/orders/jsplan.yaml", tmp_path)
    converge(LoadOptions(tmp_path, variables=(f"url={server.url}",)), 6)
    with Raw(server.url) as raw:
        orders = raw.api("$JS.API.STREAM.INFO.ORDERS")["config"]
        logs = raw.api("$JS.API.STREAM.INFO.LOGS")["config"]
        new = raw.api("$JS.API.CONSUMER.INFO.ORDERS.NEW")["config"]
        monitor = raw.api("$JS.API.CONSUMER.INFO.ORDERS.MONITOR")["config"]
        tail = raw.api("$JS.API.CONSUMER.INFO.LOGS.TAIL")["config"]

    assert (orders["subjects"], orders["max_age"], orders["storage"]) == (
        ["ORDERS.*"],
        DURATIONS["y"],
        "file",
    )
    assert (logs["max_age"], logs["max_bytes"]) == (DURATIONS["d"], 10 * 1024**3)
    assert (new["filter_subject"], new["ack_policy"], new["sample_freq"]) == (
        "ORDERS.received",
        "explicit",
        "100",
    )
    assert (monitor["deliver_subject"], monitor["deliver_policy"], monitor["ack_policy"]) == (
        "monitor.ORDERS",
        "last",
        "none",
    )
    assert (tail["deliver_subject"], tail["ack_policy"]) == ("out.tail", "none")


def hub_and_leaf(folder: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> LoadOptions:
    """Copy the example and point it at the test's servers."""
    shutil.copy(ROOT / "examples/hub-and-leaf/jsplan.yaml", folder)
    monkeypatch.setenv("ACC_PASSWORD", "acc")
    return LoadOptions(folder, variables=(f"hub={sandbox['hub'].url}",), environ=os.environ)


def test_hub_and_leaf(
    tmp_path: Path, clean_hub_leaf: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub and leaf example converges, and messages of the leaf arrive in both copies."""
    converge(hub_and_leaf(tmp_path, clean_hub_leaf, monkeypatch), 4)
    hub, leaf = clean_hub_leaf["hub"], clean_hub_leaf["leaf"]
    publish(
        leaf.url,
        leaf.user,
        leaf.password,
        "test",
        *(b"hello world %d" % number for number in range(50)),
    )

    def asked(verb: str) -> dict[str, Any]:
        with Raw(hub.url, hub.user, hub.password) as raw:
            return raw.api_ok(f"$JS.hub.API.{verb}")

    def arrived(stream: str) -> Callable[[], bool]:
        return lambda: bool(asked(f"STREAM.INFO.{stream}")["state"]["messages"] == 50)

    hub.wait_until(arrived("backup-test-leaf"), "the mirror has all messages")
    hub.wait_until(arrived("aggregate-test-leaf"), "the aggregate has all messages")
    assert asked("CONSUMER.INFO.aggregate-test-leaf.dur")["num_pending"] == 50


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_plan(
    template: str,
    tmp_path: Path,
    clean_hub_leaf: Sandbox,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Templates of `init` can be planned unchanged, once they point at a server."""
    (written,) = [path for path in init(tmp_path, template, "shop") if path.suffix == ".yaml"]
    url = (server if template == "single" else clean_hub_leaf["hub"]).url
    text = written.read_text("utf-8")
    written.write_text(text.replace("nats://127.0.0.1:4222", url), "utf-8")
    monkeypatch.setenv("ACC_PASSWORD", "acc")
    made = plan(LoadOptions(tmp_path, environ=os.environ), PlanOptions(), RecordingObserver())

    assert not made.errored
    assert made.workspace == "shop"
    assert made.summary["add"] == (2 if template == "single" else 4)
