from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import Layout, Node, User
from tests.conftest import PROGRAM
from tests.support.jwt import NO_JETSTREAM, Operator
from tests.support.raw import NoResponders, Raw

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.matrix
def test_the_real_server_accepts_jwt_accounts(tmp_path: Path) -> None:
    """A server accepts the configuration, the creds and the claims of each account."""
    operator = Operator()
    a, b = operator.account("A"), operator.account("B", NO_JETSTREAM)
    a.export("service", "$JS.API.>")
    b.take("service", a, "$JS.API.>", "$JS.A.API.>")
    creds = {
        account.name: account.creds(tmp_path, account.name.lower())
        for account in operator.accounts.values()
    }
    login = User("A", None, None, creds["A"])

    with Sandbox(
        lambda port_of: Layout(
            "single",
            (Node("server", port_of("server"), login=login, extra=operator.configuration()),),
        ),
        binary=PROGRAM,
    ) as sandbox:
        url = sandbox["server"].url
        with Raw(url, creds=creds["A"]) as raw:
            raw.create("S")
        with Raw(url, creds=creds["B"]) as raw:
            assert raw.api_ok("$JS.A.API.STREAM.NAMES")["streams"] == ["S"]
            with pytest.raises(NoResponders):
                raw.api("$JS.B.API.INFO")
        with Raw(url, creds=creds["SYS"]) as raw:
            served = raw.api(f"$SYS.REQ.ACCOUNT.{b.public}.INFO")["data"]
        assert (served["name_tag"], served["jetstream_enabled"]) == ("B", False)
