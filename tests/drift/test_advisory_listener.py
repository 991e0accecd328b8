"""Whether the job hears what servers say, and that it knows when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.drift.advisory_listener import AdvisoryListener
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

_DENIED_USER = '{user: deaf, password: p, permissions: {subscribe: {deny: ["$JS.EVENT.>"]}}}'
WITHOUT_ADVISORIES = (
    f"no_auth_user: any\nauthorization {{users: [{{user: any, password: any}}, {_DENIED_USER}]}}"
)


async def test_a_user_that_may_not_hear_is_not_taken_for_one_that_does(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Being connected is not hearing: a connection whose advisories are denied stays told as one that is not heard."""
    space = single_space(tmp_path, make_server(extra=WITHOUT_ADVISORIES))
    space.base["connections"]["main"] |= {"user": "deaf", "password": "p"}
    told: list[tuple[str, bool, str]] = []
    hearing = AdvisoryListener(
        load(LoadOptions(space.write().folder)), {}, lambda *what: told.append(what), lambda: None
    )
    await hearing.wait_connected(30)
    await hearing.close()

    assert told
    assert not [what for what in told if what[1]]
    assert "permissions violation" in told[-1][2]
