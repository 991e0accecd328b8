"""The provider's block as a connection. Secrets are not copied: a note names the variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jsplan.config.node import from_plain
from jsplan.converting.connections import join_server_urls
from jsplan.converting.model import DEFAULT_CONNECTION, Conversion
from jsplan.converting.terraform.expressions import UnknownValue
from jsplan.converting.terraform.hcl import Attribute
from jsplan.converting.terraform.hcl import Block as HclBlock

_TLS: Final = {"ca_file": "ca", "cert_file": "cert", "key_file": "key"}
_FILE_ATTRIBUTES: Final = {"credentials": "creds", "nkey": "nkey"}
_SECRET_ATTRIBUTES: Final = {"user": "USER", "password": "PASSWORD", "token": "TOKEN"}
Evaluate = Callable[[Attribute], Any]


def convert_provider(block: HclBlock, evaluate: Evaluate, out: Conversion) -> None:
    """Add a connection under the provider's alias."""
    notes = out.general_notes

    def known(attribute: Attribute | None) -> Any:
        if attribute is None:
            return None
        try:
            return evaluate(attribute)
        except UnknownValue:
            return None

    name = str(known(block.attributes.get("alias")) or DEFAULT_CONNECTION)
    found = out.connections.setdefault(name, {})
    given = block.attributes.get("servers")
    url = known(given)
    if given is not None and isinstance(url, str) and url:
        found["url"] = join_server_urls([url], from_plain(url, given.place), notes)
    elif given is not None:
        notes.info(
            given.place,
            f"connection {name}: its servers are not in these files",
            "Write `url:`, or set NATS_URL.",
        )
    for word, ours in _FILE_ATTRIBUTES.items():
        if isinstance(path := known(block.attributes.get(word)), str) and path:
            found[ours] = path
    for word, tail in _SECRET_ATTRIBUTES.items():
        if (secret := block.attributes.get(word)) is not None and not found.keys() & set(
            _FILE_ATTRIBUTES.values()
        ):  # of both, the provider uses the file
            variable = (
                f"{'NATS' if name == DEFAULT_CONNECTION else name.upper().replace('-', '_')}_{tail}"
            )
            found[word] = f"${{env.{variable}}}"
            notes.info(
                secret.place,
                f"connection {name}: its {word} is not carried over",
                f"Set {variable}.",
            )
    if (data := block.attributes.get("credential_data")) is not None:
        notes.not_converted(
            data.place,
            f"connection {name}: credential_data is not carried over",
            "Save the credentials and write `creds: FILE`.",
        )
    files = {
        ours: path
        for tls in block.blocks_of("tls")
        for word, ours in _TLS.items()
        if isinstance(path := known(tls.attributes.get(word)), str)
    }
    if files:
        found["tls"] = files
