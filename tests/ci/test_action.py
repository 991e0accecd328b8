"""The shipped GitHub Action on a real server, with a fake of GitHub's API."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import User
from tests.ci.action_runner import ACTION, ROOT, JobResult, Runner
from tests.ci.fake_github import BOT, FakeGitHub
from tests.conftest import PROGRAM
from tests.support.account_sharing import start_servers
from tests.support.raw import Raw, delete_all_streams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server

#: Each job starts jsplan several times; a machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)
PASSWORD = "very-secret-4711"
HEAD, MERGE = "a" * 40, "b" * 40
ACCOUNTS = (
    f"accounts {{ SHOP: {{ jetstream: enabled, users: [{{user: shop, password: {PASSWORD}}}] }} }}"
)


@pytest.fixture(scope="module")
def hub() -> Iterator[Server]:
    """Start a server with one account and a password."""
    with start_servers(ACCOUNTS, User("SHOP", "shop", PASSWORD), binary=PROGRAM) as sandbox:
        assert isinstance(sandbox, Sandbox)
        yield sandbox["hub"]


class Shop:
    """A repository with a workspace in `streams/`, a runner, a fake of GitHub and a server."""

    def __init__(self, folder: Path, hub: Server, forge: FakeGitHub) -> None:
        self.hub, self.forge, self.folder = hub, forge, folder
        self.runner = Runner(folder, forge.url, {"SHOP_PASSWORD": PASSWORD})
        (folder / "repo" / "streams").mkdir(parents=True)
        with Raw(hub.url, "shop", PASSWORD) as raw:
            delete_all_streams(raw)

    def write(self, *streams: dict[str, Any], **more: Any) -> Shop:
        """Write what the files of the repository declare."""
        connection = {"url": self.hub.url, "user": "shop", "password": "${env.SHOP_PASSWORD}"}
        text: dict[str, Any] = {
            "jsplan": 1,
            "workspace": "shop",
            "connections": {"hub": connection},
            "domains": {"hub": {"connection": "hub"}},
        }
        text |= {
            "backend": {"local": {"path": str(self.folder / "state.json")}},
            "streams": list(streams),
        } | more
        (self.folder / "repo" / "streams" / "jsplan.yaml").write_text(
            json.dumps(text), encoding="utf-8"
        )
        return self

    def plan(self, **given: str) -> JobResult:
        """Run the job on the pull request."""
        event = {
            "pull_request": {
                "number": 7,
                "head": {"sha": HEAD},
                "merged": False,
                "user": {"login": "dev"},
            }
        }
        return self.job(event, command="plan", **given)

    def apply(self, *, head: str = HEAD, merged: bool = True, **given: str) -> JobResult:
        """Run the job of the closed pull request."""
        pull = {"number": 7, "head": {"sha": head}, "merged": merged, "user": {"login": "dev"}}
        return self.job({"pull_request": pull}, command="apply", **given)

    def job(self, event: dict[str, Any], **given: str) -> JobResult:
        """Run one job, and check that nothing that it leaves holds the password."""
        done = self.runner.run_job(
            self.folder / "repo", event, commit=MERGE, working_directory="streams", **given
        )
        self.forge.runs[self.runner.run_id] = {
            "event": "pull_request" if "pull_request" in event else "push",
            "head_sha": HEAD,
        }
        said = json.dumps([done.log, done.summary, done.outputs, self.forge.comments])
        said += "".join(
            file.read_text("utf-8")
            for file in (self.folder / "artifacts").rglob("*")
            if file.is_file()
        )
        assert PASSWORD not in said
        return done

    def shown(self) -> str:
        """Add a comment with a plan without changes, as the action writes it; return its run."""
        body = f"No changes.\n\n<!-- jsplan-action key=streams sha256={'e' * 64} changes=false commit={HEAD} run=5 -->\n"
        self.forge.add_comment(7, BOT, body)
        self.forge.runs[5] = {"event": "pull_request", "head_sha": HEAD}
        return body

    def streams(self) -> dict[str, Any]:
        """Return the streams of the server, by name."""
        with Raw(self.hub.url, "shop", PASSWORD) as raw:
            found = raw.api_ok("$JS.API.STREAM.LIST", {"offset": 0})["streams"]
        return {stream["config"]["name"]: stream["config"] for stream in found or ()}


@pytest.fixture
def shop(tmp_path: Path, hub: Server) -> Iterator[Shop]:
    """Set up an empty repository and an empty server."""
    with FakeGitHub() as forge:
        yield Shop(tmp_path, hub, forge)


ORDERS = {"name": "ORDERS", "subjects": ["ORDERS.*"]}


def test_from_the_pull_request_to_the_server(shop: Shop) -> None:
    """One comment shows the plan of the last push, and the merge applies exactly that plan."""
    first = shop.write(ORDERS).plan()
    assert (first.code, first.outputs["plan"]["changes"]) == (0, "true")
    assert [body.splitlines()[0] for body in shop.forge.action_comments(7)] == [
        f"<!-- jsplan:shop:{first.outputs['plan']['sha256']} -->"
    ]
    shop.forge.add_comment(7, "dave", "Make it 30 days, please.")

    second = shop.write(ORDERS | {"max_age": "30d"}).plan()
    (body,) = shop.forge.action_comments(7)
    assert (
        f"sha256={second.outputs['plan']['sha256']} changes=true commit={HEAD} run={shop.runner.run_id} -->"
        in body.splitlines()[-1]
    )
    assert "+ max_age: 30d" in body
    assert "[The whole plan, and a page to search in](https://github.example/artifacts/" in body
    assert "<main>" in (
        shop.runner.artifact_folder(shop.runner.run_id, "jsplan-streams") / "plan.html"
    ).read_text("utf-8")
    assert first.outputs["plan"]["sha256"] != second.outputs["plan"]["sha256"]
    assert shop.streams() == {}

    done = shop.apply()
    assert done.code == 0
    assert shop.streams()["ORDERS"]["max_age"] == 30 * 86400 * 10**9
    assert (
        "Apply complete! Resources: 1 added, 0 changed, 0 destroyed."
        in shop.forge.action_comments(7)[-1]
    )
    assert shop.forge.action_comments(7)[-1].startswith("### jsplan apply (streams): Done.")

    again = shop.apply()
    assert again.code == 4
    assert (
        "something is no longer as it was when this was planned"
        in shop.forge.action_comments(7)[-1]
    )


def test_a_plan_without_changes_applies_nothing(shop: Shop) -> None:
    """A plan without changes passes, and its merge applies nothing.

    The action installs jsplan from itself.
    """
    shop.runner.installs = True
    done = shop.write().plan()
    shop.runner.installs = False
    assert done.ran[1] == "Install jsplan"
    assert (done.code, done.outputs["plan"]["changes"]) == (0, "false")
    assert "No changes. Your streams match the configuration." in shop.forge.action_comments(7)[0]

    ended = shop.apply()
    assert ended.code == 0
    assert "Apply" not in ended.ran
    assert ended.ran[-1] == "Find what was approved"


def test_only_the_approved_plan_is_applied(shop: Shop) -> None:
    """A merge is refused if its plan, its commit or its comment is not the approved one."""
    approved = shop.write(ORDERS).plan().outputs["plan"]["sha256"]
    kept = shop.runner.artifact_folder(shop.runner.run_id, "jsplan-streams") / "jsplan.plan"
    good, run = kept.read_bytes(), shop.runner.run_id

    other = shop.write(ORDERS, {"name": "OTHER"}).plan(comment="false").outputs["plan"]["sha256"]
    shutil.copy(
        shop.runner.artifact_folder(shop.runner.run_id, "jsplan-streams") / "jsplan.plan", kept
    )
    done = shop.apply()
    assert done.code == 1
    assert (
        f"The plan that was kept has sha256 {other}, and #7 shows {approved}: this is not what was approved. Nothing was"
        in done.log
    )

    kept.write_bytes(good.replace(b'"ORDERS.*"', b'"OTHERS.*"'))
    done = shop.apply()
    assert done.code == 1
    assert "was changed after it was planned: its sha256 does not fit" in done.log
    kept.write_bytes(good)

    for ended, says in (
        (
            shop.apply(head="c" * 40),
            f"#7 shows the plan of commit {HEAD[:12]}, and cccccccccccc was merged. No plan of that",
        ),
        (shop.apply(merged=False), "#7 was not merged: nothing is applied"),
        (
            shop.apply(comment_author="somebody-else"),
            "#7 shows no plan (streams), so nothing was approved",
        ),
        (
            shop.apply(environment="prod"),
            "#7 shows no plan (streams@prod), so nothing was approved",
        ),
        (
            shop.apply(require_review="true"),
            f"#7 has no approval that counts of commit {HEAD[:12]}: nothing is applied.",
        ),
    ):
        assert ended.code == 1
        assert f"::error title=jsplan::{says}" in ended.log
        assert "Apply" not in ended.ran
    shop.forge.comments.clear()
    shop.forge.add_comment(
        7,
        "mallory",
        f"<!-- jsplan-action key=streams sha256={approved} changes=true commit={HEAD} run={run} -->",
    )
    shop.forge.add_comment(
        7,
        BOT,
        f"~~~\n<!-- jsplan-action key=streams sha256={approved} changes=true commit={HEAD} run={run} -->\n~~~",
    )
    assert "#7 shows no plan (streams)" in shop.apply().log
    assert shop.streams() == {}


def test_a_changed_server_makes_a_plan_stale(shop: Shop) -> None:
    """A change on the server after the approval stops the apply, and the pull request says so."""
    shop.write(ORDERS).plan()
    shop.apply()
    shop.write(ORDERS | {"max_age": "30d"}).plan()
    with Raw(shop.hub.url, "shop", PASSWORD) as raw:
        config = raw.config("ORDERS")
        raw.api_ok("$JS.API.STREAM.UPDATE.ORDERS", config | {"description": "by hand"})

    done = shop.apply()
    assert (done.code, done.outputs["apply"]["code"]) == (4, "4")
    assert shop.forge.action_comments(7)[-1].startswith(
        "### jsplan apply (streams): Refused, and nothing was changed: something is no longer as it was"
    )
    assert shop.streams()["ORDERS"]["max_age"] == 0


def test_a_plan_that_fails_is_shown_and_never_applied(shop: Shop) -> None:
    """A plan with errors is shown and fails the job, and its merge applies nothing."""
    done = shop.write({"name": "ORDERS", "max_agee": 5}).plan()
    (body,) = shop.forge.action_comments(7)

    assert done.code == 1
    assert "Did you mean" in body
    assert "could not plan (exit code 1)" in body
    assert "sha256=none" in body.splitlines()[-1]
    assert re.search(r"(?s)::stop-commands::(\w{32})\n.*Did you mean.*\n::\1::\n", done.log)
    assert "The plan on #7 failed, so nothing was approved" in shop.apply().log


def test_pushed_merges_are_found_and_other_pushes_refused(shop: Shop) -> None:
    """A push applies the plan of the pull request that it merged; any other push is refused."""
    shop.write(ORDERS).plan()
    pushed = {"ref": "refs/heads/main"}
    refused = shop.job(pushed, command="apply")
    assert (
        f"Commit {MERGE[:12]} is the merge of no pull request, so no plan of it was approved"
        in refused.log
    )

    shop.forge.merges[MERGE] = [
        {"number": 6, "head": {"sha": HEAD}, "merged_at": None, "merge_commit_sha": MERGE},
        {
            "number": 7,
            "head": {"sha": HEAD},
            "user": None,
            "merged_at": "2026-01-31T12:00:00Z",
            "merge_commit_sha": MERGE,
        },
    ]
    assert (refused.code, shop.job(pushed, command="apply").code) == (1, 0)
    assert set(shop.streams()) == {"ORDERS"}


def test_reviews_of_the_merged_commit_count(shop: Shop) -> None:
    """`require-review` wants an approval of the merged commit, given after its plan was shown."""
    shop.write().plan()

    def after(*said: tuple[str, str, str]) -> JobResult:
        shop.forge.reviews = [
            {
                "user": {"login": who},
                "state": state,
                "commit_id": commit,
                "submitted_at": shop.forge.next_time(),
            }
            for who, state, commit in said
        ]
        return shop.apply(require_review="true")

    assert after(("ann", "APPROVED", HEAD), ("ann", "COMMENTED", HEAD)).code == 0
    assert after(("bob", "CHANGES_REQUESTED", HEAD), ("bob", "APPROVED", HEAD)).code == 0
    assert after(("ann", "APPROVED", "c" * 40)).code == 1
    assert after(("ann", "APPROVED", HEAD), ("ann", "DISMISSED", HEAD)).code == 1
    wants = after(("ann", "APPROVED", HEAD), ("bob", "CHANGES_REQUESTED", HEAD))
    assert (wants.code, "bob wants changes to #7" in wants.log) == (1, True)
    assert after(("ann", "APPROVED", HEAD)).code == 0
    shop.plan()
    late = shop.apply(require_review="true")
    assert (late.code, "(ann approved before this plan was shown)" in late.log) == (1, True)


def test_who_may_approve(shop: Shop) -> None:
    """An approval counts if its author may write now and made no part of the change."""
    shop.shown()
    forge = shop.forge
    forge.commits = [
        {"author": {"login": "bob"}, "committer": {"login": "web-flow"}},
        {"author": {"login": "bob"}, "committer": None},
    ]

    def after(*who: str, state: str = "APPROVED", association: str = "MEMBER") -> str:
        forge.reviews = [
            {
                "user": {"login": one},
                "state": state,
                "commit_id": HEAD,
                "submitted_at": forge.next_time(),
                "author_association": association,
            }
            for one in who
        ]
        forge.reviews.append(
            {
                "user": None,
                "state": "APPROVED",
                "commit_id": HEAD,
                "submitted_at": forge.next_time(),
            }
        )
        done = shop.apply(require_review="true")
        return "" if done.code == 0 else done.log

    forge.permissions["reader"] = "read"
    assert "(guest may not write to this repository)" in after("guest", association="NONE")
    assert "(reader may not write to this repository)" in after(
        "reader", association="COLLABORATOR"
    )
    assert "(dev is an author of the change, bob is an author of the change)" in after(
        "dev", "bob", association="OWNER"
    )
    assert after("ann", "guest") == ""
    forge.reviews = [
        {
            "user": {"login": "reader"},
            "state": "CHANGES_REQUESTED",
            "commit_id": HEAD,
            "submitted_at": forge.next_time(),
        }
    ]
    assert "has no approval that counts" in shop.apply(require_review="true").log
    forge.commits.append({"sha": "ab" * 20, "author": None, "committer": {"login": "web-flow"}})
    assert "no account for the author of commit abababababab" in after("ann")
    forge.commits.pop()
    forge.permissions["ann"] = "none"
    assert "(ann may not write to this repository)" in after("ann")


def test_a_comment_that_another_account_edited_is_refused(shop: Shop) -> None:
    """A comment that another account edited approves nothing until the action writes it again."""
    body = shop.shown()
    for editor in (
        {"__typename": "User", "login": "mallory"},
        {"__typename": "Bot", "login": "other"},
    ):
        shop.forge.edit_comment(body, editor)
        assert "The comment with the plan on #7 was edited by" in shop.apply().log
    shop.forge.edit_comment(body, {"__typename": "Bot", "login": BOT.removesuffix("[bot]")})
    assert shop.apply().code == 0


def test_the_run_that_keeps_the_plan_is_one_of_the_pull_request(shop: Shop) -> None:
    """The run that keeps the plan must be one of the pull request.

    A workflow on another branch may keep a file under the same name and name its run.
    """
    shop.shown()
    for event, commit in (("push", HEAD), ("pull_request", "c" * 40), ("workflow_dispatch", HEAD)):
        shop.forge.runs[5] = {"event": event, "head_sha": commit}
        assert (
            f"Run 5, which keeps the plan, is not a run of commit {HEAD[:12]} on a pull request"
            in shop.apply().log
        )
    shop.forge.runs[5] = {"event": "pull_request_target", "head_sha": "c" * 40}
    assert shop.apply().code == 0


def test_each_workspace_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder and environment has its own comment; spellings of one folder share it."""

    def key(folder: str, environment: str = "") -> str:
        monkeypatch.setenv("DIRECTORY", folder)
        monkeypatch.setenv("ENVIRONMENT", environment)
        return str(github["_key"]())

    github = runpy.run_path(str(ROOT / "ci" / "github.py"))
    pairs = [
        *[
            ("streams", "prod-eu"),
            ("streams/prod", "eu"),
            ("streams-prod", "eu"),
            ("streams-prod-eu", ""),
            ("streams/prod/eu", ""),
        ],
        *[
            ("streams@prod", "eu"),
            ("streams", "prod@eu"),
            ("", ""),
            ("", "workspace"),
            ("workspace", ""),
            ("%77orkspace", ""),
        ],
        *[("a b", ""), ("a+b", ""), ("\u00e4", ""), ("..", "x"), ("../x", "")],
    ]
    keys = [key(*pair) for pair in pairs]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[\w.@%~-]+", found) for found in keys)
    assert key("./streams/") == key("streams") == "streams"
    assert key(".") == key("") == "workspace"


def test_a_folder_of_the_checkout_does_not_replace_pip(shop: Shop) -> None:
    """The install step ignores a folder `pip` of the checkout.

    It runs in the checkout, whose files are those of the pull request.
    """
    package = shop.folder / "repo" / "pip"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "__main__.py").write_text("print('HIJACKED')\n", encoding="utf-8")
    shop.runner.installs = True
    done = shop.job({}, command="neither")
    assert (done.ran[-1], "HIJACKED" in done.log) == ("Install jsplan", False)


def test_a_fork_may_not_comment_and_still_sees_its_plan(shop: Shop) -> None:
    """A token that only reads puts the plan into the summary of the job, with a warning."""
    shop.forge.writer = "a token with rights"
    done = shop.write(ORDERS).plan()

    assert done.code == 0
    assert shop.forge.action_comments(7) == []
    assert (
        "::warning title=jsplan::The plan could not be written on the pull request: GitHub answered 403"
        in done.log
    )
    assert "`hub/stream/ORDERS`" in done.summary or "<code>hub/stream/ORDERS</code>" in done.summary


def test_a_very_large_plan_fits_into_its_comment(shop: Shop) -> None:
    """The plan of four hundred streams fits into a comment of GitHub, its record included."""
    streams = [
        {"name": f"S{n:03}", "subjects": [f"s{n:03}.a", f"s{n:03}.b"], "description": "x" * 150}
        for n in range(400)
    ]
    assert shop.write(*streams).plan().code == 0
    (body,) = shop.forge.action_comments(7)

    assert 40_000 < len(body) < 65_536
    assert "Cut to fit into a comment" in body
    assert body.splitlines()[-1].startswith("<!-- jsplan-action key=streams sha256=")


def test_inputs_and_steps_of_the_action_are_complete() -> None:
    """Every input of the action is described, and every input that a step names exists."""
    text = json.dumps(ACTION)
    named = set(re.findall(r"\binputs\.([\w-]+)", text))

    assert all(row["description"] for row in ACTION["inputs"].values())
    assert named == set(ACTION["inputs"])
    assert ACTION["runs"]["using"] == "composite"
