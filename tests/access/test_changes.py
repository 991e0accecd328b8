"""`jsplan access --against` says who gains and who loses which permission."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.access.conftest import space_with
from tests.support.process import jsplan

if TYPE_CHECKING:
    from pathlib import Path

BILLING: dict[str, Any] = {
    "name": "billing",
    "domain": "hub",
    "client": "py",
    "publishes": [{"stream": "hub/stream/ORDERS", "subjects": ["orders.eu"]}],
}
WEB = {"name": "web", "domain": "hub", "client": "js", "reads": [{"bucket": "hub/kv/CONFIG"}]}


def test_gains_and_losses(tmp_path: Path) -> None:
    """Each change has its application; one that comes or goes changes all of its permissions."""
    space_with(tmp_path, BILLING, WEB)
    kept = tmp_path / "kept.json"
    kept.write_text(jsplan(tmp_path, "access", "--json").out)

    same = jsplan(tmp_path, "access", "--against", "kept.json")
    assert same == (0, "No application gains or loses a permission.\n", "")

    subjects = [{"stream": "hub/stream/ORDERS", "subjects": ["orders.us"]}]
    space_with(tmp_path, BILLING | {"publishes": subjects}, WEB | {"name": "site"})
    changed = jsplan(tmp_path, "access", "--against", "kept.json")
    assert changed.code == 2
    assert changed.out.splitlines() == [
        "billing",
        "  + may publish orders.us",
        "  - may no longer publish orders.eu",
        "site",
        "  + may publish $JS.API.STREAM.MSG.GET.KV_CONFIG",
        "  + may subscribe _INBOX_site.>",
        "web",
        "  - may no longer publish $JS.API.STREAM.MSG.GET.KV_CONFIG",
        "  - may no longer subscribe _INBOX_web.>",
        "3 applications change: 3 permissions more, 3 fewer.",
    ]
    document = jsplan(tmp_path, "access", "--against", "kept.json", "--json")
    assert document.code == 2
    changes = json.loads(document.out)["changes"]
    assert changes[0] == {
        "app": "billing",
        "gains": ["publish orders.us"],
        "loses": ["publish orders.eu"],
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "there is no "), ("{", "is no JSON"), ('{"a": 1}', "is not a jsplan access document")],
)
def test_a_file_that_cannot_be_compared_with(
    content: str | None, text: str, tmp_path: Path
) -> None:
    """The message says what is wrong with it."""
    space_with(tmp_path, BILLING)
    kept = tmp_path / "kept.json"
    if content is not None:
        kept.write_text(content)

    ended = jsplan(tmp_path, "access", "--against", "kept.json")
    assert ended.code not in (0, 2)
    assert text in ended.err
