"""The provider's block as a connection. Secrets never leave the files: their place is said instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jsplan.config.node import node_of
from jsplan.converting.connections import servers
from jsplan.converting.model import MAIN, Conversion
from jsplan.converting.terraform.expressions import Unknown
from jsplan.converting.terraform.hcl import Attribute
from jsplan.converting.terraform.hcl import Block as HclBlock

_TLS: Final = {"ca_file": "ca", "cert_file": "cert", "key_file": "key"}
_FILES: Final = {"credentials": "creds", "nkey": "nkey"}
_SECRETS: Final = {"user": "USER", "password": "PASSWORD", "token": "TOKEN"}
Evaluate = Callable[[Attribute], Any]


def connection(block: HclBlock, evaluate: Evaluate, out: Conversion) -> None:
    """A connection under the provider's alias."""
    tell = out.general

    def known(attribute: Attribute | None) -> Any:
        if attribute is None:
            return None
        try:
            return evaluate(attribute)
        except Unknown:
            return None

    name = str(known(block.attributes.get("alias")) or MAIN)
    found = out.connections.setdefault(name, {})
    given = block.attributes.get("servers")
    url = known(given)
    if given is not None and isinstance(url, str) and url:
        found["url"] = servers([url], node_of(url, given.place), tell)
    elif given is not None:
        tell.knows(given.place, f"connection {name}: where its servers are is not in these files", "Write `url:`, or set NATS_URL.")
    for word, ours in _FILES.items():
        if isinstance(path := known(block.attributes.get(word)), str) and path:
            found[ours] = path
    for word, tail in _SECRETS.items():
        if (secret := block.attributes.get(word)) is not None and not found.keys() & set(
            _FILES.values()
        ):  # of both, the provider takes the file
            variable = f"{'NATS' if name == MAIN else name.upper().replace('-', '_')}_{tail}"
            found[word] = f"${{env.{variable}}}"
            tell.knows(secret.place, f"connection {name}: its {word} is not carried over", f"Set {variable}.")
    if (data := block.attributes.get("credential_data")) is not None:
        tell.lost(data.place, f"connection {name}: credential_data is not carried over", "Save the credentials and write `creds: FILE`.")
    files = {
        ours: path for tls in block.of("tls") for word, ours in _TLS.items() if isinstance(path := known(tls.attributes.get(word)), str)
    }
    if files:
        found["tls"] = files
