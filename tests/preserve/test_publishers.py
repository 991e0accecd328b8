"""Publishers during a preserving replacement."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.preserve.test_streams import PERMITTED, PRESERVE
from tests.support import stream_content
from tests.support.raw import NoResponders, Raw
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix


class Publisher(threading.Thread):
    """Publishes numbers one after the other, each until it is acknowledged."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self.url = url
        self.label = name
        self.acknowledged: list[int] = []
        self.unanswered: set[int] = set()
        self.refused = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        """Publish numbers, on a new connection after a request without any answer."""
        while not self.stopping.is_set():
            try:
                with Raw(self.url, timeout=1.0) as raw:
                    self._publish(raw)
            except TimeoutError:
                self.unanswered.add(len(self.acknowledged))

    def _publish(self, raw: Raw) -> None:
        while not self.stopping.is_set():
            number = len(self.acknowledged)
            try:
                _, answer = raw.request(f"A.{self.label}", str(number).encode())
            except NoResponders:
                self.refused += 1
            else:
                assert b'"seq"' in answer, answer
                self.acknowledged.append(number)


def test_acknowledged_messages_are_stored_once(tmp_path: Path, server: Server) -> None:
    """The acknowledged messages of two publishers are stored once and in order.

    A message that is sent in the moment of a change may get no answer. If it is repeated, it may be
    stored twice, as with any update.
    """
    body = {"name": "A", "subjects": ["A.>"]}
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 2_000)
    publishers = [Publisher(server.url, name) for name in ("one", "two")]
    for publisher in publishers:
        publisher.start()
    try:
        server.wait_until(
            lambda: all(len(p.acknowledged) > 20 for p in publishers), "take the first messages"
        )
        plan, result = space.write(streams=[body | {"storage": "memory"} | PRESERVE]).apply(
            allow_hazards=PERMITTED
        )
        counts = [len(p.acknowledged) for p in publishers]
        server.wait_until(
            lambda: all(
                len(p.acknowledged) > n + 20 for p, n in zip(publishers, counts, strict=True)
            ),
            "take messages again",
        )
    finally:
        for publisher in publishers:
            publisher.stopping.set()
            publisher.join()

    assert [s.error for s in result.steps if s.error] == []
    hazard = next(
        h for c in plan.resource_changes for h in c.hazards if h.code == "REMOVES_SUBJECTS"
    )
    assert "publishers to A.> get no acknowledgement while" in hazard.message
    with Raw(server.url) as raw:
        messages = stream_content.messages(raw, "A")
    for publisher in publishers:
        assert publisher.refused > 0
        numbers = [int(m[3]) for m in messages if m[1] == f"A.{publisher.label}"]
        maybe_twice = publisher.unanswered
        assert list(dict.fromkeys(numbers)) == publisher.acknowledged
        assert [n for n in numbers if n not in maybe_twice] == [
            n for n in publisher.acknowledged if n not in maybe_twice
        ]
    assert len([m for m in messages if m[1] not in ("A.one", "A.two")]) == 2_000
