"""The closed list of hazards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.codes.text import CodeText

HAZARD_TEXTS: Final[Mapping[str, CodeText]] = {
    "DELETES_STREAM": CodeText(
        "A stream is deleted with all its messages.",
        "It left the files, or it is replaced without keeping its messages. The plan counts "
        "messages, bytes and consumers. An empty stream without consumers is no hazard.",
        "Keep it with a `removed` entry (`destroy: false`), or set `on_replace: preserve`. "
        "Take a backup before you allow it.",
    ),
    "DELETES_MESSAGES": CodeText(
        "Messages are deleted.",
        "A limit is lowered, a consumer that kept them goes, or a mirror or source takes them "
        "from its origin. Or what a new source brings replaces them: beyond a limit, as newer "
        "values, or as rollups. Or copies lose what their origin begins to let expire, by its "
        "markers. The plan counts them, or gives bounds.",
        "Take the change back, or save them first with `--backup DIR`. Pass `--safe-below N` "
        "to accept small numbers.",
    ),
    "LOSES_CONSUMER_POSITION": CodeText(
        "A consumer loses its position.",
        "It is replaced and starts where its `deliver_policy` says, its new `position` skips "
        "messages that it has not processed, or a changed filter "
        "leaves messages of a work queue without a consumer. Or a limit deletes a message that "
        "a consumer with `ack_policy: all` has not acknowledged: the server takes that for the "
        "acknowledgement of all messages before it.",
        "Set `on_replace: preserve`, or allow it if the clients can process messages again. "
        "Before a limit is lowered, let the clients acknowledge what they have.",
    ),
    "DELETES_CONSUMER": CodeText(
        "A consumer is deleted.",
        "It left the files, or its stream is deleted. If nothing is pending for it, this is "
        "only a warning.",
        "Let it finish first, or leave it on the server with a `removed` entry (`destroy: "
        "false`).",
    ),
    "BREAKS_REPLICATION": CodeText(
        "A mirror or source loses its origin, or stops before it has copied all of it.",
        "The plan deletes a stream that another stream reads from, or removes a mirror or "
        "source that is behind. Where the origin loses its messages too, the number is what "
        "only it has. Or a limit deletes what a reader has not copied yet. Or a stream refuses "
        "what a flow brings, by `discard: new`, `max_msg_size`, `allow_msg_counter` or, before "
        "nats-server 2.14, rollups that it does not allow. Or the consumer by which a source "
        "reads goes or changes its filter, or has delivered what a lost stream had. Or a "
        "republish that another stream stores goes or changes.",
        "Wait until `jsplan status` shows that it follows. Remove the mirror or source first, or "
        "keep the origin.",
    ),
    "REMOVES_SUBJECTS": CodeText(
        "Publishers get no acknowledgement any more.",
        "No stream of the domain stores the subject after this plan.",
        "Move the publishers first, or keep the subject in a stream.",
    ),
    "IRREVERSIBLE": CodeText(
        "A field is turned on that the server never turns off again.",
        "Some fields, such as `sealed` or `deny_delete`, can only be undone with a new stream.",
        "Allow it if you are sure; otherwise take the change back.",
    ),
    "DUPLICATES_MESSAGES": CodeText(
        "Messages are stored or delivered twice.",
        "A source changes and starts again, or comes back after another one took its place (the "
        "server continues it behind the last message that it brought, wherever it is to start); "
        "two paths bring the same messages, also to a stream that nothing changes; or a consumer "
        "goes back: after its replacement, because its new `position` says so, because its stream "
        "is filled again, or because it was lost. Or its `ack_wait` becomes shorter while workers "
        "hold messages. For the last two nothing is to be allowed.",
        "Start the source behind what is copied already (`opt_start_seq`), or allow it if "
        "consumers tolerate duplicates.",
    ),
    "REDUCES_REPLICAS": CodeText(
        "A stream gets fewer replicas.",
        "`num_replicas` is lower, so fewer servers hold the messages.",
        "Nothing, if that is meant. It does not stop an apply.",
    ),
    "MOVES_DATA": CodeText(
        "The servers of a cluster copy the messages of a stream.",
        "Its placement changes, or it gets more replicas. The bytes are at most those of all new "
        "copies.",
        "Apply it when the network has capacity. It does not stop an apply.",
    ),
    "REVOKES_ACCESS": CodeText(
        "Users or accounts may no longer do something.",
        "An export, an import or a permission of an application is removed, or a whole account. "
        "Users of a role are disconnected, and connect again with the permissions that stay. Users "
        "in the configuration of servers have what they had until that is loaded again.",
        "Change the application first, or keep what it uses in the files.",
    ),
}  # fmt: skip
