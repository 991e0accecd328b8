"""An authority of a test, and the certificates that it issued."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


def write_pems(folder: Path) -> None:
    """Write `ca.pem`, and `.pem` and `.key` of a server on 127.0.0.1 and of a client."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name, issued in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("client@example.com")),
    ):
        issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
