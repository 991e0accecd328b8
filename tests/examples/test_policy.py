"""The shipped policy on plans of real servers.

Rego is run by `regopy`; conftest reads the same `deny`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from jsplan.config.model import LoadOptions
from jsplan.options import PlanOptions
from jsplan.workflows.apply import apply
from jsplan.workflows.plan import plan
from tests.docs.pages import ROOT
from tests.support.raw import Raw
from tests.support.rego import ask
from tests.support.workspaces import RecordingObserver, approve, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

EXAMPLE = ROOT / "examples" / "policy"
POLICY = EXAMPLE / "policy"
THURSDAY, FRIDAY = (datetime(2025, 11, day, 23, 30, tzinfo=UTC) for day in (20, 21))


def evaluate_policy(query: str, document: Any, data: dict[str, Any]) -> Any:
    """Return the result of a query of the policy for a document, as conftest would ask it."""
    return ask(
        query, document, data, {"friday.rego": (POLICY / "friday.rego").read_text(encoding="utf-8")}
    )


def denials(document: Any, when: datetime, **data: Any) -> list[str]:
    """Return the reasons to refuse a plan at a time."""
    return sorted(
        evaluate_policy(
            "data.main.deny", document, {"now_ns": int(when.timestamp()) * 10**9, **data}
        )
    )


@pytest.fixture(scope="module")
def plans(shared_hub_leaf: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Plan one change in two environments.

    A deletion, a replacement, fewer messages, a longer age, and a new stream.
    """
    folder: Path = tmp_path_factory.mktemp("policy")
    shared_hub_leaf.start()
    space = hub_leaf_space(folder, shared_hub_leaf)
    environments: dict[str, Any] = {"prod": {}, "staging": {}}
    old, store = (
        {"name": "POLICY_OLD", "domain": "hub"},
        {"name": "POLICY_STORE", "domain": "hub", "lifecycle": {"on_replace": "recreate"}},
    )
    cut, kept = (
        {"name": "POLICY_CUT", "domain": "leaf", "subjects": ["policy.cut"]},
        {"name": "POLICY_KEPT", "domain": "leaf"},
    )
    sections: dict[str, Any] = {
        "environments": environments,
        "backend": {"local": {"path": "state.json"}},
    }
    space.write(streams=[old, store, cut, kept], **sections)
    apply(LoadOptions(folder, environment="prod"), PlanOptions(), approve, RecordingObserver())
    leaf = shared_hub_leaf["leaf"]
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        for _ in range(20):
            raw.publish("policy.cut", b"x")
        raw.flush()
    space.write(
        streams=[
            store | {"storage": "memory"},
            cut | {"max_msgs": 5},
            kept | {"max_age": "9d"},
            {"name": "POLICY_NEW", "domain": "leaf"},
        ],
        **sections,
    )
    made = plan(
        LoadOptions(folder, environment="prod"), PlanOptions(), RecordingObserver()
    ).to_json()
    return {"prod": made, "staging": made | {"environment": "staging"}}


def test_nothing_is_deleted_in_prod_on_a_friday(plans: dict[str, Any]) -> None:
    """On a Friday a plan for prod is refused for each deletion, and for nothing else."""
    said = denials(plans["prod"], FRIDAY)

    assert [re.split(r"[: ]", line)[0] for line in said] == [
        "hub/stream/POLICY_OLD",
        "hub/stream/POLICY_STORE",
        "leaf/stream/POLICY_CUT",
    ]
    assert said[0] == "hub/stream/POLICY_OLD would be deleted, and today is Friday"
    assert re.search(r"deletes 15 of 20 messages .* and today is Friday", said[2])


def test_other_days_and_environments_are_free(plans: dict[str, Any]) -> None:
    """On a Thursday prod may be changed, and staging on any day."""
    assert denials(plans["prod"], THURSDAY) == []
    assert denials(plans["staging"], FRIDAY) == []
    assert len(denials(plans["staging"], FRIDAY, production=["staging"])) == 3


def test_the_day_is_that_of_the_time_zone(plans: dict[str, Any]) -> None:
    """With the data of the example the day is that of Berlin, and the weekend counts too."""
    data = yaml.safe_load((EXAMPLE / "days.yaml").read_text(encoding="utf-8"))

    assert len(denials(plans["prod"], THURSDAY, **data)) == 3
    assert "today is Saturday" in denials(plans["prod"], FRIDAY, **data)[0]


def test_without_data_the_day_is_that_of_the_clock(plans: dict[str, Any]) -> None:
    """Without data the day is that of the clock."""
    before = f"{datetime.now(UTC):%A}"
    today = evaluate_policy("data.main.today", plans["prod"], {})

    assert today in (before, f"{datetime.now(UTC):%A}")
    assert len(evaluate_policy("data.main.deny", plans["prod"], {})) == (
        3 if today == "Friday" else 0
    )
