"""The `err_code` of answers of nats-server that jsplan reacts to (server_semantics 1 to 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: A cluster has too few servers for the replicas, or none with the placement.
NO_SUITABLE_PEERS: Final = 10005
#: A cluster has no leader, for example while its servers start.
CLUSTER_NOT_AVAILABLE: Final = 10008
CONSUMER_NOT_FOUND: Final = 10014
#: The stream, or the account, has no place for another consumer or stream.
MAX_CONSUMERS_REACHED: Final = 10026
MAX_STREAMS_REACHED: Final = 10027
#: The request is not the JSON that the server expects, for example with a field it does not know.
INVALID_JSON: Final = 10025
NO_MESSAGE: Final = 10037
NOT_ENABLED_FOR_ACCOUNT: Final = 10039
STORE_NOT_CREATED: Final = 10049
#: The server's store, or the account, has no capacity for the `max_bytes` of the stream.
NO_STORAGE: Final = 10047
NO_MEMORY: Final = 10028
#: The name is in use, by a stream with another configuration.
STREAM_EXISTS: Final = 10058
STREAM_NOT_FOUND: Final = 10059
RESTORE_FAILED: Final = 10062
SNAPSHOT_FAILED: Final = 10064
SUBJECTS_OVERLAP: Final = 10065
#: The condition of a publish does not hold.
WRONG_LAST_SEQUENCE: Final = 10071
#: A single server has no replicas.
NO_CLUSTER: Final = 10074
NOT_ENABLED: Final = 10076
#: No server of the cluster that has the object answers.
STREAM_WITHOUT_SERVER: Final = 10118
CONSUMER_WITHOUT_SERVER: Final = 10119
#: The account has no limits for this number of replicas.
NO_LIMITS_FOR_REPLICAS: Final = 10120
#: The name of a stream to restore is in use.
RESTORED_STREAM_EXISTS: Final = 10130
#: A consumer to update does not exist.
UPDATED_CONSUMER_NOT_FOUND: Final = 10149
#: As `WRONG_LAST_SEQUENCE`: a cluster answers it during another publish.
WRONG_LAST_SEQUENCE_CLUSTER: Final = 10164
#: The stream has a setting that the server does not know.
STREAM_OFFLINE: Final = 10194
#: The deliver_policy of the consumer forbids the reset.
RESET_REFUSED: Final = 10204
#: A downstream stream waits for flow control (since 2.15).
FLOW_CONTROL_WAIT: Final = 10228

#: The object may exist and cannot be read.
UNREADABLE: Final = (
    CLUSTER_NOT_AVAILABLE,
    STREAM_WITHOUT_SERVER,
    CONSUMER_WITHOUT_SERVER,
    STREAM_OFFLINE,
)
#: The object of a request is gone, alone or with its stream.
NOT_FOUND: Final = (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND)

#: What to do about a step that the server refused, by `err_code`.
REFUSAL_HINTS: Final[Mapping[int, str]] = {
    SUBJECTS_OVERLAP: "Another stream stores one of its subjects: nats stream ls --subject SUBJECT "
    "shows which. Change the subjects, or import or delete that stream",
    STREAM_EXISTS: "Another client created it with another configuration: plan again, and adopt it "
    "with --adopt or choose another name",
    NO_SUITABLE_PEERS: "Ask for fewer replicas or another placement, or start the servers for it",
    NO_STORAGE: "Lower max_bytes, or raise the limit",
    NO_MEMORY: "Lower max_bytes, or raise the limit",
    MAX_CONSUMERS_REACHED: "Raise max_consumers, or delete a consumer that no client uses",
    MAX_STREAMS_REACHED: "Raise the limit of the account, or delete a stream that no client uses",
}
#: The same of any other refusal.
REFUSAL_HINT: Final = (
    "Change what the files declare, and apply again: plan --rehearse tries a plan on servers of its "
    "own first"
)
