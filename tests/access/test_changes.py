"""`jsplan access --against` says who gains and who loses which permission."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from tests.access.conftest import space_with

if TYPE_CHECKING:
    from pathlib import Path

BILLING: dict[str, Any] = {
    "name": "billing",
    "domain": "hub",
    "client": "py",
    "publishes": [{"stream": "hub/stream/ORDERS", "subjects": ["orders.eu"]}],
}
WEB = {"name": "web", "domain": "hub", "client": "js", "reads": [{"bucket": "hub/kv/CONFIG"}]}


def run(folder: Path, *words: str) -> int:
    """Run the command."""
    return main(["access", "-C", str(folder), *words])


def test_gains_and_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each change has its application; one that comes or goes changes all of its permissions."""
    space_with(tmp_path, BILLING, WEB)
    assert run(tmp_path, "--json") == 0
    kept = tmp_path / "kept.json"
    kept.write_text(capsys.readouterr().out)

    assert run(tmp_path, "--against", str(kept)) == 0
    assert capsys.readouterr().out == "No application gains or loses a permission.\n"

    subjects = [{"stream": "hub/stream/ORDERS", "subjects": ["orders.us"]}]
    space_with(tmp_path, BILLING | {"publishes": subjects}, WEB | {"name": "site"})
    assert run(tmp_path, "--against", str(kept)) == 2
    assert capsys.readouterr().out.splitlines() == [
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
    assert run(tmp_path, "--against", str(kept), "--json") == 2
    changes = json.loads(capsys.readouterr().out)["changes"]
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
    content: str | None, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what is wrong with it."""
    space_with(tmp_path, BILLING)
    kept = tmp_path / "kept.json"
    if content is not None:
        kept.write_text(content)

    assert run(tmp_path, "--against", str(kept)) not in (0, 2)
    assert text in capsys.readouterr().err
