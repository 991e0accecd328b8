from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.health.conftest import ROUTES
from tests.support.raw import Raw, encode
from tests.support.workspaces import RecordingObserver
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.health.conftest import LinkedServers

#: Which stream is published to on which way.
BUSY = (("hub", "H"), ("leaf", "L"), ("hub", "FULL"))
#: What an origin keeps: copies fall behind what is dropped.
KEPT = {"max_msgs": 20_000, "max_bytes": 32 << 20}


def mirrors_and_sources() -> list[dict[str, Any]]:
    """Return mirrors and sources in both directions, over a link and between accounts."""
    found: list[dict[str, Any]] = read_yaml(Path(__file__).with_name("load.yaml").read_bytes())
    return found


@contextmanager
def under_load(linked_servers: LinkedServers, seed: int) -> Iterator[None]:
    """Publish in bursts, purge and delete until it is over."""
    over = threading.Event()
    failed: list[BaseException] = []

    def work(number: int, way: str, stream: str) -> None:
        chance = random.Random(f"{seed}.{number}")
        server, name = ROUTES[way]
        try:
            with Raw(linked_servers.sandbox[server].url, name, name, timeout=30) as raw:
                while not over.wait(chance.random() ** 3):
                    size = int(10 * chance.paretovariate(0.5)) % 20_000
                    raw.publish_all(
                        encode(f"{stream}.{chance.choice('aabbbbbc')}", bytes(size))
                        for _ in range(chance.randrange(1, 1500))
                    )
                    raw.flush()
                    if chance.random() < 0.1:
                        raw.api_ok(
                            f"$JS.API.STREAM.PURGE.{stream}", {"keep": chance.choice((0, 10, 500))}
                        )
                    if chance.random() < 0.1:
                        last = raw.state(stream)["last_seq"]
                        raw.api(f"$JS.API.STREAM.MSG.DELETE.{stream}", {"seq": max(1, last)})
        except BaseException as error:  # noqa: BLE001 - raised again where the test sees it
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=(number, *busy)) for number, busy in enumerate(BUSY)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed


def require_healthy(linked_servers: LinkedServers, folder: Path, seconds: float, seed: int) -> int:
    """Look again and again, and return how often. Every flow is healthy every time."""
    for way, name in BUSY:
        linked_servers.stream(way, name, 1, **KEPT)
    space = linked_servers.space(folder).write(streams=mirrors_and_sources())
    space.apply()
    runs, end = 0, time.monotonic() + seconds
    with under_load(linked_servers, seed):
        while time.monotonic() < end or runs < 2:
            found = drift(space.load, DriftOptions(), RecordingObserver()).replication
            assert [flow for flow in found if flow["healthy"] is not True] == [], (
                f"seed {seed}, run {runs}"
            )
            assert len(found) == 9
            runs += 1
    return runs


def test_flows_under_load_are_healthy(linked_servers: LinkedServers, tmp_path: Path) -> None:
    """Every flow that moves is healthy under load: a sample of what the soak does."""
    assert require_healthy(linked_servers, tmp_path, 3, seed=8) >= 2


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ten_minutes_under_load(linked_servers: LinkedServers, tmp_path: Path) -> None:
    """In ten minutes under load no flow is called unhealthy."""
    assert require_healthy(linked_servers, tmp_path, 600, seed=int(time.time())) > 20
