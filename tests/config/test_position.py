"""`position:` of a consumer."""

from __future__ import annotations

from textwrap import dedent

import pytest

from jsplan.address import Address
from jsplan.config.model import Position
from tests.config.conftest import Loader

CONSUMER = Address("hub", "consumer", "S/C")

GOOD: dict[str, Position | None] = {
    '{seq: 100, once: "a"}': Position("a", seq=100),
    '{time: "2026-11-24T08:00:00Z", once: "a"}': Position("a", time="2026-11-24T08:00:00Z"),
    '{new: true, once: "a"}': Position("a"),
    "null": None,
}
BAD = {
    "{seq: 100}": ["JS106"],
    '{once: "a"}': ["JS159"],
    '{seq: 1, new: true, once: "a"}': ["JS159"],
    '{new: false, once: "a"}': ["JS159"],
    '{seq: 0, once: "a"}': ["JS130"],
    '{seq: x, once: "a"}': ["JS130"],
    '{time: yesterday, once: "a"}': ["JS130"],
    '{seq: 1, once: "a", twice: "b"}': ["JS105"],
    "{seq: 1, once: 2}": ["JS104"],
    "5": ["JS104"],
}


@pytest.mark.parametrize("text", GOOD)
def test_a_position_is_read(text: str, workspace: Loader) -> None:
    """One place and a word; nothing else is a position."""
    loaded = workspace(f"streams: [{{name: S, consumers: [{{name: C, position: {text}}}]}}]")

    assert loaded.resources[CONSUMER].position == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_position_is_an_error(text: str, workspace: Loader) -> None:
    """Each mistake has its code."""
    body = f"streams: [{{name: S, consumers: [{{name: C, position: {text}}}]}}]"

    assert [found.code for found in workspace.findings(body)] == BAD[text]


def test_an_override_sets_the_position_of_consumers(workspace: Loader) -> None:
    """The override wins as a whole; a stream has no position."""
    text = """
        streams: [{name: S, consumers: [{name: C, position: {seq: 1, once: a}}]}]
        overrides:
          - {address: hub/consumer/S/C, position: {new: true, once: b}}
        """
    of_stream = "  - {address: hub/stream/S, position: {new: true, once: b}}"

    assert workspace(text).resources[CONSUMER].position == Position("b")
    assert [f.code for f in workspace.findings(dedent(text) + of_stream)] == ["JS105"]
