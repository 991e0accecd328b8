from __future__ import annotations

from typing import TYPE_CHECKING

from tools.make_combinations import PAGE, make_page

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


def test_the_page_of_combinations_is_current(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """combinations.md shows the plans of today; else: make docs-pages."""
    hub = clean_hub_leaf["hub"]
    made = make_page({"url": hub.url, "user": hub.user, "password": hub.password}, tmp_path)

    assert made == PAGE.read_text(encoding="utf-8")
