"""Unmanaged streams and consumers that conflict with a plan, as the server confirms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api_audit import audit_requests
from tests.support.raw import Raw
from tests.support.workspaces import errors, hub_leaf_space, new_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeServer

SECOND = 1_000_000_000


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("subjects", "free"),
    [
        (["theirs.a"], False),
        (["theirs.*"], False),
        (["ours.>", "theirs.b.c"], False),
        (["theirs.b"], True),
        (["theirs"], True),
        (["unused.>"], True),
    ],
)
def test_subjects_of_unmanaged_streams(
    server: Server, tmp_path: Path, subjects: list[str], free: bool
) -> None:
    """A plan refuses the subjects that the server refuses beside unmanaged streams."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        raw.create("THEIRS", subjects=["theirs.a", "theirs.b.>"])
        plan = space.write(streams=[{"name": "OURS", "subjects": subjects}]).plan()
        answer = raw.api("$JS.API.STREAM.CREATE.OURS", {"name": "OURS", "subjects": subjects})

    assert bool(errors(plan)) == ("error" in answer) == (not free)
    assert all("main/stream/THEIRS (10065)" in text for text in errors(plan))


LIMITS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("theirs", {"max_ack_pending": 10}, {}),
    ("theirs", {"max_ack_pending": 5000, "inactive_threshold": 3600 * SECOND}, {}),
    ("theirs", {"inactive_threshold": 3600 * SECOND, "max_ack_pending": 1000}, {}),
    ("copied", {"inactive_threshold": 9 * SECOND, "max_ack_pending": 1000}, {}),
    ("copied", {"inactive_threshold": 10 * SECOND, "max_ack_pending": 1000}, {}),
    ("copied", {"max_ack_pending": 1000}, {}),
    ("copied", {"inactive_threshold": SECOND, "max_ack_pending": 1000}, {"retention": "interest"}),
    (
        "copied",
        {"inactive_threshold": 60 * SECOND, "max_ack_pending": 999},
        {"retention": "interest"},
    ),
    (
        "copied",
        {"inactive_threshold": 60 * SECOND, "max_ack_pending": 999},
        {"retention": "workqueue"},
    ),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("who", "limits", "stream"), LIMITS)
def test_limits_for_unmanaged_consumers(
    server: Server, tmp_path: Path, who: str, limits: dict[str, Any], stream: dict[str, Any]
) -> None:
    """A plan refuses limits that unmanaged consumers or those of sources exceed (10069)."""
    space, ours = single_space(tmp_path, server), {"name": "A", "subjects": ["a"]} | stream
    downstream = [{"name": "COPY", "sources": [{"name": "A"}]}] if who == "copied" else []
    assert (
        space.write(streams=[ours, *downstream])
        .apply(allow_hazards=("DELETES_MESSAGES",))[1]
        .exit_code
        == 0
    )
    with Raw(server.url) as raw:
        if who == "theirs":
            config = {
                "durable_name": "THEIRS",
                "ack_policy": "explicit",
                "max_ack_pending": 200,
                "inactive_threshold": 60 * SECOND,
            }
            raw.api_ok("$JS.API.CONSUMER.CREATE.A.THEIRS", {"stream_name": "A", "config": config})
        else:
            server.wait_until(
                lambda: raw.api_ok("$JS.API.STREAM.INFO.COPY")["sources"][0]["active"] >= 0,
                "the copy to begin",
                30,
            )
        plan = space.write(streams=[ours | {"consumer_limits": limits}, *downstream]).plan()
        answer = raw.api("$JS.API.STREAM.UPDATE.A", ours | {"consumer_limits": limits})

    # The server accepts a limit that stops a source later (10082).
    limit_errors = [text for text in errors(plan) if "(10082)" not in text]
    assert bool(limit_errors) == ("error" in answer), (errors(plan), answer.get("error"))
    assert all("(10069)" in text for text in limit_errors)


@pytest.mark.matrix
@pytest.mark.parametrize(("theirs", "ours"), [("q.a", "q.*"), ("q.a", "q.b"), (None, "q.b")])
def test_unmanaged_work_queues(
    server: Server, tmp_path: Path, theirs: str | None, ours: str
) -> None:
    """A plan refuses a consumer of a work queue that overlaps with an unmanaged one or a source."""
    space = single_space(tmp_path, server)
    consumer = {"durable_name": "OURS", "ack_policy": "explicit", "filter_subject": ours}
    with Raw(server.url) as raw:
        queue = {"name": "Q", "subjects": ["q.*"], "retention": "workqueue"}
        downstream = [] if theirs else [{"name": "COPY", "sources": [{"name": "Q"}]}]
        space.write(streams=[queue, *downstream]).apply(allow_hazards=("DELETES_MESSAGES",))
        if theirs:
            config = consumer | {"durable_name": "THEIRS", "filter_subject": theirs}
            raw.api_ok("$JS.API.CONSUMER.CREATE.Q.THEIRS", {"stream_name": "Q", "config": config})
        else:
            server.wait_until(
                lambda: raw.api_ok("$JS.API.STREAM.INFO.COPY")["sources"][0]["active"] >= 0,
                "the copy to begin",
                30,
            )
        plan = space.write(
            streams=[queue | {"consumers": [{"name": "OURS"} | consumer]}, *downstream]
        ).plan()
        answer = raw.api(
            "$JS.API.CONSUMER.CREATE.Q.OURS",
            {"stream_name": "Q", "config": consumer, "action": "create"},
        )

    assert bool(errors(plan)) == ("error" in answer), (errors(plan), answer.get("error"))
    assert all("(10099, 10100)" in text for text in errors(plan))


def listings(seen: list[str]) -> list[str]:
    """Return the requests that list resources."""
    return [line for line in seen if "LIST" in line or "NAMES" in line]


def test_no_request_without_unmanaged_streams(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A plan lists nothing on a server without unmanaged streams."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    first = [
        {"name": f"S{n}", "domain": "hub", "subjects": [f"s{n}"], "consumers": [{"name": "C"}]}
        for n in range(3)
    ]
    space.write(streams=first).apply()
    changed = [
        stream | {"subjects": [f"t{n}"], "consumer_limits": {"max_ack_pending": 9}}
        for n, stream in enumerate(first)
    ]
    space.write(streams=changed)

    with audit_requests(clean_hub_leaf) as seen:
        assert len(space.plan().steps) == 3

    assert listings(seen) == []


def test_many_subjects_are_looked_up_in_pages(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A plan with many subjects lists all streams once instead of asking for each subject."""
    streams = [{"name": f"S{n}", "domain": "hub", "subjects": [f"s.{n}"]} for n in range(20)]
    space, hub = (
        hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams),
        clean_hub_leaf["hub"],
    )
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("THEIRS", subjects=["s.7", "s.8"])
        raw.create("KV_B", subjects=["$KV.B.>"])

    with audit_requests(clean_hub_leaf) as seen:
        plan = space.plan()

    assert listings(seen) == ["hub STREAM.LIST"]
    assert [d.address for d in plan.diagnostics if d.severity == "error"] == [
        "hub/stream/S7",
        "hub/stream/S8",
    ]


def test_missing_list_permission_is_reported(make_server: MakeServer, tmp_path: Path) -> None:
    """A user without permission to list streams gets a plan with a warning."""
    rights = 'permissions: {publish: {deny: ["$JS.API.STREAM.NAMES"]}}'
    denied = f"authorization {{ users: [{{user: a, password: a}}, {{user: b, password: b, {rights}}}] }}\nno_auth_user: a\n"
    server = make_server(extra=denied)
    with Raw(server.url, "a", "a") as raw:
        raw.create("THEIRS", subjects=["theirs"])
    connection = {"url": server.url, "user": "b", "password": "b"}
    domains = {"main": {"connection": "main", "js_domain": None}}
    space = new_space(tmp_path, connections={"main": connection}, domains=domains)

    plan = space.write(streams=[{"name": "OURS", "subjects": ["ours"]}]).plan()

    assert [(d.severity, d.code, d.address) for d in plan.diagnostics] == [
        ("warning", "JS447", "main/**")
    ]
    assert plan.applyable
