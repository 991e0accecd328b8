"""Every group of `refused.yaml`: files that are refused. A new row is a new case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.config.conftest import HEAD, HUB
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from tests.config.conftest import Loader

GROUPS: dict[str, dict[str, Any]] = read_yaml(
    Path(__file__).with_name("refused.yaml").read_text("utf-8")
)


@pytest.mark.parametrize("name", GROUPS)
def test_what_is_refused(name: str, workspace: Loader) -> None:
    """Each mistake is an error with its code and place, which says how to correct it."""
    group = GROUPS[name]
    wrong = []
    for written, code, words, *place in group["rows"]:
        text = group["text"].replace("<>", written)
        head, files = group.get("head", HEAD + HUB), group.get("files")
        found = workspace.findings(text, head=head, files=files)
        first, said = found[0], " ".join(f"{d.summary} {d.detail}" for d in found)
        if (
            first.code != code
            or words not in f"{first.summary} {first.detail}"
            or first.range is None
            or (place and str(first.range) != f"jsplan.yaml:{place[0]}")
            or (len(found) > 1 and not group.get("more"))
            or any(word in said for word in group.get("hidden", ()))
        ):
            wrong.append((written, found))

    assert wrong == []
