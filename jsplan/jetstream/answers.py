"""Shapes of the answers of servers, as far as jsplan reads them.

They only check: an answer that fits stays plain data. Unknown fields fit, and so do unknown words
in known fields. No field may be null: `answer_schema` removes those that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import new_class
from typing import Any, Final, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType, defstruct

from jsplan.documents.configs import field_type
from jsplan.documents.types import Instant, Name, UInt64, kept
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.fields import Table
from jsplan.resources.nested import NAME

#: Not verbs of the JetStream API: the answer to the end of a restore, and system requests.
RESTORE_DONE, USER_INFO, ACCOUNT_INFO, SERVER_SETTINGS = (
    "STREAM.RESTORE",
    "$SYS.REQ.USER.INFO",
    "$SYS.REQ.SERVER.*.ACCOUNTZ",
    "$SYS.REQ.SERVER.*.VARZ",
)
#: They list the public keys of the accounts that the servers know, and change one.
CLAIMS_LIST, CLAIMS_UPDATE, CLAIMS_DELETE = (
    "$SYS.REQ.CLAIMS.LIST",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.CLAIMS.DELETE",
)
#: A configuration.
C = TypeVar("C")
#: An element of a list.
T = TypeVar("T")


class _Shape(Struct, gc=False):
    """A part of an answer."""


class Error(_Shape):
    """The server's error."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Refusal(_Shape):
    """An answer that is an error."""

    error: Error


class SequencePair(_Shape):
    """A position of a consumer: of its deliveries, and of the messages in the stream."""

    consumer_seq: UInt64
    stream_seq: UInt64
    last_active: Instant | UnsetType = UNSET


class ExternalInfo(_Shape):
    """The API prefix of an origin in another domain or account."""

    api: str = ""
    deliver: str = ""


class TransformInfo(_Shape):
    """A subject transform of an origin."""

    src: str = ""
    dest: str = ""


class OriginInfo(_Shape):
    """The progress of a mirror or a source."""

    name: str
    external: ExternalInfo | UnsetType = UNSET
    lag: int = 0
    active: int = 0
    seq: UInt64 = 0
    error: Error | UnsetType = UNSET
    filter_subject: str = ""
    subject_transforms: list[TransformInfo] | UnsetType = UNSET


class Peer(_Shape):
    """A replica that does not lead."""

    name: str = ""
    current: bool = False
    offline: bool = False
    active: int = 0
    lag: int = 0


class Cluster(_Shape):
    """The servers of a stream or consumer."""

    name: str = ""
    leader: str = ""
    replicas: list[Peer] | UnsetType = UNSET


class LostMessages(_Shape):
    """The messages that the server lost of a stream."""

    bytes: UInt64 = 0


class StreamState(_Shape):
    """The messages of a stream."""

    messages: UInt64
    bytes: UInt64
    first_seq: UInt64
    last_seq: UInt64
    first_ts: Instant
    last_ts: Instant
    num_subjects: UInt64 = 0
    num_deleted: UInt64 = 0
    deleted: list[UInt64] | UnsetType = UNSET
    lost: LostMessages | UnsetType = UNSET
    subjects: dict[str, UInt64] | UnsetType = UNSET
    consumer_count: UInt64 = 0


class StreamInfo(_Shape, Generic[C]):
    """One stream."""

    config: C
    created: Instant
    state: StreamState
    cluster: Cluster | UnsetType = UNSET
    mirror: OriginInfo | UnsetType = UNSET
    sources: list[OriginInfo] | UnsetType = UNSET
    total: UInt64 = 0
    ts: Instant | UnsetType = UNSET


class PriorityGroup(_Shape):
    """A priority group of a consumer."""

    group: str = ""
    pinned_client_id: str = ""


class ConsumerInfo(_Shape, Generic[C]):
    """One consumer."""

    stream_name: Name
    name: Name
    config: C
    created: Instant
    delivered: SequencePair
    ack_floor: SequencePair
    num_ack_pending: UInt64
    num_redelivered: UInt64
    num_pending: UInt64
    num_waiting: UInt64 = 0
    push_bound: bool = False
    cluster: Cluster | UnsetType = UNSET
    ts: Instant | UnsetType = UNSET
    priority_groups: list[PriorityGroup] | UnsetType = UNSET


class UnnamedConsumer(_Shape):
    """An element of CONSUMER.LIST whose servers are down (measured)."""


class Usage(_Shape):
    """Usage and limits of an account or of one of its tiers, in bytes and counts."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: UInt64 = 0
    consumers: UInt64 = 0
    limits: dict[str, int | bool] | UnsetType = UNSET


class ApiInfo(_Shape):
    """The API level of the server."""

    level: UInt64 = 0


class AccountInfo(Usage):
    """The answer to INFO."""

    domain: str = ""
    api: ApiInfo | UnsetType = UNSET
    tiers: dict[str, Usage] | UnsetType = UNSET


class StreamNames(_Shape):
    """A page of STREAM.NAMES."""

    streams: list[Name] | UnsetType = UNSET
    total: UInt64 = 0


class ConsumerNames(_Shape):
    """A page of CONSUMER.NAMES."""

    consumers: list[Name] | UnsetType = UNSET
    total: UInt64 = 0


class Unread(_Shape):
    """Unread elements of a list: they have no servers up, or the server cannot run them."""

    missing: list[Name] | UnsetType = UNSET
    offline: dict[str, str] | UnsetType = UNSET
    total: UInt64 = 0


class StreamList(Unread, Generic[T]):
    """A page of STREAM.LIST."""

    streams: list[T] | UnsetType = UNSET


class ConsumerList(Unread, Generic[T]):
    """A page of CONSUMER.LIST."""

    consumers: list[T] | UnsetType = UNSET


class StoredMessage(_Shape):
    """A message, with header block and payload in base64."""

    subject: str
    seq: UInt64
    time: Instant
    hdrs: bytes = b""
    data: bytes = b""


class MessageAnswer(_Shape):
    """The answer to STREAM.MSG.GET."""

    message: StoredMessage


class SnapshotAnswer(_Shape, Generic[C]):
    """The answer to STREAM.SNAPSHOT: the stream that is saved."""

    config: C
    state: StreamState


class RestoreAnswer(_Shape):
    """The answer to STREAM.RESTORE: the subject that takes the snapshot."""

    deliver_subject: str


class ServerId(_Shape):
    """The server that answers a system request."""

    id: str = ""


class UserData(_Shape):
    """The account of a connection."""

    account: str = ""


class UserInfo(_Shape):
    """The answer to `USER_INFO`."""

    server: ServerId | UnsetType = UNSET
    data: UserData | UnsetType = UNSET


class Grant(_Shape):
    """An export or import of an account."""

    approved_accounts: list[str] | UnsetType = UNSET


class AccountDetail(_Shape):
    """The exports and imports of an account."""

    exports: list[Grant] | UnsetType = UNSET
    imports: list[Grant] | UnsetType = UNSET


class AccountData(_Shape):
    """A report about an account."""

    account_detail: AccountDetail | UnsetType = UNSET


class AccountAnswer(_Shape):
    """The answer to `ACCOUNT_INFO`."""

    data: AccountData | UnsetType = UNSET


class OperatorKeys(_Shape):
    """The signing keys of an operator."""

    signing_keys: list[str] | UnsetType = UNSET


class OperatorClaims(_Shape):
    """The claims of an operator that a server trusts."""

    sub: str
    nats: OperatorKeys | UnsetType = UNSET


class ServerData(_Shape):
    """The settings of a server."""

    trusted_operators_claim: list[OperatorClaims] | UnsetType = UNSET


class ServerSettings(_Shape):
    """The answer to `SERVER_SETTINGS`."""

    data: ServerData | UnsetType = UNSET


class AccountKeys(_Shape):
    """The answer to `CLAIMS_LIST`."""

    data: list[str] | UnsetType = UNSET


class ClaimsChange(_Shape):
    """The answer to `CLAIMS_UPDATE` and `CLAIMS_DELETE`."""

    error: Error | UnsetType = UNSET


@cache
def answer_types(*, closed: bool) -> Mapping[str, Any]:
    """Return the type of each answer by API verb; names follow a verb that ends with a dot.

    To the `closed` types no configuration with an unknown field fits, and no unnamed consumer.
    """
    stream_config, consumer_config = (_config_type(table, closed) for table in (STREAM, CONSUMER))
    stream, consumer = _apply(StreamInfo, stream_config), _apply(ConsumerInfo, consumer_config)

    def choose(listed: dict[str, Any]) -> Any:
        return UnnamedConsumer if listed.get("name") == "" else consumer

    element = consumer if closed else kept(consumer, UnnamedConsumer, choose=choose)
    return {
        "INFO": AccountInfo,
        "STREAM.INFO.": stream,
        "STREAM.CREATE.": stream,
        "STREAM.UPDATE.": stream,
        "STREAM.NAMES": StreamNames,
        "STREAM.LIST": _apply(StreamList, stream),
        "STREAM.MSG.GET.": MessageAnswer,
        "STREAM.SNAPSHOT.": _apply(SnapshotAnswer, stream_config),
        "STREAM.RESTORE.": RestoreAnswer,
        RESTORE_DONE: stream,
        "CONSUMER.INFO.": consumer,
        "CONSUMER.CREATE.": consumer,
        "CONSUMER.NAMES.": ConsumerNames,
        "CONSUMER.LIST.": _apply(ConsumerList, element),
        USER_INFO: UserInfo,
        ACCOUNT_INFO: AccountAnswer,
        SERVER_SETTINGS: ServerSettings,
        CLAIMS_LIST: AccountKeys,
        CLAIMS_UPDATE: ClaimsChange,
        CLAIMS_DELETE: ClaimsChange,
    }


def _apply(generic: Any, kind: Any) -> Any:
    """Return a class, since msgspec takes longer to look up a generic type."""
    return new_class(generic.__name__, (generic[kind],), {"gc": False})


# --- configurations ---

#: Optional fields of a stream that every server sends, also with their defaults.
_ALWAYS_SENT: Final = ("retention", "storage", "num_replicas")


def _config_type(table: Table, closed: bool) -> Any:
    """Return the type of a configuration by its field table."""
    fields = list[Any]()
    for row in table.rows:
        kind = field_type(row, lambda nested: _config_type(nested, closed))
        is_required = row.required and table is not CONSUMER
        if is_required or (table is STREAM and row.name in _ALWAYS_SENT):
            fields.append((row.name, Name if row.pattern == NAME else kind))
        else:
            fields.append((row.name, kind, UNSET))
    return defstruct(table.kind, fields, kw_only=True, forbid_unknown_fields=closed, gc=False)
