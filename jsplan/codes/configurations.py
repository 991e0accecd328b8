"""JS150 to JS183: settings that servers refuse, and findings of `jsplan convert`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.codes.text import CodeText

CONFIGURATIONS: Final[Mapping[str, CodeText]] = {
    "JS150": CodeText(
        "A mirror has a setting that mirrors cannot have.",
        "Subjects, sources, a first sequence and some other fields need a stream that stores "
        "messages itself.",
        "Remove the field, or use `sources:` instead of `mirror:`.",
    ),
    "JS151": CodeText(
        "The filters of a mirror or source are wrong.",
        "An origin takes either a filter or subject transforms, and filters may not overlap.",
        "Keep the transforms, whose `src` filters too, or keep the wider one of two filters.",
    ),
    "JS152": CodeText(
        "A source is listed twice, or is the stream itself.",
        "The server refuses both.",
        "Remove one entry, give the two different filters, or name another stream or domain.",
    ),
    "JS153": CodeText(
        "A duration is too short, or `duplicate_window` is longer than `max_age`.",
        "The server takes 100ms or more. An integer is nanoseconds, so 30 is not 30 seconds.",
        "Write the unit, as in `30s`, and keep `duplicate_window` within `max_age`.",
    ),
    "JS154": CodeText(
        "`discard_new_per_subject` lacks another setting.",
        "It needs `discard: new` and `max_msgs_per_subject`.",
        "Add them, or remove `discard_new_per_subject`.",
    ),
    "JS156": CodeText(
        "A subject is malformed, or two subjects of one stream overlap.",
        "A subject has no blanks and no empty parts, and `>` stands only at its end.",
        "Correct the subject, or keep the wider one of the two.",
    ),
    "JS157": CodeText(
        "A stream captures subjects of the server.",
        "A stream that stores `>` or `$JS.>` would store requests of the API and answer them "
        "with acknowledgements.",
        "Narrow the subjects, or set `no_ack: true`; a stream of all subjects also needs "
        "`num_replicas: 1`.",
    ),
    "JS158": CodeText(
        "A placement names a preferred server.",
        "The server takes `preferred` only as a request to move the leader, not in a "
        "configuration.",
        "Use `tags`. To spread leaders over the servers: `nats stream cluster balance`.",
    ),
    "JS159": CodeText(
        "A `position` does not say where the consumer is to be set.",
        "It needs exactly one of `seq`, `time` and `new: true`, and the word `once`.",
        "Write `position: {seq: 1234, once: WORD}`, with a new word for each reset.",
    ),
    "JS160": CodeText(
        "`deny_purge` and `allow_rollup_hdrs` exclude each other.",
        "A rollup purges older messages.",
        "Remove one of them.",
    ),
    "JS161": CodeText(
        "A counter stream has a setting that counters cannot have.",
        "The server refuses it together with `allow_msg_counter`.",
        "Remove the field that the message names, or `allow_msg_counter`.",
    ),
    "JS162": CodeText(
        "A stream with sources cannot schedule messages.",
        "The server refuses `allow_msg_schedules` beside `sources`.",
        "Remove one of them.",
    ),
    "JS163": CodeText(
        "`persist_mode: async` is combined with a setting that excludes it.",
        "It works only with one replica on disk, and without atomic batches.",
        "Remove one of the two settings.",
    ),
    "JS164": CodeText(
        "A delete marker expires in less than a second.",
        "The server takes `subject_delete_marker_ttl` of 1s or more.",
        "Write 1s or more, with its unit.",
    ),
    "JS165": CodeText(
        "An `external` prefix is not allowed.",
        "It overlaps with `$JS.API`, or it has wildcards.",
        "Write `domain:` instead, or a prefix such as `$JS.DOMAIN.API`.",
    ),
    "JS166": CodeText(
        "The consumer that a mirror or source uses is incomplete, contradictory, or used twice.",
        "The owner of the origin made this consumer, so it already has the filter and the "
        "start position.",
        "Name the consumer, and remove the other settings that the message lists. Give each "
        "source a consumer of its own.",
    ),
    "JS167": CodeText(
        "A subject transform is not valid.",
        "Its wildcards do not fit its destination, or the destination is no subject.",
        "Correct `src` or `dest`. Each `{{wildcard(N)}}` must refer to a `*` of `src`.",
    ),
    "JS168": CodeText(
        "A republish is not valid, or returns to its own stream.",
        "The destination is stored by the same stream, or does not fit its wildcards.",
        "Use another prefix for the destination.",
    ),
    "JS169": CodeText(
        "The metadata of a resource is too large.",
        "The server takes 128 KiB for all keys and values together.",
        "Keep documents elsewhere, and put a reference into the metadata.",
    ),
    "JS170": CodeText(
        "The filters of a consumer are wrong.",
        "It has both `filter_subject` and `filter_subjects`, or filters that overlap or are "
        "no subjects.",
        "Put all filters into `filter_subjects`, and keep the wider one of two that overlap.",
    ),
    "JS171": CodeText(
        "`deliver_policy` and the start position contradict each other.",
        "`by_start_sequence` needs `opt_start_seq`, `by_start_time` needs `opt_start_time`, "
        "and the others take neither.",
        "Add the missing field, or remove the one that does not belong there.",
    ),
    "JS172": CodeText(
        "A consumer mixes settings of pull and push.",
        "Some fields exist only with `deliver_subject` (push), others only without it (pull).",
        "Remove the field, or change between pull and push.",
    ),
    "JS173": CodeText(
        "A heartbeat is missing or too short.",
        "`flow_control` needs `idle_heartbeat`, and the server takes 100ms or more.",
        "Add `idle_heartbeat: 5s`.",
    ),
    "JS174": CodeText(
        "`max_deliver`, `backoff` and `ack_policy` contradict each other.",
        "`max_deliver` must allow as many deliveries as `backoff` has waits, and `ack_policy: "
        "flow_control` takes neither.",
        "Raise `max_deliver`, shorten `backoff`, or remove both.",
    ),
    "JS175": CodeText(
        "Priority groups and their policy contradict each other.",
        "A policy needs groups, and groups exist only for pull consumers.",
        "Add `priority_groups: [NAME]`, or remove the priority settings.",
    ),
    "JS176": CodeText(
        "A consumer does not fit its work queue.",
        "In a work queue each message belongs to one consumer, which acknowledges it "
        "explicitly and reads from the beginning.",
        "Write `ack_policy: explicit`, leave `deliver_policy` out, and use filters that do "
        "not overlap.",
    ),
    "JS180": CodeText(
        "A setting of another tool is not converted.",
        "jsplan has no setting for it, or two files contradict each other.",
        "Read the message, and add the setting by hand where you need it.",
    ),
    "JS181": CodeText(
        "A default of another tool differs from the server's default.",
        "The other tool sends this value even where its file does not name it. jsplan writes "
        "it out so that nothing changes.",
        "Nothing, or remove the line to use the server's default.",
    ),
    "JS182": CodeText(
        "A part of another tool's file cannot be read.",
        "It is malformed, a template, or in a format that only that tool reads.",
        "Read the message: it says what to give instead.",
    ),
    "JS183": CodeText(
        "A converted setting has a side effect that is worth knowing.",
        "Both tools treat the setting differently.",
        "Read the message. The converted file is valid.",
    ),
}  # fmt: skip
