"""Backfills in plan and apply: what is listed, and that an apply runs it once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import NotAvailableError
from tests.backfill.thread_runner import ThreadRunner, use_runner
from tests.support.raw import Raw, publish, streams
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.options import Observer
    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

ENTRY = {
    "name": "history",
    "from": {"domain": "leaf", "stream": "ORDERS"},
    "to": {"domain": "hub", "stream": "ALL"},
}
ALL = {"name": "ALL", "domain": "hub", "subjects": ["all.>"]}


@pytest.fixture
def space(clean_hub_leaf: Sandbox, tmp_path: Path) -> Space:
    """A hub and a leaf; the leaf has ORDERS with twenty messages, in no file."""
    leaf = clean_hub_leaf["leaf"]
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        raw.create("ORDERS", subjects=["orders.>"])
    publish(leaf.url, leaf.user, leaf.password, "orders.a", *([b"x" * 100] * 20))
    return hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=[ALL], backfills=[ENTRY])


def run_jsplan(space: Space, *words: str) -> dict[str, Any]:
    """Run a command in a process of its own and return its document."""
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "jsplan", "-C", str(space.folder), *words, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"returned": done.returncode}


def test_a_plan_lists_backfills(space: Space) -> None:
    """A plan lists a backfill with both ends, amount, reason and estimate.

    Also where the same apply creates the target.
    """
    plan = space.plan()

    live = next(iter(plan.backfills[0]["from"]))["range"]["created"]
    assert plan.backfills == [
        {
            "name": "history",
            "from": [
                {
                    "domain": "leaf",
                    "stream": "ORDERS",
                    "range": {"first": 1, "last": 20, "created": live},
                }
            ],
            "to": {"domain": "hub", "stream": "ALL"},
            "entry_hash": plan.backfills[0]["entry_hash"],
            "messages": 20,
            "bytes": plan.backfills[0]["bytes"],
            "strategy": "spark",
            "reason": "copied by Spark, so that each message says where it comes from",
            "estimate": {
                "seconds": 10.0,
                "basis": "assuming 60,000 messages/s and 60.0 MiB/s, and 10s for Spark to start",
            },
        }
    ]
    assert plan.backfills[0]["bytes"] >= 20 * 100
    assert plan.summary["backfill"] == 1
    assert [str(change.address) for change in plan.resource_changes] == ["hub/stream/ALL"]


@pytest.mark.parametrize(
    ("bounds", "messages"),
    [
        ({"start_seq": 6}, 15), ({"end_seq": 5}, 5), ({"start_seq": 30}, 0),
        ({"start_time": "2020-01-01T00:00:00Z"}, 20), ({"end_time": "2020-01-01T00:00:00Z"}, 0),
    ],
)  # fmt: skip
def test_ranges_are_counted(space: Space, bounds: dict[str, Any], messages: int) -> None:
    """A plan counts the messages of a range, by sequences and by times.

    The place of a time is found by reading single messages, without a consumer.
    """
    plan = space.write(
        streams=[ALL],
        backfills=[ENTRY | {"from": {"domain": "leaf", "stream": "ORDERS", **bounds}}],
    ).plan()

    assert plan.backfills[0]["messages"] == messages


@pytest.mark.parametrize(
    "options",
    [
        {"targets": ("leaf/**",)},
        {"excludes": ("hub/stream/ALL",)},
        {"destroy": True},
        {"refresh_only": True},
    ],
)
def test_a_plan_without_the_target_lists_no_backfill(space: Space, options: dict[str, Any]) -> None:
    """A plan that does not change the target lists no backfill."""
    space.write(
        streams=[ALL, {"name": "OTHER", "domain": "leaf", "subjects": ["other.>"]}],
        backfills=[ENTRY],
    ).apply(backfill=False)

    assert space.plan(**options).backfills == []


def test_no_backfill_skips_the_copy(space: Space) -> None:
    """`--no-backfill` prints the command of the copy, and the next plan lists the copy again."""
    plan, result = space.apply(backfill=False)

    assert result.exit_code == 0
    assert result.backfills == [
        {
            "name": "history",
            "status": "skipped",
            "error": "skipped by --no-backfill; run it with: jsplan backfill run history",
        }
    ]
    again = space.plan()
    assert (again.steps, again.has_changes, len(again.backfills)) == ([], True, 1)
    assert plan.backfills == again.backfills


def test_an_offline_origin_defers_a_backfill(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A backfill of an offline origin is deferred, and is no change of the plan."""
    space.apply(backfill=False)
    clean_hub_leaf["leaf"].stop()

    plan = space.plan()

    assert (plan.backfills, plan.has_changes) == ([], False)
    assert [(d.address, d.reason.split(":")[0]) for d in plan.deferred] == [
        ("leaf/stream/ORDERS", "backfill history waits")
    ]


def test_a_copy_under_way_is_no_change(space: Space, clean_hub_leaf: Sandbox) -> None:
    """The staging source of a running or interrupted backfill is no drift and is not removed."""
    sourced = ALL | {"sources": [{"name": "ORDERS", "domain": "leaf"}]}
    space.write(
        streams=[
            ALL,
            {"name": "OTHER", "domain": "hub", "subjects": ["other.>"]},
            sourced | {"name": "TWO", "subjects": ["two.>"]},
        ]
    ).apply()
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("JSPLAN_STAGING_BACKFILL_0", subjects=["stage.>"])
        for name in ("ALL", "TWO"):
            config = raw.config(name)
            config["sources"] = [*config.get("sources", []), {"name": "JSPLAN_STAGING_BACKFILL_0"}]
            raw.api_ok(f"$JS.API.STREAM.UPDATE.{name}", config)

    plan = space.plan()

    assert (plan.has_changes, plan.resource_drift) == (False, [])


def test_an_impossible_entry_stops_an_apply(space: Space, clean_hub_leaf: Sandbox) -> None:
    """An entry that cannot run is refused before any change, with a hint to `--no-backfill`."""
    entry = ENTRY | {"from": {"parquet": "orders"}, "mode": "exact"}
    space.write(streams=[ALL], backfills=[entry])

    with pytest.raises(
        NotAvailableError, match=r"an archive is written and read by Spark.*; nothing was changed"
    ) as refused:
        space.apply()

    assert "--no-backfill" in str(refused.value.hint)
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        assert streams(raw) == []
    assert space.apply(backfill=False)[1].exit_code == 0


def test_an_entry_that_reads_a_work_queue_is_an_error(space: Space) -> None:
    """An entry that reads a work queue is an error, since only its consumers can read it."""
    queue = {"name": "Q", "domain": "leaf", "subjects": ["q"], "retention": "workqueue"}
    for more in ({}, {"strategy": "spark"}, {"mode": "exact", "order": "subject"}):
        entry = ENTRY | {"from": {"domain": "leaf", "stream": "Q"}} | more
        found = [
            d
            for d in space.write(streams=[ALL, queue], backfills=[entry]).plan().diagnostics
            if d.severity == "error"
        ]
        assert [(d.code, "Q is a work queue" in d.summary, d.range is not None) for d in found] == [
            ("JS472", True, True)
        ], more


@pytest.mark.timeout(300)
def test_apply_copies_once(space: Space, clean_hub_leaf: Sandbox) -> None:
    """An apply creates the target and fills it, and the next plan is empty.

    All entries share one Spark, also where each has connections of its own.
    """
    leaf = clean_hub_leaf["leaf"]
    space.base["connections"]["near"] = {
        "url": leaf.url,
        "user": leaf.user,
        "password": leaf.password,
    }
    space.base["domains"] = space.base["domains"] | {
        "by-leaf": {"connection": "near", "js_domain": "leaf", "same_as": "leaf"}
    }
    second = {
        "name": "again",
        "from": {"domain": "by-leaf", "stream": "ORDERS", "end_seq": 5},
        "to": {"domain": "hub", "stream": "FEW"},
    }
    space.write(
        streams=[ALL, ALL | {"name": "FEW", "subjects": ["few.>"]}], backfills=[ENTRY, second]
    )

    done = run_jsplan(space, "apply", "-y")

    assert (done["returned"], done["exit_code"]) == (0, 0)
    assert done["backfills"] == [
        {"name": "history", "status": "done", "copied": 20, "gap_messages": 0, "error": None},
        {"name": "again", "status": "done", "copied": 5, "gap_messages": 0, "error": None},
    ]
    assert not space.plan().has_changes


def test_one_runner_serves_all_copies_of_a_command(space: Space) -> None:
    """An apply with two entries creates one runner, so it starts Spark once."""
    created: list[ThreadRunner] = []

    def create(observer: Observer, master: str | None) -> ThreadRunner:
        created.append(ThreadRunner(observer, master))
        return created[-1]

    second = ENTRY | {"name": "again", "to": {"domain": "hub", "stream": "FEW"}}
    few = ALL | {"name": "FEW", "subjects": ["few.>"]}
    space.write(streams=[ALL, few], backfills=[ENTRY, second])
    with use_runner(create):
        _, result = space.apply()

    assert [entry["copied"] for entry in result.backfills] == [20, 20]
    assert len(created) == 1
