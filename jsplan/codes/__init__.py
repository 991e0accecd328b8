"""The stable codes of hazards and findings, and the exit codes, in words.

The documentation and `jsplan explain` are made from these tables. JS1xx are found in the files,
JS2xx by lint, JS3xx stop the apply of a valid plan, JS4xx are found when the files meet servers and
state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.codes.configurations import CONFIGURATIONS
from jsplan.codes.exit_codes import EXIT_CODES
from jsplan.codes.hazards import HAZARD_TEXTS
from jsplan.codes.operations import OPERATIONS
from jsplan.codes.planning import PLANNING
from jsplan.codes.text import CodeText
from jsplan.codes.workspace_files import WORKSPACE_FILES

__all__ = [
    "CODES",
    "EXIT_CODES",
    "FILE_CODES",
    "HAZARDS",
    "HAZARD_TEXTS",
    "LINT",
    "SERVER_CODES",
    "CodeText",
]  # fmt: skip

#: Hazards that are reported and do not stop an apply.
_WARNINGS: Final = ("REDUCES_REPLICAS", "MOVES_DATA")
#: The closed list of hazards; True if an apply needs a permission for it.
HAZARDS: Final[Mapping[str, bool]] = {code: code not in _WARNINGS for code in HAZARD_TEXTS}

FILE_CODES: Final[Mapping[str, CodeText]] = {**WORKSPACE_FILES, **CONFIGURATIONS}
SERVER_CODES: Final[Mapping[str, CodeText]] = {**PLANNING, **OPERATIONS}

#: The titles of the lint rules, none of them an error by default; texts are in `jsplan/lint/rules`.
LINT: Final[Mapping[str, str]] = {
    "JS200": "An ignored lint finding no longer occurs.",
    # between streams
    "JS201": "Streams of two connected domains store the same subject.",
    "JS202": "A message reaches one stream by two paths.",
    "JS203": "Streams republish to each other in a circle.",
    "JS204": "A stream stores messages that are delivered to a mirror or source.",
    "JS205": "A mirror keeps less than its origin.",
    "JS206": "A mirror keeps messages that its origin deletes.",
    "JS207": "A mirror or source removes messages from a work queue or interest stream.",
    "JS208": "A changed source copies its origin again from the beginning.",
    "JS209": "Equal message ids of different origins count as duplicates.",
    "JS210": "A stream with sources sets no duplicate window.",
    "JS211": "A mirror or source keeps messages that expire in its origin.",
    "JS212": "The origin of a mirror is lost at a restart.",
    "JS213": "The filter of a mirror or source matches nothing.",
    "JS214": "A mirror with interest retention drops messages without consumers.",
    "JS215": "Mirrors or sources of different accounts share a delivery prefix.",
    "JS216": "A replicated stream may copy messages of its sources again.",
    "JS217": "A source adds a header for which `max_msg_size` leaves no place.",
    # one stream
    "JS220": "A stream on disk has no limits.",
    "JS221": "A stream in memory has no limits.",
    "JS222": "A stream in a cluster has one replica.",
    "JS223": "A stream has an even number of replicas.",
    "JS224": "A full work queue deletes work that is not done.",
    "JS225": "`discard: new` is set without a limit.",
    "JS226": "A duration or size is so small that its unit may be missing.",
    "JS227": "A subject contains a wildcard character that is not a wildcard.",
    "JS228": "A stream stores the replies to requests.",
    "JS229": "Publishers get no acknowledgement.",
    "JS230": "A stream that protects its messages can itself be deleted.",
    "JS231": "Message ids are kept in memory for hours.",
    "JS232": "Compression has no effect in memory.",
    "JS233": "Watchers of a bucket do not see that keys expire.",
    "JS234": "A threshold in metadata is wrong, or has no effect.",
    # consumers
    "JS240": "`ack_policy` is not set.",
    "JS241": "The filter of a consumer matches nothing.",
    "JS242": "Workers that share a consumer wait for each other.",
    "JS243": "`max_batch` exceeds `max_ack_pending`, so a batch is never full.",
    "JS244": "One worker acknowledges messages of the others.",
    "JS245": "The server deletes a durable consumer that is not used.",
    "JS246": "`backoff` overrides `ack_wait`.",
    "JS247": "Messages expire before they are redelivered.",
    "JS248": "No consumer takes some messages of a work queue.",
    "JS249": "A stream with interest retention and without consumers stores nothing.",
    "JS250": "Two consumers deliver to the same subject.",
    "JS251": "A push consumer does not notice lost messages.",
    "JS252": "The position of a consumer is stored less safely than its messages.",
    "JS253": "Messages stay in a work queue after the last attempt.",
    "JS254": "A consumer replays messages at the speed at which they were published.",
}

#: The meaning of every code of a finding.
CODES: Final[Mapping[str, str]] = {
    **{code: text.meaning for code, text in FILE_CODES.items()},
    **LINT,
    **{code: text.meaning for code, text in SERVER_CODES.items()},
}
