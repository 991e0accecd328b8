"""Many streams with messages out are replaced at once; a domain restores one at a time.

A server of 2.15 and earlier may die if two restores begin in one domain at the same moment; see
jsplan/jetstream/restore_lock.py. This runs with the server of the wheel, which restores streams
under another name.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.applying.consumer_helpers import consumer_info, pull
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

ADVISORIES = "$JS.EVENT.ADVISORY.STREAM"
ALLOW = ("REMOVES_SUBJECTS", "DUPLICATES_MESSAGES", "IRREVERSIBLE")
PARALLELISM = 8
MESSAGES = 3


@contextmanager
def watch_restores(server: Server) -> Iterator[list[tuple[str, str]]]:
    """Record the begin and the end of each restore, `(RESTORE_CREATE, stream)`, of the block.

    The server sends both in order, and the end before the answer to the client.
    """
    seen: list[tuple[str, str]] = []
    with Raw(server.url, timeout=600) as raw, Raw(server.url) as other:
        raw.subscribe(f"{ADVISORIES}.*.>")

        def listen() -> None:
            while (action := raw.next_message()[0].split(".")[4:])[0] != "END":
                if action[0].startswith("RESTORE_"):
                    seen.append((action[0], action[1]))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            other.publish(f"{ADVISORIES}.END.HERE")
            other.flush()
            thread.join()


def write(space: Space, names: list[str], **fields: Any) -> Space:
    """Declare the streams, each with one consumer whose workers have an hour."""
    consumer = {"name": "C", "ack_policy": "explicit", "ack_wait": "1h"}
    body = {"max_age": "1d", "lifecycle": {"on_replace": "preserve"}, "consumers": [consumer]}
    return space.write(
        streams=[body | {"name": name, "subjects": [name.lower()]} | fields for name in names]
    )


def fill(server: Server, names: list[str]) -> None:
    """Store messages in each stream; its first one is out, the second one acknowledged."""
    with Raw(server.url) as raw:
        for name in names:
            for _ in range(MESSAGES):
                assert "seq" in json.loads(raw.request(name.lower(), b"x")[1])
            assert pull(raw, name, "C", 2, ack=(2,)) == [1, 2]


def require_kept(server: Server, names: list[str]) -> None:
    """Require each new stream with its messages, and what its consumer has out."""
    with Raw(server.url) as raw:
        assert sorted(streams(raw)) == sorted(names)
        for name in names:
            info = raw.api_ok(f"$JS.API.STREAM.INFO.{name}")
            assert (info["config"]["storage"], info["state"]["messages"]) == ("memory", MESSAGES)
            consumer = consumer_info(raw, name, "C")
            assert (consumer["num_pending"], consumer["num_ack_pending"]) == (1, 1)


def replace_streams(server: Server, folder: Path, count: int) -> None:
    """Replace so many streams in one apply; require one restore at a time, and no loss."""
    names = [f"S{number}" for number in range(count)]
    space = single_space(folder, server)
    write(space, names).apply(parallelism=PARALLELISM)
    fill(server, names)
    write(space, names, storage="memory")
    with watch_restores(server) as restores:
        plan, result = space.apply(allow_hazards=ALLOW, parallelism=PARALLELISM)

    assert [step.error for step in result.steps if step.error] == []
    assert result.summary["replaced"] == count
    assert sum(step.op == "transfer.copy" for step in plan.steps) == 2 * count
    begins, ends = restores[::2], restores[1::2]
    assert len(begins) >= 2 * count  # one that the server refuses is repeated
    assert {action for action, _ in begins} == {"RESTORE_CREATE"}
    assert ends == [("RESTORE_COMPLETE", name) for _, name in begins]
    require_kept(server, names)


def test_a_domain_restores_one_stream_at_a_time(make_server: MakeServer, tmp_path: Path) -> None:
    """No restore begins before the one before it has ended."""
    replace_streams(make_server(), tmp_path, 20)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_400_streams_are_replaced_in_one_apply(make_server: MakeServer, tmp_path: Path) -> None:
    """The server lives, and each stream has what it had."""
    replace_streams(make_server(), tmp_path, 400)
