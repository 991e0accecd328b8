"""Commands of a user with permissions for one stream only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.backup.run import BackupOptions
from jsplan.context import Session, open_context, open_pool
from jsplan.drift.check import check_addresses
from jsplan.event_loop import run_until_complete
from jsplan.options import DriftOptions
from jsplan.sandbox import Sandbox
from jsplan.workflows.backup import backup
from jsplan.workflows.drift import drift
from jsplan.workflows.lint import lint
from jsplan.workflows.status import status
from tests.conftest import PROGRAM
from tests.support.raw import Raw, delete_all_streams
from tests.support.workspaces import RecordingObserver, Space, left_to_do, new_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.drift import Drift
    from jsplan.sandbox import Server

#: Permissions of the CI user in the post about streams as code.
PERMITTED = '["$JS.API.INFO", "$JS.API.STREAM.*.LOGS", "$JS.API.CONSUMER.*.LOGS.>"]'
USERS = f"""
no_auth_user: admin
authorization {{ users: [
    {{user: admin, password: admin}}
    {{user: ci, password: ci, permissions: {{publish: {PERMITTED}, subscribe: "_INBOX.>"}}}}
    {{user: blind, password: ci, permissions: {{publish: "$JS.API.INFO", subscribe: "_INBOX.>"}}}}
    {{user: half, password: ci, permissions: {{publish: {{deny: "$JS.API.CONSUMER.LIST.>"}}}}}}
] }}
"""
STREAM = {
    "name": "LOGS",
    "subjects": ["logs.>"],
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}
NOT_LISTED = "what else is in domain main cannot be listed, so what is unmanaged there is not known: domain main: "


@pytest.fixture(scope="module")
def restricted_server() -> Iterator[Server]:
    """A server whose user `ci` may manage LOGS only."""
    with Sandbox.single(extra=USERS, binary=PROGRAM) as sandbox:
        yield sandbox["server"]


@pytest.fixture
def space(tmp_path: Path, restricted_server: Server) -> Space:
    """LOGS and its consumer, applied by that user, beside an unmanaged stream and consumer."""
    with Raw(restricted_server.url) as raw:
        delete_all_streams(raw)
        raw.create("OTHER", subjects=["other"])
    connection = {"url": restricted_server.url, "user": "ci", "password": "ci"}
    domains = {"main": {"connection": "main", "js_domain": None}}
    found = new_space(tmp_path, connections={"main": connection}, domains=domains)
    found.write(defaults={"domain": "main"}, streams=[STREAM])
    assert found.apply()[1].exit_code == 0
    with Raw(restricted_server.url) as raw:
        raw.consumer("LOGS", "THEIRS", ack_policy="none")
    return found


def finding_texts(found: Any) -> list[tuple[str, str]]:
    """Return code and summary of each finding, without the address of the server."""
    return [(d.code, d.summary.split("nats://")[0]) for d in found.diagnostics]


def test_drift_needs_no_more_permissions_than_apply(
    space: Space, restricted_server: Server
) -> None:
    """Drift compares managed resources, and warns that unmanaged ones cannot be listed."""
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert (found.exit_code, found.resource_drift, found.unmanaged) == (0, [], [])
    assert finding_texts(found) == [("JS447", NOT_LISTED)]
    assert (
        drift(space.load, DriftOptions(targets=("main/**",)), RecordingObserver()).diagnostics == []
    )
    assert (
        drift(
            space.load,
            DriftOptions(fail_on=frozenset({"changed", "unmanaged"})),
            RecordingObserver(),
        ).exit_code
        == 1
    )

    with Raw(restricted_server.url) as raw:
        raw.api_ok("$JS.API.CONSUMER.DELETE.LOGS.C")
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert (found.exit_code, [change.address for change in found.resource_drift]) == (
        2,
        ["main/consumer/LOGS/C"],
    )


def test_the_drift_job_checks_permitted_streams(space: Space) -> None:
    """The drift job compares managed resources despite advisories about other streams."""

    async def look() -> Drift:
        async with (
            open_context(space.load) as world,
            open_pool(world, read_only=True, guarded=True) as pool,
        ):
            named = (
                "main/stream/LOGS",
                "main/stream/OTHER",
                "main/consumer/OTHER/X",
                "main/consumer/LOGS/THEIRS",
            )
            return await check_addresses(
                Session(world, pool, RecordingObserver()),
                [Address.parse(name) for name in named],
                DriftOptions(),
            )

    found = run_until_complete(look())
    assert (found.exit_code, found.resource_drift, [u.address for u in found.unmanaged]) == (
        0,
        [],
        ["main/consumer/LOGS/THEIRS"],
    )
    assert finding_texts(found) == [("JS447", NOT_LISTED)]


def test_a_status_that_may_not_read_its_streams_is_an_error(space: Space) -> None:
    """A domain that lets its user read nothing of the workspace is an error of the status."""
    space.base["connections"]["main"]["user"] = "blind"
    space.write(defaults={"domain": "main"}, streams=[STREAM])
    shown = status(space.load, RecordingObserver())

    assert (shown.streams, shown.exit_code) == ([], 1)
    assert [(d.severity, d.code, d.summary.split("domain main")[0]) for d in shown.diagnostics] == [
        ("error", "JS447", "2 resources of this workspace cannot be read: ")
    ]


def test_a_status_that_may_not_list_consumers_shows_its_own(space: Space) -> None:
    """Streams are listed, consumers are not: those of the workspace are read one by one."""
    space.base["connections"]["main"]["user"] = "half"
    space.write(defaults={"domain": "main"}, streams=[STREAM])
    shown = status(space.load, RecordingObserver())

    assert [row["address"] for row in (*shown.streams, *shown.consumers)] == [
        "main/stream/LOGS",
        "main/stream/OTHER",
        "main/consumer/LOGS/C",
    ]
    assert finding_texts(shown) == [
        ("JS447", "what it holds beyond this workspace cannot be listed: domain main: ")
    ]
    assert shown.exit_code == 0


def test_other_commands_work_with_these_permissions(space: Space, tmp_path: Path) -> None:
    """Status, lint, plan and destroy work; backup names the permission that it needs."""
    shown = status(space.load, RecordingObserver())
    assert [row["address"] for row in (*shown.streams, *shown.consumers)] == [
        "main/stream/LOGS",
        "main/consumer/LOGS/C",
    ]
    assert finding_texts(shown) == [
        ("JS447", "what it holds beyond this workspace cannot be listed: domain main: ")
    ]
    quiet = RecordingObserver()
    assert lint(space.load, quiet, ask=True).summary["errors"] == 0
    assert [text.split("nats://")[0] for text in quiet.texts if "listed" in text] == [
        "what else is in domain main cannot be listed: domain main: "
    ]
    saved = backup(
        space.load, BackupOptions(("main/stream/LOGS",), tmp_path / "bk"), RecordingObserver()
    )
    assert [
        "$JS.API.CONSUMER.NAMES.LOGS" in reason for reason in saved.manifest.missing.values()
    ] == [True]
    assert left_to_do(space.plan()) == []
    assert space.apply(destroy=True, allow_hazards=("DELETES_STREAM",))[1].exit_code == 0
