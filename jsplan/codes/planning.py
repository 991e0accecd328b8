"""JS301 to JS449: found when the files meet the servers and the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.codes.text import CodeText

PLANNING: Final[Mapping[str, CodeText]] = {
    "JS301": CodeText(
        "`prevent_destroy` protects a resource that the plan would delete or replace.",
        "Its `lifecycle` has `prevent_destroy: true`. The state keeps that even after the "
        "resource left the files.",
        "Keep the resource as it was, or write `prevent_destroy: false` in its lifecycle or "
        "in a `removed` entry.",
    ),
    "JS302": CodeText(
        "A resource exists on the server, is not managed yet, and differs from the files.",
        "It was created outside jsplan, or the state was lost. jsplan does not change it "
        "without permission.",
        "Pass `--adopt` to change it, or write into the files what the server has.",
    ),
    "JS303": CodeText(
        "A resource must be replaced, and that is not allowed or not possible.",
        "The server cannot change the field in place, and `on_replace` is `refuse`, or "
        "`preserve` cannot keep the data. The message says which.",
        "Take the change back, or set `lifecycle: {on_replace: recreate}` to lose the data or "
        "`preserve` to keep it.",
    ),
    "JS304": CodeText(
        "A restore would overwrite something that exists.",
        "The target exists and differs from the backup.",
        "Delete it first, choose another target with `--as`, or leave it out with `--exclude`.",
    ),
    "JS305": CodeText(
        "A domain answers, but none of its managed resources is there (DOMAIN_REINSTALLED).",
        "Its storage was lost or its server was replaced.",
        "Check that the connection leads to the right server. Then pass `--reinstalled "
        "DOMAIN` to create all of it again.",
    ),
    "JS306": CodeText(
        "A resource carries the owner tag of another workspace.",
        "With `ownership: {marker: true}` jsplan changes only resources that carry its own "
        "tag. The tag names the other workspace, or another state of this one.",
        "Remove it from one of the two workspaces, or hand it over with a `removed` entry there.",
    ),
    "JS401": CodeText(
        "`depends_on` names a resource that is in no file.",
        "The address is misspelled, or the resource was removed.",
        "Correct the address, or remove the line.",
    ),
    "JS402": CodeText(
        "A mirror or source refers to a domain that cannot be reached from its own domain.",
        "jsplan cannot find out the API prefix: a domain has no JetStream name, or both have "
        "the same one.",
        "Give the domains different names, or add an `imports` row.",
    ),
    "JS403": CodeText(
        "A stream is a mirror or source of itself.",
        "The origin has the same name and the same domain.",
        "Name another stream, or another domain.",
    ),
    "JS404": CodeText(
        "Resources depend on each other in a circle.",
        "Their `depends_on` entries leave none that could be first.",
        "Remove one of the `depends_on` entries.",
    ),
    "JS405": CodeText(
        "One object is declared twice, under two names of its domain.",
        "The second domain is only another way to the first one (`same_as`).",
        "Declare the object in one of the two domains.",
    ),
    "JS406": CodeText(
        "Mirrors form a circle.",
        "Each of them waits for messages of another, and none stores messages itself.",
        "Give one of them subjects instead of `mirror:`.",
    ),
    "JS407": CodeText(
        "Sources form a circle that multiplies messages.",
        "Each stream reads from the next one without a filter that ends it. Within one domain "
        "the server refuses it; across domains nothing stops it.",
        "Remove one source, or give the sources filters that do not overlap.",
    ),
    "JS408": CodeText(
        "Sources form a circle, and some messages may be copied without end.",
        "Filters or transforms let some subjects pass all the way round.",
        "Give the sources filters that do not overlap.",
    ),
    "JS409": CodeText(
        "An `external` prefix leads back to its own domain.",
        "The server accepts it and copies nothing.",
        "Remove `external`, or write `domain:`.",
    ),
    "JS410": CodeText(
        "A domain answers as another server, and none of its managed resources is there.",
        "The environment or connection is probably the wrong one, or the server was replaced.",
        "Check `-e` and the connection. If the server was replaced: `jsplan state rm "
        "'DOMAIN/**'`.",
    ),
    "JS411": CodeText(
        "A resource that left the files was created again outside jsplan.",
        "What is on the server is not the object that jsplan created.",
        "Nothing. jsplan removes it from the state and leaves the object on the server.",
    ),
    "JS412": CodeText(
        "The server accepts a change and ignores it.",
        "Only a new object would get this value, so jsplan does not send it.",
        "Put the old value back, or replace the resource with `--replace`.",
    ),
    "JS413": CodeText(
        "A field needs a newer nats-server than the domain runs, or no known release has it.",
        "Each field exists since a release, and this server does not report it. In `x_raw`, the "
        "name may be that of a client library.",
        "Upgrade the server, or remove the field.",
    ),
    "JS414": CodeText(
        "The state has resources in a domain that is no longer declared.",
        "The domain was renamed or removed.",
        "Add one of the blocks that the message prints: `moved` for a new name, `removed` to "
        "leave the resources there.",
    ),
    "JS415": CodeText(
        "A stream or consumer exists and cannot be read.",
        "No server of its cluster that has it answers, or it uses a feature that the server does "
        "not know, usually after a downgrade.",
        "Start one of these servers, or upgrade the server again.",
    ),
    "JS416": CodeText(
        "The stream of a consumer neither exists nor is planned.",
        "The name is misspelled, or the stream was removed from the files.",
        "Declare the stream, or correct the name.",
    ),
    "JS417": CodeText(
        "`--target`, `--exclude` or `--replace` matches nothing.",
        "The address is neither in the files nor in the state.",
        "Correct the address. `jsplan state list` shows what is managed.",
    ),
    "JS418": CodeText(
        "A resource that should be imported is in no file.",
        "jsplan imports what the files declare.",
        "Declare it, or let `jsplan import --generate-config FILE` write the declaration.",
    ),
    "JS419": CodeText(
        "A resource that should be imported is already managed.",
        "The state has it.",
        "Nothing; leave it out of the import.",
    ),
    "JS420": CodeText(
        "A resource that should be imported does not exist on the server.",
        "The address is wrong, or the object was deleted.",
        "Correct the address, or create the resource with `jsplan apply`.",
    ),
    "JS421": CodeText(
        "Another setting overrides a field of the files.",
        "The server replaces the value, as with `ack_wait`, which becomes the first wait of "
        "`backoff`. jsplan does not send it again.",
        "Remove the field, or the setting that overrides it.",
    ),
    "JS422": CodeText(
        "A changed filter or max_deliver keeps messages from a consumer.",
        "The consumer does not go back to messages that it has passed, and no longer gets "
        "those that the new filter excludes. A lower `max_deliver` also counts for messages that "
        "workers have now: what was delivered that often is not delivered again.",
        "Let the consumer finish first, or create another consumer for these messages.",
    ),
    "JS423": CodeText(
        "A consumer is replaced and keeps its position.",
        "The field cannot change in place. Some settings, such as the start position, have no "
        "effect on it.",
        "Read the message. To start from the beginning instead: `lifecycle: {on_replace: "
        "recreate}`.",
    ),
    "JS424": CodeText(
        "A replacement, or an exchange of subjects or filters, was interrupted.",
        "An earlier apply stopped between two steps. The message says where the messages of a "
        "stream are, which publishes are rejected, and whether a consumer is given nothing. It is "
        "an error where state has no record of that apply, since it was lost.",
        "Run `jsplan apply`: it resumes what was interrupted. If it cannot, the message says why.",
    ),
    "JS425": CodeText(
        "A stream is replaced or relocated and keeps its messages.",
        "It becomes a new stream, which has side effects, such as a new duplicate window.",
        "Read the message before you apply.",
    ),
    "JS426": CodeText(
        "A downstream stream was not seen to replicate after its origin was replaced.",
        "It is offline, or it did not catch up while jsplan watched.",
        "Run `jsplan drift` later; it checks the replication again.",
    ),
    "JS427": CodeText(
        "A `moved` entry names another domain, and the object is still in the old one.",
        "`moved` gives a domain a new name. It moves nothing between servers.",
        "Remove the entry, and use a backfill or a backup to move the messages.",
    ),
    "JS428": CodeText(
        "An interrupted replacement may have left an orphan on a server.",
        "jsplan created a staging stream or a placeholder consumer and did not get to delete it.",
        "Run `jsplan apply`: it deletes the orphan.",
    ),
    "JS429": CodeText(
        "`--allow-hazard CODE:ADDR` matches nothing.",
        "The address is neither in the files nor in state nor on the server, so it is probably "
        "misspelled. A glob without a match is only a warning.",
        "Correct or remove the flag. The plan prints each flag that it needs.",
    ),
    "JS430": CodeText(
        "The number of replicas is not possible.",
        "The domain has fewer servers, or a consumer would have more replicas than its stream "
        "or others than its retention needs.",
        "Lower `num_replicas`; at a consumer, leave it out.",
    ),
    "JS431": CodeText(
        "A stream cannot be created sealed.",
        "Only a stream that exists can be sealed.",
        "Leave `sealed` out, fill the stream, and add it then.",
    ),
    "JS432": CodeText(
        "`mirror_direct` is set on a stream that is no mirror.",
        "The server refuses it.",
        "Remove it, or add `mirror:`.",
    ),
    "JS433": CodeText(
        "A consumer exceeds the `consumer_limits` of its stream.",
        "The stream limits `max_ack_pending` or `inactive_threshold` of all its consumers.",
        "Lower the value at the consumer, or raise the limit of the stream.",
    ),
    "JS434": CodeText(
        "A push consumer delivers to a subject that its stream stores.",
        "Each delivered message would be stored and delivered again.",
        "Use a `deliver_subject` that the stream does not store.",
    ),
    "JS435": CodeText(
        "`deliver_subject` cannot change while a client listens on the old one.",
        "The server refuses the change as long as the consumer is active.",
        "Stop the subscribers first, or replace the consumer with `--replace`.",
    ),
    "JS436": CodeText(
        "`consumer_limits` are lower than what existing consumers have.",
        "The server refuses a limit that an existing consumer exceeds. Before nats-server 2.14 a "
        "limit that is not set counts as 0.",
        "Lower the value at these consumers first, or raise the limit.",
    ),
    "JS437": CodeText(
        "A mirror or source accepts only smaller messages than its origin.",
        "Both are in the same JetStream, where the server checks `max_msg_size`.",
        "Leave `max_msg_size` out, or lower that of the origin first.",
    ),
    "JS438": CodeText(
        "Two streams of one domain would store the same subject.",
        "In a domain each subject belongs to at most one stream. `validate` finds it where the "
        "files declare both. In a plan, the other stream may be in no file of yours.",
        "Narrow the subjects of one stream, or let the second read from the first with "
        "`sources:`.",
    ),
    "JS439": CodeText(
        "A stream would have more consumers than its `max_consumers`.",
        "Consumers that jsplan does not manage count too. Before nats-server 2.15 the server also "
        "needs a place to read the stream, for a mirror, a source or a replacement.",
        "Raise `max_consumers`, or remove consumers.",
    ),
    "JS440": CodeText(
        "The account has no capacity for these streams.",
        "The limit `max_streams` is reached, or the account has no limits for this number of "
        "replicas.",
        "Delete streams, raise the limit of the account, or use another `num_replicas`.",
    ),
    "JS441": CodeText(
        "The account has no capacity for these reservations.",
        "`max_bytes` of all streams together exceeds the storage or memory of the account.",
        "Lower `max_bytes`, or raise the limit of the account.",
    ),
    "JS442": CodeText(
        "A stream would have more consumers than the account or server allows.",
        "The limit `max_consumers` of the account or server counts for each stream.",
        "Remove consumers, or split the stream.",
    ),
    "JS443": CodeText(
        "`max_bytes` does not fit the limits of the account.",
        "The account requires it for every stream, or allows only smaller streams.",
        "Add or lower `max_bytes`, or change the limits of the account.",
    ),
    "JS444": CodeText(
        "`max_ack_pending` exceeds what the account allows.",
        "The account limits it for all consumers.",
        "Lower it, or leave it out to get the highest value that is allowed.",
    ),
    "JS445": CodeText(
        "This version of the server refuses two settings together.",
        "Schedules exclude `discard: new` (only 2.12 accepted both), and counters exclude "
        "delete markers.",
        "Remove one of the two settings.",
    ),
    "JS446": CodeText(
        "Priority groups or a priority timeout have no policy.",
        "nats-server 2.12 and later refuse that.",
        "Add `priority_policy:`, or remove the setting.",
    ),
    "JS447": CodeText(
        "Other streams and consumers of a domain cannot be listed.",
        "The user may not send the list requests, so conflicts and unmanaged resources stay "
        "unknown. An error of `status` says that its own cannot be read either.",
        "Allow the user STREAM.NAMES, STREAM.LIST and CONSUMER.LIST, or INFO of its own.",
    ),
    "JS448": CodeText(
        "The retention of an origin is unknown, so reading it may remove messages there.",
        "The origin cannot be read, and neither files nor state say what it is.",
        "Check its retention. With `workqueue` or `interest` it gives up what is copied.",
    ),
    "JS449": CodeText(
        "An interest stream stores nothing for a stream that is recreated.",
        "Its server acknowledges messages that no consumer wants, and drops them. A stream that is "
        "recreated, or whose sources are detached, does not read meanwhile.",
        "Change the origin to limits retention before, or stop its publishers for that time.",
    ),
}  # fmt: skip
