"""Plays the page on interrupted replacements, on a server that refused a request halfway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.page_reader import PageReader, normalize_output
from tests.docs.pages import ROOT, blocks
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.refused_request import refuse_request

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.docs.pages import Block

PAGE = ROOT / "docs" / "how-to" / "repair-an-interrupted-replacement.md"
ALLOWED = (
    "--allow-hazard=REMOVES_SUBJECTS",
    "--allow-hazard=DUPLICATES_MESSAGES",
    "--allow-hazard=IRREVERSIBLE",
)
BEFORE, AFTER, *REST = [block for block in blocks(PAGE) if block.language in ("yaml", "console")]
BACK = next(number for number, block in enumerate(REST) if block.language == "yaml")


@pytest.mark.parametrize("section", [REST[:BACK], REST[BACK:]], ids=["finish", "go back"])
def test_the_page_ends_the_replacement(
    section: list[Block], clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """Each command of either repair prints what the page says."""
    hub = clean_hub_leaf["hub"]
    reader = PageReader(tmp_path, {"hub": hub.url})
    reader.write(BEFORE)
    assert jsplan(tmp_path / "shop", "apply", "-y").code == 0
    with Raw(hub.url, hub.user, hub.password) as raw:
        for number in range(24):
            raw.request(f"ORDERS.{number % 3}", b"an order")
    reader.write(AFTER)
    with refuse_request("STREAM.UPDATE.ORDERS", 2):
        assert jsplan(tmp_path / "shop", "apply", "-y", *ALLOWED).code == 6
    for block in section:
        if block.language == "yaml":
            reader.write(block)
        for command, printed in block.commands if block.language == "console" else ():
            assert normalize_output(printed) == normalize_output(reader.run_command(command)), (
                command
            )
