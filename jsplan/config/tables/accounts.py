"""`accounts:`."""

from __future__ import annotations

import re
from typing import Any, Final

from jsplan import units
from jsplan.config.schema_parts import any_of, ref
from jsplan.config.sections import TEXT, Key, Section, key_check, mapping, name_check, parsed
from jsplan.resources.account import PUBLIC_KEY

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_UNLIMITED: Final = -1


def _parse_size(value: Any) -> int:
    return _UNLIMITED if value == "unlimited" else units.parse_size(value)


def _parse_count(value: Any) -> int:
    if value == "unlimited":
        return _UNLIMITED
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number from 1 on, or unlimited")
    return value


_WORD: Final = {"const": "unlimited"}
_SIZE: Final = parsed("size, or `unlimited`", _parse_size, any_of(ref("size_or_reference"), _WORD))
_COUNT: Final = parsed(
    "number, or `unlimited`", _parse_count, any_of({"type": "integer"}, _WORD, ref("reference"))
)
LIMITS: Final = Section("account.jetstream", "`jetstream` of an account", (
    Key("memory", _SIZE, "Bytes in memory.", default=0),
    Key("disk", _SIZE, "Bytes on disk.", default=0),
    Key("streams", _COUNT, "Streams.", default=_UNLIMITED),
    Key("consumers", _COUNT, "Consumers.", default=_UNLIMITED),
))  # fmt: skip
ACCOUNT: Final = Section("account", "an account", (
    Key("name", TEXT, "Its name, which `account:` of connections has too.", required=True, check=name_check(_NAME, "an account")),
    Key("key", TEXT, "Its public key, of an account of an operator. One without is in a file of `account_files`.", check=key_check(PUBLIC_KEY, "`key` of an account is no public key of an account")),
    Key("connection", TEXT, "The connection with `operator_key`; may be left out if there is one."),
    Key("jetstream", mapping(LIMITS), "What it may store. Without it the limits that it has stay."),
))  # fmt: skip
