"""Publishers and workers continue while a stream is replaced or moved, also when apply dies."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.kills.clients import Load
from tests.kills.rows import Count, Row, parametrize
from tests.kills.scene import Scene
from tests.kills.servers import open_servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)
#: Messages in the stream before, and those of the publisher in a second, at most.
COUNT, RATE = 1_000, 500
MANY, FAST = 500_000, 3_000


@pytest.fixture
def scene(row: Row, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A row whose stream has messages that no client has taken."""
    busy = replace(row, messages=COUNT, deleted={}, work={}, others={})
    for servers in open_servers(row.servers, tmp_path, request):
        yield Scene(busy, servers)


@pytest.mark.matrix
@parametrize(lambda row: row.clients)
def test_clients_beside_a_death(scene: Scene, row: Row, count: Count) -> None:
    """Each acknowledged message is there once, after a whole apply and after one that died."""
    load = Load(scene, RATE)
    total = load.run().done
    load.require_complete()
    assert load.publisher.longest < 20  # not a measurement: the machine is shared

    load = Load(scene, RATE)
    assert load.run(random.Random(f"clients {row.use}").randrange(total // 4, total - 4)).died
    load.require_complete()
    count("beside clients", 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@parametrize(lambda row: row.clients)
def test_clients_beside_a_death_anywhere(scene: Scene, count: Count) -> None:
    """The same at every boundary."""
    boundary = 1
    while True:
        load = Load(scene, RATE)
        died = load.run(boundary).died
        load.require_complete()
        if not died:
            break
        boundary += 1
    count("beside clients", boundary - 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@parametrize(lambda row: row.clients and row.servers != "single")
def test_half_a_million_messages(scene: Scene) -> None:
    """The same with 500,000 messages that a whole apply moves."""
    scene.row = replace(scene.row, messages=MANY)
    load = Load(scene, FAST)
    load.run()
    load.require_complete()
