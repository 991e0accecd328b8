"""Plays the pages on other tools, on servers that have the resources of those tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.page_reader import PageReader, normalize_output
from tests.docs.pages import ROOT, blocks
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
#: What each tool sends for the files of its page, its own defaults written out: API prefix, verb, configuration.
MADE: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "terraform": [
        ("hub", "ORDERS", {"subjects": ["ORDERS.*"], "max_age": 365 * DAY, "duplicate_window": 120 * SECOND, "allow_direct": True}),
        ("hub", "ORDERS.NEW", {"ack_policy": "explicit", "ack_wait": 30 * SECOND, "filter_subject": "ORDERS.received",
                               "sample_freq": "100%", "max_ack_pending": 20000, "deliver_policy": "all"}),
        ("hub", "KV_CFG", {"subjects": ["$KV.CFG.>"], "max_msgs_per_subject": 5, "discard": "new", "deny_delete": True,
                           "allow_rollup_hdrs": True, "allow_direct": True}),
    ],
    "nack": [
        ("hub", "ORDERS", {"subjects": ["ORDERS.*"], "max_age": 30 * DAY, "storage": "file"}),
        ("hub", "ORDERS.NEW", {"ack_policy": "explicit", "ack_wait": 1, "filter_subject": "ORDERS.received"}),
        ("leaf", "READINGS", {"subjects": ["readings.>"], "storage": "memory"}),
    ],
    "nats-cli": [
        ("hub", "ORDERS", {"subjects": ["ORDERS.*"], "max_age": 365 * DAY}),
        ("hub", "ORDERS.NEW", {"ack_policy": "explicit", "filter_subject": "ORDERS.received", "sample_freq": "100"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("tool", MADE)
def test_the_page_of_a_tool_shows_what_is_printed(
    tool: str, clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """Each command prints what the page says, and everything is imported unchanged."""
    # Create what the other tool creates.
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        for domain, made, config in MADE[tool]:
            stream, _, consumer = made.partition(".")
            if consumer:
                payload = {
                    "stream_name": stream,
                    "config": {"durable_name": consumer, "name": consumer} | config,
                }
                raw.api_ok(f"$JS.{domain}.API.CONSUMER.CREATE.{stream}.{consumer}", payload)
            else:
                raw.api_ok(f"$JS.{domain}.API.STREAM.CREATE.{stream}", {"name": stream} | config)
    walk = PageReader(tmp_path, {name: clean_hub_leaf[name].url for name in ("hub", "leaf")})
    shown = ""
    for block in blocks(ROOT / "docs" / "how-to" / f"migrate-from-{tool}.md"):
        if block.title:
            walk.write(block)
        for command, printed in block.commands if block.language == "console" else ():
            shown = walk.run_command(command)
            assert normalize_output(printed) == normalize_output(shown), command

    assert "will be imported unchanged" in shown
    assert "0 to add, 0 to change, 0 to destroy." in shown
