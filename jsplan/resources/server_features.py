"""The API level from which nats-server does something. The level of a field is in its row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

#: The first nats-server of each API level. Level 0 is 2.10 and older.
SERVER_VERSIONS: Final = {0: "2.10", 1: "2.11", 2: "2.12", 3: "2.12.5", 4: "2.14", 5: "2.15"}
#: The newest level that this release knows.
NEWEST_LEVEL: Final = max(SERVER_VERSIONS)

# Level 1: nats-server 2.11 -------------------------------------------------------------------------

#: A direct read returns many messages.
BATCH_LEVEL: Final = 1
#: MSG.GET finds a message by `start_time`.
TIME_LOOKUP_LEVEL: Final = 1
#: A consumer that starts behind the end of its stream waits for that start.
EXACT_START_LEVEL: Final = 1
#: Messages also expire after max_msgs_per_subject has left gaps. Before, that stops for a while.
EXPIRY_LEVEL: Final = 1
#: A stream cannot store a subject such as `*.orders.>`, which catches the API. One that exists is
#: not loaded by the upgrade.
RESERVED_SUBJECTS_LEVEL: Final = 1
#: A stream with a setting of a newer release is offline after a downgrade, and such a consumer is
#: not found. Before, the server runs both without the setting.
OFFLINE_LEVEL: Final = 1

# Level 2: nats-server 2.12 -------------------------------------------------------------------------

#: A stream that becomes interest also deletes what was acknowledged above the ack floor.
ACKS_ABOVE_FLOOR_LEVEL: Final = 2
#: num_pending of a consumer begins at its start. Before, it counts messages before a start behind
#: the end too (measured on 2.11).
PENDING_FROM_START_LEVEL: Final = 2
#: Only an update of the filters of a consumer deletes messages that no consumer wants. Before, each
#: update does.
FILTER_UPDATE_LEVEL: Final = 2
#: A mirror becomes an ordinary stream by an update.
PROMOTE_LEVEL: Final = 2
#: jsplan replaces and relocates streams and consumers, and sets positions: from here on a server has
#: all that it takes (promotion of a mirror, CONSUMER.PAUSE, message times that survive a copy).
REPLACE_LEVEL: Final = 2
#: An update changes max_consumers of a stream.
MAX_CONSUMERS_UPDATE_LEVEL: Final = 2
#: Priority groups and a timeout without a policy are refused.
PRIORITY_CHECK_LEVEL: Final = 2

# Level 4: nats-server 2.14 -------------------------------------------------------------------------

#: What is before the start of a consumer counts as done. Before, only with explicit acknowledgements.
STARTS_COUNT_LEVEL: Final = 4
#: A consumer whose ack floor is behind the end of an interest stream may empty the stream.
PURGE_LEVEL: Final = 4
#: A mirror or source takes every message that rolls up others. Before, only streams that allow
#: rollups do, and those with such messages, as buckets, do not survive that a mirror is promoted.
ROLLUP_MIRROR_LEVEL: Final = 4
#: CONSUMER.RESET exists.
RESET_LEVEL: Final = 4
#: A limit for consumers that is not set is no limit. Before, it counts as 0, so it cannot be removed
#: while consumers have such values.
REMOVABLE_LIMITS_LEVEL: Final = 4
#: A first max_msgs_per_subject acts at once. Before, it acts with the next message of each subject.
IMMEDIATE_LIMIT_LEVEL: Final = 4
#: The consumer by which a downstream stream reads a work queue or interest stream is shown, and it
#: acknowledges.
VISIBLE_CONSUMERS_LEVEL: Final = 4
#: A new stream counts with all its replicas for the limits of the account. Before, with one.
ALL_REPLICAS_COUNT_LEVEL: Final = 4
#: Schedules are refused together with `discard: new` and with counters.
SCHEDULES_CHECK_LEVEL: Final = 4
#: A stream with sources has no duplicate window by default, as a mirror.
SOURCES_NO_WINDOW_LEVEL: Final = 4

# Level 5: nats-server 2.15 -------------------------------------------------------------------------

#: The feature flag js_snapshot_sources stores the positions of sources.
SNAPSHOT_SOURCES_LEVEL: Final = 5
#: A user of the account may cancel the move of a stream. Before, only the system account.
CANCEL_MOVE_LEVEL: Final = 5
#: A stream without consumers that becomes interest is emptied.
NO_CONSUMERS_LEVEL: Final = 5
#: A snapshot restores under any name and into any storage. The archive has another format.
RESTORE_ANY_NAME_LEVEL: Final = 5
#: A source detects that its origin is another stream of the same name, and starts again.
ORIGIN_IDENTITY_LEVEL: Final = 5
#: The server's own consumer on an origin needs no free place under max_consumers.
OWN_CONSUMER_LEVEL: Final = 5
#: A stream without max_consumers has at most 1,000 consumers.
DEFAULT_MAX_CONSUMERS_LEVEL: Final = 5


def read_level(account: Mapping[str, Any]) -> int:
    """Return the API level of a domain from its answer to `INFO`; 0 before nats-server 2.11."""
    return int((account.get("api") or {}).get("level") or 0)


def find_level(version: str) -> int:
    """Return the API level of a release, such as `2.12` (the first of its line) or `2.12.8`.

    Raises ValueError for anything else, and for releases that this one knows nothing of: older than
    the oldest, or of a newer line than the newest in `SERVER_VERSIONS`.
    """
    if not re.fullmatch(r"v?[0-9]+\.[0-9]+(\.[0-9]+)?", version):
        raise ValueError(version)
    wanted = _parse_numbers(version.removeprefix("v"))
    levels = {level: _parse_numbers(first) for level, first in SERVER_VERSIONS.items()}
    if not levels[0] <= wanted or wanted[:2] > levels[NEWEST_LEVEL][:2]:
        raise ValueError(version)
    return max(level for level, first in levels.items() if first <= wanted)


def _parse_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
