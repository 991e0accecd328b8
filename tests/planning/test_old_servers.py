"""Plans that need nats-server 2.12: on older servers they are errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import PlanError
from tests.support.raw import Raw
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

Sections = dict[str, Any]

pytestmark = pytest.mark.matrix

C: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}


def stream(*consumers: dict[str, Any], **fields: Any) -> Sections:
    """Return the sections of a workspace with one stream on the leaf."""
    body = {"name": "S", "domain": "leaf", "subjects": ["s.>"], "consumers": list(consumers)}
    return {"streams": [body | fields]}


#: By what is asked for: the workspace before, the workspace now, options of the plan.
CHANGES: dict[str, tuple[Sections, Sections, dict[str, Any]]] = {
    "replacing it": (
        stream(),
        stream(storage="memory", lifecycle={"on_replace": "recreate"}),
        {},
    ),
    "replacing it, kept": (
        stream(),
        stream(storage="memory", lifecycle={"on_replace": "preserve"}),
        {},
    ),
    "replacing it, refused": (stream(), stream(storage="memory"), {}),
    "replacing it, asked for": (stream(), stream(), {"replace": ("leaf/stream/S",)}),
    "replacing it, a consumer": (stream(C), stream(C | {"ack_policy": "all"}), {}),
    "setting its position": (
        stream(C),
        stream(C | {"position": {"seq": 1, "once": "again"}}),
        {},
    ),
    "setting its position, new": (
        stream(),
        stream(C | {"position": {"seq": 1, "once": "again"}}),
        {},
    ),
    "relocating it": (
        stream(C),
        {
            "streams": [stream(C)["streams"][0] | {"domain": "hub"}],
            "relocate": [{"from": "leaf/stream/S", "to": "hub/stream/S"}],
        },
        {},
    ),
    "relocating it, renamed": (
        stream(),
        {
            "streams": [stream()["streams"][0] | {"name": "T"}],
            "relocate": [{"from": "leaf/stream/S", "to": "leaf/stream/T"}],
        },
        {},
    ),
    "changing retention from interest to limits": (
        stream(C, retention="interest"),
        stream(C, retention="limits"),
        {},
    ),
    "changing consumers of an interest stream at once (C, D)": (
        stream(C | {"filter_subject": "s.a"}, retention="interest"),
        stream(C | {"name": "D", "filter_subject": "s.a"}, retention="interest"),
        {},
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_code_and_one_sentence(
    what: str, tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """On 2.10 and 2.11 the plan has one error, no step, and changes nothing."""
    before, after, options = CHANGES[what]
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(**before)
    space.apply()
    space.write(**after)
    plan = space.plan(**options)
    found = [d for d in plan.diagnostics if d.code == "JS459"]

    if server_version >= (2, 12):
        assert found == []
        return
    assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS459"]
    (error,) = found
    release = ".".join(map(str, server_version[:2]))
    sentence = (
        f"{what.partition(',')[0] if '(' not in what else what} needs nats-server 2.12 or later"
    )
    assert error.summary.startswith(f"{sentence}; ")
    assert f" runs {release}" in error.summary
    assert error.detail.startswith("Upgrade that server. Or ")
    assert plan.steps == []
    configs = read_configs(clean_hub_leaf)
    with pytest.raises(PlanError):
        space.apply(**options)
    assert read_configs(clean_hub_leaf) == configs


def test_a_replacement_by_hand(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The way that the error names works: out of the files, apply, in again, apply."""
    space: Space = hub_leaf_space(tmp_path, clean_hub_leaf).write(**stream(C))
    space.apply()
    allowed = {"allow_hazards": ("DELETES_STREAM", "DELETES_CONSUMER", "REMOVES_SUBJECTS")}
    space.write().apply(**allowed)
    space.write(**stream(C, storage="memory")).apply()

    assert not space.plan().has_changes
    assert read_configs(clean_hub_leaf)["S"]["storage"] == "memory"


def read_configs(sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """Return the configuration of each stream of the leaf, by name, as the server has it."""
    leaf = sandbox["leaf"]
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        found = raw.api_ok("$JS.leaf.API.STREAM.LIST").get("streams") or ()
        return {info["config"]["name"]: info["config"] for info in found}
