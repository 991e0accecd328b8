"""JS450 to JS499: replication, rehearsal, backup, backfill, drift, revert, relocation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.codes.text import CodeText

OPERATIONS: Final[Mapping[str, CodeText]] = {
    "JS450": CodeText(
        "A mirror or source reads from another account without an `imports` row.",
        "Accounts know a domain of another account only by an import, so its own name need "
        "not work here.",
        "Add an `imports` row: `{from: …, into: …, api: …, deliver: …}`.",
    ),
    "JS451": CodeText(
        "An `imports` row has no `deliver`.",
        "Messages from another account arrive on a delivery subject, which must be exported "
        "and imported.",
        "Add `deliver:` to the row.",
    ),
    "JS452": CodeText(
        "The origin of a mirror or source does not exist.",
        "The name or the domain is wrong, or the stream is created later. Nothing is copied "
        "until then.",
        "Declare the stream, or correct the name or the domain.",
    ),
    "JS453": CodeText(
        "No subject of the origin matches the filter of a mirror or source.",
        "The filter is misspelled, or the origin changed its subjects. Nothing would be copied.",
        "Correct the filter, or leave it out.",
    ),
    "JS454": CodeText(
        "A consumer that an import uses is in no file.",
        "jsplan assumes the usual delivery, and works out exports and imports from that.",
        "Declare the consumer if it is different.",
    ),
    "JS455": CodeText(
        "The account of a connection is unknown, or an account cannot import from another one.",
        "Exports and imports are written for each account, by its name or its public key.",
        "Add `account:` to the connection, or do as the message says.",
    ),
    "JS456": CodeText(
        "The owner of an origin is known only by an import.",
        "The workspace has no connection to that account, so its exports cannot be worked out.",
        "Add a connection and a domain for that account, and an `imports` row from that domain.",
    ),
    "JS457": CodeText(
        "A mirror or source does not replicate.",
        "A link is down, an export is missing, the origin was recreated, or the stream takes no "
        "more. The message names the cause it found.",
        "Remove the cause. `jsplan drift` shows when the stream replicates again.",
    ),
    "JS458": CodeText(
        "A mirror or source cannot read its origin, because the origin limits `max_ack_pending`.",
        "The server reads with a consumer of its own, which acknowledges nothing. The "
        "`consumer_limits.max_ack_pending` of the origin refuse such a consumer (10082).",
        "Remove `max_ack_pending` from the `consumer_limits` of the origin, and set it at each "
        "consumer.",
    ),
    "JS459": CodeText(
        "What the plan does needs nats-server 2.12 or later.",
        "On 2.10 and 2.11 jsplan creates, updates in place and deletes. It does not replace or "
        "relocate anything there, set a position, end interest retention, or change several "
        "consumers of an interest stream at once: those servers lack what keeps messages and "
        "positions meanwhile.",
        "Upgrade the server, or do as the message says.",
    ),
    "JS460": CodeText(
        "A server of the rehearsal refuses a step.",
        "An apply would fail there in the same way. The number is the err_code of the server.",
        "Change what the message names. No real server was touched.",
    ),
    "JS461": CodeText(
        "A server of the rehearsal does not keep everything that a step sets.",
        "The server accepts the request and ignores a field. An apply would stop there.",
        "Remove the field, or upgrade the server.",
    ),
    "JS462": CodeText(
        "A part of the plan was not rehearsed.",
        "Embedded servers cannot show it: an offline domain, limits of an account, or the like.",
        "Nothing; only an apply shows whether the server accepts it.",
    ),
    "JS463": CodeText(
        "A domain was rehearsed on another release of nats-server.",
        "The release that the domain runs is not installed here.",
        "Nothing, or install that release with the command that the message prints.",
    ),
    "JS464": CodeText(
        "A downgraded server cannot run a resource that exists.",
        "It uses a setting that the older release does not know. Since 2.11 such a stream is "
        "offline and such a consumer is not found; 2.10 runs both without the setting.",
        "Keep the newer server, or remove the setting before the downgrade.",
    ),
    "JS465": CodeText(
        "Another release of nats-server takes a configuration for something else.",
        "The files are accepted everywhere and do not mean the same everywhere.",
        "Write the setting out that the message names, or nothing if the difference is welcome.",
    ),
    "JS466": CodeText(
        "This release of jsplan has no rules for that version of nats-server.",
        "It is older than the oldest that is supported, newer than the newest, or no version.",
        "Write a supported release, such as 2.12.",
    ),
    "JS467": CodeText(
        "A schedule is written, and these are the next times at which it publishes.",
        "They are computed from now on, in the time zone of the schedule.",
        "Nothing. Check that the times are those that you mean.",
    ),
    "JS468": CodeText(
        "An application uses something that the files do not have.",
        "Permissions are derived from the streams, consumers and buckets of the files.",
        "Declare it, or correct the address or the subjects.",
    ),
    "JS469": CodeText(
        "A resource is not as an application expects it.",
        "The application says in `expects:` what must be so for it to work.",
        "Change the resource, or the application and then `expects:`.",
    ),
    "JS470": CodeText(
        "A saved stream cannot be restored there.",
        "The server is offline or too old for the backup, or the backup can only keep its name.",
        "Choose a target as the message says.",
    ),
    "JS471": CodeText(
        "Messages of a backup are older than the `max_age` of their stream.",
        "The server deletes them as soon as they are restored.",
        "Raise `max_age` in the files first, or accept the loss.",
    ),
    "JS472": CodeText(
        "A backfill cannot run with these settings.",
        "The chosen strategy cannot do it, or a stream cannot be read.",
        "Leave `strategy` out, or choose one that the message names.",
    ),
    "JS473": CodeText(
        "A client stays pinned to a consumer that is not pinned any more.",
        "The server keeps a pin until its timeout. Until then other clients get nothing.",
        "Wait, or end the pin at once with `nats consumer unpin`.",
    ),
    "JS474": CodeText(
        "A consumer that is in no file gets no more messages.",
        "No new subject of its stream matches its filter.",
        "Inform its owner, or keep a subject that its filter matches.",
    ),
    "JS475": CodeText(
        "A new source leaves out messages of its origin.",
        "It begins at its `opt_start_seq` or `opt_start_time`. Apply does not copy what is before.",
        "Nothing, or copy the messages after the apply with the command that the message prints.",
    ),
    "JS476": CodeText(
        "A server lost messages of a stream, or a consumer is paused.",
        "The stream ends at a lower sequence than at the last apply, although it is the same "
        "stream: its server lost messages, for example when its disk or its process failed. Or a "
        "consumer is paused, by jsplan or by another client, and the files do not say so.",
        "Look for the lost messages in mirrors, sources, archives and backups before you apply. "
        "Resume a consumer with `nats consumer resume`.",
    ),
    "JS477": CodeText(
        "`status` could not read the state.",
        "The state is where it cannot be reached, or damaged. What the domains answer needs no "
        "state; what is managed does.",
        "Nothing, if the domain of the state is down: look at it first.",
    ),
    "JS478": CodeText(
        "A new mirror or source reads another account over an import.",
        "Whether the accounts export and import all that it needs shows only when it is tried. "
        "Without that it copies nothing, and the apply succeeds all the same.",
        "Run `jsplan access --check` before or after the apply.",
    ),
    "JS479": CodeText(
        "An environment has no state, and the workspace without one has.",
        "The files got `environments:` after they were applied. Each environment has a state of "
        "its own, so everything would be imported again, without the history.",
        "Move it into the environment that it belongs to: `jsplan state take -e NAME`.",
    ),
    "JS480": CodeText(
        "A domain is offline for longer than its `may_be_offline`.",
        "Its link or its server is down. Changes to it stay deferred.",
        "Bring the site back, or raise `may_be_offline`.",
    ),
    "JS481": CodeText(
        "A stream drops messages before its domain must be online again.",
        "Its limits are reached sooner than `may_be_offline`, so every mirror and source "
        "misses these messages.",
        "Raise the limit of the stream, or lower `may_be_offline`.",
    ),
    "JS482": CodeText(
        "A domain has never answered.",
        "Its name is wrong, or its site is not installed yet.",
        "Check the name with `jsplan domains discover`. If the name is right, its resources "
        "stay deferred.",
    ),
    "JS483": CodeText(
        "A mirror or source could not follow its recreated origin.",
        "The origin begins at a `first_seq` that the mirror has passed, becomes the mirror of a "
        "stream that has fewer sequences, gets another filter, or comes from a backup that has "
        "fewer. A mirror stands still until its origin passes its own last sequence, "
        "and a mirror cannot begin at a higher one. So does a source before nats-server 2.15, or "
        "where the backup is older.",
        "Replace the mirror in the same plan, or remove it first.",
    ),
    "JS484": CodeText(
        "A bucket has no capacity for the entries that the plan writes.",
        "A bucket refuses what exceeds its `max_bytes`. The plan counts what is there and the new "
        "values.",
        "Raise `max_bytes`, or remove entries first.",
    ),
    "JS485": CodeText(
        "The replicas of streams could not be compared.",
        "The connection to the system account does not answer, or is of another account.",
        "Correct `system` of the domain, or the user of that connection.",
    ),
    "JS486": CodeText(
        "A new source may begin late, and leave out messages of its origin.",
        "A server begins a source no earlier than the last message of its stream was stored, if "
        "the source has a start time, or if the stream has deleted its first messages when it "
        "hears of its origin. A plan gives a source its sequence, `opt_start_seq`, where it is "
        "known and does no harm.",
        "Apply when the origin answers, or set `opt_start_seq`.",
    ),
    "JS489": CodeText(
        "`revert` also takes back a later change.",
        "The resource was changed after the apply that is being reverted. The plan shows every "
        "field that gets its old value back.",
        "Nothing, if that is wanted. Otherwise leave the resource out with `--exclude`.",
    ),
    "JS490": CodeText(
        "A mute of drift has expired.",
        "Its `until` has passed, so what it covered is reported again.",
        "Correct the drift, set another date, or remove the mute.",
    ),
    "JS491": CodeText(
        "`revert` cannot bring back what an apply deleted or moved.",
        "Deleted messages and lost positions are not in the history.",
        "Restore a backup if there is one. The message prints the command.",
    ),
    "JS492": CodeText(
        "After a `revert` the files still contain the reverted change.",
        "`revert` changes servers, not files. The next apply would make the change again.",
        "Change the files too, for example with `git revert`.",
    ),
    "JS493": CodeText(
        "`revert` leaves a part of the apply unchanged.",
        "That part cannot be undone, or needs no undoing. The message says why.",
        "Nothing, or undo that part by hand.",
    ),
    "JS494": CodeText(
        "`revert` removes a resource from the state and leaves it on the server.",
        "The apply that is being reverted had adopted it.",
        "Nothing. Adopt it again if you want to manage it.",
    ),
    "JS495": CodeText(
        "A stream or bucket cannot be relocated.",
        "Its configuration, its server or what is at the new address prevents it. The message "
        "says what. Nothing is deleted and created instead.",
        "The message says what to do instead.",
    ),
    "JS496": CodeText(
        "The relocation of a stream was interrupted.",
        "An earlier apply stopped between two steps. The message says where the messages are.",
        "Run `jsplan apply`: it continues. To go back, declare the stream under its old "
        "address again, without the `relocate` entry.",
    ),
    "JS497": CodeText(
        "The relocation of a stream is prepared.",
        "`jsplan apply --stage prepare` made a copy, which follows the stream until the cut-over.",
        "Nothing, or finish it: `jsplan apply --stage cutover`.",
    ),
    "JS498": CodeText(
        "How a relocated stream is copied, and about how long that takes.",
        "A mirror copies while publishers write. A snapshot, where no mirror can, lets them wait. "
        "The rates were measured on one machine; a link may be slower.",
        "Nothing, or choose a time for the cut-over.",
    ),
    "JS499": CodeText(
        "The `position` of a consumer cannot be set now.",
        "Its stream is replaced or relocated by the same plan, or deletes what its consumers have "
        "processed, or has no such sequence. The message says which.",
        "Read the message. Without `position` the rest of the plan can be applied.",
    ),
}  # fmt: skip
