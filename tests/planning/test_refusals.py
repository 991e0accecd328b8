"""The reasons of a refused apply as text: alike ones together, each with one flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.diagnostics import Diagnostic
from jsplan.planning.hazard_permissions import is_permitted
from jsplan.planning.refusals import explain_refusals, list_refusals, name_refusals
from tests.render import samples

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan, ResourceChange


def deleting(address: str) -> ResourceChange:
    change = samples.resource(address, ["update"])
    change.hazards = [samples.deletes_messages(address)]
    return change


def stores(size: int) -> list[ResourceChange]:
    return [deleting(f"store-{n:03}/stream/SALES") for n in range(1, size + 1)]


def named(plan: Plan) -> list[str]:
    return name_refusals(list_refusals(plan)).splitlines()[1:]


def test_a_fleet_is_one_line_and_one_flag() -> None:
    """The same hazard in 250 leaves is counted, and has the flag that permits them and no other."""
    plan = samples.plan(*stores(250), deleting("hub/stream/ORDERS"))
    flag = "--allow-hazard DELETES_MESSAGES"

    assert named(plan) == [
        "  - DELETES_MESSAGES of 250 resources",
        "  - DELETES_MESSAGES of hub/stream/ORDERS",
        "  To allow all of it:",
        f"    {flag}:store-*/stream/SALES {flag}:hub/stream/ORDERS",
    ]


def test_a_fleet_is_explained_once() -> None:
    """Hazards that are alike are explained in one sentence with the domains that have them."""
    text = explain_refusals(list_refusals(samples.plan(*stores(250))))

    assert text.splitlines() == [
        "refused, nothing was changed:",
        (
            "  - ${domain}/stream/SALES: messages older than 1d are deleted at once. "
            "This is so in 250 domains: store-{001..250}."
        ),
        "  To allow it:",
        "    --allow-hazard DELETES_MESSAGES:store-*/stream/SALES",
    ]


def test_many_of_one_code_are_one_line() -> None:
    """Different resources with the same hazard are counted; the flag permits each of them."""
    addresses = [f"hub/stream/S{n}" for n in range(10)]
    lines = named(samples.plan(*map(deleting, addresses)))

    assert lines == [
        "  - DELETES_MESSAGES of 10 resources",
        "  To allow it:",
        "    --allow-hazard DELETES_MESSAGES:hub/**",
    ]
    flag = lines[2].split()[-1]
    assert all(is_permitted([flag], "DELETES_MESSAGES", address) for address in addresses)
    assert named(samples.plan(*map(deleting, [*addresses, "leaf/stream/X"])))[2].endswith(
        "--allow-hazard DELETES_MESSAGES"
    )


def test_a_few_of_one_code_are_named() -> None:
    """Up to three resources have a line each. One line has a flag for each of them alone."""
    lines = named(samples.plan(*(deleting(f"hub/stream/S{n}") for n in range(3))))

    flags = [f"--allow-hazard DELETES_MESSAGES:hub/stream/S{n}" for n in range(3)]
    assert lines[2:] == [
        "  - DELETES_MESSAGES of hub/stream/S2",
        "  To allow all of it:",
        f"    {' '.join(flags)}",
    ]


def test_a_guard_has_no_flag() -> None:
    """A finding that only the files can lift is named, and points to the plan."""
    guarded = Diagnostic(
        "error", "JS301", "is guarded by prevent_destroy", "Lift it.", "hub/stream/A"
    )
    refusals = list_refusals(samples.plan(diagnostics=[guarded]))

    assert name_refusals(refusals).splitlines()[1:] == [
        "  - JS301 of hub/stream/A. The plan says what to do."
    ]
    assert explain_refusals(refusals).splitlines()[1:] == [
        "  - hub/stream/A: is guarded by prevent_destroy. Lift it."
    ]


def test_what_is_allowed_stops_nothing() -> None:
    """Neither an allowed hazard nor a warning is a reason."""
    change = deleting("hub/stream/A")
    change.hazards[0].allowed = True
    warning = Diagnostic("warning", "JS201", "is stored twice", "", "hub/stream/A")

    assert list_refusals(samples.plan(change, diagnostics=[warning])) == []
