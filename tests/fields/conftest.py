"""One real server for all tests of the fields, and the API level for the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.fields.server_bench import ServerBench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def bench() -> Iterator[ServerBench]:
    """Return the worker's own server with the streams that copies and consumers need."""
    with (
        Sandbox.single(binary=PROGRAM) as sandbox,
        ServerBench.on_server(sandbox["server"]) as bench,
    ):
        yield bench
