from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.support.process import start_process
from tests.support.schemas import validator
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from pathlib import Path

    from tests.health.conftest import LinkedServers


def create_streams(linked_servers: LinkedServers, folder: Path) -> Space:
    """Create a stream with a consumer, its mirror in the leaf, and unmanaged streams."""
    worker = {"name": "NEW", "ack_policy": "explicit"}
    space = linked_servers.space(folder).write(
        streams=[
            {"name": "ORDERS", "subjects": ["ORDERS.>"], "consumers": [worker]},
            {"name": "COPY", "domain": "leaf", "mirror": {"name": "ORDERS", "domain": "hub"}},
        ]
    )
    space.apply()
    linked_servers.publish("hub", "ORDERS.a", 5)
    linked_servers.stream("hub", "OTHERS", 2)
    linked_servers.raws["hub"].consumer("OTHERS", "tail")
    linked_servers.raws["hub"].pull("ORDERS", "NEW", 2)
    linked_servers.wait_until_copied("leaf", "COPY", 5)
    return space


@pytest.mark.matrix
def test_status_shows_what_is_there(
    linked_servers: LinkedServers, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """Status shows domains, streams, consumers and flows as the servers have them."""
    found = status(create_streams(linked_servers, tmp_path).load, RecordingObserver())

    domains = {d["domain"]: d for d in found.domains}
    version = ".".join(map(str, server_version))
    assert {key: (d["reachable"], d["server"], d["version"]) for key, d in domains.items()} == {
        "hub": (True, "hub-server", version),
        "leaf": (True, "leaf-server", version),
        "other": (True, "hub-server", version),
    }
    assert (domains["hub"]["streams"], domains["hub"]["messages"], domains["other"]["streams"]) == (
        2,
        7,
        0,
    )
    assert {s["address"]: (s["managed"], s["messages"], s["fed_by"]) for s in found.streams} == {
        "hub/stream/ORDERS": (True, 5, None),
        "hub/stream/OTHERS": (False, 2, None),
        "leaf/stream/COPY": (True, 5, "mirror"),
    }
    places = {
        c["address"]: (c["managed"], c["pending"], c["ack_pending"], c["delivered"]["stream_seq"])
        for c in found.consumers
    }
    assert places == {
        "hub/consumer/ORDERS/NEW": (True, 3, 2, 2),
        "hub/consumer/OTHERS/tail": (False, 2, 0, 0),
    }
    assert [(f["from"], f["to"], f["healthy"], f["lag"]) for f in found.replication] == [
        ("hub/stream/ORDERS", "leaf/stream/COPY", True, 0)
    ]


def test_status_on_the_command_line(
    linked_servers: LinkedServers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints a valid document, `--target` limits it, and text ends with the summary."""
    create_streams(linked_servers, tmp_path)
    assert main(["-C", str(tmp_path), "status", "--json", "--target", "leaf/**"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["-C", str(tmp_path), "status"]) == 0
    text = capsys.readouterr().out

    validator("status").validate(document)
    assert [d["domain"] for d in document["domains"]] == ["leaf"]
    assert [s["address"] for s in document["streams"]] == ["leaf/stream/COPY"]
    assert text.splitlines()[-1] == "Status: 3 domains, 3 streams, 2 consumers, 1 flow."


def test_watching(linked_servers: LinkedServers, tmp_path: Path) -> None:
    """`--watch` prints one document per line until Ctrl-C.

    It continues without a server, and knows from earlier samples what does not move.
    """
    for name in ("FULL", "UNDELIVERED"):
        linked_servers.stream("hub", name, 2)
    strays = [
        {"name": name, "domain": "other", "mirror": {"name": name, "domain": "hub"}}
        for name in ("FULL", "UNDELIVERED")
    ]
    strays[1]["mirror"] |= {"deliver": "nowhere.to"}  # type: ignore[operator]
    linked_servers.space(tmp_path).write(streams=strays).apply()

    with start_process(tmp_path, "status", "--watch", "--every", "500ms", "--json") as process:
        assert process.stdout is not None
        first = _frame(process.stdout.readline())
        end = time.monotonic() + 60
        while (found := _frame(process.stdout.readline()))["other/stream/UNDELIVERED"][
            "healthy"
        ] is not False:
            assert time.monotonic() < end
        named = found
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)

    assert first["other/stream/FULL"]["healthy"] is True
    assert named["other/stream/UNDELIVERED"]["cause"].startswith("export missing")
    assert (process.returncode, said.decode()) == (130, "Interrupted.\n")


def _frame(line: bytes) -> dict[str, Any]:
    return {flow["to"]: flow for flow in json.loads(line)["replication"]}


def test_flows_of_an_offline_domain_are_unknown(
    linked_servers: LinkedServers, tmp_path: Path
) -> None:
    """Behind a cut link a leaf is offline, and its flows are neither healthy nor unhealthy."""
    space = linked_servers.space(tmp_path)
    space.base["domains"]["leaf"] = {"connection": "hub", "may_be_offline": "7d"}
    linked_servers.stream("leaf", "FAR", 1)
    space.write(streams=[{"name": "NEAR", "sources": [{"name": "FAR", "domain": "leaf"}]}]).apply()
    linked_servers.wait_until_copied("hub", "NEAR", 1)
    linked_servers.relay.cut()
    linked_servers.wait_until(lambda: not linked_servers.is_linked(), "lose its leaf")
    began = time.monotonic()
    found = drift(space.load, DriftOptions(), RecordingObserver())
    shown = status(space.load, RecordingObserver())
    took = time.monotonic() - began

    cause = "not known: the origin's domain leaf is offline"
    assert [(f["healthy"], f["cause"]) for f in found.replication] == [(None, cause)]
    assert (found.exit_code, found.summary["unhealthy"], [a["domain"] for a in found.offline]) == (
        0,
        0,
        ["leaf"],
    )
    assert [
        (d["domain"], d["reachable"], d["excused"]) for d in shown.domains if not d["reachable"]
    ] == [("leaf", False, True)]
    assert ([f["cause"] for f in shown.replication], shown.exit_code) == ([cause], 0)
    assert took < 40
