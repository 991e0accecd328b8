"""The advisory listener knows whether it receives advisories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.drift.service.advisories import AdvisoryListener
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

_DENIED_USER = '{user: deaf, password: p, permissions: {subscribe: {deny: ["$JS.EVENT.>"]}}}'
WITHOUT_ADVISORIES = (
    f"no_auth_user: any\nauthorization {{users: [{{user: any, password: any}}, {_DENIED_USER}]}}"
)


async def test_a_denied_subscription_is_reported_as_not_listening(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """A connection whose advisories are denied is reported as not listening."""
    space = single_space(tmp_path, make_server(extra=WITHOUT_ADVISORIES))
    space.base["connections"]["main"] |= {"user": "deaf", "password": "p"}
    reports: list[tuple[str, bool, str]] = []
    listener = AdvisoryListener(
        load(LoadOptions(space.write().folder)),
        {},
        lambda *report: reports.append(report),
        lambda: None,
    )
    await listener.wait_connected(30)
    await listener.close()

    assert reports
    assert not [report for report in reports if report[1]]
    assert "permissions violation" in reports[-1][2]
