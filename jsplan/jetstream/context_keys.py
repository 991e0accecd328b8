"""All keys of a context of the `nats` CLI, and what jsplan does with each."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from jsplan.jetstream.secret_references import SCHEMES


class Use(StrEnum):
    """The use that jsplan makes of a key, in the words of messages and of the page."""

    TEXT = "text"
    FLAG = "true or false"
    VALUE = "text, or a reference"
    PATH = "a path"
    KEYS = "a path, or a reference"
    UNUSED = "not used"
    REFUSED = "an error that names it"


class ContextKey(Struct, frozen=True):
    """One key. `setting` is the field of ConnectionSettings that it fills.

    `meaning` of a refused key is what to do instead.
    """

    name: str
    use: Use
    meaning: str
    setting: str = ""


_NO_PROXY: Final = "Open a tunnel, such as `ssh -L`, and name its address in `url`."
_NO_STORE: Final = (
    "Export the certificate and its key as files, and name them in `cert`, `key` and `ca`."
)
CONTEXT_KEYS: Final = (
    ContextKey("url", Use.TEXT, "servers, separated by commas; none: nats://127.0.0.1:4222", "url"),
    ContextKey("user", Use.TEXT, "user name", "user"),
    ContextKey("password", Use.VALUE, "password of `user`", "password"),
    ContextKey("token", Use.VALUE, "token, alone or beside other credentials", "token"),
    ContextKey("creds", Use.KEYS, "creds file: a user JWT with its seed", "creds"),
    ContextKey("nkey", Use.KEYS, "file with the seed of a user", "nkey"),
    ContextKey("user_jwt", Use.VALUE, "user JWT; without `user_seed` a bearer token", "jwt"),
    ContextKey("user_seed", Use.VALUE, "seed for `user_jwt`", "seed"),
    ContextKey(
        "nsc", Use.TEXT, "`nsc://…`: fills in `creds` and `url` where they are missing", "nsc"
    ),
    ContextKey("ca", Use.PATH, "certificate authority of the server", "ca"),
    ContextKey("cert", Use.PATH, "client certificate; it needs `key`", "cert"),
    ContextKey("key", Use.PATH, "key of `cert`", "key_file"),
    ContextKey("tls_first", Use.FLAG, "TLS before the server's greeting", "tls_first"),
    ContextKey("inbox_prefix", Use.TEXT, "first part of the subjects of answers", "inbox_prefix"),
    ContextKey("name", Use.UNUSED, "for people: the name is that of the file"),
    ContextKey("description", Use.UNUSED, "for people"),
    ContextKey("color_scheme", Use.UNUSED, "colours of tables of the nats CLI"),
    ContextKey("jetstream_domain", Use.UNUSED, "a domain of the workspace has `js_domain:`"),
    ContextKey("jetstream_api_prefix", Use.UNUSED, "a domain of the workspace has `api_prefix:`"),
    ContextKey("jetstream_event_prefix", Use.UNUSED, "jsplan needs no prefix of advisories"),
    ContextKey("socks_proxy", Use.REFUSED, _NO_PROXY),
    ContextKey("windows_cert_store", Use.REFUSED, _NO_STORE),
    ContextKey("windows_cert_match_by", Use.REFUSED, _NO_STORE),
    ContextKey("windows_cert_match", Use.REFUSED, _NO_STORE),
    ContextKey("windows_ca_certs_match", Use.REFUSED, _NO_STORE),
)
#: Schemes of the references that a value may be.
SCHEMES_OF_USE: Final = {
    Use.VALUE: tuple(scheme for scheme in SCHEMES if scheme != "nsc"),
    Use.KEYS: tuple(SCHEMES),
    Use.PATH: ("file",),
}
