"""The shipped GitLab example: its scripts on a real server, with a fake of GitLab's API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import User
from tests.conftest import PROGRAM
from tests.docs.pages import ROOT
from tests.support.account_sharing import start_servers
from tests.support.http_server import Answer, HttpServer, json_answer
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Server

pytestmark = pytest.mark.timeout(240)
EXAMPLE = ROOT / "examples" / "gitlab"
PIPELINE: dict[str, Any] = yaml.safe_load((EXAMPLE / "gitlab-ci.yml").read_text(encoding="utf-8"))
BASH = shutil.which("bash") or "/bin/bash"
ACCOUNTS = "accounts { SHOP: { jetstream: enabled, users: [{user: shop, password: shop}] } }"


@pytest.fixture(scope="module")
def hub() -> Iterator[Server]:
    """Start a server with the account of the example."""
    with start_servers(ACCOUNTS, User("SHOP", "shop", "shop"), binary=PROGRAM) as sandbox:
        assert isinstance(sandbox, Sandbox)
        yield sandbox["hub"]


def gitlab(notes: list[dict[str, Any]]) -> HttpServer:
    """Serve the part of the API that is asked: the own user, and the notes of one merge request."""

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert headers["private-token"] == "secret"
        if method == "GET":
            return json_answer({"id": 5} if path == "/user" else notes)
        text = str(json.loads(body)["body"])
        if method == "POST":
            notes.append({"id": len(notes) + 1, "author": {"id": 5}, "body": text})
        else:
            number = int(path.rpartition("/")[2])
            next(one for one in notes if one["id"] == number)["body"] = text
        return json_answer({})

    return HttpServer(answer)


def run(job: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a job as a runner of GitLab does."""
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CI", "JSPLAN_", "GITLAB"))
    }
    base |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CI": "true",
        "SHOP_PASSWORD": "shop",
    }
    script = "set -eo pipefail\n" + "\n".join(PIPELINE[job]["script"])
    return subprocess.run(
        [BASH, "-c", script],
        cwd=folder,
        env=base | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def merge_request(api: str, hub: Server) -> dict[str, str]:
    """Return the environment of a pipeline of a merge request."""
    return {
        "GITLAB_TOKEN": "secret",
        "CI_MERGE_REQUEST_IID": "3",
        "CI_PROJECT_ID": "42",
        "CI_API_V4_URL": api,
        "CI_JOB_URL": "https://g/j/1",
        "JSPLAN_VAR_url": hub.url,
    }


def test_from_the_merge_request_to_the_server(hub: Server, tmp_path: Path) -> None:
    """A merge request has one note, and the button applies the plan of its pipeline, once."""
    for name in ("jsplan.yaml", "report.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    foreign = {"id": 1, "author": {"id": 9}, "body": "<!-- jsplan:shop:0 -->\nnot ours"}
    notes: list[dict[str, Any]] = [foreign]
    with gitlab(notes) as api:
        request = merge_request(api.url, hub)
        for _ in range(2):
            done = run("plan", tmp_path, **request)
            assert done.returncode == 0, done.stderr
    sha256 = json.loads((tmp_path / "shop.plan").read_bytes())["sha256"]
    assert [note["id"] for note in notes] == [1, 2]
    assert notes[1]["body"].startswith(f"<!-- jsplan:shop:{sha256} -->\n## Plan: shop\n")
    assert notes[1]["body"].endswith("(https://g/j/1/artifacts/browse)\n")
    assert json.loads((tmp_path / "counts.json").read_text("utf-8")) == {
        "create": 1,
        "update": 0,
        "delete": 0,
    }
    assert all((tmp_path / name).stat().st_size for name in PIPELINE["plan"]["artifacts"]["paths"])

    first, again = (
        run("apply", tmp_path, JSPLAN_VAR_url=hub.url),
        run("apply", tmp_path, JSPLAN_VAR_url=hub.url),
    )
    assert (first.returncode, again.returncode) == (0, 4), first.stderr
    with Raw(hub.url, "shop", "shop") as raw:
        assert raw.config("ORDERS")["subjects"] == ["ORDERS.*"]


def test_a_plan_that_no_apply_accepts(hub: Server, tmp_path: Path) -> None:
    """The job fails, and the merge request shows the plan. A plan with errors is not kept."""
    shutil.copy(EXAMPLE / "report.py", tmp_path)
    files, notes = tmp_path / "jsplan.yaml", list[dict[str, Any]]()
    valid = (EXAMPLE / "jsplan.yaml").read_text("utf-8")
    with gitlab(notes) as api:
        files.write_text(f"{valid}  - {{name: ALL}}\nlint: {{JS220: error}}\n", "utf-8")
        refused = run("plan", tmp_path, **merge_request(api.url, hub))
        has_plan = (tmp_path / "shop.plan").exists()
        files.write_text(f"{valid}  - {{name: ALL, subjects: [ORDERS.>]}}\n", "utf-8")
        failed = run("plan", tmp_path, **merge_request(api.url, hub))

    assert (refused.returncode, has_plan) == (3, True), refused.stderr
    assert ["JS220" in note["body"] for note in notes] == [True]
    assert (failed.returncode, (tmp_path / "shop.plan").exists()) == (1, False), failed.stderr


def test_jobs_of_the_pipeline_are_complete() -> None:
    """Only jobs of the default branch apply, by hand, and need the plan of their own pipeline."""
    apply = PIPELINE["apply"]

    assert [(rule["if"], rule["when"]) for rule in apply["rules"]] == [
        ("$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH", "manual")
    ]
    assert apply["needs"] == ["plan"]
    assert PIPELINE["plan"]["artifacts"]["reports"] == {"terraform": "counts.json"}
    assert {PIPELINE["plan"]["stage"], apply["stage"]} == set(PIPELINE["stages"])
