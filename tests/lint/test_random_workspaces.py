"""Lint of every acceptance case, of the contract's workspace and of random workspaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.codes import CODES
from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.errors import ConfigError
from jsplan.lint.engine import run_rules
from jsplan.lint.rules import RULES
from jsplan.lint.view import View
from jsplan.topology import build_topology
from tests.lint.support import HEAD
from tests.support.yaml_text import read_yaml

CASES = sorted((Path(__file__).parents[1] / "cases").rglob("*.yaml"))


def check_findings(folder: Path, sections: dict[str, Any], head: dict[str, Any] = HEAD) -> None:
    """Lint a workspace, if it is valid, and check every finding."""
    (folder / "jsplan.yaml").write_text(json.dumps(head | sections), encoding="utf-8")
    try:
        workspace = load(
            LoadOptions(
                folder,
                environment="staging" if "environments" in sections else None,
                environ={"ACC_PASSWORD": "x"},
            )
        )
    except ConfigError:
        return
    report = run_rules(View(workspace, build_topology(workspace)), RULES)
    for found in [*report.findings, *report.ignored]:
        assert found.code in CODES
        assert found.summary
        assert found.detail
        assert found.range is not None
        assert found.severity in ("warning", "info")


def test_every_acceptance_case_can_be_linted(tmp_path: Path) -> None:
    """Every acceptance case can be linted."""
    for path in CASES:
        text = read_yaml(path.read_text("utf-8"))
        for side in ("first", "desired"):
            check_findings(tmp_path, text.get(side) or {})


SUBJECTS = st.lists(
    st.sampled_from(["a.>", "a.*", "a.b", "b.>", "_INBOX.>", "x*", "c"]),
    min_size=1,
    max_size=2,
    unique=True,
)
CONSUMER = st.fixed_dictionaries(
    {},
    optional={
        "ack_policy": st.sampled_from(["none", "all", "explicit"]), "filter_subject": st.sampled_from(["a.b", "z", "b.>"]),
        "deliver_subject": st.sampled_from(["out", "in"]), "deliver_group": st.just("g"), "max_ack_pending": st.sampled_from([1, 5]),
        "ack_wait": st.sampled_from([30, "1m"]), "inactive_threshold": st.just("1h"), "max_deliver": st.just(5), "backoff": st.just(["1s"]),
        "num_replicas": st.just(1), "mem_storage": st.booleans(), "replay_policy": st.just("original"), "max_batch": st.just(50),
        "lint": st.just({"ignore": [{"code": "JS240", "reason": "meant"}]}),
    },
)  # fmt: skip
ORIGIN = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["S0", "S1", "S2", "THEIRS"]),
        "domain": st.sampled_from(["hub", "leaf", "other"]),
    },
    optional={
        "filter_subject": st.sampled_from(["a.b", "z", ">"]),
        "subject_transforms": st.just([{"src": "a.*", "dest": "q.{{wildcard(1)}}"}]),
    },
)
STREAM = st.fixed_dictionaries(
    {"domain": st.sampled_from(["hub", "leaf", "other"])},
    optional={
        "retention": st.sampled_from(["limits", "workqueue", "interest"]), "storage": st.sampled_from(["file", "memory"]),
        "max_age": st.sampled_from(["10s", "1d"]), "max_bytes": st.sampled_from([10, "1GiB"]), "discard": st.just("new"),
        "duplicate_window": st.sampled_from(["5s", "2h"]), "num_replicas": st.sampled_from([1, 2, 3]), "no_ack": st.booleans(),
        "republish": st.sampled_from([{"src": "a.>", "dest": "b.>"}, {"src": ">", "dest": "r.>"}]), "allow_msg_ttl": st.just(True),
        "subject_transform": st.just({"src": "a.*", "dest": "t.{{wildcard(1)}}"}), "deny_delete": st.booleans(),
        "consumer_limits": st.just({"inactive_threshold": "2h"}),
    },
)  # fmt: skip


HOLDS = st.one_of(
    st.fixed_dictionaries({"subjects": SUBJECTS}),
    st.fixed_dictionaries({"mirror": ORIGIN}),
    st.fixed_dictionaries(
        {"sources": st.lists(ORIGIN, min_size=1, max_size=2)}, optional={"subjects": SUBJECTS}
    ),
)


@st.composite
def sections(draw: st.DrawFn) -> dict[str, Any]:
    streams = []
    for number in range(draw(st.integers(1, 4))):
        consumers = [{"name": f"C{n}"} | draw(CONSUMER) for n in range(draw(st.integers(0, 2)))]
        streams.append(
            {"name": f"S{number}"}
            | draw(STREAM)
            | draw(HOLDS)
            | ({"consumers": consumers} if consumers else {})
        )
    return {"streams": streams}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@settings(max_examples=100, deadline=None)
@given(written=sections())
def test_any_workspace_can_be_linted(written: dict[str, Any], folder: Path) -> None:
    """Lint ends on any fields and flows, circles included; each finding has place and advice."""
    check_findings(folder, written)
