from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.support.workspaces import RecordingObserver, Space
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from tests.health.conftest import LinkedServers

#: What was done to each copy, and by which words its cause is known; None: it is healthy.
EXPECTED = {
    "hub/stream/NOWHERE": "origin missing",
    "hub/stream/NOWHERE_SOURCED": "origin missing",
    "leaf/stream/STRANGE": "domain unknown",
    "hub/stream/STRANGE_SOURCED": "domain unknown",
    "other/stream/UNMADE": "export missing",
    "other/stream/UNDELIVERED": "export missing",
    "other/stream/STALLED": "flow control stalled",
    "leaf/stream/AGAIN": "origin re-created",
    "leaf/stream/AGAIN_SOURCED": "origin re-created",
    "hub/stream/DRAIN": "draining a workqueue",
    "hub/stream/NO_PLACE": "refused",
    "hub/stream/NO_PLACE_SOURCED": "refused",
    "hub/stream/NO_BYTES": "refused",
    "hub/stream/NO_BYTES_SOURCED": "refused",
    "hub/stream/NO_SUBJECT": "refused",
    "hub/stream/TOO_LARGE": "refused",
    "hub/stream/TOO_LARGE_SOURCED": "refused",
    "hub/stream/TOO_LARGE_WITH_HEADER": "refused",
    "hub/stream/CUT": "link down",
    "hub/stream/CUT_SOURCED": "link down",
    "leaf/stream/CUT_IDLE": "link down",
    "other/stream/WELL": None,
    "hub/stream/PURGED": None,
    "hub/stream/GAPS": None,
    "hub/stream/FILTERED": None,
    "hub/stream/TRANSFORMED": None,
    "hub/stream/LATER": None,
}

#: The number in the cause of each flow whose stream refuses the next message.
REFUSALS = {
    "hub/stream/NO_PLACE": "is full (max_msgs: 1)",
    "hub/stream/NO_PLACE_SOURCED": "is full (max_msgs: 1)",
    "hub/stream/NO_BYTES": "is full (max_bytes: 100)",
    "hub/stream/NO_BYTES_SOURCED": "is full (max_bytes: 250)",
    "hub/stream/NO_SUBJECT": "is full (max_msgs_per_subject: 1)",
    "hub/stream/TOO_LARGE": "message 3 of hub/stream/MIXED has 1,000 bytes",
    "hub/stream/TOO_LARGE_SOURCED": "message 3 of hub/stream/MIXED has 1,0",
    "hub/stream/TOO_LARGE_WITH_HEADER": "message 3 of hub/stream/MIXED has 1,0",
}

#: What has to have arrived before anything fails.
STARTED = (
    ("hub", "CUT", 2), ("hub", "CUT_SOURCED", 2), ("leaf", "CUT_IDLE", 1), ("leaf", "AGAIN", 5), ("leaf", "AGAIN_SOURCED", 5),
    ("hub", "DRAIN", 2), ("hub", "GAPS", 7), ("hub", "NO_PLACE", 1), ("hub", "NO_PLACE_SOURCED", 1), ("hub", "NO_BYTES", 2),
    ("hub", "NO_BYTES_SOURCED", 2), ("hub", "NO_SUBJECT", 1), ("hub", "TOO_LARGE", 2), ("hub", "TOO_LARGE_SOURCED", 2),
    ("hub", "TOO_LARGE_WITH_HEADER", 2),
)  # fmt: skip


def drift_replication(space: Space) -> dict[str, Any]:
    """Return the replication part of a drift run, by downstream stream."""
    return {
        flow["to"]: flow
        for flow in drift(space.load, DriftOptions(), RecordingObserver()).replication
    }


def mirrors_and_sources() -> list[dict[str, Any]]:
    """Return all mirrors and sources of the workspace."""
    found: list[dict[str, Any]] = read_yaml(Path(__file__).with_name("causes.yaml").read_bytes())
    return found


def origins(linked_servers: LinkedServers) -> None:
    """Create the origins, which are unmanaged: what becomes of them is their owners' business."""
    for name, messages, size in (
        ("FULL", 30, 100_000),
        ("UNMADE", 2, 8),
        ("UNDELIVERED", 2, 8),
        ("STALLED", 30, 100_000),
    ):
        linked_servers.stream("hub", name, messages, size=size)
    linked_servers.stream("hub", "TWICE", 5)
    linked_servers.stream("hub", "IDLE", 1)
    linked_servers.stream("hub", "MIXED", 2)
    linked_servers.publish("hub", "MIXED.a", 1, size=1000)
    linked_servers.publish("hub", "MIXED.a", 2)
    linked_servers.stream("leaf", "FAR", 2)
    linked_servers.stream("hub", "QUEUE", 2, retention="workqueue")
    linked_servers.stream("hub", "EMPTIED", 4)
    linked_servers.request("hub", "STREAM.PURGE.EMPTIED")
    linked_servers.stream("hub", "HOLED", 5)
    linked_servers.publish("hub", "HOLED.b", 3)
    for seq in (8, 2):
        linked_servers.request("hub", "STREAM.MSG.DELETE.HOLED", {"seq": seq})


@pytest.mark.matrix
def test_every_cause_is_named(linked_servers: LinkedServers, tmp_path: Path) -> None:
    """Each cause of a failure is named within 15 seconds; the other flows stay healthy."""
    origins(linked_servers)
    space = linked_servers.space(tmp_path).write(streams=mirrors_and_sources())
    space.apply(allow_hazards=("DELETES_MESSAGES", "BREAKS_REPLICATION"))
    for way, stream, last in STARTED:
        linked_servers.wait_until_copied(way, stream, last)

    began = time.monotonic()
    linked_servers.request("hub", "STREAM.DELETE.TWICE")
    linked_servers.stream("hub", "TWICE", 3)
    linked_servers.relay.cut()
    linked_servers.publish("leaf", "FAR.a", 1)
    linked_servers.wait_until(
        lambda: linked_servers.request("leaf", "STREAM.INFO.CUT_IDLE")["mirror"]["active"] > 3.1e9,
        "be silent",
    )
    found = drift_replication(space)
    took = time.monotonic() - began

    causes = {to: (flow["cause"] or "").split(":")[0] or None for to, flow in found.items()}
    assert causes == EXPECTED
    assert {to: flow["healthy"] for to, flow in found.items()} == {
        to: cause is None for to, cause in EXPECTED.items()
    }
    assert took < 15
    for to, words in REFUSALS.items():
        assert words in found[to]["cause"]
    shown = status(space.load, RecordingObserver())
    assert shown.exit_code == 2
