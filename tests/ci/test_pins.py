"""Foreign code that the repository runs is pinned: actions by commit, images by digest."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
GIT = shutil.which("git") or "/usr/bin/git"
#: `uses:` and `image:` of workflows and manifests, `FROM` of a Containerfile; in pages too.
USES = re.compile(r"^\s*(?:- )?uses:\s*(\S+)", re.MULTILINE)
IMAGE = re.compile(r"^\s*(?:- )?image:\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
FROM = re.compile(r"^FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.MULTILINE)
PINNED_ACTION = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
PINNED_IMAGE = re.compile(r"\S+@sha256:[0-9a-f]{64}")
#: This repository, of which no release exists: the reader writes both.
OWN_ACTION = "OWNER/jsplan@COMMIT"


def read_files(*suffixes: str) -> dict[str, str]:
    """Return the files of the repository whose names end so, by path."""
    listed = subprocess.run(
        [GIT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return {
        name: (ROOT / name).read_text("utf-8")
        for name in listed
        if name.endswith(suffixes) and (ROOT / name).is_file()
    }


def test_actions_are_pinned_by_commit() -> None:
    """No workflow, action or page uses a tag or a branch, which others can move."""
    found = [
        (name, action)
        for name, text in read_files(".yml", ".yaml", ".md").items()
        for action in USES.findall(text)
    ]

    assert len(found) > 5
    assert [
        (name, action)
        for name, action in found
        if not PINNED_ACTION.fullmatch(action) and action != OWN_ACTION
    ] == []


def test_images_are_pinned_by_digest() -> None:
    """No manifest, pipeline, Containerfile or page names an image without its digest."""
    found = [
        (name, image)
        for name, text in read_files(".yml", ".yaml", ".md").items()
        for image in IMAGE.findall(text)
    ]
    for name, text in read_files("Containerfile", "Dockerfile").items():
        stages = FROM.findall(text)
        own = {stage for _, stage in stages if stage}
        found += [(name, image) for image, _ in stages if image not in own]

    assert len(found) > 2
    assert [pair for pair in found if not PINNED_IMAGE.fullmatch(pair[1])] == []
