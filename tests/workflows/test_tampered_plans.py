"""Saved plans that were edited and have a valid checksum."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import pytest

from jsplan.applying.saved_plan import require_consistent_steps
from jsplan.diagnostics import Diagnostic
from jsplan.documents.base import dumps
from jsplan.documents.plan import Plan
from jsplan.documents.step_kinds import STEP_KINDS, Op
from jsplan.errors import JsplanError, RefusedError
from jsplan.render import plan_html
from tests.documents import valid_documents
from tests.documents.valid_documents import with_checksum
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space, hub_leaf_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

Document = dict[str, Any]
API = "$JS.API"


@pytest.fixture
def space(tmp_path: Path, server: Server) -> Space:
    """A protected stream with a consumer and ten messages, and another stream."""
    found = single_space(tmp_path, server)
    found.write(streams=[_orders(), {"name": "OTHER"}])
    found.apply()
    with Raw(server.url) as raw:
        for _ in range(10):
            raw.api_ok("ORDERS.a", b"x")
    return found


def _orders(**more: Any) -> Document:
    consumers = [{"name": "NEW", "ack_policy": "explicit", "description": more.pop("said", "a")}]
    return {
        "name": "ORDERS",
        "subjects": ["ORDERS.*"],
        "consumers": consumers,
        "lifecycle": {"prevent_destroy": True},
    } | more


def planned(space: Space, *declared: Document, **options: Any) -> Document:
    """Return the document of a plan."""
    space.write(streams=list(declared))
    document: Document = json.loads(dumps(space.plan(**options).to_json()))
    return document


def step_of(document: Document, op: str) -> Document:
    found: Document = next(step for step in document["steps"] if step["op"] == op)
    return found


def tampered(document: Document, op: str, place: tuple[str, ...], value: Any) -> Document:
    """Return a plan with another value at a place of the step with this operation."""
    copied: Document = json.loads(dumps(document))
    inner = step_of(copied, op)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copied


#: Other values at places of the step that changes the stream ORDERS.
EDITS: list[tuple[tuple[str, ...], Any]] = [
    (("request",), {"api": "STREAM.PURGE.ORDERS", "payload": {}}),
    (("request",), {"api": "STREAM.DELETE.ORDERS", "payload": None}),
    (("request",), {"api": "STREAM.UPDATE.OTHER", "payload": {"name": "OTHER"}}),
    (("request",), {"api": "STREAM.INFO.ORDERS\r\nPUB evil 1\r\nx\r\n", "payload": {}}),
    (("request",), {"api": "STREAM.UPDATE.ORDERS", "payload": None}),
    (("request",), None),
    (("request", "payload", "name"), "OTHER"),
    (("address",), "main/stream/OTHER"),
    (("object",), "main/stream/OTHER"),
    (("op",), "stream.create"),
]


def test_a_request_that_does_not_fit_its_step(space: Space, server: Server) -> None:
    """A request that does not fit the address and operation of its step is refused."""
    document = planned(space, _orders(max_msgs=50), {"name": "OTHER"})
    with Raw(server.url) as raw:
        before = raw.api_ok(f"{API}.STREAM.INFO.ORDERS"), streams(raw)
        itself = [step_of(document, "stream.update")["id"]]
        for place, value in (*EDITS, (("depends_on",), itself)):
            edited = tampered(document, "stream.update", place, value)
            with pytest.raises(JsplanError, match="is invalid: ") as refused:
                space.apply_saved(Plan.from_json(with_checksum(edited), "t.plan"))
            assert (refused.value.exit_code, "Nothing was changed" in str(refused.value)) == (
                1,
                True,
            )
        after = raw.api_ok(f"{API}.STREAM.INFO.ORDERS"), streams(raw)

    assert (before[0]["config"], before[0]["state"]["messages"], before[1]) == (
        after[0]["config"],
        after[0]["state"]["messages"],
        after[1],
    )


def test_a_consumer_of_another_name(space: Space) -> None:
    """A request for another consumer than the address names is refused."""
    document = planned(space, _orders(said="b"), {"name": "OTHER"})
    for place, value in (
        (("request", "api"), "CONSUMER.CREATE.ORDERS.OLD"),
        (("request", "payload", "stream_name"), "OTHER"),
        (("request", "payload", "action"), "create"),
        (("request", "payload", "config", "durable_name"), "OLD"),
    ):
        edited = tampered(document, "consumer.update", place, value)
        with pytest.raises(JsplanError, match="is invalid: "):
            require_consistent_steps(Plan.from_json(with_checksum(edited), "p"))


def test_a_protected_stream_whose_finding_was_removed(space: Space, server: Server) -> None:
    """A protected stream is not deleted, even if the plan hides the finding and the hazard."""
    space.write(streams=[{"name": "OTHER"}])
    plan = space.plan()
    assert "stream.delete" in [step.op for step in plan.steps]
    plan.diagnostics, plan.applyable = [], True
    for change in plan.resource_changes:
        change.hazards = []
    with pytest.raises(
        RefusedError, match="main/stream/ORDERS is guarded by prevent_destroy"
    ) as refused:
        space.apply_saved(plan)
    assert "prevent_destroy: false" in str(refused.value.hint)
    with Raw(server.url) as raw:
        assert raw.api_ok(f"{API}.STREAM.INFO.ORDERS")["state"]["messages"] == 10

    space.write(
        streams=[{"name": "OTHER"}],
        removed=[{"address": "main/stream/ORDERS", "destroy": True, "prevent_destroy": False}],
    )
    assert space.apply_saved(space.plan(allow_hazards=("DELETES_STREAM",))).exit_code == 0


def test_a_deletion_that_is_in_no_change(space: Space) -> None:
    """A deletion that is not in the list of changes is refused."""
    document = planned(space, _orders(max_msgs=50), {"name": "OTHER"})
    step = step_of(document, "stream.update")
    step |= {
        "op": "stream.delete",
        "request": {"api": "STREAM.DELETE.ORDERS", "payload": None},
        "record": None,
        "expect": None,
    }
    with pytest.raises(JsplanError, match="no resource change of the plan deletes it"):
        require_consistent_steps(Plan.from_json(with_checksum(document), "p"))


def test_names_in_parameters_of_a_step() -> None:
    """Parameters of a step that name another resource are refused."""
    document = valid_documents.plan()
    document["steps"] = [step for step in document["steps"] if step["id"] in ("a1", "a2")]
    require_consistent_steps(Plan.from_json(with_checksum(document), "p"))
    begun = document["steps"][0]["params"]["transfer"]
    for number, field, value in (
        (0, "transfer", begun | {"staging": "hub/stream/PAYROLL"}),
        (0, "transfer", begun | {"origin": "hub/stream/PAYROLL"}),
        (0, "to", "hub/stream/PAYROLL"),
        (1, "consumers", {"OLD": document["steps"][1]["params"]["consumers"]["NEW"]}),
        (1, "from", "hub/stream/PAYROLL"),
    ):
        edited = json.loads(dumps(document))
        edited["steps"][number]["params"][field] = value
        with pytest.raises(JsplanError, match="is invalid: "):
            require_consistent_steps(Plan.from_json(with_checksum(edited), "p"))


def test_every_operation_is_a_kind() -> None:
    """The table of kinds has a row for each operation."""
    assert set(STEP_KINDS) == set(get_args(Op))


def test_a_severity_is_no_markup(space: Space) -> None:
    """A finding with an unknown severity is refused, and never rendered as markup."""
    document = planned(space, _orders(max_msgs=50), {"name": "OTHER"})
    finding = {
        "severity": '"><meta http-equiv=refresh content="0;url=http://x">',
        "code": "JS1",
        "summary": "",
        "detail": "",
    }
    document["diagnostics"] = [finding | {"address": None, "range": None}]
    with pytest.raises(
        JsplanError,
        match=r"p is damaged: expected .* at \$\.diagnostics\[0\]\.severity$",
    ):
        Plan.from_json(with_checksum(document), "p")
    found = Plan.from_json(with_checksum(document | {"diagnostics": []}), "p")
    found.diagnostics = [Diagnostic(**document["diagnostics"][0])]
    assert "<meta http-equiv=refresh" not in plan_html.render(found)


def test_an_unchanged_plan_is_applied(space: Space) -> None:
    """A saved plan that was not edited is applied."""
    space.write(streams=[_orders(max_msgs=50, said="b"), {"name": "OTHER"}])
    assert space.apply_saved(space.plan()).exit_code == 0
    assert not space.plan().has_changes


def test_a_domain_that_left_the_files_and_has_no_step(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A domain without a step may be missing in the files when a plan is applied."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=[{"name": "A", "domain": "hub"}, {"name": "B", "domain": "leaf"}])
    space.apply()
    space.write(
        streams=[
            {"name": "A", "domain": "hub", "description": "more"},
            {"name": "B", "domain": "leaf"},
        ]
    )
    plan = space.plan()
    space.write(
        streams=[{"name": "A", "domain": "hub"}], domains={"hub": space.base["domains"]["hub"]}
    )

    assert set(plan.domains) == {"hub", "leaf"}
    assert space.apply_saved(plan).exit_code == 0
