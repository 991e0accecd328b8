"""Accounts in words that can be compared, and the claims of those of an operator.

Claims have exports, imports and scoped signing keys (roles) as objects. Here each is a line of
words, since a subject has no blanks: `service $JS.API.INFO from SHOP as JS.SHOP.API.INFO`. An
account of the files has its name there, another one its public key. The rest of the claims, and
what another tool added to these, is left alone: entries of jsplan begin with a mark in their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from jsplan.resources.fields import Config, Field, Table

#: The public key of an account, or of one of its signing keys.
PUBLIC_KEY: Final = re.compile(r"A[A-Z2-7]{55}")
EXPORTS, IMPORTS, ROLES, JETSTREAM = "exports", "imports", "roles", "jetstream"
#: The limits of JetStream by their names in claims.
_LIMITS: Final = {
    "memory": "mem_storage",
    "disk": "disk_storage",
    "streams": "streams",
    "consumers": "consumer",
}
_UNLIMITED: Final = -1
LIMITS: Final = Table(
    "account_jetstream",
    (
        Field("memory", "size", "Bytes in memory; 0 for none.", default=0, minimum=-1),
        Field("disk", "size", "Bytes on disk; 0 for none.", default=0, minimum=-1),
        Field("streams", "int", "Streams.", default=_UNLIMITED, unlimited=True),
        Field("consumers", "int", "Consumers.", default=_UNLIMITED, unlimited=True),
    ),
)
ACCOUNT: Final = Table(
    "account",
    (
        Field("name", "string", "Its name.", required=True),
        Field(JETSTREAM, "object", "Its limits of JetStream.", table=LIMITS, operational=True),
        Field(EXPORTS, "strings", "What other accounts may import.", unordered=True),
        Field(IMPORTS, "strings", "What it takes from other accounts.", unordered=True),
        Field(ROLES, "strings", "What users of its scoped signing keys may do.", unordered=True),
    ),
)
#: What a JWT says, and parts of it, as JSON.
Claims = dict[str, Any]
_MANY, _TOKEN, _FROM, _AS, _TO = "many-answers", "token", "from", "as", "to"
_KEY, _MAY = "key", "may"
_EXPORT_LINE: Final = re.compile(rf"(\S+) (\S+)(?: {_TO} (\S+))?( {_MANY})?(?: {_TOKEN} (\S+))?")
_IMPORT_LINE: Final = re.compile(rf"(\S+) (\S+) {_FROM} (\S+)(?: {_AS} (\S+))?")


def mark_of(workspace: str) -> str:
    """Return what the names of the entries of a workspace begin with."""
    return f"jsplan/{workspace}: "


# --- words ----------------------------------------------------------------------------------------


class ExportWords(NamedTuple):
    """An export to one `importer`, or to every account.

    `token` is the place of the importing account's key.
    """

    kind: str
    subject: str
    many: bool = False
    token: str | None = None
    importer: str | None = None

    @property
    def line(self) -> str:
        """Its line."""
        to, token = _pair(_TO, self.importer), _pair(_TOKEN, self.token)
        return f"{self.kind} {self.subject}{to}{f' {_MANY}' * self.many}{token}"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Return what a line says. Raises ValueError."""
        kind, subject, importer, many, token = _match(_EXPORT_LINE, line)
        return cls(kind, subject, bool(many), token, importer)


class ImportWords(NamedTuple):
    """An import from the account `owner`, as the subject `local`."""

    kind: str
    subject: str
    owner: str
    local: str

    @property
    def line(self) -> str:
        """Its line."""
        renamed = _pair(_AS, self.local if self.local != self.subject else None)
        return f"{self.kind} {self.subject}{_pair(_FROM, self.owner)}{renamed}"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Return what a line says. Raises ValueError."""
        kind, subject, owner, local = _match(_IMPORT_LINE, line)
        return cls(kind, subject, owner, local or subject)


def role_lines(
    app: str, key: str | None, publish: Sequence[str], subscribe: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of a role: its signing key, if it has one, and each subject."""
    if key is not None:
        yield f"{app} {_KEY} {key}"
    for verb, subjects in (("publish", publish), ("subscribe", subscribe)):
        for subject in subjects:
            yield f"{app} {_MAY} {verb} {subject}"


def _pair(word: str, value: str | None) -> str:
    return f" {word} {value}" if value is not None else ""


def _match(pattern: re.Pattern[str], line: str) -> Sequence[Any]:
    if (found := pattern.fullmatch(line)) is None:
        raise ValueError(f'has "{line}", which is no export or import')
    return found.groups()


# --- claims ---------------------------------------------------------------------------------------


def parse_claims(claims: Mapping[str, Any], mark: str, keys: Mapping[str, str]) -> Config:
    """Return what claims have of the table, in compact form, as far as it has the mark.

    `keys` are the public keys of the accounts in the files, by name.
    """
    names = {key: name for name, key in keys.items()}
    nats = claims.get("nats") or {}
    limits = nats.get("limits") or {}
    config: Config = {
        "name": str(claims.get("name") or ""),
        JETSTREAM: {ours: int(limits.get(theirs) or 0) for ours, theirs in _LIMITS.items()},
        EXPORTS: [_export_words(row) for row in _own(nats.get("exports"), "name", mark)],
        IMPORTS: [_import_words(row, names) for row in _own(nats.get("imports"), "name", mark)],
        ROLES: [
            line
            for row in _own(nats.get("signing_keys"), "role", mark)
            for line in _role_words(row, mark)
        ],
    }
    if not config[JETSTREAM]["memory"] and not config[JETSTREAM]["disk"]:
        del config[JETSTREAM]  # the other limits mean nothing then
    return ACCOUNT.compact(config)


def merge_claims(
    claims: Mapping[str, Any], config: Config, mark: str, keys: Mapping[str, str]
) -> Claims:
    """Return the claims with this configuration, and what others added to them.

    `claims` are empty for a new account. An entry of another tool is replaced where one of ours has
    the same subject: servers refuse two.
    """
    nats = dict(claims.get("nats") or {})
    limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1}
    limits |= {"leaf": -1, "wildcards": True} | dict(nats.get("limits") or {})
    if (jetstream := config.get(JETSTREAM)) is not None:
        full = LIMITS.with_defaults(jetstream)
        limits |= {
            theirs: full.get(ours, LIMITS.default_of(ours)) for ours, theirs in _LIMITS.items()
        }
    exports = [_export_claim(line, mark) for line in config.get(EXPORTS) or ()]
    imports = [_import_claim(line, mark, keys) for line in config.get(IMPORTS) or ()]
    roles = list(_role_claims(config.get(ROLES) or (), mark))
    nats |= {
        "limits": limits,
        "exports": _with_others(nats.get("exports"), exports, "name", ("type", "subject"), mark),
        "imports": _with_others(
            nats.get("imports"), imports, "name", ("type", "account", "subject"), mark
        ),
        "signing_keys": _with_others(nats.get("signing_keys"), roles, "role", ("key",), mark),
        "default_permissions": nats.get("default_permissions") or {"pub": {}, "sub": {}},
        "type": "account",
        "version": 2,
    }
    return dict(claims) | {"name": config["name"], "nats": nats}


def _own(rows: Iterable[Any] | None, name: str, mark: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries with the mark. A signing key without a scope is a text."""
    for row in rows or ():
        if isinstance(row, Mapping) and str(row.get(name) or "").startswith(mark):
            yield row


def _with_others(
    before: Iterable[Any] | None,
    ours: list[Claims],
    name: str,
    same: tuple[str, ...],
    mark: str,
) -> list[Any]:
    """Return our entries behind those of others, without others that are the `same` as ours."""
    old = list(before or ())
    gone = [*_own(old, name, mark)]
    taken = {_identify(row, same) for row in ours}
    return [*(row for row in old if row not in gone and _identify(row, same) not in taken), *ours]


def _identify(row: Any, same: tuple[str, ...]) -> tuple[str, ...]:
    """Return what no two entries may share. A signing key without a scope is a text."""
    return tuple(str(row.get(key)) for key in same) if isinstance(row, Mapping) else (str(row),)


def _export_words(row: Mapping[str, Any]) -> str:
    many = row.get("response_type") == "Stream"
    token = str(row.get("account_token_position") or "") or None
    return ExportWords(str(row.get("type")), str(row.get("subject")), many, token).line


def _export_claim(line: str, mark: str) -> Claims:
    kind, subject, many, token, _ = ExportWords.parse(line)
    claim: Claims = {"name": mark + subject, "subject": subject, "type": kind}
    if kind == "service":
        claim["response_type"] = "Stream" if many else "Singleton"
    if token is not None:
        claim["account_token_position"] = int(token)
    return claim


def _import_words(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    subject, owner = str(row.get("subject")), str(row.get("account"))
    local = str(row.get("local_subject") or row.get("to") or subject)
    return ImportWords(str(row.get("type")), subject, names.get(owner, owner), local).line


def _import_claim(line: str, mark: str, keys: Mapping[str, str]) -> Claims:
    kind, subject, name, local = ImportWords.parse(line)
    owner = keys.get(name, name)
    claim: Claims = {"name": mark + subject, "subject": subject, "account": owner, "type": kind}
    return claim | ({"local_subject": local} if local != subject else {})


def _role_words(row: Mapping[str, Any], mark: str) -> Iterator[str]:
    template = row.get("template") or {}
    publish, subscribe = ((template.get(key) or {}).get("allow") or () for key in ("pub", "sub"))
    app = str(row.get("role")).removeprefix(mark)
    yield from role_lines(app, str(row.get("key")), publish, subscribe)


def _role_claims(lines: Iterable[str], mark: str) -> Iterator[Claims]:
    """Yield the scoped signing keys of the lines."""
    roles: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        app, word, rest = line.split(" ", 2)
        role = roles.setdefault(app, {"publish": [], "subscribe": [], _KEY: []})
        verb, _, subject = rest.partition(" ")
        role[verb if word == _MAY else _KEY].append(subject if word == _MAY else rest)
    for app, role in roles.items():
        yield {
            "kind": "user_scope",
            "key": role[_KEY][0],
            "role": mark + app,
            "template": user_claims(role["publish"], role["subscribe"]),
        }


def user_claims(publish: Sequence[str], subscribe: Sequence[str]) -> Claims:
    """Return the claims of a user, or of a role for users, which may do no more than this."""
    permissions = {"pub": _permission(publish), "sub": _permission(subscribe)}
    return permissions | dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)


def _permission(subjects: Sequence[str]) -> dict[str, list[str]]:
    """Return the claim: a server takes an empty list for everything."""
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}
