"""Show a plan on its merge request: numbers for GitLab's widget, and one updated note.

`python report.py shop.plan plan.md` needs only Python. It writes no note without GITLAB_TOKEN or
without a merge request.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any


def main(plan: Path, page: Path) -> None:
    """Write counts.json, and the note."""
    summary = json.loads(plan.read_bytes())["summary"]
    counts = {
        "create": summary["add"] + summary["replace"],
        "update": summary["change"],
        "delete": summary["destroy"] + summary["replace"],
    }
    Path("counts.json").write_text(json.dumps(counts), encoding="utf-8")
    if os.environ.get("GITLAB_TOKEN") and os.environ.get("CI_MERGE_REQUEST_IID"):
        note(
            page.read_text(encoding="utf-8")
            + "\n[The whole plan, and a page to search in]"
            + f"({os.environ['CI_JOB_URL']}/artifacts/browse)\n"
        )


def note(text: str) -> None:
    """Over our note of the last time, known by the workspace in its first line; else a new one."""
    mark = text.splitlines()[0].rpartition(":")[0]
    me = ask("GET", "user")["id"]
    project, request = os.environ["CI_PROJECT_ID"], os.environ["CI_MERGE_REQUEST_IID"]
    notes = f"projects/{project}/merge_requests/{request}/notes"
    found = [
        one
        for one in every(notes)
        if one["author"]["id"] == me and one["body"].startswith(f"{mark}:")
    ]
    if found:
        ask("PUT", f"{notes}/{found[0]['id']}", {"body": text})
    else:
        ask("POST", notes, {"body": text})


def every(path: str) -> list[dict[str, Any]]:
    """All pages of a list."""
    found: list[dict[str, Any]] = []
    for page in range(1, 100):
        some = ask("GET", f"{path}?per_page=100&page={page}")
        found += some
        if len(some) < 100:
            break
    return found


def ask(method: str, path: str, body: dict[str, str] | None = None) -> Any:
    """One request to the API of the GitLab that runs the pipeline."""
    request = urllib.request.Request(
        f"{os.environ['CI_API_V4_URL']}/{path}",
        method=method,
        data=json.dumps(body).encode() if body else None,
        headers={"PRIVATE-TOKEN": os.environ["GITLAB_TOKEN"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
