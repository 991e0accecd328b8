from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jsplan.render import plan_text
from jsplan.sandbox import Sandbox
from jsplan.sandbox.sites import Account, Site
from tests.conftest import PROGRAM
from tests.rehearsal.tampered_plans import (
    create_on_server,
    refusals,
    rehearse_tampered,
    with_fields,
)
from tests.render.texts import text_of
from tests.support.process import jsplan
from tests.support.workspaces import hub_leaf_space, new_space

STREAMS: list[dict[str, Any]] = [
    {"name": name, "domain": "hub", "subjects": [f"{name.lower()}.>"]}
    for name in ("OVERLAP", "COPIES", "STORED", "LIMITS", "MISNAMED", "CONSUMED", "JOBS", "ORIGIN")
]
#: The first consumer of each stream is live; the others are planned.
JOBS: dict[str, Any] = {
    "retention": "workqueue",
    "consumers": [
        {"name": name, "filter_subject": f"jobs.{name}", "ack_policy": "explicit"}
        for name in ("MINE", "SAME", "ALL")
    ],
}
CONSUMED: dict[str, list[dict[str, Any]]] = {
    "consumers": [
        {"name": "FIXED", "ack_policy": "explicit"},
        {"name": "FILTERS"},
        {"name": "POLICY"},
    ]
}
GREEDY = {
    "name": "GREEDY",
    "durable_name": "GREEDY",
    "ack_policy": "explicit",
    "max_ack_pending": 900,
}
MIRRORS = [
    {"name": "MIRROR", "domain": "hub", "mirror": {"name": "ORIGIN"}},
    {"name": "REACHES", "domain": "leaf", "mirror": {"name": "ORIGIN", "domain": "hub"}},
    {"name": "LISTENS", "domain": "leaf", "mirror": {"name": "ORIGIN", "domain": "hub"}},
]
LIVE = (
    "stream/STORED",
    "stream/LIMITS",
    "stream/MIRROR",
    "stream/JOBS",
    "consumer/JOBS/MINE",
    "consumer/CONSUMED/FIXED",
)
#: The forbidden fields of each request, and the err_code of their rule.
FORBIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "hub/stream/OVERLAP": ({"subjects": ["wide.a"]}, "10065"),
    "hub/stream/COPIES": ({"num_replicas": 3}, "10074"),
    "hub/stream/STORED": ({"storage": "memory"}, "10052"),
    "hub/stream/LIMITS": ({"consumer_limits": {"max_ack_pending": 5}}, "10069"),
    "hub/stream/MISNAMED": ({"name": "OTHERWISE"}, "10056"),
    "hub/stream/MIRROR": ({"mirror": {"name": "WIDE"}}, "10055"),
    "leaf/stream/REACHES": (
        {"mirror": {"name": "ORIGIN", "external": {"api": "$JS.API", "deliver": ""}}},
        "10021",
    ),
    "leaf/stream/LISTENS": ({"subjects": ["listens"]}, "10034"),
    "hub/consumer/JOBS/ALL": ({"filter_subject": ""}, "10099"),
    "hub/consumer/JOBS/SAME": ({"filter_subject": "jobs.MINE"}, "10100"),
    "hub/consumer/CONSUMED/FIXED": ({"deliver_policy": "new"}, "10012"),
    "hub/consumer/CONSUMED/FILTERS": (
        {"filter_subject": "consumed.a", "filter_subjects": ["consumed.b"]},
        "10136",
    ),
    "hub/consumer/CONSUMED/POLICY": ({"deliver_policy": "by_start_sequence"}, "10094"),
}


def streams(*touched: str) -> list[dict[str, Any]]:
    """All streams; the named ones have a description, so that there is an update to change."""
    changed: dict[str, dict[str, Any]] = {name: {"description": "changed"} for name in touched}
    extra: dict[str, dict[str, Any]] = {"JOBS": JOBS, "CONSUMED": CONSUMED}
    result = [
        stream | extra.get(stream["name"], {}) | changed.get(stream["name"], {})
        for stream in (*STREAMS, *MIRRORS)
    ]
    first, *rest = CONSUMED["consumers"]
    result[5]["consumers"] = [first | changed.get("CONSUMED/FIXED", {}), *rest]
    return result


@pytest.mark.matrix
def test_thirteen_rules_of_the_server_refuse_each_on_its_resource(
    clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """Each of thirteen forbidden requests of one plan is refused on its own resource."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams())
    space.apply(targets=tuple(f"hub/{address}" for address in LIVE))
    create_on_server(
        clean_hub_leaf["hub"],
        ("STREAM.CREATE.WIDE", {"name": "WIDE", "subjects": ["wide.>"]}),
        ("CONSUMER.CREATE.LIMITS.GREEDY", {"stream_name": "LIMITS", "config": GREEDY}),
    )
    space.write(streams=streams("STORED", "LIMITS", "MIRROR", "CONSUMED/FIXED"))

    plan = rehearse_tampered(
        space, {address: with_fields(forbidden) for address, (forbidden, _) in FORBIDDEN.items()}
    )

    assert refusals(plan) == {address: err_code for address, (_, err_code) in FORBIDDEN.items()}
    assert len({err_code for _, err_code in FORBIDDEN.values()}) == len(FORBIDDEN)
    assert {str(d.range).split(":")[0] for d in plan.diagnostics} == {"jsplan.yaml"}
    assert (plan.errored, plan.applyable, plan.steps) == (True, False, [])
    assert plan.rehearsal is not None
    found = plan.rehearsal
    held = found.steps - 13  # before 2.11, a placeholder around the update of a consumer
    assert held in (0, 2)
    assert (found.refused, found.blocked, found.not_tried) == (13, held // 2, 0)
    text = text_of(lambda console: plan_text.render(plan, console))
    assert f"{found.steps} steps, 13 refused" in text
    assert "The plan has errors; nothing can be applied." in text


LIMITED = Account(
    "A1",
    {
        "max_file": 9_900,
        "max_streams": 3,
        "max_bytes_required": True,
        "disk_max_stream_bytes": 4000,
        "max_ack_pending": 50,
    },
)
BEYOND: dict[str, tuple[dict[str, Any], str]] = {
    "main/stream/ENDLESS": ({"max_bytes": -1}, "10113"),
    "main/stream/LARGE": ({"max_bytes": 4001}, "10122"),
    "main/consumer/HALF/MANY": ({"max_ack_pending": 51}, "10121"),
}


@pytest.mark.matrix
def test_the_limits_of_the_account_hold(tmp_path: Path) -> None:
    """The embedded account has the limits of the real one, and live streams count."""
    with Sandbox.of_sites([Site("main", (LIMITED,))], "secret", binary=PROGRAM) as real:
        connections = {"main": {"url": real["main"].url, "user": "A1", "password": "secret"}}
        domains = {"main": {"connection": "main", "js_domain": None}}
        space = new_space(
            tmp_path, connections=connections, domains=domains, defaults={"domain": "main"}
        )
        live = {"name": "HALF", "max_bytes": 3500}
        space.write(streams=[live]).apply()
        wanted = [{"name": name, "max_bytes": 10} for name in ("ENDLESS", "LARGE")]
        space.write(
            streams=[live | {"consumers": [{"name": "MANY", "ack_policy": "explicit"}]}, *wanted]
        )
        plan = rehearse_tampered(
            space, {address: with_fields(forbidden) for address, (forbidden, _) in BEYOND.items()}
        )
        fits = rehearse_tampered(space, {}, targets=("main/stream/*", "main/consumer/**"))
        create_on_server(
            real["main"],
            *(
                (f"STREAM.CREATE.{name}", {"name": name, "max_bytes": 3000})
                for name in ("OTHER", "UNMANAGED")
            ),
        )
        space.write(streams=[live | {"description": "changed"}])
        full = rehearse_tampered(space, {"main/stream/HALF": with_fields({"max_bytes": 4000})})
        more = rehearse_tampered(
            space,
            {"main/stream/HALF": with_fields({"name": "NEW", "max_bytes": 10})},
            api="STREAM.CREATE.NEW",
        )

    assert refusals(plan) == {address: err_code for address, (_, err_code) in BEYOND.items()}
    assert refusals(fits) == {}
    assert refusals(full) == {"main/stream/HALF": "10047"}
    assert refusals(more) == {"main/stream/HALF": "10027"}


@pytest.mark.usefixtures("newer_servers")
@pytest.mark.matrix
def test_a_refusal_is_exit_code_1_with_its_place(
    clean_hub_leaf: Sandbox, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """An unknown field in x_raw is refused in the rehearsal, or dropped by an old server."""
    hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[
            {"name": "NEWER", "domain": "hub", "x_raw": {"from_the_future": 1}},
            {"name": "KNOWN", "domain": "leaf"},
        ]
    )

    planned, rehearsed = jsplan(tmp_path, "plan"), jsplan(tmp_path, "plan", "--rehearse", "-o", "p")

    expected = (
        "accepts and drops from_the_future"
        if server_version < (2, 12)
        else 'json: unknown field "from_the_future" (10025)'
    )
    assert (planned.code, rehearsed.code) == (0, 1)
    assert expected in rehearsed.text
    assert "Error: hub/stream/NEWER: " in rehearsed.text
    assert "at jsplan.yaml:1:" in rehearsed.text
    assert "2 steps, 1 refused." in rehearsed.text
    assert not (tmp_path / "p").exists()
