from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.errors import PlanError
from jsplan.options import PlanOptions
from jsplan.planning.hazard_permissions import check_permissions
from jsplan.workflows import apply as applying
from jsplan.workflows.plan import save_plan
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

UNKNOWN_ADDRESS = "DELETES_STREAM:main/stream/ODRERS"
UNKNOWN_GLOB = "DELETES_STREAM:*/stream/TMP_*"
SUMMARY = f"--allow-hazard {UNKNOWN_ADDRESS} names nothing and permits nothing"
GUESS = 'Did you mean "main/stream/ORDERS"?'


@pytest.fixture
def space(tmp_path: Path, server: Server) -> Space:
    """A stream in the files, one in state, and one that only the server has."""
    space = single_space(tmp_path, server).write(streams=[{"name": "OLD"}])
    space.apply()
    with Raw(server.url) as raw:
        raw.request("OLD", b"x")
        raw.create("THEIRS")
    return space.write(streams=[{"name": "ORDERS"}])


def findings(plan: Plan) -> list[tuple[str, str, str]]:
    return [(d.severity, d.summary, d.detail) for d in plan.diagnostics if d.code == "JS429"]


@pytest.mark.parametrize("name", ["ORDERS", "OLD", "THEIRS", "O*"])
def test_an_address_that_exists(name: str, space: Space) -> None:
    """An address in the files, in state or on the server is known, changed or not."""
    plan = space.plan(allow_hazards=("DELETES_STREAM", f"DELETES_STREAM:main/stream/{name}"))

    assert (findings(plan), plan.errored) == ([], False)
    assert not findings(
        space.plan(targets=("main/stream/ORDERS",), allow_hazards=plan.allowed_hazards)
    )


def test_an_address_that_does_not_exist(space: Space) -> None:
    """An address that is nowhere is an error with a guess, in plan and apply; nothing is done."""
    assert findings(space.plan(allow_hazards=(UNKNOWN_ADDRESS,))) == [("error", SUMMARY, GUESS)]

    for command in (["plan", "-o", "p"], ["apply", "-y"], ["destroy", "-y"]):
        ended = jsplan(space.folder, *command, "--allow-hazard", UNKNOWN_ADDRESS)
        assert (ended.code, GUESS in ended.out + ended.err) == (1, True), command
    assert not (space.folder / "p").exists()
    assert [
        change.address
        for change in space.plan().resource_changes
        if change.change.actions == ["create"]
    ] == ["main/stream/ORDERS"]


def test_an_address_that_does_not_exist_beside_a_saved_plan(space: Space) -> None:
    """With a saved plan it is an error too, before anything is done."""
    plan = space.plan(allow_hazards=("DELETES_STREAM",))
    with pytest.raises(PlanError, match="ODRERS") as raised:
        space.apply_saved(plan, allow_hazards=(UNKNOWN_ADDRESS,))
    result = space.apply_saved(plan, allow_hazards=("DELETES_STREAM:main/stream/OLD",))

    assert [d.detail for d in raised.value.diagnostics] == [GUESS]
    assert result.exit_code == 0


def test_a_glob_that_matches_nothing(space: Space) -> None:
    """A glob may be meant for later resources: it is a warning."""
    plan = space.plan(allow_hazards=(UNKNOWN_GLOB, "DELETES_STREAM"))
    save_plan(plan, space.folder / "p.plan")
    observer = RecordingObserver()
    options = PlanOptions(allow_hazards=(UNKNOWN_GLOB,))
    _, result = applying.apply_saved(space.load, space.folder / "p.plan", options, observer)

    assert [severity for severity, _, _ in findings(plan)] == ["warning"]
    assert result.exit_code == 0
    assert [text for text in observer.texts if UNKNOWN_GLOB in text]


def test_a_domain_that_does_not_answer() -> None:
    """An address in an offline domain is a warning. Without a guess it says what to do."""
    [found] = check_permissions([UNKNOWN_ADDRESS, UNKNOWN_ADDRESS], [], ["main"])

    assert found.severity == "warning"
    assert found.detail == "Correct or remove the flag. The plan shows each flag that it needs."


def test_a_flag_without_its_address(space: Space) -> None:
    """A flag that ends with its colon names nothing: it is an error."""
    plan = space.plan(allow_hazards=("DELETES_STREAM:",))

    assert [severity for severity, _, _ in findings(plan)] == ["error"]
