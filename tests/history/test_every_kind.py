"""A revert of each acceptance case restores the configuration exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.address import Address
from jsplan.errors import PlanError, RefusedError
from tests.acceptance.case_runner import CASES, Case
from tests.history.conftest import (
    ALL,
    findings_of,
    named_by_files,
    plan_undo,
    server_configs,
    undo,
)
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

#: Changes that no server takes back, such as a promoted mirror. Only a new object can be like the old one.
ONE_WAY = {
    "kv/limit-markers-turned-on", "kv/mirror-promoted", "object_store/sealed-by-the-files",
    "order/promoted-mirror-takes-the-subjects-of-its-origin", "update/allowed-in-review",
    "update/deny-purge-takes-the-rollups-along", "update/mirror-promotion", "update/one-way-field", "update/sealed",
}  # fmt: skip
#: Cases that set limits for consumers. Before 2.14 (level 4) the server does not remove them while consumers exist.
LIMITS_STAY = {"order/tighter-limits-while-a-consumer-is-replaced"}
#: In `make test`: one of each kind of change. The others run in `make soak`.
SAMPLE = {
    "create/stream-with-defaults", "create/sources-from-labels", "replace/storage-recreated", "replace/by-request",
    "adopt/differs-and-adopted", "adopt/equal", "delete/forgotten", "delete/consumers-go-with-their-stream", "delete/origin-of-a-mirror",
    "drift/changed", "drift/missing", "kv/words-in-place", "kv/sources", "object_store/words-in-place", "object_store/sealed-by-the-files",
    "pause/not-in-the-files", "update/one-way-field", "update/mirror-promotion", "update/source-added",
    "order/source-and-its-copy-updated",
}  # fmt: skip


def cases() -> list[object]:
    """Return every case that applies something, without those about messages under way."""
    parameters: list[object] = []
    assert {*SAMPLE, *ONE_WAY} <= {
        str(path.relative_to(CASES).with_suffix("")) for path in CASES.rglob("*.yaml")
    }
    for path in sorted(CASES.rglob("*.yaml")):
        name = str(path.relative_to(CASES).with_suffix(""))
        text = read_yaml(path.read_text("utf-8"))
        under_way = path.parent.name == "flows" or "offline" in text
        if not under_way and not {"error", "refused"} & text["expect"].keys():
            parameters.append(
                pytest.param(path, id=name, marks=() if name in SAMPLE else pytest.mark.soak)
            )
    return parameters


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.parametrize("path", cases())
def test_a_revert_restores_exactly(path: Path, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A revert restores every stream and consumer, and names what the next plan changes again."""
    case = Case.load(path, tmp_path, clean_hub_leaf)
    with case.raw:
        level = case.raw.api_level()
        if case.text.get("level", 0) > level:
            return  # this server is too old for the case
        case._prepare()  # noqa: SLF001 - the case of the acceptance tests
        before = server_configs(clean_hub_leaf)
        options = case.text.get("options", {})
        case.space.write(**case.text["desired"])
        plan, result = case.space.apply(**options | {"allow_hazards": ALL})
        assert result.exit_code == 0, result
        if not plan.has_changes:
            return
        # What new sources still copy would be more than the revert is planned for.
        case._check_messages(case.text["expect"].get("messages", {}))  # noqa: SLF001 - as above
        name = str(path.relative_to(CASES).with_suffix(""))
        if name in ONE_WAY:
            _require_refused(case, result.state["serial"], "JS303", "cannot be changed in place")
            return
        if name in LIMITS_STAY and level < 4:
            _require_refused(case, result.state["serial"], "JS436", "the plan has errors")
            return
        undone, reverted = undo(case.space, result.state["serial"])

        assert reverted.exit_code == 0, reverted
        assert server_configs(clean_hub_leaf) == before
        again = case.space.plan(
            **{name: value for name, value in options.items() if name != "replace"}
        )
        named = named_by_files(undone)
        assert [
            change.address
            for change in again.resource_changes
            if change.change.actions != ["no-op"]
            and change.address in {c.address for c in undone.resource_changes}
            and named.isdisjoint({change.address, str(Address.parse(change.address).parent)})
        ] == []


def _require_refused(case: Case, number: int, code: str, says: str) -> None:
    """Check that the revert is refused without any change."""
    assert findings_of(plan_undo(case.space, number, allow_hazards=ALL), code)
    with pytest.raises((PlanError, RefusedError), match=says):
        undo(case.space, number)
