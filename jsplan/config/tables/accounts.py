"""`accounts:` and `apps:`."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from jsplan import units
from jsplan.config.model import Client
from jsplan.config.schema_parts import any_of, ref
from jsplan.config.sections import (
    ADDRESS,
    FLAG,
    TEXT,
    TEXTS,
    Key,
    Section,
    choice,
    key_check,
    list_of_mappings,
    mapping,
    name_check,
    parsed,
    written,
)
from jsplan.resources.account import PUBLIC_KEY

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_UNLIMITED: Final = -1
_USER_KEY: Final = re.compile(r"U[A-Z2-7]{55}")


PUBLISHES: Final = Section("app.publishes", "an entry of `publishes`", (
    Key("stream", ADDRESS, "The address of the stream.", required=True),
    Key("subjects", TEXTS, "Its subjects, or parts of them; without it, all.", default=()),
    Key("expects", TEXTS, "What the stream must have, as in `duplicate_window >= 2m`.", default=()),
))  # fmt: skip
CONSUMES: Final = Section("app.consumes", "an entry of `consumes`", (
    Key("consumer", ADDRESS, "The address of the consumer.", required=True),
    Key("expects", TEXTS, "What the consumer must have, as in `max_deliver >= 5`.", default=()),
))  # fmt: skip
READS: Final = Section("app.reads", "an entry of `reads`", (
    Key("bucket", ADDRESS, "The address of the KV bucket or object store.", required=True),
    Key("keys", TEXTS, "Keys, with the wildcards of subjects; without it, all.", default=()),
    Key("watch", FLAG, "Watches or lists keys too, which takes a consumer.", default=False),
))  # fmt: skip
WRITES: Final = Section("app.writes", "an entry of `writes`", (
    Key("bucket", ADDRESS, "The address of the KV bucket or object store.", required=True),
    Key("keys", TEXTS, "Keys, with the wildcards of subjects; without it, all.", default=()),
))  # fmt: skip
APP: Final = Section("app", "an application", (
    Key("name", TEXT, "Its name.", required=True, check=name_check(_NAME, "an application")),
    Key("domain", written("name, list or glob of domains", ref("domains")), "The domain to whose servers it connects; of several, one application each. By default the only one."),
    Key("client", choice(*get_args(Client)), "Its client library, which decides on what it asks.", required=True),
    Key("user", TEXT, "Its user; by default its name.", check=name_check(_NAME, "a user")),
    Key("nkey", TEXT, "The public key of its user, for `jsplan access --jwt`.", check=key_check(_USER_KEY, "`nkey` of an application is no public key of a user")),
    Key("role", TEXT, "The public key of a scoped signing key of its account, for [accounts](#accounts).", check=key_check(PUBLIC_KEY, "`role` of an application is no public key of an account's signing key")),
    Key("publishes", list_of_mappings(PUBLISHES), "The streams that it publishes to.", default=()),
    Key("consumes", list_of_mappings(CONSUMES), "The consumers whose messages it takes and acknowledges.", default=()),
    Key("reads", list_of_mappings(READS), "The buckets that it reads.", default=()),
    Key("writes", list_of_mappings(WRITES), "The buckets that it writes.", default=()),
))  # fmt: skip


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
