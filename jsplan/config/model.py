"""The content of the files as plain data: the output of this package.

Values are in API names and units (ns, bytes). References to other domains are still symbolic
(`mirror: {name, domain}`); `topology` resolves them. Nothing here has touched the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic, SourceRange

OnReplace = Literal["refuse", "recreate", "preserve"]
#: What an application does with a stream, a consumer or a bucket.
Verb = Literal["publish", "consume", "read", "watch", "write"]
#: The client library of an application.
Client = Literal["go", "java", "js", "py"]


class Tls(Struct, frozen=True):
    """Files of a TLS connection, as absolute paths."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    handshake_first: bool = False


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to one NATS account, as the files have it, without contexts and `NATS_*`.

    Secret values are excluded from `repr`. `timeout` is ns per request (None: jsplan's own, 5 s).
    `declared` is JSON for other machines, in which each `${env.X}` is a reference; empty with a
    secret in the files. `operator_key` is the file of the seed that signs accounts, which only an
    apply reads.
    """

    key: str
    url: str | None = None
    context: str | None = None
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds: Path | None = None
    nkey: Path | None = None
    tls: Tls | None = None
    inbox_prefix: str | None = None
    timeout: int | None = None
    account: str | None = None
    operator_key: Path | None = None
    range: SourceRange | None = None
    folder: Path | None = None
    declared: str = field(default="{}", repr=False)


class Operator(Struct, frozen=True):
    """An operator: the public keys of its accounts by name, and the mark of our entries in them."""

    keys: Mapping[str, str]
    mark: str


#: The connection of a place that is in files. It is never opened.
NO_CONNECTION: Final = ""


class AccountFiles(Struct, frozen=True):
    """Accounts in files of the servers' configuration, each in `folder`, which is below `root`.

    `domains` has the domains whose servers have an account, by its name.
    """

    folder: Path
    root: Path
    workspace: str
    domains: Mapping[str, tuple[str, ...]]

    def path(self, account: str) -> Path:
        """Return the file of an account."""
        return self.folder / f"{account}.conf"


class Domain(Struct, frozen=True):
    """One JetStream over one connection.

    `js_domain` None is a server without a domain (`$JS.API`). `api_prefix` is computed
    (`$JS.<js_domain>.API`) or as written, without a trailing dot. `may_be_offline` is ns.
    `vars` are the values of `${domain.x}`. `system` is a connection to the system account of its
    servers.

    Accounts are in places like domains, which have `accounts`; a JetStream has none. Those of an
    operator are under the key of a connection to its system account, files need no connection.
    """

    key: str
    connection: str
    js_domain: str | None
    api_prefix: str
    labels: frozenset[str] = frozenset()
    vars: Mapping[str, Any] = msgspec.field(default_factory=dict)
    may_be_offline: int | None = None
    same_as: str | None = None
    range: SourceRange | None = None
    system: str | None = None
    accounts: Operator | AccountFiles | None = None

    @property
    def is_own(self) -> bool:
        """True for a JetStream under its own key."""
        return self.same_as is None and self.accounts is None


class ImportRow(Struct, frozen=True):
    """The import by which account of `into_domain` reaches the JetStream of `from_domain`.

    `consumers` are those of `from_domain`, as `STREAM/CONSUMER`, that clients of the importing
    account use.
    """

    from_domain: str
    into_domain: str
    api: str
    deliver: str | None = None
    consumers: tuple[str, ...] = ()
    range: SourceRange | None = None


#: The time for which the lock of a KV backend outlives its holder, in ns: long enough for the
#: longest request and some lost renewals.
LOCK_TTL: Final = 60_000_000_000


class Backend(Struct, frozen=True):
    """The backend of the state.

    `local`: `path` is absolute. `kv`: `domain` (its key) and `bucket`; `lock_ttl` is ns.
    """

    kind: Literal["local", "kv"]
    path: Path | None = None
    domain: str | None = None
    bucket: str | None = None
    lock_ttl: int = LOCK_TTL
    range: SourceRange | None = None


class AllowedHazard(Struct, frozen=True):
    """A hazard allowed in the files, until the end of the date `until` (`2026-12-31`)."""

    code: str
    reason: str
    until: str | None = None


class Lifecycle(Struct, frozen=True):
    """Guards of one resource; None: not in the files (state then gives prevent_destroy)."""

    prevent_destroy: bool | None = None
    ignore_changes: tuple[str, ...] = ()
    on_replace: OnReplace | None = None
    allow_hazards: tuple[AllowedHazard, ...] = ()


class ContentFile(Struct, frozen=True):
    """A file with the content of an object, and its size in bytes when its digest was computed.

    `shown` is its path for plans, with a remark where it is outside of the workspace.
    """

    path: Path
    size: int
    shown: str = ""


class Position(Struct, frozen=True):
    """A place to which a consumer is set, once for each word `once`.

    At the sequence `seq`, at the first message stored at or after `time` (RFC 3339), or, without
    both, after the last message.
    """

    once: str
    seq: int | None = None
    time: str | None = None


class DeclaredResource(Struct, frozen=True):
    """One resource that the files declare.

    `body` holds only what the files say, by the top-level names of the API; a value None means that
    the field is explicitly left to the server. `ranges` has the place of each top-level field.
    `raw_fields` are the names that came through `x_raw`. `depends_on` are addresses or globs.

    An entry of a bucket has its value in `content`; None: it is not known without its `${env.X}`.
    `sensitive`: nothing may show it. An object has its `file` instead, which is read in parts.
    """

    address: Address
    body: Mapping[str, Any]
    range: SourceRange
    ranges: Mapping[str, SourceRange] = msgspec.field(default_factory=dict)
    lifecycle: Lifecycle = Lifecycle()
    lint_ignore: Mapping[str, str] = msgspec.field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    raw_fields: frozenset[str] = frozenset()
    content: bytes | None = None
    sensitive: bool = False
    file: ContentFile | None = None
    position: Position | None = None

    def __repr__(self) -> str:
        """Show where it is declared, and nothing of it: `content` may be a secret."""
        return f"<{self.address} at {self.range}>"


class PrunedPrefix(Struct, frozen=True):
    """Keys of a bucket that only the files may have: those that begin with `prefix`."""

    bucket: Address
    prefix: str
    range: SourceRange


class Moved(Struct, frozen=True):
    """An address that changed while the resource did not; both sides have the same shape.

    They are addresses or globs.
    """

    old_address: str
    new_address: str
    range: SourceRange


class AppUse(Struct, frozen=True):
    """One use of a resource by an application. `subjects` are subjects or keys; none: all."""

    verb: Verb
    address: Address
    subjects: tuple[str, ...] = ()


class App(Struct, frozen=True):
    """An application that connects to the servers of `domain`, as `user` of its account.

    `nkey` is the public key of that user, `role` that of a scoped signing key which gives users its
    permissions. `entry` is the name in the files: one entry may have an
    application in each of many domains.
    """

    name: str
    domain: str
    client: Client
    user: str
    uses: tuple[AppUse, ...]
    range: SourceRange
    nkey: str | None = None
    entry: str = ""
    role: str | None = None


class Account(Struct, frozen=True):
    """An account. `jetstream` are limits, None to leave them.

    `key` is its public key with its operator; None for one in a file.
    """

    name: str
    key: str | None
    range: SourceRange
    jetstream: Mapping[str, int] | None = None


class Relocate(Struct, frozen=True):
    """A stream that moves with its messages and consumers; both sides have the same shape.

    They are addresses or globs. `old_address` is declared nowhere, `new_address` is. An entry of
    consumers says which consumer of a relocated stream continues which one.
    """

    old_address: str
    new_address: str
    range: SourceRange

    @property
    def names_consumers(self) -> bool:
        """Check whether the entry is about consumers, and not about streams or a whole domain."""
        return self.old_address.split("/")[1:2] == ["consumer"]


class Removed(Struct, frozen=True):
    """A resource that left the files: destroy it or not.

    `prevent_destroy: False` removes the guard in state.
    """

    address: str
    destroy: bool
    range: SourceRange
    prevent_destroy: bool | None = None


@dataclass(frozen=True, slots=True)
class Mute:
    """A known drift that is not reported until a date; `fields` empty mutes the whole resource."""

    address: str
    reason: str
    owner: str
    fields: tuple[str, ...] = ()
    until: str | None = None
    range: SourceRange | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """`drift:` of the workspace, `sinks` as written. Their URLs and headers may be secrets."""

    ignore: tuple[str, ...] = ()
    mute: tuple[Mute, ...] = ()
    sinks: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    watermarks: str | None = None


class BackfillSide(Struct, frozen=True):
    """One side of a backfill: a stream in a domain, or a folder of Parquet files.

    The bounds are inclusive: sequences, or RFC 3339 times in UTC. `filters` are subjects of which a
    message must match one (none: all).
    """

    domain: str = ""
    stream: str = ""
    parquet: str | None = None
    start_seq: int | None = None
    end_seq: int | None = None
    start_time: str | None = None
    end_time: str | None = None
    filters: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.parquet is not None:
            return self.parquet
        return str(Address.of_stream(self.domain, self.stream))


@dataclass(frozen=True, slots=True)
class Backfill:
    """An entry of `backfills:`.

    `rate` is bytes per second, `subject_transform` is (src, dest).
    """

    name: str
    origins: tuple[BackfillSide, ...]
    target: BackfillSide
    order: str = "stream"
    strategy: str = "auto"
    mode: str = "tagged"
    oversize: str = "error"
    rate: int | None = None
    where: str | None = None
    transform: str | None = None
    subject_transform: tuple[str, str] | None = None
    range: SourceRange | None = field(default=None, compare=False)


class Workspace(Struct, frozen=True):
    """A loaded workspace. `variables` are the resolved `vars`.

    `config_hash` is `sha256:…` over the input. `diagnostics` holds warnings only: errors were
    raised as `ConfigError`. `resources` are all that the files declare, in their order; contents of
    buckets and streams come last.
    """

    name: str
    root: Path
    environment: str | None
    variables: Mapping[str, Any]
    connections: Mapping[str, Connection]
    domains: Mapping[str, Domain]
    imports: tuple[ImportRow, ...]
    backend: Backend
    resources: Mapping[Address, DeclaredResource]
    moved: tuple[Moved, ...]
    removed: tuple[Removed, ...]
    drift: DriftSettings
    lint: Mapping[str, str]
    ownership_marker: bool
    config_hash: str
    diagnostics: tuple[Diagnostic, ...] = ()
    backfills: Mapping[str, Backfill] = msgspec.field(default_factory=dict)
    relocate: tuple[Relocate, ...] = ()
    apps: Mapping[str, App] = msgspec.field(default_factory=dict)
    accounts: Mapping[Address, Account] = msgspec.field(default_factory=dict)
    pruned: tuple[PrunedPrefix, ...] = ()

    @property
    def state_name(self) -> str:
        """`<workspace>[.<env>]`: the key of the state in every backend."""
        return f"{self.name}.{self.environment}" if self.environment else self.name

    def forgets(self, address: Address) -> bool:
        """Return True if a `removed` entry leaves the resource on the server.

        The entry of a stream or bucket holds for what is in it, unless that has one of its own.
        """
        for each in filter(None, (address, address.parent)):
            for block in self.removed:
                if matches(block.address, each):
                    return not block.destroy
        return False


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of loading a workspace.

    `variables` from `--var` override `var_files`, which override the environment. `environ` is the
    process environment; passing it makes loading a function of its arguments. With `files_only`,
    what `${env.X}` stands for may be unknown: for commands that use no connection, backend or sink.
    """

    directory: Path
    environment: str | None = None
    variables: tuple[str, ...] = ()
    var_files: tuple[Path, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    files_only: bool = False
