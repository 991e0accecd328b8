"""The stable codes of hazards and of everything that is found: the documentation is generated from these tables.

JS1xx are found in the files, JS2xx belong to lint, JS3xx stop an apply that is sound otherwise, JS4xx are found
when the files meet servers and state. The findings themselves are made where they are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The closed list of hazards (contract, section 4), and whether each blocks an apply that nobody allowed it.
HAZARDS: Final[Mapping[str, bool]] = {
    "DELETES_STREAM": True, "DELETES_MESSAGES": True, "LOSES_CONSUMER_POSITION": True, "DELETES_CONSUMER": True,
    "BREAKS_REPLICATION": True, "REMOVES_SUBJECTS": True, "IRREVERSIBLE": True, "DUPLICATES_MESSAGES": True,
    "REDUCES_REPLICAS": False, "MOVES_DATA": False,
}  # fmt: skip

IN_FILES: Final[Mapping[str, str]] = {
    # reading
    "JS100": "A file cannot be read: missing, a folder, no permission, or not UTF-8.",
    "JS101": "A file is not valid YAML or JSON.",
    "JS102": "A file is empty.",
    "JS103": "The same key is written twice.",
    "JS104": "A value has the wrong shape: a list where a mapping is expected, a number where text is.",
    "JS105": "A key is unknown.",
    "JS106": "A key that must be there is missing.",
    "JS107": "The format version (`jsplan:`) is not one that this release reads.",
    "JS108": "The workspace's name is missing or not allowed.",
    "JS109": "An `include` names a file that does not exist, or matches nothing.",
    "JS110": "The same thing is declared twice.",
    # variables and environments
    "JS111": "`${…}` names something that does not exist.",
    "JS112": "`${env.X}` is used outside of connections, backend and sinks.",
    "JS113": "`${…}` is malformed, or stands where it cannot.",
    "JS114": "A variable has no default and was not given.",
    "JS115": "A variable was given that the workspace does not have.",
    "JS116": "A variable's value does not fit the type of its default.",
    "JS117": "An environment must be chosen, or the chosen one does not exist.",
    "JS118": "A resource names an environment that the workspace does not have.",
    # connections and domains
    "JS120": "A connection is contradictory.",
    "JS121": "A domain's name or range is not allowed.",
    "JS122": "A connection or a domain is named that does not exist.",
    "JS123": "Two domains are the same JetStream.",
    "JS124": "A selector matches no domain.",
    "JS125": "A mirror names more or less than one domain.",
    "JS126": "The workspace has no domains.",
    "JS127": "A resource does not say its domain, and there are several.",
    "JS128": "The backend is contradictory.",
    # resources
    "JS130": "A field's value is not one that JetStream takes.",
    "JS131": "A name is not allowed.",
    "JS132": "A bucket's stream is declared as a stream.",
    "JS133": "A name belongs to the server or to jsplan.",
    "JS134": "`name` and `durable_name` of a consumer contradict each other, or `inactive_threshold` is missing.",
    "JS135": "A `config_file` cannot be used.",
    "JS136": "`x_raw` names a field that this release knows.",
    "JS137": "A mirror or source names its origin twice, by `domain` and by `external`.",
    "JS140": "A `lifecycle` or `lint` entry of a resource is wrong.",
    "JS141": "A hazard code does not exist.",
    "JS142": "A date is not one.",
    "JS143": "An address or a glob is malformed.",
    "JS144": "A `moved` or `removed` entry contradicts what is declared.",
    "JS145": "An override, or a `depends_on`, matches no resource.",
    # what the server is known to refuse
    "JS150": "A mirror also has subjects, sources, a first sequence, or what a mirror cannot do.",
    "JS151": "An origin has both a filter and subject transforms, or filters that overlap.",
    "JS152": "A source is listed twice, or is the stream itself.",
    "JS153": "`duplicate_window` is longer than `max_age`, or a time is shorter than 100ms.",
    "JS154": "`discard_new_per_subject` lacks what it needs.",
    "JS156": "A subject is malformed, or overlaps with another of the same stream.",
    "JS157": "Subjects that catch the server's own need `no_ack: true`, all subjects one copy.",
    "JS158": "A placement names a preferred server.",
    "JS160": "`deny_purge` and `allow_rollup_hdrs` exclude each other.",
    "JS161": "A counter stream has what a counter cannot have.",
    "JS162": "A stream with sources cannot schedule messages.",
    "JS163": "`persist_mode: async` does not go with this storage, replicas or batches.",
    "JS164": "A delete marker lives shorter than a second.",
    "JS165": "An `external` prefix overlaps with the JetStream API, or has wildcards.",
    "JS166": "The consumer that a mirror or source uses is incomplete, or contradicts its other settings.",
    "JS167": "A subject transform cannot be carried out.",
    "JS168": "A republish forms a cycle, or cannot be carried out.",
    "JS169": "Metadata is too large.",
    "JS170": "A consumer has both `filter_subject` and `filter_subjects`, or filters that overlap.",
    "JS171": "`deliver_policy` and `opt_start_*` do not fit together.",
    "JS172": "A pull consumer has what only a push consumer can have, or the other way round.",
    "JS173": "Flow control without a heartbeat, or a heartbeat shorter than 100ms.",
    "JS174": "`max_deliver` is less than the number of `backoff` waits, or `flow_control` acknowledgements have either.",
    "JS175": "Priority groups and their policy do not fit together.",
    "JS176": "A consumer of a work queue does not fit the queue.",
    "JS190": "Understood, but not carried out by this release.",
}

#: What is found when the files meet the servers and the state.
AGAINST_SERVERS: Final[Mapping[str, str]] = {
    "JS401": "`depends_on` names something that is in no file.",
    "JS402": "A mirror or source refers to a domain whose server has no JetStream domain, so it cannot be reached by `$JS.<domain>.API`.",
    "JS403": "A stream is a mirror or source of itself.",
    "JS404": "Resources wait for each other by `depends_on` alone.",
    "JS405": "One thing on a server is declared by two ways to it (`same_as`).",
    "JS410": "A domain answers as another server, and none of its managed objects is there: the wrong environment?",
    "JS411": "Something that left the files was made again by somebody else: it is forgotten, not deleted.",
    "JS412": "The server accepts a change and does nothing with it; it is not sent.",
    "JS413": "A field needs a newer nats-server than the domain has.",
    "JS414": "State has resources in a domain that is no longer declared; the message prints the blocks that settle it.",
    "JS415": "A stream exists on its server but is offline there, because it uses a feature that this server does not know.",
    "JS416": "A consumer's stream neither exists nor is planned.",
    "JS417": "`--target`, `--exclude` or `--replace` names nothing in the files or in state.",
    "JS418": "What is to be imported is in no file.",
    "JS419": "What is to be imported is managed already.",
    "JS420": "What is to be imported does not exist on the server.",
    "JS421": "Other settings decide a field that the files name; what the server makes of it is said, and not sent again.",
    "JS430": "More copies than the server or the stream has, or others than the stream's retention wants.",
    "JS431": "A stream cannot be made sealed; only one that exists can be sealed.",
    "JS432": "`mirror_direct` on something that is no mirror.",
    "JS433": "A consumer exceeds the `consumer_limits` of its stream, or cannot have what they give it.",
    "JS434": "A push consumer delivers to a subject that its stream stores.",
    "JS435": "`deliver_subject` cannot change while somebody listens on the old one.",
    "JS436": "`consumer_limits` would be below what existing consumers have.",
    "JS437": "A copy takes only smaller messages than its origin in the same JetStream.",
    "JS438": "Two streams of one domain would store the same subject.",
    "JS439": "More consumers than the stream's `max_consumers`.",
    "JS440": "More streams than the account may have, or a number of copies that it has no limits for.",
    "JS441": "More storage or memory reserved by `max_bytes` than the account may have.",
    "JS442": "More consumers on one stream than the account or the server allows.",
    "JS443": "`max_bytes` is required by the account, or larger than it allows one stream.",
    "JS444": "`max_ack_pending` is more than the account allows.",
    "JS301": "`prevent_destroy` guards something that would be deleted.",
    "JS302": "Something exists, is not ours, and differs from the files: `--adopt` is needed.",
    "JS303": "A replacement is needed, and `on_replace` does not allow the way that this release has (`recreate`).",
}

CODES: Final[Mapping[str, str]] = {**IN_FILES, **AGAINST_SERVERS}
