"""Many streams of one domain that are replaced by snapshots, in one apply.

A server may die of two restores at once, or of one while streams come and go
(jsplan/jetstream/restore_lock.py). Its advisories say when each begins and ends.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.preserve.test_streams import BASE, PERMITTED, PRESERVE
from tests.support import stream_content
from tests.support.raw import Raw, streams
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

#: Advisories about restores, in the order in which the server sends them, by stream.
ADVISORIES = "$JS.EVENT.ADVISORY.STREAM."
BEGUN, ENDED = ("RESTORE_CREATE", "RESTORE_COMPLETE")


def bodies(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Return streams with a consumer each."""
    return [BASE | {"name": f"S{n}", "subjects": [f"s{n}.>"]} | fields for n in range(count)]


def fill(raw: Raw, name: str) -> None:
    """Publish some messages, one of which its consumer has taken and not acknowledged."""
    for number in range(3):
        assert b'"seq"' in raw.request(f"{name.lower()}.x", f"{name} {number}".encode())[1]
    raw.pull(name, "C", 1)


def replace_many(folder: Path, server: Server, count: int) -> None:
    """Replace streams whose consumer has a message out; no two restores overlap."""
    space = single_space(folder, server).write(streams=bodies(count))
    assert space.apply(parallelism=8)[1].exit_code == 0
    with Raw(server.url) as raw:
        subjects = [f"{ADVISORIES}{kind}.>" for kind in (BEGUN, ENDED)]
        raw.create("WATCH", subjects=subjects)
        names = [body["name"] for body in bodies(count)]
        for name in names:
            fill(raw, name)
        before = {name: stream_content.messages(raw, name) for name in names}
    space.write(streams=bodies(count, storage="memory", **PRESERVE))
    _, result = space.apply(parallelism=8, allow_hazards=PERMITTED)
    assert ([step.error for step in result.steps if step.error], result.exit_code) == ([], 0)

    with Raw(server.url) as raw:
        assert set(streams(raw)) == {*names, "WATCH"}
        assert {name: stream_content.messages(raw, name) for name in names} == before
        seen = [json.loads(message[3]) for message in stream_content.messages(raw, "WATCH")]
    kinds = [advisory["type"].rpartition(".")[2] for advisory in seen]
    # Each is restored under a temporary name, and back; a restore that is refused is repeated.
    assert len(kinds) >= 4 * count
    assert kinds == ["restore_create", "restore_complete"] * (len(kinds) // 2)
    assert [a["stream"] for a in seen[::2]] == [a["stream"] for a in seen[1::2]]


def test_no_two_restores_overlap(tmp_path: Path, server: Server) -> None:
    """With 20 streams."""
    replace_many(tmp_path, server, 20)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_two_of_many_restores_overlap(tmp_path: Path, server: Server) -> None:
    """The same with 400 streams."""
    replace_many(tmp_path, server, 400)
