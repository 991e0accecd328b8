"""Names that the files accept are addresses that the documents accept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jsplan.config.resource_names import _STREAM_NAME
from jsplan.documents.types import ADDRESS_PATTERN
from jsplan.resources.kv_entry import is_key
from jsplan.resources.message_schedule import is_schedule_subject
from jsplan.resources.stored_object import is_object_name

if TYPE_CHECKING:
    from collections.abc import Callable


def test_accepted_names_fit_the_schema_of_an_address() -> None:
    """No name that the files accept makes a document with it unreadable, of any kind."""
    kinds: dict[str, Callable[[str], object]] = {
        "stream/": _STREAM_NAME.fullmatch,
        "consumer/S/": _STREAM_NAME.fullmatch,
        "kv_entry/B/": is_key,
        "object/B/": is_object_name,
        "schedule/S/": is_schedule_subject,
    }
    characters = [*map(chr, range(0x3100)), "\ufffe", "\U0001f600", "\U000e0041"]
    address = re.compile(ADDRESS_PATTERN)
    wrong = [
        f"{kind}{name!a}"
        for kind, is_name in kinds.items()
        for character in characters
        for name in (f"a{character}b", f"{character}b", f"a{character}", f"a.{character}b")
        if is_name(name) and not address.search(f"hub/{kind}{name}")
    ]
    assert not wrong
