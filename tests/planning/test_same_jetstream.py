"""Two connections to the same JetStream, by their logins in the files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.facts.live import DomainFacts, Live
from jsplan.planning.domain_findings import check_same_jetstream
from jsplan.planning.model import PlanInputs
from jsplan.state import State
from jsplan.topology import build_topology

if TYPE_CHECKING:
    from pathlib import Path

URL = "tls://nats.example"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({}, {}, True),
        ({"user": "a", "password": "x"}, {"user": "a", "password": "y"}, True),
        ({"user": "a", "password": "x"}, {"user": "b", "password": "x"}, False),
        ({"token": "a"}, {"token": "b"}, False),
        ({"creds": "a.creds"}, {"creds": "b.creds"}, False),
        ({"tls": {"cert": "a.pem", "key": "k"}}, {"tls": {"cert": "b.pem", "key": "k"}}, False),
        ({"tls": {"ca": "a.pem"}}, {"tls": {"ca": "b.pem"}}, True),
        ({"url": "tls://one.example"}, {}, False),
    ],
)
def test_logins(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], *, is_same: bool
) -> None:
    """A stream of two domains is an error where both have the same login."""
    files = {
        "jsplan": 1,
        "workspace": "test",
        "connections": {"one": {"url": URL} | one, "other": {"url": URL} | other},
        "domains": {key: {"connection": key, "js_domain": None} for key in ("one", "other")},
        "streams": [{"name": "S", "domain": key} for key in ("one", "other")],
    }
    (tmp_path / "jsplan.yaml").write_text(json.dumps(files))
    workspace = load(LoadOptions(tmp_path))
    live = Live({key: DomainFacts(key, reachable=True, level=5) for key in workspace.domains})
    inputs = PlanInputs(workspace, build_topology(workspace), State("test", None), live)

    assert [found.code for found in check_same_jetstream(inputs)] == ["JS123"] * is_same
