from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.config.model import Connection, Domain
from jsplan.jetstream import DomainApi, Pool

if TYPE_CHECKING:
    from jsplan.sandbox import Server

MAIN = Domain("main", "main", None, "$JS.API")


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.CREATE.A",
        "$JS.API.STREAM.DELETE.INFO",
        "$JS.API.STREAM.SNAPSHOT.A",
        "$JS.API.CONSUMER.MSG.NEXT.A.C",
        "$JS.other.API.INFO",
        "orders.new",
        "$JS.ACK.A.C.1.2.3.4.5",
        "$SYS.REQ.ACCOUNT.PING.CONNZ.X",
        "$SYS.REQ.SERVER.PING.CONNZ",
    ],
)
async def test_a_sealed_connection_sends_nothing_that_writes(server: Server, subject: str) -> None:
    """A sealed connection sends no request that writes, and no message."""
    async with Pool(
        {"main": Connection("main", url=server.url)}, {}, read_only=True, guarded=True
    ) as pool:
        await pool.open(["main"])
        api = pool.api(MAIN)
        assert (await api.request("INFO"))["streams"] == 0

        for send in (api.connection.request, api.connection.request_many, api.connection.publish):
            with pytest.raises(AssertionError, match="guarded"):
                await send(subject, b"")
        with pytest.raises(AssertionError, match="guarded"):
            await api.connection.request_each([(subject, b"")], lambda _, data: data)


async def test_a_sealed_pool_has_no_writing_api(server: Server) -> None:
    """A sealed pool makes no API that may write, and its own API refuses verbs that write."""
    async with Pool(
        {"main": Connection("main", url=server.url)}, {}, read_only=False, guarded=True
    ) as pool:
        await pool.open(["main"])
        assert pool.api(MAIN).read_only
        with pytest.raises(AssertionError, match="cannot write"):
            DomainApi(MAIN, pool.connections["main"], read_only=False)
