"""Steps of `action.yml`: plan on a pull request, and apply that plan after the merge.

Standard library only, and jsplan as a command, so that nothing but jsplan has to be installed.
Everything comes from the environment, as a runner sets it; each step is a word: `python github.py
plan|comment|approval|apply`.

The comment is the record of what was approved: its last line names the plan by its sha256, the
commit it was made for and the run that keeps the file. Only comments of the action's own author
count, since any account may write on a public pull request, and only as that author left them:
GitHub lets everyone with write permission edit them.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import secrets
import shlex
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

#: GitHub takes 65,536 characters, and the page of a plan stays below 64,000.
LONGEST = 65_500
#: Exit codes of `jsplan plan` with which there is a plan: none to do, some to do, some that no
#: apply accepts.
PLANNED = (0, 2, 3)
#: The sentence for each exit code of `jsplan apply`.
ENDS = {
    0: "Done.",
    3: "Refused, and nothing was changed: a hazard is not allowed. Allow it in the files or in `arguments`, and open a pull request again.",
    4: "Refused, and nothing was changed: something is no longer as it was when this was planned. Open a pull request again.",
    5: "Nothing was changed: another process held the lock. Run this job again.",
    6: "Applied in part: the output says how far, and the next plan shows the rest.",
}
_RECORD = (
    "<!-- jsplan-action key={key} sha256={sha256} changes={changes} commit={commit} run={run} -->"
)

_EDITOR = (
    "query($id: ID!) { node(id: $id) { ... on IssueComment { editor { __typename login } } } }"
)


class Refused(Exception):
    """Ends the step; the message says why and what helps. `status` is GitHub's, if it answered."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: list[str]) -> int:
    """Run one step; return the exit code."""
    steps = {"plan": plan, "comment": comment, "approval": approval, "apply": apply, "end": end}
    try:
        return steps[arguments[0]]()
    except Refused as refused:
        print(f"::error title=jsplan::{_escaped(str(refused))}")
        return 1


def plan() -> int:
    """Make the plan, its comment and its page in $FOLDER.

    Never fails: the comment says what went wrong.
    """
    folder = _folder()
    file = folder / "jsplan.plan"
    done = _jsplan(
        "plan", "--out", str(file), "--format", "markdown", "--detailed-exitcode", *_arguments()
    )
    text, sha256 = done.stdout, "none"
    if done.returncode in PLANNED and file.exists():
        sha256 = _sha256(file)
        (folder / "plan.html").write_text(_page(file), encoding="utf-8")
    else:
        file.unlink(missing_ok=True)
        text = f"{text}\n## jsplan could not plan (exit code {done.returncode})\n\n{_block(done.stderr)}"
    (folder / "comment.md").write_text(text, encoding="utf-8")
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as page:
        page.write(text)
    # An empty plan is not applied; one with nothing but findings is no change either.
    changes = "true" if sha256 != "none" and done.returncode != 0 else "false"
    _output(
        code=str(done.returncode),
        sha256=sha256,
        changes=changes,
        key=_key(),
        artifact=f"jsplan-{_key()}",
    )
    return 0


def comment() -> int:
    """Write the plan on the pull request, over the previous comment if there is one."""
    event = _event()
    if "pull_request" not in event:
        print("This is no pull request: the plan is in the summary of the job.")
        return 0
    pull = event["pull_request"]
    record = _RECORD.format(
        key=_key(),
        sha256=os.environ["SHA256"],
        changes=os.environ["CHANGES"],
        commit=pull["head"]["sha"],
        run=os.environ["GITHUB_RUN_ID"],
    )
    page = os.environ.get("PAGE", "")
    links = [f"[The whole plan, and a page to search in]({page})"] if page else []
    links.append(
        f"[run]({os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}/actions/runs/{os.environ['GITHUB_RUN_ID']})"
    )
    tail = f"\n{' · '.join(links)} · for commit {pull['head']['sha'][:12]}\n\n{record}\n"
    body = (_folder() / "comment.md").read_text(encoding="utf-8")[: LONGEST - len(tail)] + tail
    hub, number = GitHub(), pull["number"]
    try:
        found = _sticky(hub, number)
        if found:
            hub.ask("PATCH", f"issues/comments/{found[-1]['id']}", {"body": body})
        else:
            hub.ask("POST", f"issues/{number}/comments", {"body": body})
    except Refused as refused:
        # A pull request from a fork may not write; its plan is in the summary of the job all the
        # same.
        print(
            f"::warning title=jsplan::{_escaped(f'The plan could not be written on the pull request: {refused}')}"
        )
    return 0


def approval() -> int:
    """Find the plan of the merged pull request, and check that it is one of the merged commit."""
    hub = GitHub()
    pull = _merged(hub)
    number, head = pull["number"], pull["head"]["sha"]
    found = _sticky(hub, number)
    if not found:
        raise Refused(
            f"#{number} shows no plan ({_key()}), so nothing was approved. Run the plan on a pull request first."
        )
    shown = _record_of(found[-1]["body"])
    if shown["sha256"] == "none":
        raise Refused(
            f"The plan on #{number} failed, so nothing was approved. Open a pull request again."
        )
    if shown["commit"] != head:
        raise Refused(
            f"#{number} shows the plan of commit {shown['commit'][:12]}, and {head[:12]} was merged. No plan of that commit was shown. "
            "Open a pull request again."
        )
    _require_unedited(hub, found[-1], number)
    _require_run(hub, shown["run"], head)
    if os.environ.get("REQUIRE_REVIEW") == "true":
        _reviewed(hub, pull, found[-1]["updated_at"])
    print(
        f"Approved on #{number}: plan {shown['sha256']} of commit {head[:12]}, kept by run {shown['run']}."
    )
    _output(**shown, pull=str(number), artifact=f"jsplan-{_key()}")
    return 0


def apply() -> int:
    """Apply the kept file if it is the approved plan, and report the end on the pull request."""
    file, approved = _folder() / "jsplan.plan", os.environ["SHA256"]
    kept = _sha256(file)
    if kept != approved:
        raise Refused(
            f"The plan that was kept has sha256 {kept}, and #{os.environ['PULL']} shows {approved}: this is not what was approved. "
            "Nothing was changed. Open a pull request again."
        )
    done = _jsplan("apply", str(file), *_arguments())
    end = ENDS.get(done.returncode, f"It ended with exit code {done.returncode}.")
    body = f"### jsplan apply ({_key()}): {end}\n\n{_block(done.stdout + done.stderr)}\nPlan {approved}.\n"
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as page:
        page.write(body)
    GitHub().ask("POST", f"issues/{os.environ['PULL']}/comments", {"body": body})
    _output(code=str(done.returncode))
    return done.returncode


def end() -> int:
    """End with the exit code of the plan; changes are no failure."""
    code = int(os.environ["CODE"])
    return 0 if code == PLANNED[1] else code


class GitHub:
    """Requests to the API of the repository, with the token of the runner."""

    def __init__(self) -> None:
        self._base = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}"
        self._token = os.environ["GH_TOKEN"]

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send one request; raise Refused with GitHub's words if it is refused."""
        return self._ask(method, f"{self._base}/{path}", path, body)

    def query(self, text: str, **variables: str) -> Any:
        """Send one GraphQL query, for what the REST API lacks; raise Refused as `ask` does."""
        said = self._ask(
            "POST",
            os.environ["GITHUB_GRAPHQL_URL"],
            "graphql",
            {"query": text, "variables": variables},
        )
        if said.get("errors"):
            raise Refused(f"GitHub refused a query: {json.dumps(said['errors'])[:300]}")
        return said["data"]

    def _ask(self, method: str, url: str, path: str, body: dict[str, Any] | None) -> Any:
        request = urllib.request.Request(
            url,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={
                "Authorization": f"Bearer {self._token}",
                "Accept": "application/vnd.github+json",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")[:300]
            raise Refused(
                f"GitHub answered {error.code} to {method} {path}: {said}", error.code
            ) from None
        except OSError as error:
            raise Refused(f"GitHub does not answer to {method} {path}: {error}") from None

    def every(self, path: str) -> list[dict[str, Any]]:
        """Return all pages of a list."""
        found: list[dict[str, Any]] = []
        for page in range(1, 100):
            some = self.ask("GET", f"{path}?per_page=100&page={page}")
            found += some
            if len(some) < 100:
                break
        return found


def _sticky(hub: GitHub, number: int) -> list[dict[str, Any]]:
    """Return the action's comments on this workspace, the oldest first.

    They are written by the author of the action and end with its record.
    """
    author, mark = os.environ["COMMENT_AUTHOR"], f"<!-- jsplan-action key={_key()} "
    return [
        one
        for one in hub.every(f"issues/{number}/comments")
        if one["user"]["login"] == author and _last(one["body"]).startswith(mark)
    ]


def _last(body: str) -> str:
    """Return the last line. Whatever a plan quotes stands before it."""
    return body.rstrip().rpartition("\n")[2].strip()


def _record_of(body: str) -> dict[str, str]:
    """Parse the record of a plan from the last line of a comment."""
    found = re.fullmatch(
        r"<!-- jsplan-action key=\S+ sha256=([0-9a-f]{64}|none) changes=(true|false) commit=([0-9a-f]{40,64}) run=(\d+) -->",
        _last(body),
    )
    if found is None:
        raise Refused(
            "The comment with the plan was changed by hand: its last line names no plan. Run the plan again."
        )
    return dict(zip(("sha256", "changes", "commit", "run"), found.groups(), strict=True))


def _merged(hub: GitHub) -> dict[str, Any]:
    """Return the pull request of the event, or the one that was merged as the pushed commit."""
    event, commit = _event(), os.environ["GITHUB_SHA"]
    if "pull_request" in event:
        pull: dict[str, Any] = event["pull_request"]
        if not pull.get("merged"):
            raise Refused(f"#{pull['number']} was not merged: nothing is applied.")
        return pull
    for pull in hub.every(f"commits/{commit}/pulls"):
        if pull.get("merged_at") and pull.get("merge_commit_sha") == commit:
            return pull
    raise Refused(
        f"Commit {commit[:12]} is the merge of no pull request, so no plan of it was approved. Open a pull request."
    )


def _require_unedited(hub: GitHub, comment: dict[str, Any], number: int) -> None:
    """Raise Refused if another account than its author edited the comment last.

    `updated_at` does not say who did.
    """
    found = hub.query(_EDITOR, id=comment["node_id"])["node"]
    editor = (found or {}).get("editor") or {}
    login = str(editor.get("login", "")) + ("[bot]" if editor.get("__typename") == "Bot" else "")
    if editor and login.replace("[bot][bot]", "[bot]") != comment["user"]["login"]:
        raise Refused(
            f"The comment with the plan on #{number} was edited by {login}. Nothing is applied. Open a pull request again."
        )


def _require_run(hub: GitHub, run: str, commit: str) -> None:
    """Raise Refused unless the plan was made by a run of the pull request, for this commit.

    A workflow on any branch may keep a file under the name of a plan.
    """
    found = hub.ask("GET", f"actions/runs/{run}")
    event, head = str(found.get("event")), str(found.get("head_sha"))
    if not event.startswith("pull_request") or (event == "pull_request" and head != commit):
        raise Refused(
            f"Run {run}, which keeps the plan, is not a run of commit {commit[:12]} on a pull request. Nothing is applied."
        )


def _reviewed(hub: GitHub, pull: dict[str, Any], shown_at: str) -> None:
    """Raise Refused unless a reviewer approved this very commit after its plan was shown.

    The reviewer has write permission and made no part of the change. A review of an account without
    write permission counts neither for nor against: any account may review a public pull request.
    """
    number, head = pull["number"], pull["head"]["sha"]
    latest: dict[str, dict[str, Any]] = {}
    for review in hub.every(f"pulls/{number}/reviews"):
        if review["user"] and review["state"] in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED"):
            latest[review["user"]["login"]] = review
    writers = {
        login
        for login, review in latest.items()
        if review["state"] != "DISMISSED" and _may_write(hub, login)
    }
    if against := sorted(
        login for login in writers if latest[login]["state"] == "CHANGES_REQUESTED"
    ):
        raise Refused(f"{', '.join(against)} wants changes to #{number}: nothing is applied.")
    authors = _authors(hub, pull)
    ignored = []
    for login, review in latest.items():
        if review["state"] == "APPROVED":
            reason = (
                "may not write to this repository" if login not in writers
                else "is an author of the change" if login in authors
                else "approved another commit" if review["commit_id"] != head
                else "approved before this plan was shown" if review["submitted_at"] <= shown_at
                else None
            )  # fmt: skip
            if reason is None:
                return
            ignored.append(f"{login} {reason}")
    why = f" ({', '.join(ignored)})" if ignored else ""
    raise Refused(
        f"#{number} has no approval that counts of commit {head[:12]}{why}: nothing is applied."
    )


def _may_write(hub: GitHub, login: str) -> bool:
    """Check whether the account has write permission now.

    The author's association in a review does not say that.
    """
    try:
        found = hub.ask("GET", f"collaborators/{urllib.parse.quote(login, safe='')}/permission")
    except Refused as refused:
        if refused.status == 404:  # an account that there is not any more
            return False
        raise
    return found.get("permission") in ("admin", "write")


def _authors(hub: GitHub, pull: dict[str, Any]) -> set[str]:
    """Return the accounts that opened the pull request, or wrote or committed a part of it."""
    people = [pull.get("user")]
    for commit in hub.every(f"pulls/{pull['number']}/commits"):
        if not commit.get("author"):
            raise Refused(
                f"#{pull['number']}: GitHub knows no account for the author of commit "
                f"{str(commit.get('sha'))[:12]}, who may be the one that approved: nothing is "
                "applied. Its author must add the address of the commit to an account."
            )
        people += [commit.get("author"), commit.get("committer")]
    return {str(one["login"]) for one in people if one}


def _jsplan(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command of jsplan; its messages are in the log of the job too."""
    environment = ["--env", name] if (name := os.environ.get("ENVIRONMENT")) else []
    command = [*shlex.split(os.environ.get("JSPLAN", "jsplan")), "--no-color", *environment, *words]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
    )
    # What a plan quotes may look like an order to the runner; between these two lines it takes
    # none.
    word = secrets.token_hex(16)
    print(
        f"$ {shlex.join(command)}\n::stop-commands::{word}\n{done.stdout}{done.stderr}\n::{word}::",
        flush=True,
    )
    return done


def _sha256(file: Path) -> str:
    """Return the sha256 that a plan claims. `jsplan apply` checks it against the plan."""
    return str(json.loads(file.read_bytes())["sha256"])


def _page(file: Path) -> str:
    words = [
        *shlex.split(os.environ.get("JSPLAN", "jsplan")),
        "show",
        str(file),
        "--format",
        "html",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, encoding="utf-8")
    if done.returncode:
        raise Refused(f"The plan cannot be shown: {done.stderr.strip()}")
    return done.stdout


def _folder() -> Path:
    folder = Path(os.environ["FOLDER"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key() -> str:
    """Return a key for the workspace. Different folders and environments have different keys."""
    folder, environment = (
        posixpath.normpath(os.environ.get("DIRECTORY") or "."),
        os.environ.get("ENVIRONMENT", ""),
    )
    name = "workspace" if folder == "." else urllib.parse.quote(folder, safe="")
    if folder == "workspace":
        name = "%77orkspace"
    return f"{name}@{urllib.parse.quote(environment, safe='')}" if environment else name


def _arguments() -> list[str]:
    return shlex.split(os.environ.get("ARGUMENTS", ""))


def _event() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8")
    )
    return found


def _output(**values: str) -> None:
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in values.items())


def _block(text: str) -> str:
    """Quote output as it was printed, or its end if it is long; nothing in it ends the block."""
    fence = "~" * max([3, *(len(run) + 1 for run in re.findall("~{3,}", text))])
    return f"{fence}\n{text.strip()[-50_000:]}\n{fence}\n"


def _escaped(text: str) -> str:
    """Escape a text for the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
