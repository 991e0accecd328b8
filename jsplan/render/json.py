"""The JSON view of every document: sorted keys, indented by two, one newline at the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jsplan.documents import base

if TYPE_CHECKING:
    from collections.abc import Mapping


def dumps(document: Mapping[str, Any]) -> str:
    """Return the text of a document.

    What orjson refuses (half a surrogate pair in a name) is written escaped.
    """
    try:
        text = base.dumps(document).decode()
    except TypeError:
        text = json.dumps(document, indent=2, sort_keys=True).replace("\x7f", "\\u007f") + "\n"
    return text.replace(
        "##[", "\\u0023#["
    )  # a GitHub runner takes it for a command, also inside a line
