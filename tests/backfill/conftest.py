from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.protocol import RawConnection
from jsplan.backfill.tasks.endpoints import export_connection
from jsplan.sandbox import Sandbox, shapes
from tests.backfill.backfill_pair import Pair, connection_target
from tests.conftest import PROGRAM
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from jsplan.sandbox import Server

    Connect = Callable[..., RawConnection]


@pytest.fixture(scope="session")
def reserved_object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An object store that is not started, in the environment of this process and of Spark."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
    server.stop()


@pytest.fixture(scope="session")
def object_store(reserved_object_store: S3Server) -> S3Server:
    """A running object store with the S3 protocol; the environment leads to it."""
    reserved_object_store.start()
    return reserved_object_store


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory,
    shared_hub_leaf: Sandbox,
    reserved_object_store: S3Server,
) -> Iterator[SparkSession]:
    """One Spark session for all tests of a worker, since it takes long to start.

    Its tasks can connect to the hub of the worker.
    """
    from jsplan.backfill.spark import register  # noqa: PLC0415 - only tests with Spark import it
    from jsplan.backfill.spark.session import start_session  # noqa: PLC0415 - as above

    folder = tmp_path_factory.mktemp("spark")
    # Workers get the environment that the session starts with.
    os.environ["HUB_PASSWORD"] = str(shapes.ACC.password)
    export_connection(connection_target(shared_hub_leaf["hub"]))
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder),
        # To generate and compile code for each query costs more than the few rows of tests.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = start_session("tests", master="local[2]", cache=folder, settings=settings)
    register(session)
    yield session
    session.stop()


@pytest.fixture
def start_secured_server() -> Iterator[Callable[[str], Server]]:
    """Starts servers with the given authorization.

    The sandbox itself cannot ask them if they are ready.
    """
    made: list[Sandbox] = []

    def make(extra: str) -> Server:
        made.append(Sandbox.single(extra=extra, binary=PROGRAM))
        server = made[-1]["server"]
        server.launch()
        _wait_for_greeting(server)
        return server

    yield make
    for sandbox in made:
        sandbox.close()


def _wait_for_greeting(server: Server) -> None:
    """Wait until the server greets a new connection."""
    end = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as plain:
                if plain.recv(5) == b"INFO ":
                    return
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


@pytest.fixture
def open_connection() -> Iterator[Connect]:
    """Opens connections that are closed after the test."""
    opened: list[RawConnection] = []

    def make(server: Server, **settings: Any) -> RawConnection:
        opened.append(RawConnection(connection_target(server, **settings)))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream; an entry copies `S` of the leaf into `T` of the hub."""
    return Pair.create(tmp_path, clean_hub_leaf)
