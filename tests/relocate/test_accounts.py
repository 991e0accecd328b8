"""A stream moves to another account, through the imports that `jsplan access` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying.transfer import copy
from jsplan.workflows.access import access
from tests.conftest import PROGRAM
from tests.relocate.scene import CONSUMERS, PERMITTED, Scene
from tests.support import stream_content
from tests.support.account_sharing import start_servers, static_accounts, static_user
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, new_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox

BODY: dict[str, Any] = {"name": "A", "subjects": ["A.>"], "consumers": CONSUMERS}
IMPORT = {"from": "hub", "into": "imp", "api": "JS.acc@hub.API", "deliver": "deliver.acc.imp"}
ENTRY = {"from": "hub/stream/A", "to": "imp/stream/B"}


class Accounts(Scene):
    """The accounts ACC and IMP of one server. The stream A of the one becomes B of the other."""

    body = BODY
    domains = ("acc", "imp")

    def __init__(self, folder: Path, *, shared: bool = True) -> None:
        self.before, self.after, self.name = "hub", "imp", "B"
        self.space = new_space(folder, imports=[IMPORT])
        self.connect("nats://127.0.0.1:1")
        self.declare_after()
        printed = access(self.space.load, RecordingObserver())
        blocks = {f.account: f.configuration if shared else "" for f in printed.accounts}
        self.sandbox: Sandbox = start_servers(
            static_accounts(blocks), static_user("ACC"), binary=PROGRAM
        )
        self.sandbox.start()
        self.connect(self.sandbox["hub"].url)

    def connect(self, url: str) -> None:
        """Write the connections of both accounts into the base of the files."""
        self.space.base["connections"] = {
            key: {"url": url, "user": key, "password": key, "account": key.upper()}
            for key in ("acc", "imp")
        }
        self.space.base["domains"] = {
            "hub": {"connection": "acc"},
            "imp": {"connection": "imp", "js_domain": "hub"},
        }

    def declare_after(self, **sections: Any) -> None:
        """Write the files with the stream in IMP, under another name."""
        after = BODY | {"name": "B", "domain": "imp"}
        self.space.write(streams=[after], relocate=[ENTRY], **sections)

    def raw(self, domain: str) -> Raw:
        """Open a connection to an account; hub is the domain of ACC."""
        account = "acc" if domain == "hub" else domain
        return Raw(self.sandbox["hub"].url, account, account)


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    """Both accounts, and the stream in ACC."""
    made = Accounts(tmp_path)
    made.reset()
    yield made
    made.sandbox.close()


def test_a_stream_moves_to_another_account(accounts: Accounts) -> None:
    """Messages and positions are the same; the plan says where publishers must go."""
    plan = accounts.apply()

    found = {h.code: h.message for c in plan.resource_changes for h in c.hazards}
    assert "They must write in imp, which is another account" in found["REMOVES_SUBJECTS"]
    mirror = next(s for s in plan.steps if s.op == "transfer.mirror")
    assert mirror.request is not None
    external = {"api": "JS.acc@hub.API", "deliver": "deliver.acc.imp.imp.B"}
    assert mirror.request["payload"]["mirror"] == {"name": "A", "external": external}
    accounts.require_relocated()


def test_both_stages_through_an_import(accounts: Accounts) -> None:
    """Messages that arrive between preparation and cut-over come along."""
    accounts.apply(stage="prepare")
    with accounts.raw("acc") as raw:
        for number in range(20):
            assert b'"seq"' in raw.request("A.1", b"later %d" % number)[1]
        accounts.expected = stream_content.messages(raw, "A")
        accounts.unread = {name: count + 20 for name, count in accounts.unread.items()}

    accounts.apply(stage="cutover")

    accounts.require_relocated()


@pytest.mark.parametrize("rows", [[], [{k: v for k, v in IMPORT.items() if k != "deliver"}]])
def test_an_account_without_a_path_takes_a_snapshot(
    rows: list[dict[str, str]], accounts: Accounts
) -> None:
    """Without an imports row, or without its delivery prefix, everything moves in the cut-over."""
    accounts.declare_after(imports=rows)

    plan = accounts.apply()

    notes = [d.summary for d in plan.diagnostics if d.code == "JS498"]
    assert len(notes) == 1
    assert notes[0].startswith("is copied by a snapshot while publishers wait, because ")
    accounts.require_relocated()


def test_missing_exports_leave_the_origin_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that gets no message is given up, and the error names the command that checks."""
    monkeypatch.setattr(copy, "STALL_TIMEOUT", 0.5)
    accounts = Accounts(tmp_path, shared=False)
    try:
        accounts.reset()
        _, result = accounts.space.apply(allow_hazards=PERMITTED)

        failed = [s.error or "" for s in result.steps if s.status == "failed"]
        assert len(failed) == 1
        assert (
            "Check exports and imports: jsplan access --check. hub/stream/A was not touched"
            in failed[0]
        )
        with accounts.raw("acc") as raw:
            assert stream_content.messages(raw, "A") == accounts.expected
            assert raw.config("A")["subjects"] == ["A.>"]
    finally:
        accounts.sandbox.close()
